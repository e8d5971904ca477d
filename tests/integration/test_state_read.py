"""The state of a real pipeline, read as of each of its epochs: by Spark and DuckDB with our SQL, and by us."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_epochs.event_time import micros
from airflow_epochs.read import state
from airflow_epochs.sinks.delta.state.columns import types_of
from airflow_epochs.sinks.delta.state.view import ReadableState
from orders_demo.duck import duck
from tests.support.state_clicks import START
from tests.support.state_lab import Lab
from tests.support.state_schemas import SCHEMAS

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]
Windows = set[tuple[str, int, int, int]]
"""Page, second at which the window begins, clicks and their total."""


def open_now(lab: Lab) -> Windows:
    """The open windows as the oracle has them, after the newest epoch."""
    lab.require_oracle()
    ledger = lab.windows().task.ledger
    record = ledger.complete_record(ledger.newest_complete())
    assert record
    mark = None if record.watermarks[0] is None else record.watermarks[0] - micros(START)
    return {(page, start, *values) for (page, start), values in lab.open_windows(mark).items()}


def by_duckdb(found: ReadableState) -> Windows:
    with duck() as db:
        db.execute(found.view_duckdb())
        return windows(db.execute('SELECT page, epoch_us(window_start), clicks, total FROM "open"').fetchall())


def by_us(found: ReadableState) -> Windows:
    columns = ("page", "window_start", "clicks", "total")
    rows = found.to_arrow().select(columns).to_pylist()
    return windows([(row["page"], micros(row["window_start"]), row["clicks"], row["total"]) for row in rows])


def by_spark(session: SparkSession, found: ReadableState) -> Windows:
    session.sql(found.view_spark().removesuffix(";"))
    rows = session.sql("SELECT page, unix_micros(window_start), clicks, total FROM `open`").collect()
    return windows([tuple(row) for row in rows])


def windows(rows: list[tuple[Any, ...]]) -> Windows:
    assert len(set(rows)) == len(rows), "a window is there twice"
    return {(page, (start - micros(START)) // 1_000_000, *values) for page, start, *values in rows}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_spark_finds_the_columns_of_a_schema_that_we_find(schema: str, session: SparkSession) -> None:
    assert session.createDataFrame([], schema).columns == SCHEMAS[schema]


def test_spark_finds_the_types_of_a_schema_that_we_find(session: SparkSession) -> None:
    words = (
        "string boolean byte tinyint short smallint int integer long bigint float real double date timestamp".split()
    )
    words += ["timestamp_ltz", "timestamp_ntz", "binary", "decimal", "dec(9)", "numeric(9,2)", "Map<INT, array<date>>"]
    every = ", ".join(f"c{number} {word}" for number, word in enumerate(words))
    nested = "a struct<`b c`: int, d: struct<e string>> NOT NULL, f: array<map<string, decimal(38, 18)>> COMMENT 'x, y'"
    for schema in (every, nested, *SCHEMAS):
        fields = json.loads(session.createDataFrame([], schema).schema.json())["fields"]
        found = {field["name"]: field["type"] for field in fields}
        ours = types_of(schema)
        assert ours.items() <= found.items()
        assert ours == found or "COMMENT" in schema, "of a comment, or of texts beside each other, only Spark can tell"


@pytest.mark.long
def test_the_state_of_every_epoch_is_what_the_oracle_had_then_whoever_reads_it(lab: Lab, session: SparkSession) -> None:
    wanted = {}
    epochs = (
        [(0, "a", 1, 10), (1, "a", 2, 20), (2, "b", 3, 110)],
        [(0, "a", 4, 50), (1, "c", 5, 230), (0, "c", 6, 240), (2, "b", 7, 250)],
        [(0, "b", 8, 260), (1, "d", 9, 480), (2, "d", 1, 470)],
    )
    for number, clicks in enumerate(epochs, 1):
        lab.produce(*clicks)
        lab.run(lab.windows())
        wanted[number] = open_now(lab)
    assert len({frozenset(windows) for windows in wanted.values()}) == 3, "the epochs do not differ"
    found = {number: state("clicks", "open", number, ledger_root=str(lab.folder / "ledger")) for number in wanted}
    assert {number: by_duckdb(at) for number, at in found.items()} == wanted
    assert {number: by_us(at) for number, at in found.items()} == wanted
    assert {number: by_spark(session, at) for number, at in found.items()} == wanted
