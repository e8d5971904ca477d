"""The ledger's store loses an answer, refuses a call, or goes away, at every call of a run."""

from __future__ import annotations

import pytest

from airflow_epochs.errors import EpochError, NotApplied, OutcomeUnknown
from airflow_epochs.testing import Fault, FaultyStore, MemoryWorld
from tests.support.scenario import Scenario, run

SINKS = ("orders", "audit")


def faulty_run(scenario: Scenario, store: FaultyStore, which: int = 1) -> EpochError | None:
    return scenario.airflow_run(run(which), scenario.coordinator(store=store))


def calls_of_a_run() -> list[tuple[str, str]]:
    scenario = Scenario(SINKS)
    store = FaultyStore(scenario.world.store)
    assert faulty_run(scenario, store) is None
    return store.calls


def failing(world: MemoryWorld, first: int, last: int, fault: Fault) -> FaultyStore:
    """Calls ``first`` to ``last`` of a run fail."""
    store = FaultyStore(world.store)
    store.fault = lambda operation, key: fault if first < len(store.calls) <= last else None
    return store


def test_a_lost_acknowledgement_of_any_record_goes_unnoticed() -> None:
    calls = calls_of_a_run()
    records = [index for index, (operation, key) in enumerate(calls) if operation == "put" and "/probe/" not in key]
    assert len(records) == 8, "identity, open, run, try, decision, two receipts, complete"
    for index in records:
        scenario = Scenario(SINKS)
        store = failing(scenario.world, index, index + 1, Fault.LOST_ACKNOWLEDGEMENT)
        assert faulty_run(scenario, store) is None
        assert store.fired == [("put", store.fired[0][1])]
        scenario.check()
        scenario.check_every_row()


@pytest.mark.proof
@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("who", [1, 2], ids=["the same run", "another run"])
def test_any_call_that_fails_once_is_made_good_by_the_next_run(fault: Fault, who: int) -> None:
    for index in range(len(calls_of_a_run())):
        scenario = Scenario(SINKS)
        error = faulty_run(scenario, failing(scenario.world, index, index + 1, fault))
        assert error is None or type(error) in (NotApplied, OutcomeUnknown)
        scenario.airflow_run(run(who))
        scenario.settle()
        scenario.check_every_row()


@pytest.mark.proof
@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("who", [1, 2], ids=["the same run", "another run"])
def test_a_store_that_goes_away_at_any_call_claims_nothing_and_the_epoch_is_shown_once_when_it_is_back(
    fault: Fault, who: int
) -> None:
    outcomes = set()
    for index in range(len(calls_of_a_run())):
        scenario = Scenario(SINKS)
        shown = dict(scenario.world.tables)
        error = faulty_run(scenario, failing(scenario.world, index, 10**9, fault))
        if error:
            outcomes.add(type(error))
            assert "What to do:" in str(error)
        if type(error) is NotApplied:
            assert not any("/epochs/" in key for key in scenario.world.store.values), "it was applied"
        if not any(key.endswith("decision.json") for key in scenario.world.store.values):
            assert scenario.world.tables == shown, "shown without a decision"
        scenario.airflow_run(run(who))
        scenario.settle()
        scenario.check_every_row()
    assert outcomes == {NotApplied, OutcomeUnknown}
