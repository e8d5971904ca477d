"""A sink loses its last commit after the receipt, to a failover or a file put back: the promise is kept again."""

from __future__ import annotations

import pytest

from airflow_epochs.errors import Corrupt
from airflow_epochs.model import WaivedRecord
from tests.support.scenario import BOTH, Scenario, in_doubt, newest, observed_run, run


def scenario_after(epochs: int) -> Scenario:
    scenario = Scenario(BOTH)
    for number in range(epochs):
        assert scenario.airflow_run(run(50 + number)) is None
        scenario.produce(4)
    return scenario


def losable(epochs_before: int) -> range:
    """The moments between the first receipt and the last look before the completion record's put."""
    seen: list[str] = []
    observed_run(scenario_after(epochs_before), 1, seen.append)
    first = next(n for n, moment in enumerate(seen) if moment.startswith("after put") and "orders.receipt" in moment)
    return range(first, seen.index("complete.put"))


@pytest.mark.proof
@pytest.mark.parametrize("epochs_before", [0, 1])
def test_a_commit_that_is_lost_at_any_moment_before_the_epoch_is_complete_is_done_again(epochs_before: int) -> None:
    instants = losable(epochs_before)
    assert len(instants) >= 5
    for at in instants:
        scenario = scenario_after(epochs_before)
        lose_at(scenario, at)
        assert len(scenario.world.tables["orders"]) == epochs_before + 1
        scenario.settle()
        scenario.check_every_row()


def lose_at(scenario: Scenario, at: int) -> None:
    seen = 0

    def observer(moment: str) -> None:
        nonlocal seen
        if seen == at:
            scenario.world.lose_last_commit("orders")
        seen += 1

    observed_run(scenario, 1, observer)


@pytest.mark.proof
def test_a_run_that_rolls_forward_commits_again_what_was_lost() -> None:
    scenario = Scenario(BOTH)
    coordinator = in_doubt(scenario)
    for sink in BOTH:
        coordinator.commit(run(1), sink)
    receipt = newest(scenario).receipts["orders"]
    scenario.world.lose_last_commit("orders")
    scenario.produce(2)
    assert scenario.airflow_run(run(2)) is None  # it finishes what was decided, and leaves new data to the next one
    assert scenario.airflow_run(run(3)) is None
    assert scenario.ledger.newest_complete() == 2
    first = scenario.ledger.complete_record(1)
    assert first and first.receipts["orders"] == receipt, "the same transaction, and the same rows"
    scenario.settle()
    scenario.check_every_row()


@pytest.mark.proof
def test_what_was_lost_is_staged_again_if_its_rows_are_gone_too() -> None:
    scenario = Scenario(BOTH)
    coordinator = in_doubt(scenario)
    for sink in BOTH:
        coordinator.commit(run(1), sink)
    scenario.world.lose_last_commit("orders")
    voted = newest(scenario).decision
    assert voted and voted.votes["orders"].staged
    scenario.world.vacuum(voted.votes["orders"].staged.place)
    coordinator.complete(run(1))
    record = scenario.ledger.complete_record(1)
    assert record and record.receipts["orders"].place != voted.votes["orders"].staged.place
    scenario.settle()
    scenario.check_every_row()


def lost_two_epochs() -> Scenario:
    scenario = Scenario(BOTH)
    assert scenario.airflow_run(run(1)) is None
    scenario.produce(4)
    assert scenario.airflow_run(run(2)) is None
    scenario.produce(4)
    coordinator = in_doubt(scenario, 3)
    for sink in BOTH:
        coordinator.commit(run(3), sink)
    for _ in range(2):
        scenario.world.lose_last_commit("orders")
    return scenario


def test_a_sink_that_has_lost_more_than_the_epoch_in_doubt_stops_until_it_is_waived() -> None:
    scenario = lost_two_epochs()
    with pytest.raises(Corrupt, match="behind the ledger"):
        scenario.coordinator().complete(run(3))
    opened = newest(scenario).opened
    scenario.ledger.put(WaivedRecord(txn_id=opened.txn_id, sink="orders", who="me", why="gone", at="now"))
    scenario.coordinator().complete(run(3))
    record = scenario.ledger.complete_record(3)
    assert record and set(record.receipts) == {"audit"} and record.waived == ("orders",)


def test_a_waiver_of_a_sink_that_shows_the_epoch_counts_for_nothing() -> None:
    scenario = Scenario(BOTH)
    coordinator = in_doubt(scenario)
    for sink in BOTH:
        coordinator.commit(run(1), sink)
    opened = newest(scenario).opened
    scenario.ledger.put(WaivedRecord(txn_id=opened.txn_id, sink="orders", who="me", why="typo", at="now"))
    coordinator.complete(run(1))
    record = scenario.ledger.complete_record(1)
    assert record and set(record.receipts) == set(BOTH) and record.waived == ()
