"""A power cut takes no row of a table on a disk: who makes a log entry's name durable has flushed what it adds.

Others write with deltalake, which flushes nothing. What is left after the power cut is judged by DuckDB.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs.delta.log import log_entry
from airflow_epochs.errors import RowsLost
from airflow_epochs.model import Staged, TransactionId
from airflow_epochs.sinks.delta import compaction, upkeep
from airflow_epochs.sinks.delta.due import is_due
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.storage import fsync as durable
from airflow_epochs.storage.local import LocalFiles
from tests.support.delta_world import attempt_of, log_of, promised, rows, rows_by_duckdb, run_epoch, stage, transaction
from tests.support.environment import Environment, once
from tests.support.power_cut import left_by_power_cut

pytestmark = pytest.mark.proof


@pytest.fixture
def sink(table_path: Path) -> DeltaSink:
    return DeltaSink("bronze", str(table_path), checkpoint_every=0)


def require_newest_is_left(table: Path, synced: set[str | int]) -> None:
    left = left_by_power_cut(table, synced, table.parent / "cut")
    assert DeltaTable(left).version() == DeltaTable(table).version()
    assert rows_by_duckdb(left) == rows_by_duckdb(table)


def written_by_others(table: Path, *ids: int) -> None:
    write_deltalake(str(table), rows(*ids), mode="append")


def begun(sink: DeltaSink, world: Environment) -> TransactionId:
    txn = transaction(1)
    run_epoch(sink, txn, None, rows(1), world)
    return txn


def test_a_commit_makes_what_others_have_written_before_it_survive_a_power_cut(
    sink: DeltaSink, table_path: Path, world: Environment, synced: set[str | int]
) -> None:
    previous = begun(sink, world)
    written_by_others(table_path, 10)
    written_by_others(table_path, 11)
    run_epoch(sink, transaction(2), previous, rows(2), world)
    require_newest_is_left(table_path, synced)


def test_no_log_entry_is_flushed_before_the_files_that_it_adds(
    sink: DeltaSink, table_path: Path, world: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    previous, order, fsync = begun(sink, world), list[int](), os.fsync

    def spy(descriptor: int) -> None:
        order.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    written_by_others(table_path, 10)
    monkeypatch.setattr(os, "fsync", spy)
    run_epoch(sink, transaction(2), previous, rows(2), world)
    adds = [action["add"]["path"] for action in log_of(table_path)[1] if "add" in action]
    entry = order.index((table_path / log_entry(1)).stat().st_ino)
    assert adds and all(order.index((table_path / path).stat().st_ino) < entry for path in adds)


def test_the_first_commit_to_a_table_of_others_makes_what_they_have_written_survive_a_power_cut(
    sink: DeltaSink, table_path: Path, world: Environment, synced: set[str | int]
) -> None:
    written_by_others(table_path, 10)
    run_epoch(sink, transaction(1), None, rows(1), world)
    require_newest_is_left(table_path, synced)


def test_what_lands_between_the_vote_and_the_commit_survives_a_power_cut(
    sink: DeltaSink, table_path: Path, synced: set[str | int]
) -> None:
    moment = "delta.commit.before"
    world = Environment(at={f"{moment}#2": lambda: written_by_others(table_path, 10)})
    previous = begun(sink, world)
    run_epoch(sink, transaction(2), previous, rows(2), world)
    assert world.phases.count(moment) == 3, "the second round finds the other's entry"
    require_newest_is_left(table_path, synced)


def test_a_fence_makes_what_others_have_written_before_it_survive_a_power_cut(
    sink: DeltaSink, table_path: Path, world: Environment, synced: set[str | int]
) -> None:
    previous = begun(sink, world)
    written_by_others(table_path, 10)
    assert sink.fence("orders", [previous], transaction(2), world)
    require_newest_is_left(table_path, synced)


def test_a_compaction_makes_what_lands_meanwhile_survive_a_power_cut(
    sink: DeltaSink, table_path: Path, world: Environment, synced: set[str | int]
) -> None:
    class Others(LocalFiles):
        come = True

        def write_new(self, path: str, value: bytes) -> bool:
            if self.come:
                self.come = False
                written_by_others(table_path, 10)
            return super().write_new(path, value)

    previous = None
    for number in range(1, 5):
        txn = transaction(number)
        run_epoch(sink, txn, previous, rows(number), world)
        previous = txn
    assert compaction.compact(DeltaTable(table_path), Others(table_path))["files_removed"] == 4
    require_newest_is_left(table_path, synced)


def test_upkeep_makes_what_others_have_written_behind_the_epoch_survive_a_power_cut(
    table_path: Path, world: Environment, synced: set[str | int]
) -> None:
    sink = DeltaSink("bronze", str(table_path), compact_every=1, checkpoint_every=0)
    begun(sink, world)
    for number in range(10, 14):
        written_by_others(table_path, number)
    assert sink.maintain("orders", 1, world)["files_removed"] == 5
    require_newest_is_left(table_path, synced)


def test_a_checkpoint_survives_a_power_cut_before_the_log_entries_go_that_it_replaces(
    table_path: Path, world: Environment, synced: set[str | int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned_up: list[int] = []

    def clean_up(self: DeltaTable) -> None:
        log = table_path / "_delta_log"
        entries = sorted(log.glob("*.json"))
        for entry in entries[:-1]:
            entry.unlink()
        cleaned_up.append(len(entries))
        require_newest_is_left(table_path, synced)

    monkeypatch.setattr(DeltaTable, "cleanup_metadata", clean_up)
    sink, previous = DeltaSink("bronze", str(table_path), compact_every=0, checkpoint_every=2), None
    for number in range(1, 4):
        txn = transaction(number)
        run_epoch(sink, txn, previous, rows(number), world)
        sink.maintain("orders", number, world)
        previous = txn
    assert cleaned_up == [3]


def test_a_checkpoint_whose_task_died_before_it_was_flushed_survives_a_power_cut_after_the_next_commit(
    sink: DeltaSink, table_path: Path, world: Environment, synced: set[str | int]
) -> None:
    previous = begun(sink, world)
    DeltaTable(table_path).create_checkpoint()
    run_epoch(sink, transaction(2), previous, rows(2), world)
    assert (table_path / "_delta_log/_last_checkpoint").stat().st_ino in synced
    require_newest_is_left(table_path, synced)


def test_the_first_commit_to_a_table_with_a_checkpoint_makes_what_came_before_it_survive_a_power_cut(
    sink: DeltaSink, table_path: Path, world: Environment, synced: set[str | int]
) -> None:
    written_by_others(table_path, 10)
    written_by_others(table_path, 11)
    DeltaTable(str(table_path)).create_checkpoint()
    run_epoch(sink, transaction(1), None, rows(1), world)
    require_newest_is_left(table_path, synced)


@pytest.mark.parametrize("compacts", [False, True])
def test_a_checkpoint_names_no_file_that_a_power_cut_takes_though_others_write_during_the_upkeep(
    table_path: Path, world: Environment, synced: set[str | int], monkeypatch: pytest.MonkeyPatch, compacts: bool
) -> None:
    sink = DeltaSink("bronze", str(table_path), compact_every=1 if compacts else 0, checkpoint_every=2)
    previous = None
    for number in range(1, 6):
        txn = transaction(number)
        run_epoch(sink, txn, previous, rows(number), world)
        previous = txn

    def due_then(*given: Any) -> bool:
        written_by_others(table_path, 10)
        return is_due(*given)

    monkeypatch.setattr(upkeep, "is_due", due_then)
    sink.maintain("orders", 5, world)
    require_newest_is_left(table_path, synced)


def test_rows_that_are_put_back_behind_the_entry_of_another_writer_survive_a_power_cut(
    sink: DeltaSink, table_path: Path, world: Environment, synced: set[str | int]
) -> None:
    attempt = attempt_of(transaction(2), begun(sink, world))

    def promised_again() -> Staged:
        return promised(sink.vote(attempt, stage(sink, attempt, rows(1, 2), world), world))

    lost = promised_again()

    def take() -> None:
        for file in Path(lost.place).rglob("*.parquet"):
            file.unlink()

    once(world, "delta.commit.before", take)
    with pytest.raises(RowsLost):
        sink.commit(attempt, lost, world)
    again = promised_again()
    written_by_others(table_path, 7)
    sink.commit(attempt, again, world)
    require_newest_is_left(table_path, synced)


def test_a_file_of_another_program_that_may_not_be_opened_stops_no_epoch(
    sink: DeltaSink,
    table_path: Path,
    world: Environment,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    previous = begun(sink, world)
    written_by_others(table_path, 10)
    (foreign,) = (action["add"]["path"] for action in log_of(table_path)[1] if "add" in action)
    fsync = durable.fsync

    def forbidding(path: Path) -> None:
        if path.name == foreign:
            raise PermissionError(13, "Permission denied", str(path))
        fsync(path)

    monkeypatch.setattr(durable, "fsync", forbidding)
    run_epoch(sink, transaction(2), previous, rows(2), world)
    assert rows_by_duckdb(str(table_path)) == rows_by_duckdb(table_path)
    assert "another program has added to the table may not survive a power cut" in caplog.text
