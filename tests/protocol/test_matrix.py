"""The matrix of faults and steps: every fault of a process or a store at every moment of every row.

What may come of it is said in ``scripts/fault_table.py``; what did is measured here, and all checkers pass after it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from airflow_epochs.errors import Corrupt, EpochError, OutcomeUnknown
from airflow_epochs.testing import Fault, FaultyStore, Repeat
from fault_table import EXPECTED
from tests.support.cells import Outcome, fired
from tests.support.matrix import ROWS, RowTracker, Watched, came_of
from tests.support.scenario import crashes, run

MOMENTS_MAX = 60
"""More than any row has."""

WHO = pytest.mark.parametrize("who", [1, 2], ids=["the same run", "another run"])
ROW = pytest.mark.parametrize("row", ROWS)


def record(fault: str, row: int, outcomes: set[Outcome]) -> None:
    """Note what was measured, and that it is what the matrix allows."""
    assert outcomes, "the row has no moments"
    assert outcomes <= EXPECTED[fault][row], f"{fault} at row {row}: {outcomes}"
    for outcome in outcomes:
        fired(fault, row, outcome)


@pytest.mark.proof
@ROW
@WHO
def test_a_process_is_killed_at_every_moment_of_the_row(row: int, who: int) -> None:
    outcomes = set[Outcome]()
    for at in range(MOMENTS_MAX):
        world = Watched()
        if not crashes(partial(world.observed_run, 1, RowTracker(row, at))):
            break
        before = world.facts
        world.scenario.airflow_run(run(who))
        world.settle_and_check()
        outcomes.add(came_of(before, world.facts))
    record("F1", row, outcomes)


@pytest.mark.few(6)
@pytest.mark.proof
@ROW
@WHO
def test_a_recovery_is_killed_as_well_at_every_moment_of_the_row(row: int, who: int) -> None:
    """The first process dies at the row's first moment, the second at each of its own; a third one recovers."""
    outcomes = set[Outcome]()
    for second in ROWS:
        for at in range(MOMENTS_MAX):
            world = Watched()
            assert crashes(partial(world.observed_run, 1, RowTracker(row)))
            before = world.facts
            if not crashes(partial(world.observed_run, who, RowTracker(second, at))):
                break
            world.settle_and_check()
            outcomes.add(came_of(before, world.facts))
    outcomes |= {"="} if row == 13 else set()
    record("F1", 15, outcomes)


@pytest.mark.proof
@ROW
@WHO
def test_a_process_is_stopped_at_every_moment_of_the_row_and_wakes_after_another_one_has_finished(
    row: int, who: int
) -> None:
    late, twice = set[Outcome](), set[Outcome]()
    for at in range(MOMENTS_MAX):
        world = Watched()
        finished: list[dict[str, object]] = []
        outcomes: list[Outcome] = []

        def finish(w: Watched = world, ended: list[dict[str, object]] = finished, o: list[Outcome] = outcomes) -> None:
            before = w.facts
            assert w.scenario.airflow_run(run(who)) is None
            o.append(came_of(before, w.facts))
            ended.append(w.fingerprint())

        tracker = RowTracker(row, at, partial(world.nested, finish))
        error = world.observed_run(1, tracker)
        if not tracker.acted:
            break
        assert not isinstance(error, Corrupt), "a late process is no reason to call a human"
        world.zombies.append(Repeat(what=f"woken in row {row}", before=finished[0], after=world.fingerprint()))
        world.settle_and_check()
        late.add("X" if error else "=")
        twice.update(outcomes)
    record("F4", row, late)
    record("F7", row, late)
    record("F13", row, twice)


LOST = {
    1: ("put", "pipeline.json"),
    2: ("put", ".open."),
    3: ("put", ".try."),
    7: ("put", ".decision."),
    9: ("put", "orders.receipt"),
    11: ("put", "audit.receipt"),
    12: ("put", "complete.json"),
    13: ("delete", ""),
}
"""The call of each row whose answer is lost. Nothing is written between them."""


@pytest.mark.proof
@pytest.mark.parametrize("row", [row for row in LOST if row != 13])
def test_the_answer_to_a_record_is_lost_and_nobody_notices(row: int) -> None:
    world = Watched()
    operation, part = LOST[row]
    store = FaultyStore(world.scenario.world.store)
    store.fault = lambda op, key: (
        Fault.LOST_ACKNOWLEDGEMENT if op == operation and part in key and not store.fired else None
    )
    assert world.scenario.airflow_run(run(1), world.scenario.coordinator(store=store)) is None
    assert store.fired
    assert world.facts.complete[1].txn_id.attempt == 1
    world.settle_and_check()
    record("F6", row, {"="})


