"""Old epochs lose their records but the completion record, also those that an earlier task did not get to prune."""

from __future__ import annotations

import pytest

from airflow_epochs.ledger import pruning
from airflow_epochs.testing import Crash
from airflow_epochs.testing.stores import FaultyStore, unobserved
from tests.support.scenario import Scenario, crashes, nested, observed_run, run


def kept(scenario: Scenario) -> list[int]:
    """The epochs that have more than a completion record."""
    keys = scenario.world.store.list("orders/epochs")
    return sorted({int(key.split("/")[2]) for key in keys if not key.endswith("/complete.json")})


def epochs(scenario: Scenario, first: int, last: int) -> None:
    for number in range(first, last + 1):
        assert scenario.airflow_run(run(number)) is None
        scenario.produce(2)


def test_an_epoch_whose_task_died_before_it_pruned_is_made_up_for_by_the_next_one() -> None:
    scenario = Scenario(keep_epochs=2)
    epochs(scenario, 1, 4)

    def dies(moment: str) -> None:
        if moment == "complete.landed":
            raise Crash(moment)

    for number in (5, 6):
        assert crashes(lambda n=number: scenario.airflow_run(run(n), scenario.coordinator(observer=dies)))  # type: ignore[misc]
        scenario.produce(2)
    assert kept(scenario) == [3, 4, 5, 6]
    epochs(scenario, 7, 7)
    assert kept(scenario) == [6, 7]
    scenario.settle()


def test_an_epoch_that_was_pruned_in_part_is_pruned_to_the_end() -> None:
    scenario = Scenario(keep_epochs=1)
    epochs(scenario, 1, 2)
    scenario.keep_epochs = 1000
    epochs(scenario, 3, 3)
    first, *_ = (key for key in scenario.world.store.list("orders/epochs/00000000000000000002"))
    scenario.world.store.delete(first)
    scenario.keep_epochs = 1
    epochs(scenario, 4, 4)
    assert kept(scenario) == [4]


def test_a_dag_that_keeps_fewer_epochs_than_before_prunes_the_others_some_at_a_time_and_oldest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pruning, "PRUNED_MAX", 3)
    scenario = Scenario()
    epochs(scenario, 1, 8)
    scenario.keep_epochs = 1
    left = []
    for number in range(9, 14):
        epochs(scenario, number, number)
        left.append(kept(scenario))
    assert left == [[4, 5, 6, 7, 8, 9], [7, 8, 9, 10], [10, 11], [12], [13]]
    scenario.check_history()


@pytest.mark.proof
def test_a_store_that_deletes_nothing_costs_an_epoch_little_more_however_many_are_kept() -> None:
    def denied(effect: str) -> None:
        if effect.startswith("before delete "):
            raise PermissionError("403 AccessDenied")

    scenario, calls = Scenario(keep_epochs=2), []
    scenario.world.store.observer = denied
    for number in range(1, 31):
        store = FaultyStore(scenario.world.store)
        assert scenario.airflow_run(run(number), scenario.coordinator(store=store)) is None
        calls.append(len(store.calls))
        scenario.produce(2)
    assert len(kept(scenario)) == 30
    assert calls[-1] <= calls[4] + 20, "one epoch is tried, and the oldest one is found by doubling"
    scenario.world.store.observer = unobserved
    epochs(scenario, 31, 31)
    assert kept(scenario) == [30, 31]


def test_what_a_late_try_has_staged_is_cleared_away_before_its_record_is_pruned() -> None:
    scenario = Scenario()

    def asleep(moment: str) -> None:
        if moment.startswith("before stage "):
            nested(scenario, lambda: epochs(scenario, 2, 6))()
        if moment.startswith("after stage "):
            raise Crash(moment)

    assert crashes(lambda: observed_run(scenario, 1, asleep))
    assert len(scenario.world.litter()) == 1
    scenario.keep_epochs = 2
    epochs(scenario, 7, 7)
    assert len(kept(scenario)) == 2 and scenario.world.litter() == set()
