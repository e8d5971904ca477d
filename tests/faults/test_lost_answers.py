"""A put lands and its answer is lost (F6), or the ledger goes away (F5): looked up, never guessed, never doubled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_epochs.errors import Corrupt, EpochError, NotApplied, OutcomeUnknown
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import DecisionKind
from airflow_epochs.testing import Fault, FaultyStore
from tests.support.cells import fired
from tests.support.faults_history import finished
from tests.support.faults_process import fail, refuse
from tests.support.faults_steps import DECIDED, STEPS
from tests.support.faults_world import DiskWorld, phases_of, versions

PUTS = {
    "0000000001.open.json": 2,
    "runs/": 2,
    ".try.": 3,
    "0000000001.decision.json": 7,
    "orders.receipt.json": 9,
    "audit.receipt.json": 11,
    "complete.json": 12,
}
"""Part of a record's key: the row of the matrix."""


def losing(world: DiskWorld, part: str, *, then_down: bool = False) -> FaultyStore:
    """The ledger's store; it loses the first answer to a put of this key, and is unreachable then if asked to be."""
    store = FaultyStore(LocalStore(world.ledger_root))

    def fault(operation: str, key: str) -> Fault | None:
        if operation == "put" and part in key and not store.fired:
            return Fault.LOST_ACKNOWLEDGEMENT
        return Fault.REFUSED if then_down and store.fired else None

    store.fault = fault
    return store


@pytest.mark.parametrize("part", PUTS)
def test_a_record_whose_acknowledgement_is_lost_is_read_back_and_the_run_goes_on(world: DiskWorld, part: str) -> None:
    store = losing(world, part)
    assert world.run(2, world.coordinator(store=store)) is None
    left = world.left(2)
    assert len(store.fired) == 1
    fired("F6", PUTS[part], finished(world, left))


@pytest.mark.parametrize("part", PUTS)
def test_a_record_that_cannot_be_read_back_either_stays_unknown_until_the_run_is_cleared(
    world: DiskWorld, part: str
) -> None:
    error = world.run(2, world.coordinator(store=losing(world, part, then_down=True)))
    assert isinstance(error, OutcomeUnknown), error
    left = world.left(2)
    assert world.run(2) is None
    fired("F6", PUTS[part], finished(world, left))


def test_a_global_abort_whose_acknowledgement_is_lost_is_written_once(world: DiskWorld) -> None:
    store = losing(world, "decision.json")
    coordinator = world.coordinator({"staged.orders": refuse}, store)
    assert isinstance(world.run(2, coordinator), NotApplied)
    assert len(store.fired) == 1
    left = world.left(2)
    decision = world.ledger.decision_record(2, 1)
    assert decision and decision.decision is DecisionKind.GLOBAL_ABORT
    assert world.run(2) is None
    fired("F6", 14, finished(world, left))


@pytest.mark.parametrize(("phase", "step"), [("delta.commit.after#1", 9), ("delta.commit.after#2", 11)])
def test_a_log_entry_whose_acknowledgement_is_lost_is_found_in_the_log_and_not_written_again(
    world: DiskWorld, phase: str, step: int
) -> None:
    coordinator = world.coordinator({phase: fail})
    assert world.run(2, coordinator) is None
    left = world.left(2)
    tables = [world.table(sink) for sink in world.sinks]
    assert versions(tables) == [1, 1]
    assert phases_of(coordinator).count("delta.commit.before") == 2
    fired("F6", step, finished(world, left))


def test_a_table_that_never_answers_leaves_the_epoch_in_doubt_until_it_does(world: DiskWorld) -> None:
    error = world.run(2, world.coordinator({"delta.commit.before": fail}))
    assert isinstance(error, OutcomeUnknown)
    left = world.left()
    assert world.run(3) is None
    fired("F5", 8, finished(world, left))


class Away:
    """The ledger's folder while it cannot be reached: every call into it ends in an error of the kernel."""

    def __init__(self, world: DiskWorld) -> None:
        self.root, self.kept = world.ledger_root, world.folder / "unreachable"

    def go(self) -> None:
        self.root.rename(self.kept)
        self.root.symlink_to(self.root)

    def come_back(self) -> None:
        self.root.unlink()
        self.kept.rename(self.root)


@pytest.mark.parametrize("phase", [phase for phase in STEPS if phase != "complete.landed"])
def test_a_ledger_that_cannot_be_reached_from_some_step_on_stops_the_run_and_nothing_is_guessed(
    world: DiskWorld, phase: str
) -> None:
    away = Away(world)
    before = [world.rows(sink) for sink in world.sinks]
    error = world.run(2, world.coordinator({phase: away.go}))
    assert isinstance(error, OutcomeUnknown), error
    if phase not in DECIDED:
        assert [world.rows(sink) for sink in world.sinks] == before
    away.come_back()
    left = world.left()
    assert world.run(2) is None
    fired("F5", STEPS[phase], finished(world, left))


def test_a_ledger_that_cannot_be_reached_is_not_taken_for_an_empty_one(world: DiskWorld) -> None:
    Away(world).go()
    for ask in asked(world):
        with pytest.raises(EpochError) as raised:
            ask()
        assert not isinstance(raised.value, Corrupt)
    fired("F5", 1, "=")


def asked(world: DiskWorld) -> list[Callable[[], object]]:
    ledger = world.ledger
    return [ledger.newest_complete, ledger.identity, lambda: ledger.view(2), lambda: ledger.tries(2)]


READ_ERROR = Path("/proc/self/mem")
"""Whoever reads its first byte gets EIO from the kernel."""


@pytest.mark.few(2)
@pytest.mark.parametrize("record", ["pipeline.json", "complete.json", "open.json", "decision.json", "receipt.json"])
def test_a_record_that_cannot_be_read_is_not_taken_for_a_missing_one(world: DiskWorld, record: str) -> None:
    left = world.crash_at("complete.put")
    path = max(world.records.rglob(f"*{record}"))
    kept = path.rename(world.folder / "kept")
    path.symlink_to(READ_ERROR)
    before = world.snapshot_of_tables()
    error = world.run(3)
    assert isinstance(error, OutcomeUnknown)
    assert record in str(error)
    assert world.snapshot_of_tables() == before
    path.unlink()
    kept.rename(path)
    assert world.run(3) is None
    fired("F11", 12, finished(world, left))