@pytest.mark.parametrize(("row", "sink"), [(9, "orders"), (11, "audit")])
@WHO
def test_the_answer_to_a_commit_is_lost_and_the_sink_is_asked(row: int, sink: str, who: int) -> None:
    world = Watched()

    def lose(moment: str) -> None:
        if moment.startswith(f"after publish {sink}"):
            raise OutcomeUnknown("The answer was lost.", remedy="look at the table.")

    with world.observed(lose):
        assert isinstance(world.scenario.airflow_run(run(1)), OutcomeUnknown)
    before = world.facts
    assert world.scenario.airflow_run(run(who)) is None
    world.settle_and_check()
    record("F6", row, {came_of(before, world.facts)})


@pytest.mark.proof
@ROW
@WHO
@pytest.mark.parametrize("fault", Fault)
def test_the_ledger_goes_away_at_every_call_of_the_row_and_comes_back(row: int, who: int, fault: Fault) -> None:
    came: dict[int, set[Outcome]] = {}
    for at in range(MOMENTS_MAX):
        world = Watched()
        gone = Gone(row, at)
        store = FaultyStore(world.scenario.world.store, partial(while_gone, gone, fault))
        with world.observed(gone.tracker):
            coordinator = world.scenario.coordinator(observer=gone.tracker, store=store)
            error = world.scenario.airflow_run(run(1), coordinator)
        if at and gone.calls <= at:
            break
        before = world.facts
        world.scenario.airflow_run(run(who))
        world.settle_and_check()
        # The call at which the store went away may itself have led to the next row.
        came.setdefault(gone.tracker.now, set()).add("=" if error is None else came_of(before, world.facts))
    for reached, outcomes in came.items():
        record("F5", reached, outcomes)


class Gone:
    """Whether the store is gone: from the ``at``-th call of a row on, or from the first one after it."""

    def __init__(self, row: int, at: int) -> None:
        self.row, self.at, self.calls = row, at, 0
        self.tracker = RowTracker(0)

    def __call__(self) -> bool:
        self.calls += self.tracker.now == self.row
        return self.tracker.now > self.row or self.calls > self.at


def while_gone(gone: Gone, fault: Fault, operation: str, key: str) -> Fault | None:
    return fault if gone() else None


def after_calls(store: FaultyStore, calls: int, fault: Fault, operation: str, key: str) -> Fault | None:
    return fault if len(store.calls) > calls else None


@pytest.mark.proof
@WHO
def test_an_abort_is_killed_at_every_moment(who: int) -> None:
    outcomes = set[Outcome]()
    for at in range(MOMENTS_MAX):
        world = Watched()
        coordinator = world.scenario.coordinator()
        coordinator.open(run(1))
        coordinator.stage(run(1))
        if not crashes(partial(aborting, world, at)):
            break
        before = world.facts
        world.scenario.airflow_run(run(who))
        world.settle_and_check()
        outcomes.add(came_of(before, world.facts))
    record("F1", 14, outcomes)


@pytest.mark.proof
@WHO
def test_an_abort_that_wakes_after_the_epoch_was_finished_changes_nothing(who: int) -> None:
    late = set[Outcome]()
    for at in range(MOMENTS_MAX):
        world = Watched()
        coordinator = world.scenario.coordinator()
        coordinator.open(run(1))
        coordinator.stage(run(1))
        finished: list[dict[str, object]] = []

        def finish(w: Watched = world, ended: list[dict[str, object]] = finished) -> None:
            assert w.scenario.airflow_run(run(who)) is None
            ended.append(w.fingerprint())

        error = aborting(world, at, partial(world.nested, finish))
        if not finished:
            break
        assert not isinstance(error, Corrupt)
        world.zombies.append(Repeat(what="a woken abort", before=finished[0], after=world.fingerprint()))
        world.settle_and_check()
        late.add("X" if error else "=")
    record("F4", 14, late)
    record("F7", 14, late)


@pytest.mark.proof
@pytest.mark.few(2)
@WHO
@pytest.mark.parametrize("fault", Fault)
def test_the_ledger_goes_away_while_an_abort_runs(who: int, fault: Fault) -> None:
    outcomes = set[Outcome]()
    for at in range(MOMENTS_MAX):
        world = Watched()
        coordinator = world.scenario.coordinator()
        coordinator.open(run(1))
        coordinator.stage(run(1))
        store = FaultyStore(world.scenario.world.store)
        store.fault = partial(after_calls, store, at, fault)
        aborter = world.scenario.coordinator(store=store)
        try:
            aborter.abort(run(1), "a task failed")
        except EpochError:
            pass
        if not store.fired:
            break
        before = world.facts
        world.scenario.airflow_run(run(who))
        world.settle_and_check()
        outcomes.add(came_of(before, world.facts))
    record("F5", 14, outcomes)


def aborting(world: Watched, at: int, then: Callable[[], None] | None = None) -> EpochError | None:
    """Run 1's abort, interrupted at the ``at``-th moment."""
    tracker = RowTracker(None, at, then)
    with world.observed(tracker):
        try:
            world.scenario.coordinator(observer=tracker).abort(run(1), "a task failed")
        except EpochError as error:
            return error
    return None
