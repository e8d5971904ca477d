"""Statistics of Spark's files, out of their footers: as Delta would keep them, and no reader misses a row by them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.staged import footers
from airflow_epochs.staged.staging import Staging, read_staging
from airflow_epochs.storage.files import open_files
from orders_demo.duck import duck
from tests.support.delta_world import attempt_of, fill_with_spark, log_of, spark_epoch, transaction
from tests.support.environment import Environment

pytestmark = pytest.mark.jvm

ROWS = 40
COLUMNS = {
    "id": "id",
    "byte": "CAST(id % 100 AS BYTE)",
    "short": "CAST(-id AS SHORT)",
    "int": "IF(id % 7 = 0, NULL, CAST(id * 1000 AS INT))",
    "float": "CAST(id AS FLOAT) / 3",
    "double": "id / 3.0D - 1",
    "small": "CAST(id - 20.25 AS DECIMAL(9, 2))",
    "middle": "CAST(id * 100000 - 0.0001 AS DECIMAL(18, 4))",
    "large": "CAST(CAST(id - 20 AS DECIMAL(38, 10)) * 123456789012345678.123 AS DECIMAL(38, 10))",
    "day": "DATE_ADD(DATE '1582-10-01', CAST(id AS INT))",
    "instant": "TIMESTAMP_MICROS(-1000001 + id * 999983)",
    "local": "TO_TIMESTAMP_NTZ(CONCAT('0001-01-01 00:00:00.', LPAD(id, 6, '0')))",
    "text": "CONCAT('ä', id)",
    "long_text": "CONCAT(REPEAT('x', 30 + CAST(id % 4 AS INT)), REPEAT('ü', CAST(id % 3 AS INT)), id)",
    "dotted.name": "NULLIF(id, 3)",
    "nested": "NAMED_STRUCT('a', IF(id = 5, NULL, id), 'b', NAMED_STRUCT('c', CONCAT('c', id)))",
    "nothing": "CAST(NULL AS INT)",
    "flag": "id % 2 = 0",
    "bytes": "CAST(CONCAT('b', id) AS BINARY)",
    "list": "IF(id = 3, NULL, ARRAY(id))",
    "map": "MAP('k', id)",
}


def frame(session: Any, **other: str) -> Any:
    """Forty rows in four tasks."""
    columns = ", ".join(f"{sql} AS `{name}`" for name, sql in (COLUMNS | other).items())
    return session.sql(f"SELECT {columns} FROM RANGE(0, {ROWS}, 1, 4)")


def flat(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(values, dict):
        for name, value in values.items():
            yield from flat(value, (*path, name))
    else:
        yield path, values


def of_delta_and_of_footers(staging: Staging, table: str) -> Iterator[tuple[JsonDict, JsonDict]]:
    """Both statistics of each file."""
    assert all(file.stats for file in staging.files)
    unknown = replace(staging, files=tuple(replace(file, stats="") for file in staging.files))
    whole = footers.completed(open_files(table), unknown)
    for by_delta, by_footer in zip(staging.files, whole.files, strict=True):
        yield json.loads(by_delta.stats), json.loads(by_footer.stats)


def staged_with_statistics(session: Any, sink: DeltaSink, world: Environment, rows: Any) -> Staging:
    """What Spark stages if it is to collect statistics, too."""
    plan = sink.plan_stage(attempt_of(transaction(1)), "a" * 32, world)
    claim = fill_with_spark(session, plan, rows, statistics=True)
    staging = read_staging(open_files(sink.target), claim.place.removeprefix(f"{sink.target}/"))
    assert staging
    return staging


def test_statistics_of_footers_are_those_that_delta_collects(session: Any, world: Environment, table: str) -> None:
    sink = DeltaSink("bronze", table, partition_by=["p"])
    rows = frame(session, p="CAST(id % 2 AS STRING)")
    staging = staged_with_statistics(session, sink, world, rows)
    for delta, ours in of_delta_and_of_footers(staging, table):
        assert ours["numRecords"] == delta["numRecords"] > 0
        nulls = {name: count for name, count in delta["nullCount"].items() if name not in ("list", "map")}
        assert ours["nullCount"] == nulls
        lows, highs = dict(flat(delta["minValues"])), dict(flat(delta["maxValues"]))
        assert dict(flat(ours["minValues"])) == lows
        told = dict(flat(ours["maxValues"]))
        assert told.keys() == highs.keys() - {("float",), ("double",)}
        rounded = {("instant",), ("local",)}
        for path in told.keys() - rounded:
            if path == ("long_text",):  # cut off; the last character only says so
                assert told[path][:-1] == highs[path][:-1]
            else:
                assert told[path] == highs[path]
        for path in rounded:  # Delta cuts a maximum off, and its own reader adds a millisecond
            apart = [datetime.fromisoformat(each[path].replace("Z", "+00:00")) for each in (told, highs)]
            assert timedelta(0) <= apart[0] - apart[1] <= timedelta(milliseconds=1)


def test_a_number_that_is_none_is_found_above_all_others(session: Any, world: Environment, table: str) -> None:
    rows = session.sql(
        "SELECT id, CAST(IF(id % 3 = 0, 'NaN', CAST(id AS STRING)) AS DOUBLE) AS n FROM RANGE(0, 9, 1, 3)"
    )
    spark_epoch(DeltaSink("bronze", table), transaction(1), None, rows, world)
    found = session.sql(f"SELECT id FROM delta.`file://{table}` WHERE n > 1000").collect()
    assert sorted(row[0] for row in found) == [0, 3, 6]


BY_TEN = "CAST(id DIV 10 AS STRING)"
OF_DUCKDB = {"string": "VARCHAR", "binary": "BLOB", "timestamp": "TIMESTAMPTZ", "timestamp_ntz": "TIMESTAMP"}
"""DuckDB's names of Spark's types, where they differ."""


def ends(rows: Any) -> list[tuple[str, str, str]]:
    """The least and the greatest value of each column: its name, its type, the value as text."""
    kinds = dict(rows.select("*", "nested.a", "nested.b.c").drop("p", "nothing", "nested", "list", "map").dtypes)
    columns = [({"a": "nested.a", "c": "nested.b.c"}.get(name, f"`{name}`"), kind) for name, kind in kinds.items()]
    found = [(column, kind, end) for column, kind in columns for end in ("min", "max")]
    values = rows.selectExpr(*(f"CAST({end}({column}) AS STRING)" for column, _, end in found)).collect()[0]
    return [(column, kind, value) for (column, kind, _), value in zip(found, values, strict=True)]


@pytest.mark.long
def test_every_reader_finds_the_rows_at_both_ends_of_a_column(session: Any, world: Environment, table: str) -> None:
    rows = frame(session, p=BY_TEN)
    spark_epoch(DeltaSink("bronze", table, partition_by=["p"]), transaction(1), None, rows, world)
    adds = [action["add"] for entry in log_of(table) for action in entry if "add" in action]
    assert len(adds) == 4
    assert all(json.loads(add["stats"])["maxValues"]["nested"] for add in adds)
    wanted = [(column, kind, f"{column} = CAST('{value}' AS {kind})", value) for column, kind, value in ends(rows)]
    counts = list(rows.selectExpr(*(f"count_if({condition})" for _, _, condition, _ in wanted)).collect()[0])
    by_spark = [f"SELECT count(*) FROM delta.`file://{table}` WHERE {condition}" for _, _, condition, _ in wanted]
    [found] = session.sql(f"SELECT {', '.join(f'({query})' for query in by_spark)}").collect()
    assert list(found) == counts
    assert min(counts) > 0
    with duck() as database:
        for (column, kind, _, value), count in zip(wanted, counts, strict=True):
            if column != "`dotted.name`":  # DuckDB cannot filter by such a name
                here, type_ = column.replace("`", '"'), OF_DUCKDB.get(kind, kind)
                sql = f"SELECT count(*) FROM delta_scan('{table}') WHERE {here} = CAST('{value}' AS {type_})"
                assert database.sql(sql).fetchall() == [(count,)], column
