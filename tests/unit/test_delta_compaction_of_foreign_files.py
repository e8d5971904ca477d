"""Files that others have added to a table: compaction rewrites them only if it reads what every reader reads."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, write_deltalake

from airflow_epochs.sinks.delta import compaction as delta_compaction
from airflow_epochs.staged.parquet_calendar import misread
from airflow_epochs.storage.files import open_files
from tests.support.delta_world import log_of, rows_by_duckdb

SPARK = {"org.apache.spark.version": "4.2.0", "org.apache.spark.sql.parquet.row.metadata": "{}"}


def create(table: Path, schema: pa.Schema) -> None:
    DeltaTable.create(str(table), Schema.from_arrow(schema))


def add(table: Path, data: pa.Table, marks: dict[str, str] | None = None, **options: Any) -> str:
    """What CONVERT TO DELTA does: a Parquet file becomes one of the table's, whatever its columns are called."""
    name = f"{uuid.uuid4()}.parquet"
    write(table / name, data, marks or {}, **options)
    stats = json.dumps({"numRecords": data.num_rows})
    size = (table / name).stat().st_size
    action = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 1, "dataChange": True}
    version = len(log_of(table))
    entry = table / "_delta_log" / f"{version:020}.json"
    entry.write_text(json.dumps({"add": action | {"stats": stats}}))
    return name


def write(path: Path, data: pa.Table, marks: dict[str, str], **options: Any) -> None:
    """A Parquet file without Arrow's own schema, which Spark does not write either, and with ``marks`` instead."""
    with pq.ParquetWriter(path, data.schema, store_schema=False, **options) as writer:
        writer.write_table(data)
        writer.add_key_value_metadata(marks)


def compacted(table: Path) -> set[str]:
    """Compact; the files that were rewritten."""
    before = files_of(table)
    delta_compaction.compact(DeltaTable(str(table)), open_files(str(table)))
    return before - files_of(table)


def files_of(table: Path) -> set[str]:
    return {uri.rsplit("/", 1)[-1] for uri in DeltaTable(str(table)).file_uris()}


def struct(**kinds: pa.DataType) -> pa.StructType:
    return pa.struct(list(kinds.items()))


TEXT, LONG = pa.string(), pa.int64()
OTHERS: dict[str, tuple[pa.DataType, pa.DataType, Any]] = {
    "a field in another case": (struct(a=TEXT), struct(A=TEXT), [{"A": "x"}]),
    "a field more": (struct(a=TEXT), struct(a=TEXT, b=TEXT), [{"a": "x", "b": "y"}]),
    "a field in a list": (pa.list_(struct(a=TEXT)), pa.list_(struct(A=TEXT)), [[{"A": "x"}]]),
    "a field in a map": (
        pa.map_(TEXT, pa.list_(struct(a=TEXT))),
        pa.map_(TEXT, pa.list_(struct(A=TEXT))),
        [[("k", [{"A": "x"}])]],
    ),
    "a field in a key": (pa.map_(struct(a=TEXT), LONG), pa.map_(struct(A=TEXT), LONG), [[({"A": "x"}, 1)]]),
    "bytes for text": (TEXT, pa.binary(), [b"x"]),
    "a larger number": (pa.int32(), LONG, [1]),
    "a number without sign": (LONG, pa.uint32(), [1]),
    "a number as text": (TEXT, LONG, [1]),
    "a less exact number": (pa.float32(), pa.float64(), [0.1]),
    "a longer decimal": (pa.decimal128(5, 2), pa.decimal128(6, 2), [Decimal("1.5")]),
    "fewer digits before the point": (pa.decimal128(5, 3), pa.decimal128(5, 2), [Decimal("1.5")]),
    "local time for an instant": (pa.timestamp("us", "UTC"), pa.timestamp("us"), [dt.datetime(2020, 1, 1)]),
    "an instant for local time": (pa.timestamp("us"), pa.timestamp("us", "UTC"), [dt.datetime(2020, 1, 1)]),
    "milliseconds": (pa.timestamp("us", "UTC"), pa.timestamp("ms", "UTC"), [dt.datetime(2020, 1, 1)]),
}


@pytest.mark.parametrize("how", OTHERS)
def test_a_file_that_pyarrow_would_read_otherwise_is_left_alone(tmp_path: Path, how: str) -> None:
    wanted, given, values = OTHERS[how]
    table = tmp_path / "orders"
    create(table, pa.schema([("id", LONG), ("v", wanted)]))
    for _ in range(4):
        add(table, pa.table({"id": pa.array([1], LONG), "v": pa.array(values, given)}))
    assert compacted(table) == set()
    right = {add(table, pa.table({"id": pa.array([2], LONG), "v": pa.nulls(1, wanted)})) for _ in range(4)}
    assert compacted(table) == right


