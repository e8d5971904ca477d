"""Upkeep of Delta tables: compaction and checkpoints keep rows and marker, and keep commits fast."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path
from subprocess import PIPE

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs.model import JsonDict, Marker, TransactionId
from airflow_epochs.sinks import delta_maintenance
from airflow_epochs.sinks.delta import DeltaSink
from airflow_epochs.sinks.delta_table import Where
from delta_world import World, ids_in, rows, run_epoch, transaction


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "orders"


@pytest.fixture
def world() -> World:
    return World()


def feed(sink: DeltaSink, world: World, epochs: int, previous: TransactionId | None = None) -> TransactionId:
    start = previous.epoch if previous else 0
    for epoch in range(start + 1, start + epochs + 1):
        txn = transaction(epoch)
        run_epoch(sink, txn, previous, rows(epoch, p=[f"ü {epoch % 2}"]), world)
        sink.maintain("orders", epoch, world)
        previous = txn
    assert previous is not None
    return previous


def compacted(table: Path, handle: DeltaTable | None = None) -> JsonDict:
    return delta_maintenance.compact(handle or DeltaTable(str(table)), Where("t", str(table), {}))


def small_files(table: Path) -> Path:
    for number in range(4):
        write_deltalake(str(table), rows(number), mode="append")
    return table


def test_a_compaction_that_was_begun_before_another_ended_doubles_no_row(table: Path) -> None:
    small_files(table)
    late = DeltaTable(str(table))
    assert compacted(table)["files_removed"] == 4
    assert compacted(table, late) == {"files_removed": 0, "files_added": 0, "bytes_rewritten": 0}
    assert ids_in(table) == [0, 1, 2, 3]


def test_while_another_process_compacts_nothing_is_compacted_and_after_its_end_it_is(table: Path) -> None:
    small_files(table)
    holder = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX); print(flush=True); input()"
    log = str(table / "_delta_log")
    with subprocess.Popen([sys.executable, "-c", holder, log], stdin=PIPE, stdout=PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        assert compacted(table) == {}
        other.kill()
    assert compacted(table)["files_removed"] == 4
    assert ids_in(table) == [0, 1, 2, 3]


def test_processes_that_compact_at_once_double_no_row(table: Path) -> None:
    small_files(table)
    context = multiprocessing.get_context("forkserver")
    start = context.Barrier(4)
    racers = [context.Process(target=_race, args=(table, start)) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join(60)
    assert [racer.exitcode for racer in racers] == [0] * 4
    assert ids_in(table) == list(range(4)) + list(range(100, 112))


def _race(table: Path, start: Barrier) -> None:
    for number in range(3):
        handle = DeltaTable(str(table))
        start.wait(30)
        compacted(table, handle)
        if start.wait(30) == 0:
            for more in range(4):
                write_deltalake(str(table), rows(100 + 4 * number + more), mode="append")
        start.wait(30)


def test_in_an_object_store_nothing_is_compacted() -> None:
    assert delta_maintenance.compact(None, Where("t", "s3://bucket/t", {})) == {}  # type: ignore[arg-type]


def test_upkeep_keeps_every_row_and_the_marker(table: Path, world: World) -> None:
    sink = DeltaSink("bronze", str(table), partition_by=["p"], compact_every=5, checkpoint_every=4)
    last = feed(sink, world, 12)
    assert ids_in(table) == list(range(1, 13))
    assert sink.last_committed("orders", world) == Marker.of(last)
    assert len(DeltaTable(str(table)).file_uris()) < 12
    assert list((table / "_delta_log").glob("*.checkpoint.parquet"))


def test_the_marker_survives_when_checkpoints_are_all_that_is_left_of_the_log(table: Path, world: World) -> None:
    sink = DeltaSink("bronze", str(table), checkpoint_every=1)
    last = feed(sink, world, 3)
    for entry in sorted((table / "_delta_log").glob("0*.json"))[:-1]:
        entry.unlink()
    assert sink.last_committed("orders", world) == Marker.of(last)
    feed(sink, world, 1, last)
    assert ids_in(table) == [1, 2, 3, 4]


def test_nothing_is_done_before_it_is_due(table: Path, world: World) -> None:
    sink = DeltaSink("bronze", str(table), compact_every=100, checkpoint_every=3)
    assert sink.maintain("orders", 1, world) == {}
    previous = None
    done = []
    for epoch in range(1, 9):
        txn = transaction(epoch)
        run_epoch(sink, txn, previous, rows(epoch), world)
        done.append(sink.maintain("orders", epoch, world))
        previous = txn
    assert done == [{}, {}, {}, {"checkpoint": 3}, {}, {}, {"checkpoint": 6}, {}]


def test_upkeep_can_be_switched_off(table: Path, world: World) -> None:
    sink = DeltaSink("bronze", str(table), compact_every=0, checkpoint_every=0)
    feed(sink, world, 12)
    assert DeltaTable(str(table)).version() == 11
    assert not list((table / "_delta_log").glob("*.checkpoint.parquet"))


def test_upkeep_does_no_more_than_its_bound_and_takes_the_worst_partition_first(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        write_deltalake(str(table), rows(number, p=["few"]), partition_by=["p"], mode="append")
    for number in range(9):
        write_deltalake(str(table), rows(number, p=["many"]), partition_by=["p"], mode="append")
    for number in range(3):
        write_deltalake(str(table), rows(number, p=["too few"]), partition_by=["p"], mode="append")
    with monkeypatch.context() as patched:
        patched.setattr(delta_maintenance, "WORK_BYTES_MAX", 9 * 700)
        done = compacted(table)
    assert (done["files_removed"], done["files_added"]) == (9, 1)
    done = compacted(table)
    assert (done["files_removed"], done["files_added"]) == (5, 1)


@pytest.mark.parametrize("value", [None, "a/b", "100%", "ü", "x=y", "it's", "2024-02-29"])
def test_partitions_are_compacted_whatever_their_value(table: Path, value: str | None) -> None:
    for number in range(4):
        write_deltalake(str(table), rows(number, p=[value]).cast(schema()), partition_by=["p"], mode="append")
    done = compacted(table)
    assert (done["files_removed"], done["files_added"]) == (4, 1)
    assert ids_in(table) == [0, 1, 2, 3]


def schema() -> object:
    import pyarrow as pa

    return pa.schema([("id", pa.int64()), ("p", pa.string())])


@pytest.mark.parametrize("kind", ["date", "timestamp", "int", "boolean", "decimal"])
def test_partitions_of_other_types_are_compacted(table: Path, kind: str) -> None:
    import datetime as dt
    from decimal import Decimal

    import pyarrow as pa

    value, arrow = {
        "date": (dt.date(2024, 2, 29), pa.date32()),
        "timestamp": (dt.datetime(2024, 2, 29, 12, 30, 0, 123456, dt.timezone.utc), pa.timestamp("us", "UTC")),
        "int": (-5, pa.int32()),
        "boolean": (True, pa.bool_()),
        "decimal": (Decimal("1.50"), pa.decimal128(5, 2)),
    }[kind]
    for number in range(4):
        data = pa.table({"id": pa.array([number], pa.int64()), "p": pa.array([value], arrow)})
        write_deltalake(str(table), data, partition_by=["p"], mode="append")
    done = compacted(table)
    assert (done["files_removed"], done["files_added"]) == (4, 1)


def test_a_damaged_hint_about_the_newest_checkpoint_costs_a_checkpoint_only(table: Path, world: World) -> None:
    sink = DeltaSink("bronze", str(table), checkpoint_every=2)
    last = feed(sink, world, 4)
    (table / "_delta_log" / "_last_checkpoint").write_text("{")
    feed(sink, world, 3, last)
    assert ids_in(table) == list(range(1, 8))
