"""Copies of a ledger that are run, sinks that were removed: no clean-up deletes what a table refers to (F15)."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from deltalake import DeltaTable

from airflow_epochs.errors import Corrupt
from orders_demo.duck import duck
from tests.support.cells import fired
from tests.support.faults_world import DiskWorld, begin

RESTORED = 16


def copied(world: DiskWorld) -> DiskWorld:
    """Ledger, tables and input, as a nightly backup has them, under other paths."""
    return replace(world, folder=Path(shutil.copytree(world.folder, f"{world.folder}.copy")))


def assert_whole(world: DiskWorld, *sinks: str) -> None:
    """Two readers that are none of ours read every row, in this version and in every earlier one."""
    for sink in sinks:
        table = str(world.table(sink))
        with duck() as database:
            (count,) = database.execute("SELECT count(payload) FROM delta_scan(?)", [table]).fetchone() or (None,)
        assert count == len(world.source.all_rows())
        for version in range(DeltaTable(table).version() + 1):
            assert DeltaTable(table, version=version).to_pyarrow_table()


def files_of(*folders: Path) -> set[Path]:
    return {path for folder in folders for path in folder.rglob("*") if path.is_file()}


def test_a_copy_that_is_run_after_the_original_has_committed_does_not_touch_its_tables(world: DiskWorld) -> None:
    go_on = begin(world)
    copy = copied(world)
    go_on()
    before = files_of(world.folder)
    error = copy.run(80)
    assert isinstance(error, Corrupt), error
    assert files_of(world.folder) == before
    assert_whole(world, *world.sinks)
    fired("F15", RESTORED, "X")


def test_a_copy_that_is_run_while_the_original_is_undecided_leaves_its_staged_rows_alone(world: DiskWorld) -> None:
    go_on = begin(world)
    copy = copied(world)
    before = files_of(world.folder)
    assert copy.run(80) is None
    copy.one_more_epoch()
    assert files_of(world.folder) == before
    assert_whole(copy, *world.sinks)
    go_on()
    assert_whole(world, *world.sinks)
    fired("F15", RESTORED, "C")


def test_a_sink_that_was_removed_keeps_its_rows_when_ledger_and_the_other_table_are_restored(world: DiskWorld) -> None:
    go_on = begin(world)
    restored = [world.ledger_root, world.table("orders")]
    backups = [shutil.copytree(folder, world.folder / f"{folder.name}.backup") for folder in restored]
    go_on()
    for folder, backup in zip(restored, backups, strict=True):
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)
    left = replace(world, sinks=("orders",))
    error = left.run(80)
    assert isinstance(error, Corrupt), error
    assert_whole(world, "audit")
    fired("F15", RESTORED, "X")
