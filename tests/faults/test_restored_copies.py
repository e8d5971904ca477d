"""A ledger or a table restored from an older copy (F15): the sinks know better, and nothing is read or written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_epochs.errors import Corrupt
from tests.support.cells import fired
from tests.support.faults_history import finished, require_exactly_once
from tests.support.faults_world import DiskWorld

RESTORED = 16


def copy_of(folder: Path) -> Path:
    """A backup of the folder as it is now."""
    return Path(shutil.copytree(folder, folder.with_name(f"{folder.name}.backup")))


def restore(folder: Path, backup: Path) -> Path:
    """Put the backup in place; where the newer one went."""
    newer = folder.rename(folder.with_name(f"{folder.name}.newer"))
    shutil.copytree(backup, folder)
    return newer


def epochs(world: DiskWorld, first: int, last: int) -> None:
    for number in range(first, last + 1):
        world.produce(3)
        assert world.run(number) is None


def assert_refused(world: DiskWorld, number: int = 80) -> None:
    """A new run stops before it opens anything."""
    before = world.snapshot()
    error = world.run(number)
    assert isinstance(error, Corrupt), error
    assert "the newest copy" in error.remedy
    assert world.snapshot() == before


def assert_the_run_and_the_next_are_refused(world: DiskWorld) -> None:
    before = world.snapshot()
    for number in (2, 80):
        assert isinstance(world.run(number), Corrupt)
    assert world.snapshot() == before
    fired("F15", RESTORED, "X")


def assert_works_with_the_newer_ledger(world: DiskWorld, newer: Path) -> None:
    """Nothing was lost by the older one: with the newer one back, all goes on."""
    shutil.rmtree(world.ledger_root)
    newer.rename(world.ledger_root)
    left = world.left()
    assert world.run(81) is None
    finished(world, left)
    fired("F15", RESTORED, "X")


@pytest.mark.few(2)
@pytest.mark.parametrize("new_input", [False, True], ids=["no new input", "new input"])
@pytest.mark.parametrize("behind", [1, 4])
def test_a_ledger_older_than_its_tables_is_refused_and_works_again_as_it_was(
    world: DiskWorld, behind: int, new_input: bool
) -> None:
    assert world.run(2) is None
    backup = copy_of(world.ledger_root)
    epochs(world, 3, 2 + behind)
    newer = restore(world.ledger_root, backup)
    if new_input:
        world.produce(4)
    assert_refused(world)
    assert_works_with_the_newer_ledger(world, newer)


@pytest.mark.parametrize("behind", [1, 4])
def test_ledger_and_tables_restored_to_the_same_epoch_do_the_lost_epochs_once_more(
    world: DiskWorld, behind: int
) -> None:
    assert world.run(2) is None
    folders = [world.ledger_root, *(world.table(sink) for sink in world.sinks)]
    backups = [copy_of(folder) for folder in folders]
    epochs(world, 3, 2 + behind)
    for folder, backup in zip(folders, backups, strict=True):
        restore(folder, backup)
    left = world.left()
    assert world.run(80) is None
    fired("F15", RESTORED, finished(world, left))


@pytest.mark.parametrize("phase", ["open.landed", "stage.done", "decision.landed"])
def test_a_ledger_restored_to_the_middle_of_an_epoch_that_was_followed_by_others_is_refused(
    world: DiskWorld, phase: str
) -> None:
    world.crash_at(phase)
    backup = copy_of(world.ledger_root)
    assert world.run(2) is None
    epochs(world, 3, 4)
    restore(world.ledger_root, backup)
    assert_the_run_and_the_next_are_refused(world)


def test_a_ledger_restored_to_an_undecided_attempt_that_was_committed_since_does_not_abort_it(world: DiskWorld) -> None:
    world.crash_at("decision.put")
    backup = copy_of(world.ledger_root)
    epoch_2 = world.coordinator()
    report = epoch_2.stage(world.run_of(2)).stage
    epoch_2.vote(world.run_of(2), report)
    for sink in world.sinks:
        epoch_2.commit(world.run_of(2), sink)
    epoch_2.complete(world.run_of(2))
    restore(world.ledger_root, backup)
    assert_the_run_and_the_next_are_refused(world)


def test_a_ledger_restored_to_a_decision_that_was_carried_out_since_only_writes_its_records_again(
    world: DiskWorld,
) -> None:
    left = world.crash_at("decision.landed")
    backup = copy_of(world.ledger_root)
    assert world.run(2) is None
    restore(world.ledger_root, backup)
    before = {sink: world.rows(sink) for sink in world.sinks}
    assert world.run(80) is None
    assert {sink: world.rows(sink) for sink in world.sinks} == before
    fired("F15", 8, finished(world, left))


@pytest.mark.parametrize("new_input", [False, True], ids=["no new input", "new input"])
def test_a_lost_ledger_is_not_begun_anew_over_tables_that_know_it(world: DiskWorld, new_input: bool) -> None:
    assert world.run(2) is None
    newer = world.ledger_root.rename(world.folder / "lost")
    if new_input:
        world.produce(4)
    before = world.snapshot_of_tables()
    assert isinstance(world.run(80), Corrupt)
    assert world.snapshot_of_tables() == before
    assert list(world.records.glob("epochs/*/*")) == []
    assert_works_with_the_newer_ledger(world, newer)


@pytest.mark.parametrize("behind", [1, 3])
def test_one_table_restored_from_an_older_copy_is_refused_and_the_others_wait(world: DiskWorld, behind: int) -> None:
    assert world.run(2) is None
    backup = copy_of(world.table("orders"))
    epochs(world, 3, 2 + behind)
    newer = restore(world.table("orders"), backup)
    world.produce(3)
    assert_refused(world)
    shutil.rmtree(world.table("orders"))
    newer.rename(world.table("orders"))
    assert world.run(81) is None
    require_exactly_once(world)
    fired("F15", RESTORED, "X")


@pytest.mark.few(3)
@pytest.mark.parametrize("hole", range(1, 6))
def test_a_completion_record_that_is_missing_among_others_never_lets_an_epoch_be_done_twice(
    world: DiskWorld, hole: int
) -> None:
    epochs(world, 2, 5)
    path = world.records / "epochs" / f"{hole:020}" / "complete.json"
    kept = path.read_bytes()
    path.unlink()
    before, rows = world.snapshot(), [world.rows(sink) for sink in world.sinks]
    error = world.run(80)
    assert [world.rows(sink) for sink in world.sinks] == rows
    if error is not None:
        assert isinstance(error, Corrupt), error
        assert world.snapshot() == before
        path.write_bytes(kept)
    world.one_more_epoch()
    assert [world.rows(sink) for sink in world.sinks] == [world.source.all_rows()] * 2
    fired("F15", RESTORED, "X" if error else "=")