@pytest.mark.proof
@pytest.mark.parametrize("name", ["ID", "Id", "i d"])
def test_a_file_whose_columns_are_named_otherwise_is_left_alone(tmp_path: Path, name: str) -> None:
    table = tmp_path / "orders"
    create(table, pa.schema([("id", LONG), ("more", TEXT)]))
    for number in range(4):
        add(table, pa.table({name: pa.array([number], LONG), "more": ["x"]}))
    right = {add(table, pa.table({"id": pa.array([number], LONG)})) for number in range(4, 8)}
    before = rows_by_duckdb(table)
    assert compacted(table) == right
    assert rows_by_duckdb(table) == before


@pytest.mark.parametrize("first", ["right", "other"])
def test_a_column_whose_name_alone_differs_is_not_taken_for_the_tables_after_a_file_that_fits(
    tmp_path: Path, first: str
) -> None:
    table = tmp_path / "orders"
    create(table, pa.schema([("id", LONG), ("at", struct(place=TEXT))]))
    places = pa.array([{"place": "x"}], struct(place=TEXT))
    right = set()
    for name in ("at", "At") * 4 if first == "right" else ("At", "at") * 4:
        added = add(table, pa.table({"id": pa.array([1], LONG), name: places}))
        right |= {added} if name == "at" else set()
    assert compacted(table) == right


BA, AB = struct(b=LONG, a=LONG), struct(a=LONG, b=LONG)
ORDERED: dict[str, tuple[pa.DataType, pa.DataType, Any]] = {
    "in a struct": (BA, AB, [{"a": 1, "b": 2}]),
    "in a list": (pa.list_(BA), pa.list_(AB), [[{"a": 1, "b": 2}]]),
    "in a map": (pa.map_(TEXT, BA), pa.map_(TEXT, AB), [[("k", {"a": 1, "b": 2})]]),
}


@pytest.mark.proof
@pytest.mark.parametrize("where", ORDERED)
def test_fields_in_another_order_are_rewritten_by_their_names(tmp_path: Path, where: str) -> None:
    wanted, given, values = ORDERED[where]
    table = tmp_path / "orders"
    create(table, pa.schema([("id", LONG), ("v", wanted)]))
    files = {add(table, pa.table({"id": pa.array([n], LONG), "v": pa.array(values, given)})) for n in range(4)}
    before = rows_by_duckdb(table)
    assert compacted(table) == files
    assert rows_by_duckdb(table) == before


