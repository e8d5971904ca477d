"""What belongs to another run, another try, another decision or another history is left alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_epochs.coordinator.cleanup import discard_attempt
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Corrupt, EpochError, Fenced
from airflow_epochs.model import OpenRecord, StageReport
from airflow_epochs.testing import check
from tests.support.cells import fired
from tests.support.recorded import history_of
from tests.support.scenario import BOTH, Scenario, in_doubt, newest, run, staged

Task = Callable[[Coordinator, StageReport], object]

TASKS: dict[str, Task] = {
    "stage": lambda coordinator, report: coordinator.stage(run(1)),
    "vote": lambda coordinator, report: coordinator.vote(run(1), report),
    "commit": lambda coordinator, report: coordinator.commit(run(1), "orders"),
    "complete": lambda coordinator, report: coordinator.complete(run(1)),
}

TAKEN_OVER: dict[str, Callable[[Scenario], object]] = {
    "opened": lambda scenario: scenario.coordinator().open(run(2)),
    "staged": lambda scenario: staged(scenario, scenario.coordinator(), 2),
    "in doubt": lambda scenario: in_doubt(scenario, 2),
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("how_far", TAKEN_OVER)
def test_a_run_whose_epoch_another_run_has_taken_over_touches_nothing_of_it(task: str, how_far: str) -> None:
    scenario = Scenario(BOTH)
    late = scenario.coordinator()
    report = staged(scenario, late)
    TAKEN_OVER[how_far](scenario)
    before = dict(scenario.world.store.values), dict(scenario.world.tables), dict(scenario.world.places)
    with pytest.raises(Fenced, match="now belongs to run run 2 of DAG dag"):
        TASKS[task](late, report)
    assert (scenario.world.store.values, scenario.world.tables, scenario.world.places) == before
    scenario.settle()
    scenario.check_every_row()
    fired("F13", 4, "X")


@pytest.mark.proof
@pytest.mark.parametrize("task", [*TASKS, "abort"])
def test_an_attempt_that_one_sink_voted_against_is_shown_by_no_sink_whatever_task_is_cleared(task: str) -> None:
    scenario = Scenario(BOTH)
    scenario.world.refusals["audit"] = "its schema does not match"
    coordinator = scenario.coordinator()
    report = staged(scenario, coordinator)
    for _ in range(2):
        try:
            coordinator.vote(run(1), report)
        except EpochError as refused:
            assert "Sink audit voted against it: its schema does not match" in str(refused)
    tasks: dict[str, Task] = {**TASKS, "abort": lambda c, r: c.abort(run(1), "a task failed")}
    for _ in range(2):
        try:
            tasks[task](scenario.coordinator(), report)
        except EpochError as error:
            assert not isinstance(error, Corrupt)
        check(history_of(scenario.world), only={"I2", "I3", "I5", "I6"}).require()
        assert not scenario.world.table("orders").commits
    scenario.world.refusals.clear()
    scenario.settle()
    scenario.check_every_row()
    fired("F14", 6, "A")


def test_every_try_of_staging_has_places_of_its_own_and_the_last_report_counts() -> None:
    scenario = Scenario(BOTH)
    coordinator = scenario.coordinator()
    first = staged(scenario, coordinator)
    second = coordinator.stage(run(1)).stage
    assert second
    places = [claim.place for report in (first, second) for claim in report.claims.values()]
    assert len(set(places)) == 4 and set(places) == set(scenario.world.places)
    assert len(scenario.ledger.tries(1)) == 2
    coordinator.vote(run(1), second)
    decision = newest(scenario).decision
    assert decision
    assert [vote.staged.place for vote in decision.votes.values() if vote.staged] == places[2:]
    scenario.settle()
    scenario.check_every_row()


@pytest.mark.proof
def test_what_was_staged_for_an_aborted_attempt_is_not_voted_on_in_the_next() -> None:
    scenario = Scenario(BOTH)
    coordinator = scenario.coordinator()
    report = staged(scenario, coordinator)
    scenario.coordinator().open(run(2))
    scenario.coordinator().open(run(1))
    with pytest.raises(EpochError, match=r"The staged rows belong to orders/1/1/"):
        coordinator.vote(run(1), report)
    assert newest(scenario).decision is None
    scenario.settle()
    scenario.check_every_row()


def test_an_epoch_that_is_opened_again_has_the_ranges_of_its_first_attempt_though_more_has_arrived() -> None:
    scenario = Scenario(BOTH)
    staged(scenario, scenario.coordinator())
    first = newest(scenario).opened
    scenario.produce(6)
    again = scenario.coordinator().open(run(2))
    assert isinstance(again, OpenRecord)
    assert (again.ranges, again.now, again.seed) == (first.ranges, first.now, first.seed)
    assert again.txn_id.attempt == 2 and again.txn_id.nonce != first.txn_id.nonce
    scenario.settle()
    scenario.check_every_row()


def test_an_epoch_in_doubt_is_not_completed_before_every_sink_has_a_receipt() -> None:
    scenario = Scenario(BOTH)
    coordinator = in_doubt(scenario)
    coordinator.commit(run(1), "audit")
    with pytest.raises(EpochError, match="no receipt of: orders"):
        coordinator.complete(run(1))
    check(history_of(scenario.world), only={"I3", "I14"}).require()
    assert scenario.ledger.newest_complete() == 0
    scenario.settle()
    scenario.check_every_row()


def test_the_late_clean_up_of_an_aborted_attempt_leaves_the_next_ones_places_alone() -> None:
    scenario = Scenario(BOTH)
    coordinator = scenario.coordinator()
    staged(scenario, coordinator)
    aborted = newest(scenario).opened
    scenario.airflow_run(run(2))
    places = {name: place for name, place in scenario.world.places.items() if place.txn_id != aborted.txn_id}
    assert places
    discard_attempt(scenario.ledger, aborted, aborted.sinks, coordinator.task.pipeline.sinks, coordinator.task.env)
    assert scenario.world.places == places
    check(history_of(scenario.world), only={"I1", "I2", "I3"}).require()
    scenario.check_every_row()


@pytest.mark.parametrize("records", [0, 4], ids=["the same input", "more input"])
def test_a_committer_of_a_history_that_was_lost_is_never_taken_for_one_of_this_history(records: int) -> None:
    """The ledger is restored to before the epoch, which is opened again; then the old committer wakes and commits."""
    scenario = Scenario()
    assert scenario.airflow_run(run(1)) is None
    older = dict(scenario.world.store.values)
    scenario.produce(4)
    old = in_doubt(scenario, 2)
    opened = newest(scenario).opened
    lost = dict(scenario.world.store.values)
    scenario.world.store.values = older
    scenario.produce(records)
    new = in_doubt(scenario, 3)
    assert newest(scenario).opened.txn_id.epoch == opened.txn_id.epoch
    restored, scenario.world.store.values = scenario.world.store.values, lost
    old.commit(run(2), "orders")
    scenario.world.store.values = restored
    with pytest.raises(Corrupt, match="shows orders/2/1/"):
        new.commit(run(3), "orders")
    assert scenario.ledger.newest_complete() == 1
    fired("F15", 16, "X")
