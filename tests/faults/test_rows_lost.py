"""VACUUM takes the files of a commit while it lands (F19): put back, killed and woken at every step of that."""

from __future__ import annotations

import shutil

import pytest

from airflow_epochs.errors import Corrupt
from tests.support import faults_steps
from tests.support.cells import fired
from tests.support.faults_history import finished
from tests.support.faults_successors import finished_after_a_kill, without_tries, woken_after_a_successor
from tests.support.faults_world import DiskWorld

STEPS = (
    "restage.orders",
    "stage.start#1",
    "staged.orders",
    "restaged.put#1",
    "restaged.landed#1",
    "delta.put_back.before#1",
    "delta.put_back.after#1",
    "committed.orders",
)
"""Of a run that finds an epoch in doubt whose first sink shows it without its rows."""


def take_staged(world: DiskWorld) -> None:
    """What Spark's VACUUM at 0 hours does: the files staged for the first table go, and its log has no entry."""
    places = list(world.table("orders").glob("epochs/*/2-*"))
    assert places
    for place in places:
        shutil.rmtree(place)


@pytest.fixture
def losing(world: DiskWorld) -> DiskWorld:
    """The commit of the first sink has landed, its run is dead, and its files were taken just before."""
    world.crash_at("delta.commit.after#1", at={"delta.commit.before#1": lambda: take_staged(world)})
    return world


@pytest.mark.parametrize("phase", ["before", "after"])
def test_a_run_whose_files_are_taken_while_it_commits_puts_them_back_itself(world: DiskWorld, phase: str) -> None:
    assert world.run(2, world.coordinator({f"delta.commit.{phase}#1": lambda: take_staged(world)})) is None
    left = world.left(2)
    (record,) = world.ledger.restaged(2, "orders")
    complete = world.ledger.complete_record(2)
    assert complete and complete.receipts["orders"].place == record.staged.place
    fired("F19", 9, finished(world, left))


def take_committed(world: DiskWorld, sink: str = "orders") -> None:
    """What a VACUUM does that has read the log before a commit, and deletes after the receipt."""
    for place in world.table(sink).glob("epochs/*/2-*"):
        for file in place.rglob("*.parquet"):
            file.unlink()


@pytest.mark.parametrize(
    ("phase", "sink"), [("committed.audit", "orders"), ("complete.put", "orders"), ("complete.put", "audit")]
)
def test_files_that_are_taken_after_the_receipt_are_put_back_before_the_epoch_is_complete(
    world: DiskWorld, phase: str, sink: str
) -> None:
    left = world.crash_at(phase)
    assert sink in world.ledger.view(2).receipts
    take_committed(world, sink)
    assert world.run(2) is None
    (record,) = world.ledger.restaged(2, sink)
    complete = world.ledger.complete_record(2)
    assert complete and complete.receipts[sink].place == record.staged.place
    assert world.rows(sink) == sorted(world.source.all_rows())
    fired("F19", faults_steps.STEPS[phase], finished(world, left))


@pytest.mark.few(3)
@pytest.mark.parametrize("phase", STEPS)
def test_putting_back_that_is_killed_at_any_step_is_finished_by_the_next_run(losing: DiskWorld, phase: str) -> None:
    outcome = finished_after_a_kill(losing, phase)
    fired("F1", 15, outcome)
    fired("F19", 9, outcome)


@pytest.mark.few(3)
@pytest.mark.parametrize("phase", STEPS)
def test_a_process_woken_in_the_midst_of_putting_back_changes_nothing(losing: DiskWorld, phase: str) -> None:
    fired("F4", 15, woken_after_a_successor(losing, phase, run=3, successor=4, look=without_tries))


def test_rows_that_cannot_be_had_again_stop_the_epoch_and_are_told(losing: DiskWorld) -> None:
    records = losing.source._path(0).read_text()
    losing.source._path(0).write_text("".join(records.splitlines(keepends=True)[:2]))
    left = losing.left()
    error = losing.run(3)
    assert isinstance(error, Corrupt)
    assert "are gone" in str(error) and "waive" in str(error)
    losing.source._path(0).write_text(records)  # "put back what has changed, and clear the commit task"
    assert losing.run(3) is None
    fired("F19", 9, finished(losing, left))