def test_a_file_that_lacks_a_column_that_is_never_null_is_left_alone(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    create(table, pa.schema([pa.field("id", LONG), pa.field("must", TEXT, nullable=False)]))
    for number in range(4):
        add(table, pa.table({"id": pa.array([number], LONG)}))
    assert compacted(table) == set()


WIDER: dict[str, tuple[pa.DataType, pa.DataType, Any]] = {
    "integers": (LONG, pa.int32(), [-1, None]),
    "floats": (pa.float64(), pa.float32(), [0.5, float("nan")]),
    "decimals": (pa.decimal128(20, 3), pa.decimal128(5, 2), [Decimal("-1.25"), None]),
    "a field that came later": (struct(a=LONG, b=TEXT), struct(a=pa.int32()), [{"a": 1}, None]),
    "in lists": (pa.list_(struct(a=LONG, b=TEXT)), pa.list_(struct(a=pa.int32())), [[{"a": 1}, None], None]),
}


@pytest.mark.parametrize("how", WIDER)
def test_narrower_types_and_older_structs_are_rewritten_without_loss(tmp_path: Path, how: str) -> None:
    wanted, given, values = WIDER[how]
    table = tmp_path / "orders"
    create(table, pa.schema([("v", wanted)]))
    for _ in range(4):
        add(table, pa.table({"v": pa.array(values, given)}))
    before = rows_by_duckdb(table)
    assert len(compacted(table)) == 4
    assert rows_by_duckdb(table) == before


OLD_DAY, OLD_INSTANT = dt.date(1500, 1, 1), dt.datetime(1850, 1, 1, tzinfo=dt.timezone.utc)
NEW_DAY, NEW_INSTANT = dt.date(1582, 10, 15), dt.datetime(1900, 1, 1, tzinfo=dt.timezone.utc)
LEGACY = {**SPARK, "org.apache.spark.legacyDateTime": ""}
LEGACY_INT96 = {**SPARK, "org.apache.spark.legacyINT96": ""}
SPARK_2 = {"org.apache.spark.version": "2.4.8"}
SPARK_3_0 = {"org.apache.spark.version": "3.0.1"}


def days(*values: dt.date | None) -> pa.Table:
    return pa.table({"day": pa.array(values, pa.date32())})


def instants(*values: dt.datetime) -> pa.Table:
    return pa.table({"at": pa.array(values, pa.timestamp("us", "UTC"))})


def nested(value: dt.date) -> pa.Table:
    return pa.table({"list": pa.array([[{"day": value}]], pa.list_(struct(day=pa.date32())))})


def footer(folder: Path, data: pa.Table, marks: dict[str, str], **options: Any) -> Any:
    write(folder / "x.parquet", data, marks, **options)
    return pq.ParquetFile(folder / "x.parquet").metadata


@pytest.mark.parametrize(
    ("data", "marks", "int96", "columns"),
    [
        (days(OLD_DAY), LEGACY, False, ["day"]),
        (days(NEW_DAY, None), LEGACY, False, []),
        (days(None), LEGACY, False, []),
        (days(OLD_DAY), SPARK_2, False, ["day"]),
        (days(OLD_DAY), {"org.apache.spark.version": "?"}, False, ["day"]),
        (days(OLD_DAY), SPARK, False, []),
        (days(OLD_DAY), LEGACY_INT96, False, []),
        (days(OLD_DAY), {}, False, []),
        (instants(OLD_INSTANT), LEGACY, False, ["at"]),
        (instants(NEW_INSTANT), LEGACY, False, []),
        (nested(OLD_DAY), LEGACY, False, ["list.list.element.day"]),
        (instants(NEW_INSTANT), LEGACY_INT96, True, ["at"]),
        (instants(NEW_INSTANT), SPARK_3_0, True, ["at"]),
        (instants(OLD_INSTANT), SPARK, True, []),
        (instants(), LEGACY_INT96, True, []),
    ],
)
def test_dates_in_the_calendar_of_old_are_told_from_the_others(
    tmp_path: Path, data: pa.Table, marks: dict[str, str], int96: bool, columns: list[str]
) -> None:
    assert misread(footer(tmp_path, data, marks, use_deprecated_int96_timestamps=int96)) == columns


def test_without_statistics_a_date_may_be_old(tmp_path: Path) -> None:
    assert misread(footer(tmp_path, days(NEW_DAY), LEGACY, write_statistics=False)) == ["day"]


def test_of_a_writer_that_is_not_known_a_date_may_be_old(tmp_path: Path) -> None:
    class Unknown:
        """A file as Hive and Spark 2.3 wrote them."""

        created_by = "parquet-mr version 1.8.3 (build 1)"

        def __init__(self, metadata: Any) -> None:
            self._metadata = metadata

        def __getattr__(self, name: str) -> Any:
            return getattr(self._metadata, name)

    assert misread(Unknown(footer(tmp_path, days(OLD_DAY), {}))) == ["day"]
    assert misread(Unknown(footer(tmp_path, days(NEW_DAY), {}))) == []


def test_files_in_the_calendar_of_old_are_left_alone(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    create(table, pa.schema([("day", pa.date32())]))
    for _ in range(4):
        add(table, days(OLD_DAY), LEGACY)
    newer = {add(table, days(NEW_DAY), LEGACY) for _ in range(4)}
    assert compacted(table) == newer


@pytest.mark.proof
def test_int96_is_an_instant_also_in_structs(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    instant = pa.timestamp("us", "UTC")
    create(table, pa.schema([("s", struct(at=instant, n=LONG)), ("local", pa.timestamp("us"))]))
    data = pa.table({"s": pa.array([{"at": OLD_INSTANT, "n": 1}], struct(at=instant, n=LONG))})
    for _ in range(4):
        add(table, data, SPARK, use_deprecated_int96_timestamps=True)
    before = rows_by_duckdb(table)
    assert len(compacted(table)) == 4
    assert rows_by_duckdb(table) == before
    local = pa.table({"local": pa.array([dt.datetime(2020, 1, 1)], pa.timestamp("us"))})
    for _ in range(4):
        add(table, local, SPARK, use_deprecated_int96_timestamps=True)
    assert compacted(table) == set()


@pytest.mark.proof
def test_partition_columns_that_a_file_has_too_are_not_read(tmp_path: Path) -> None:
    """Some Sparks write them into files; the log's values count."""
    table = tmp_path / "orders"
    data = pa.table({"at": pa.array([NEW_INSTANT], pa.timestamp("us", "UTC")), "p": ["a"]})
    for _ in range(4):
        write_deltalake(str(table), data, partition_by=["p"], mode="append")
    for path in table.glob("p=a/*.parquet"):
        write(path, data.select(["p", "at"]), SPARK, use_deprecated_int96_timestamps=True)
    before = rows_by_duckdb(table)
    assert len(compacted(table)) == 4
    assert rows_by_duckdb(table) == before
    assert DeltaTable(str(table)).to_pyarrow_table()["at"].to_pylist() == [NEW_INSTANT] * 4


def test_what_is_left_alone_keeps_no_other_partition_or_file_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_compaction, "PARTITIONS_MAX", 1)
    table = tmp_path / "orders"
    for number in range(9):
        data = pa.table({"id": [number], "p": ["strange" if number < 5 else "own"]})
        write_deltalake(str(table), data, partition_by=["p"], mode="append")
    for path in table.glob("p=strange/*.parquet"):
        size = path.stat().st_size
        pq.write_table(pa.table({"ID": [1]}), path, store_schema=False)
        assert path.stat().st_size != size  # deltalake does not compare
    assert len(compacted(table)) == 4
