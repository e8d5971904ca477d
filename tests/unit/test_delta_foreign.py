"""Others take rows of complete epochs away while the markers stay: `open` says so, or stops."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs.delta.log import entry_of, log_entry
from airflow_epochs.delta.table import App
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import OpenRecord
from airflow_epochs.sinks.delta import upkeep
from airflow_epochs.sinks.delta.foreign_changes import foreign_changes
from airflow_epochs.storage.local import LocalFiles
from tests.support.faults_world import DiskWorld, start

pytestmark = pytest.mark.proof

ROWS = pa.table({"source": ["x"], "partition": pa.array([0], pa.int32()), "offset": [0], "payload": ["x"]})


@pytest.fixture
def world(tmp_path: Path) -> DiskWorld:
    """Two complete epochs, and input for the next one."""
    world = start(DiskWorld(tmp_path))
    assert world.run(2) is None
    world.produce(3)
    return world


def restored(table: DeltaTable) -> None:
    table.restore(table.version() - 1)


def replaced(table: DeltaTable) -> None:
    DeltaTable.create(table.table_uri, table.schema(), mode="overwrite")


def overwritten(table: DeltaTable) -> None:
    write_deltalake(table, ROWS, mode="overwrite")


def table_of(world: DiskWorld) -> DeltaTable:
    return DeltaTable(str(world.table("orders")))


def told_by(world: DiskWorld, number: int) -> tuple[str, ...]:
    opened = world.coordinator().open(world.run_of(number))
    assert isinstance(opened, OpenRecord)
    return opened.warnings


TAKES_EPOCHS_AWAY = {
    "RESTORE to version 0": restored,
    "CREATE OR REPLACE TABLE": replaced,
    "WRITE, overwrite": overwritten,
}


@pytest.mark.parametrize("what", TAKES_EPOCHS_AWAY)
def test_it_is_told_once_in_the_log_the_ledger_and_the_checkpoint(
    world: DiskWorld, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    TAKES_EPOCHS_AWAY[what](table_of(world))
    told = f"sink orders: {world.table('orders')} may have lost rows of complete epochs in version 2 ({what})"
    with caplog.at_level(logging.WARNING, "airflow_epochs"):
        task = world.coordinator()
        opened = task.open(world.run_of(3))
    assert isinstance(opened, OpenRecord) and opened.warnings == (told,)
    assert task.checkpoint(task.task.ledger.view(3)).warnings == (told,)
    assert told in caplog.text
    assert world.run(4) is None  # aborts, and takes the same offsets
    assert task.task.ledger.newest_complete() == 3
    world.produce(2)
    assert told_by(world, 5) == ()


def test_what_happens_while_an_epoch_runs_is_told_by_the_next(world: DiskWorld) -> None:
    task, run = world.coordinator(), world.run_of(3)
    task.open(run)
    restored(table_of(world))
    task.vote(run, task.stage(run).stage)
    for sink in world.sinks:
        task.commit(run, sink)
    task.complete(run)
    world.produce(2)
    (told,) = told_by(world, 4)
    assert "RESTORE to version 0" in told


def test_a_restore_to_a_time_is_told_with_that_time(world: DiskWorld) -> None:
    table = table_of(world)
    first = min(each["timestamp"] for each in table.history())
    table.restore(datetime.fromtimestamp(first / 1000, timezone.utc))
    assert len(table.file_uris()) < len(DeltaTable(table.table_uri, version=1).file_uris()), "an epoch is gone"
    (told,) = told_by(world, 3)
    named = re.search(r"in version 2 \(RESTORE to (.* UTC)\)$", told)
    assert named and datetime.strptime(named[1], "%Y-%m-%d %H:%M:%S.%f UTC").replace(
        tzinfo=timezone.utc
    ) == datetime.fromtimestamp(first / 1000, timezone.utc)


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"version": None, "timestamp": "2026-11-29 13:45:00"}, "2026-11-29 13:45:00"),
        ({"datetime": "1795960370105"}, "2026-11-29 13:52:50.105 UTC"),
        ({"datetime": "9" * 30}, "an earlier version"),
        ({}, "an earlier version"),
    ],
    ids=["Spark's time", "deltalake's time", "no time", "nothing"],
)
def test_a_restore_is_told_as_far_as_its_entry_says_where_it_leads(
    tmp_path: Path, how: dict[str, str | None], told: str
) -> None:
    files, app = LocalFiles(tmp_path), App.of("orders", "bronze")
    entry = [{"commitInfo": {"operation": "RESTORE", "operationParameters": how}}]
    files.write_new(log_entry(1), entry_of(entry))
    assert [str(change) for change in foreign_changes(files, app, 0)] == [f"version 1 (RESTORE to {told})"]


def appended(table: DeltaTable) -> None:
    write_deltalake(table, ROWS, mode="append")


def part_deleted(table: DeltaTable) -> None:
    table.delete("offset = 1")


def updated(table: DeltaTable) -> None:
    table.update(predicate="offset = 1", new_values={"payload": "corrected"})


def optimized(table: DeltaTable) -> None:
    table.optimize.compact()


def restored_to_after(table: DeltaTable) -> None:
    """The owner takes back what he did himself."""
    version = table.version()
    table.delete("offset = 1")
    table.restore(version)


def put_back(table: DeltaTable) -> None:
    """What was taken away is there again."""
    version = table.version()
    overwritten(table)
    table.restore(version)


@pytest.mark.parametrize("change", [appended, part_deleted, updated, optimized, restored_to_after, put_back])
def test_what_users_do_with_their_rows_is_not_told(world: DiskWorld, change: Callable[[DeltaTable], None]) -> None:
    change(table_of(world))
    assert told_by(world, 3) == ()


@pytest.fixture
def strict(world: DiskWorld) -> DiskWorld:
    return DiskWorld(world.folder, sink_options={"on_foreign_change": "stop"})


def replaced_by_the_same_rows(table: DeltaTable) -> None:
    write_deltalake(table, table.to_pyarrow_table(), mode="overwrite", partition_by=["source"], schema_mode="overwrite")


def test_a_replacement_that_keeps_every_row_is_not_told_as_a_loss_and_its_rows_stay(
    strict: DiskWorld, world: DiskWorld
) -> None:
    """The log tells the operation alone. Who compares the rows, as the remedy says, need not take the change back."""
    rows = strict.rows("orders")
    replaced_by_the_same_rows(table_of(strict))
    assert strict.rows("orders") == rows
    error = strict.run(3)
    assert isinstance(error, Corrupt) and "may have lost rows" in error.what and "has removed" not in error.what
    assert error.remedy.startswith("Compare the rows with the rows of version 1. If rows are missing, put them back")
    assert world.run(4) is None
    assert strict.rows("orders") == strict.source.all_rows()


def test_a_change_that_an_earlier_version_told_in_its_words_is_not_told_again(
    strict: DiskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    restored(table_of(strict))
    monkeypatch.setattr(upkeep, "_LOST", upkeep._TOLD_BEFORE)
    lenient = DiskWorld(strict.folder)
    assert lenient.run(3) is None
    opened = lenient.ledger.open_record(3, 1)
    assert opened and "has lost rows of complete epochs" in opened.warnings[0]
    monkeypatch.undo()
    strict.produce(2)
    assert strict.run(4) is None


@pytest.mark.parametrize("what", TAKES_EPOCHS_AWAY)
def test_a_strict_sink_stops_until_the_rows_are_put_back(strict: DiskWorld, what: str) -> None:
    TAKES_EPOCHS_AWAY[what](table_of(strict))
    for number in (3, 4):
        error = strict.run(number)
        assert isinstance(error, Corrupt)
        assert f"version 2 ({what})" in error.what
        assert "RESTORE TABLE … TO VERSION AS OF 1" in error.remedy
    assert strict.ledger.view(3).open is None
    table_of(strict).restore(1)
    assert strict.run(5) is None
    assert [strict.rows(sink) for sink in strict.sinks] == [strict.source.all_rows()] * 2


def test_a_strict_sink_goes_on_once_the_change_is_accepted(strict: DiskWorld, world: DiskWorld) -> None:
    restored(table_of(strict))
    assert isinstance(strict.run(3), Corrupt)
    assert world.run(4) is None
    for number in (5, 6):
        strict.produce(2)
        assert strict.run(number) is None
    assert strict.rows("audit") == strict.source.all_rows()
