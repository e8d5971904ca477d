"""``parse_debezium``: events as Debezium's pages show them, and a table that follows the database's table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as F

from airflow_epochs import DeltaSink, SqlSink
from airflow_epochs.contracts import Sink
from airflow_epochs.errors import Refused
from airflow_epochs.spark.driver.delta.keys import newest_or_tied, problem
from airflow_epochs.spark.driver.delta.plans import How
from airflow_epochs.transforms import parse_debezium
from stack.postgres import Postgres
from tests.support.spark_world import batch_of
from tests.support.sql_world import new_postgres
from tests.support.state_lab import Lab

pytestmark = pytest.mark.jvm

PAGE = Path(__file__).parents[2] / "docs" / "read-your-topic.md"
TABLE = "id bigint, name string"
SOURCE = {"version": "3.0", "connector": "postgresql", "ts_ms": 5, "snapshot": "false", "db": "shop", "lsn": 24_023_128}


def event(op: str, before: Any, after: Any, **source: Any) -> dict[str, Any]:
    return {"before": before, "after": after, "op": op, "ts_ms": 1_767_225_600_123, "source": {**SOURCE, **source}}


def wrapped(told: dict[str, Any]) -> dict[str, Any]:
    return {"schema": {"type": "struct", "fields": [{"type": "int64", "field": "id"}]}, "payload": told}


def events_of(session: Any, *events: Any) -> Any:
    """A batch of events, and of values as they are."""
    return batch_of(session, [json.dumps(told).encode() if isinstance(told, dict) else told for told in events])


@pytest.mark.few(2)
@pytest.mark.parametrize("engine", ["arrow", "spark"])
@pytest.mark.parametrize("envelope", [wrapped, lambda told: told], ids=["with schema", "without"])
def test_an_event_is_a_row_as_it_leaves_it_with_both_images_and_the_position(
    session: Any, envelope: Any, engine: str
) -> None:
    ann, bob = {"id": 1, "name": "Ann"}, {"id": 1, "name": "Bob"}
    events = [event("c", None, ann), event("u", ann, bob), event("d", bob, None), None, event("r", None, ann)]
    batch = events_of(session, *(told and envelope(told) for told in events))
    changes = parse_debezium(batch, TABLE, engine=engine)
    found = changes.rows.collect()
    assert [(row.offset, row.op, row.id, row.name) for row in found] == [
        (0, "c", 1, "Ann"),
        (1, "u", 1, "Bob"),
        (2, "d", 1, "Bob"),
        (4, "r", 1, "Ann"),
    ]
    assert (found[1].before.asDict(), found[1].after.asDict()) == (ann, bob)
    assert (found[0].source.lsn, found[0].source.db, found[0].source.file) == (24_023_128, "shop", None)
    assert found[0].at.microsecond == 123_000
    assert changes.corrupt.collect() == []
    assert changes.rows.columns[:5] == ["topic", "partition", "offset", "id", "name"]


def test_what_is_no_change_of_a_row_comes_out_apart_with_its_bytes(session: Any) -> None:
    truncated, nothing = event("t", None, None), event("d", None, None)
    batch = events_of(
        session, truncated, b"{", nothing, {"id": 1}, event("u", {"id": 1}, None), event("c", None, {"id": 2})
    )
    changes = parse_debezium(batch, TABLE, columns=["offset"])
    assert {row.offset: row.error for row in changes.corrupt.collect()} == {
        0: "no change of a row: the operation is t",
        1: "not a JSON object",
        2: "a deletion that does not say of what",
        3: "no operation",
        4: "a change without the row after it",
    }
    assert {row.offset: json.loads(row.raw) for row in changes.corrupt.collect() if row.offset != 1}[0] == truncated
    assert changes.corrupt.columns == ["offset", "topic", "partition", "error", "raw"]
    assert [row.id for row in changes.rows.collect()] == [2]


def test_a_time_that_no_column_can_have_is_a_value_that_does_not_fit(session: Any) -> None:
    late = {**event("c", None, {"id": 1}), "ts_ms": 2**62}
    batch = events_of(session, late, {**late, "ts_ms": 253_402_300_800_000}, {**late, "ts_ms": 253_402_300_799_999})
    found = parse_debezium(batch, TABLE).rows.selectExpr("offset", "CAST(at AS STRING) at").collect()
    assert [(row.offset, row.at is None) for row in found] == [(0, True), (1, True), (2, False)]
    changes = parse_debezium(batch, TABLE, mode="strict")
    assert {row.offset: row.error for row in changes.corrupt.collect()} == {
        0: "a value does not fit its column",
        1: "a value does not fit its column",
    }
    assert [row.offset for row in changes.rows.select("offset").collect()] == [2]


@pytest.mark.few(1)
@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_a_time_with_a_zone_is_a_text_that_a_timestamp_takes_and_a_number_does_not(session: Any, engine: str) -> None:
    batch = events_of(session, event("c", None, {"id": 1, "at_shop": "2026-01-31T10:20:30.123456Z"}))
    (row,) = parse_debezium(batch, "id bigint, at_shop timestamp", engine=engine).rows.collect()
    assert row.at_shop.timestamp() == datetime(2026, 1, 31, 10, 20, 30, 123_456, timezone.utc).timestamp()
    as_number = parse_debezium(batch, "id bigint, at_shop bigint", mode="strict", engine=engine)
    assert as_number.rows.collect() == []
    assert [row.offset for row in as_number.corrupt.collect()] == [0]


RECIPE = 'drop("topic", "partition", "offset", "at", "before", "after", "source")'


@pytest.mark.few(1)
@pytest.mark.parametrize("op", ["u", "d"])
def test_by_the_position_of_the_source_an_event_that_is_sent_twice_is_one_row(session: Any, op: str) -> None:
    assert RECIPE in PAGE.read_text()
    ann = {"id": 1, "name": "Ann"}
    sent = {"u": event("u", None, ann), "d": event("d", {"id": 1, "name": None}, None)}[op]
    changes = parse_debezium(events_of(session, sent, {**sent, "ts_ms": sent["ts_ms"] + 9000}), TABLE)
    rows = changes.rows.withColumn("lsn", F.col("source.lsn")).drop(
        "topic", "partition", "offset", "at", "before", "after", "source"
    )
    how = How(mode="upsert", keys=("id",), sequence_by="lsn", delete_when="op = 'd'")
    assert problem(rows, how) is None
    assert [row.id for row in newest_or_tied(rows, how).collect()] == [1]


UNSENT = "__debezium_unavailable_value"
UNSENT_BYTES = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="


@pytest.mark.few(2)
@pytest.mark.parametrize("envelope", [wrapped, lambda told: told], ids=["with schema", "without"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", UNSENT),
        ("binary", UNSENT_BYTES),
        ("string", UNSENT_BYTES),
        ("array<string>", [UNSENT]),
        ("array<string>", UNSENT),
        ("array<binary>", [UNSENT_BYTES]),
        ("array<bigint>", [*UNSENT.encode()]),
        ("array<double>", [float(byte) for byte in UNSENT.encode()]),
        ("array<string>", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
        ("map<string, string>", {UNSENT: UNSENT}),
        ("string", json.dumps({UNSENT: UNSENT}, separators=(",", ":"))),
    ],
)
def test_an_event_without_the_value_of_a_column_is_no_row_and_says_what_to_do(
    session: Any, envelope: Any, kind: str, value: Any
) -> None:
    lacks, key = event("u", None, {"id": 1, "my note": value}), {"id": 2, "my note": None}
    batch = events_of(session, *map(envelope, (lacks, event("u", None, key), event("d", key, None))))
    changes = parse_debezium(batch, f"id bigint, `my note` {kind}", columns=["offset"])
    assert [(row.offset, row.id) for row in changes.rows.collect()] == [(1, 2), (2, 2)]
    (corrupt,) = changes.corrupt.collect()
    told = "the event lacks the unchanged value of my note: set REPLICA IDENTITY FULL for the table in the database"
    assert (corrupt.offset, corrupt.error) == (0, told)
    assert json.loads(corrupt.raw) == envelope(lacks)


def test_a_text_about_the_placeholder_and_a_column_that_nobody_reads_are_no_lack(session: Any) -> None:
    about = event("u", {"id": 1, "name": UNSENT}, {"id": 1, "name": f"what is {UNSENT}?", "other": UNSENT})
    changes = parse_debezium(events_of(session, about, event("d", {"id": 1, "name": UNSENT}, None)), TABLE)
    assert [(row.op, row.id) for row in changes.rows.collect()] == [("u", 1), ("d", 1)]
    assert changes.corrupt.collect() == []


def test_odd_names_are_names_even_where_the_session_takes_quoted_ones_for_patterns(other_session: Any) -> None:
    other_session.conf.set("spark.sql.parser.quotedRegexColumnNames", "true")
    row = {"id": 1, "name *": "Ann", "a.b": {"c d": 2}}
    batch = events_of(other_session, event("c", None, row), event("d", row, None))
    changes = parse_debezium(batch, "id bigint, `name *` string, `a.b` struct<`c d`: bigint>")
    assert [row[3:6] for row in map(tuple, changes.rows.collect())] == [(1, "Ann", (2,))] * 2


def test_odd_names_of_the_batch_stay_in_the_rows_and_in_the_corrupt_records(session: Any) -> None:
    batch = events_of(session, event("c", None, {"id": 1}), b"{", event("t", None, None))
    kept = ["offset", F.lit(5).alias("meta.ip")]
    named = batch.withColumnRenamed("value", "body.json")
    changes = parse_debezium(named, TABLE, columns=kept, value="body.json", corrupt="raw.value")
    assert [(row["meta.ip"], row.id) for row in changes.rows.collect()] == [(5, 1)]
    found = changes.corrupt.collect()
    assert changes.corrupt.columns == ["offset", "meta.ip", "topic", "partition", "error", "raw.value"]
    assert [(row.offset, row["meta.ip"], bytes(row["raw.value"])[:2]) for row in found] == [(1, 5, b"{"), (2, 5, b'{"')]


def test_a_column_with_the_name_of_one_that_is_made_is_refused(session: Any) -> None:
    with pytest.raises(Refused, match=r"\['op'\]\): schema must be a schema of columns with other names than op"):
        parse_debezium(events_of(session), "id bigint, op string")


def blocks(language: str) -> list[str]:
    """The page's examples with Debezium."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text().partition("\n## Changes")[2], re.M | re.S)


