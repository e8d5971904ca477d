"""Upkeep of Delta tables: compaction and checkpoints keep rows and marker, and keep commits fast."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs.model import Marker, TransactionId
from airflow_epochs.sinks import delta_maintenance
from airflow_epochs.sinks.delta import DeltaSink
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
        done = delta_maintenance.compact(DeltaTable(str(table)))
    assert (done["files_removed"], done["files_added"]) == (9, 1)
    done = delta_maintenance.compact(DeltaTable(str(table)))
    assert (done["files_removed"], done["files_added"]) == (5, 1)


@pytest.mark.parametrize("value", [None, "a/b", "100%", "ü", "x=y", "it's", "2024-02-29"])
def test_partitions_are_compacted_whatever_their_value(table: Path, value: str | None) -> None:
    for number in range(4):
        write_deltalake(str(table), rows(number, p=[value]).cast(schema()), partition_by=["p"], mode="append")
    done = delta_maintenance.compact(DeltaTable(str(table)))
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
    done = delta_maintenance.compact(DeltaTable(str(table)))
    assert (done["files_removed"], done["files_added"]) == (4, 1)


def test_a_damaged_hint_about_the_newest_checkpoint_costs_a_checkpoint_only(table: Path, world: World) -> None:
    sink = DeltaSink("bronze", str(table), checkpoint_every=2)
    last = feed(sink, world, 4)
    (table / "_delta_log" / "_last_checkpoint").write_text("{")
    feed(sink, world, 3, last)
    assert ids_in(table) == list(range(1, 8))