def follow(lab: Lab, customers: Sink) -> Iterator[dict[int, str]]:
    """Run three epochs of the page's transform; after each, what the database's table says."""
    app = lab.folder / "customers.py"
    app.write_text(blocks("python")[0])
    sinks = (customers, DeltaSink("rejected", lab.at("rejected")))
    producer = Producer({"bootstrap.servers": lab.broker.bootstrap})
    told: dict[int, str] = {}
    for epoch in range(3):
        for number in range(40):
            key = (epoch * 7 + number) % 25
            before = {"id": key, "name": told.get(key)} if key in told else None
            if before and number % 3 == 0:
                producer.produce(lab.topic, json.dumps(wrapped(event("d", before, None))), str(key), partition=key % 3)
                producer.produce(lab.topic, None, str(key), partition=key % 3)
                del told[key]
            else:
                told[key] = f"name {epoch}.{number}"
                after = {"id": key, "name": told[key]}
                change = event("u" if before else "c", before, after)
                producer.produce(lab.topic, json.dumps(wrapped(change)), str(key), partition=key % 3)
        assert producer.flush(30) == 0
        lab.run(lab.task("customers", "customers", sinks, None, app=app))
        yield told


@pytest.mark.long
def test_the_example_of_the_page_lets_a_table_follow_the_database_over_several_epochs(lab: Lab) -> None:
    customers = eval(blocks("python")[1].replace("/lake", lab.lake), {"DeltaSink": DeltaSink})
    for told in follow(lab, customers):
        assert dict(lab.rows("customers", "id, name")) == told


@pytest.mark.long
def test_the_example_of_the_page_lets_a_table_of_another_database_follow_it_too(lab: Lab, postgres: Postgres) -> None:
    db = new_postgres(postgres)
    db.run(*blocks("sql"))
    lab.connections["warehouse"] = db.connection(conn_id="warehouse", extra={"options": f"-c search_path={db.schema}"})
    customers = eval(blocks("python")[2].replace("/lake", lab.lake), {"SqlSink": SqlSink})
    for told in follow(lab, customers):
        assert dict(db.run("SELECT id, name FROM customers")) == told
