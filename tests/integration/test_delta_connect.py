"""The Delta sink with Spark Connect staging: rules at stage, odd partition values, VACUUM, several readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_epochs.model import Marker, VoteKind
from airflow_epochs.sinks.delta.sink import DeltaSink
from tests.support.delta_world import attempt_of, promised, seen_by_duckdb, spark_epoch, stage_with_spark, transaction
from tests.support.environment import Environment

pytestmark = pytest.mark.jvm

ODD = ["plain", "a:b c", "a/b", "a%20b", "100%", "ü", "日本 語", "x=y", "a+b", "'q\"", None, ""]


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "lake ü" / "orders")


def odd_rows(session: Any, start: int) -> Any:
    pairs = [(start + i, value) for i, value in enumerate(ODD)]
    return session.createDataFrame(pairs, "id bigint, p string")


def seen_by_spark(session: Any, table: str) -> list[int]:
    return sorted(row.id for row in session.read.format("delta").load(f"file://{table}").collect())


def seen_by_deltalake(table: str) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table()["id"].to_pylist())


@pytest.mark.long
def test_odd_partition_values_survive_both_vacuums_and_compaction_for_every_reader(
    session: Any, world: Environment, table: str
) -> None:
    sink = DeltaSink("bronze", table, partition_by=["p"], compact_every=1, checkpoint_every=1)
    txns = [transaction(epoch) for epoch in range(1, 5)]
    for number, txn in enumerate(txns):
        spark_epoch(sink, txn, txns[number - 1] if number else None, odd_rows(session, 100 * number), world)
    expected = sorted(100 * n + i for n in range(len(txns)) for i in range(len(ODD)))
    done = sink.maintain("orders", 1, world)
    assert done["files_removed"] > done["files_added"] > 0
    for readers_see in (seen_by_deltalake, seen_by_duckdb, lambda t: seen_by_spark(session, t)):
        assert readers_see(table) == expected
    DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, full=True, dry_run=False)
    assert seen_by_deltalake(table) == expected
    session.sql(f"VACUUM delta.`file://{table}` RETAIN 0 HOURS").collect()
    for readers_see in (seen_by_deltalake, seen_by_duckdb, lambda t: seen_by_spark(session, t)):
        assert readers_see(table) == expected
    values = session.read.format("delta").load(f"file://{table}").select("p").distinct().collect()
    # Delta keeps an empty string as NULL in a partition column.
    assert {row.p for row in values} == set(ODD) - {""}


TYPED = """
    SELECT id, CAST(id AS TINYINT) AS tiny, CAST('-12345678901234567890.123456' AS DECIMAL(38, 6)) AS exact,
           CAST('NaN' AS FLOAT) AS f, CAST(NULL AS DOUBLE) AS d, TIMESTAMP'0002-01-01 00:00:00.000001' AS early,
           TIMESTAMP_NTZ'9999-12-31 23:59:59.999999' AS late, DATE'0001-01-01' AS day, X'00FF' AS raw,
           NAMED_STRUCT('a', id, 'b', ARRAY('x', NULL)) AS nested, MAP('k', CAST(1.5 AS DECIMAL(5, 2))) AS pairs,
           DATE'2024-02-29' AS p
    FROM RANGE(10)
"""


@pytest.mark.long
@pytest.mark.parametrize("timestamps", ["INT96", pytest.param("TIMESTAMP_MICROS", marks=pytest.mark.long)])
def test_rows_written_by_spark_are_the_same_for_spark_after_compaction(
    session: Any, world: Environment, table: str, timestamps: str
) -> None:
    def seen() -> list[str]:
        return sorted(map(repr, session.read.format("delta").load(f"file://{table}").collect()))

    session.conf.set("spark.sql.parquet.outputTimestampType", timestamps)
    for _ in range(4):
        session.sql(TYPED).write.format("delta").partitionBy("p").mode("append").save(f"file://{table}")
    session.conf.unset("spark.sql.parquet.outputTimestampType")
    before = seen()
    done = DeltaSink("bronze", table, compact_every=1).maintain("orders", 1, world)
    assert (done["files_removed"] >= 4, done["files_added"]) == (True, 1)
    assert seen() == before
    session.sql(f"OPTIMIZE delta.`file://{table}`").collect()
    assert seen() == before


def test_staged_rows_survive_until_published_when_the_target_is_read_meanwhile(
    session: Any, world: Environment, table: str
) -> None:
    sink = DeltaSink("bronze", table, properties={"delta.appendOnly": "true"})
    first = transaction(1)
    spark_epoch(sink, first, None, session.range(5), world)
    assert DeltaTable(table).metadata().configuration == {"delta.appendOnly": "true"}
    attempt = attempt_of(transaction(2), previous=first)
    staged = promised(sink.vote(attempt, stage_with_spark(sink, attempt, session.range(5, 9), world), world))
    assert seen_by_spark(session, table) == list(range(5))
    sink.commit(attempt, staged, world)
    assert seen_by_spark(session, table) == list(range(9))
    assert sink.last_committed("orders", world) == Marker.of(attempt.txn)


def test_an_empty_epoch_of_spark_moves_the_marker(session: Any, world: Environment, table: str) -> None:
    sink = DeltaSink("bronze", table)
    first, second = transaction(1), transaction(2)
    _, receipt = spark_epoch(sink, first, None, session.range(0), world)
    assert (receipt.rows, receipt.version) == (0, 0)
    _, receipt = spark_epoch(sink, second, first, session.range(0), world)
    assert (receipt.rows, receipt.version) == (0, 1)
    assert seen_by_duckdb(table) == []
    assert sink.last_committed("orders", world) == Marker.of(second)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ("SELECT 1L id, 'x' extra", "column 'extra' (string) is not in the table"),
        ("SELECT 'x' id", "column 'id' is string in the rows and long in the table"),
        ("SELECT 1 id", "column 'id' is integer in the rows and long in the table"),
        ("SELECT 'x' note", "column 'id' is NOT NULL in the table and missing in the rows"),
        ("SELECT CAST(NULL AS BIGINT) id", "NOT NULL"),
        ("SELECT -1L id", "positive"),
    ],
)
def test_rows_that_do_not_fit_are_a_vote_abort_that_names_the_column_or_rule(
    session: Any, world: Environment, table: str, rows: str, names: str
) -> None:
    session.sql(f"CREATE TABLE delta.`file://{table}` (id BIGINT NOT NULL, note STRING) USING delta").collect()
    session.sql(f"ALTER TABLE delta.`file://{table}` ADD CONSTRAINT positive CHECK (id IS NULL OR id > 0)").collect()
    sink = DeltaSink("bronze", table)
    attempt = attempt_of(transaction(1))
    vote = sink.vote(attempt, stage_with_spark(sink, attempt, session.sql(rows), world), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert names in (vote.reason or "")


def test_column_names_match_whatever_their_case_and_order(session: Any, world: Environment, table: str) -> None:
    session.sql(f"CREATE TABLE delta.`file://{table}` (id BIGINT, Note STRING) USING delta").collect()
    sink = DeltaSink("bronze", table)
    spark_epoch(sink, transaction(1), None, session.sql("SELECT 'x' NOTE, 1L ID"), world)
    assert seen_by_duckdb(table) == [1]


def test_tables_with_mapped_and_generated_columns_deletion_vectors_and_change_feed_take_epochs(
    session: Any, world: Environment, table: str
) -> None:
    name = f"delta.`file://{table}`"
    session.sql(
        f"CREATE TABLE {name} (id BIGINT, `odd name` STRING, at TIMESTAMP, day DATE GENERATED ALWAYS AS "
        "(CAST(at AS DATE))) USING delta PARTITIONED BY (day) TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
        "'delta.enableDeletionVectors' = 'true', 'delta.enableChangeDataFeed' = 'true')"
    ).collect()
    sink = DeltaSink("bronze", table)
    first, second = transaction(1), transaction(2)
    rows = "SELECT {0}L id, 'x' `odd name`, TIMESTAMP'2024-02-29 12:00:00' at UNION ALL SELECT {1}L, 'y', NULL"
    spark_epoch(sink, first, None, session.sql(rows.format(1, 2)), world)
    session.sql(f"DELETE FROM {name} WHERE id = 2").collect()
    _, receipt = spark_epoch(sink, second, first, session.sql(rows.format(3, 4)), world)
    assert receipt.detail["committer"] == "deltalake"
    assert seen_by_duckdb(table) == seen_by_spark(session, table) == [1, 3, 4]
    read = session.sql(f"SELECT `odd name` n, CAST(day AS STRING) day FROM {name} ORDER BY id").collect()
    assert [(row.n, row.day) for row in read] == [("x", "2024-02-29"), ("x", "2024-02-29"), ("y", None)]
    changes = session.sql(f"SELECT id, _change_type c FROM table_changes_by_path('file://{table}', 1)").collect()
    assert sorted((row.id, row.c) for row in changes) == [
        (1, "insert"),
        (2, "delete"),
        (2, "insert"),
        (3, "insert"),
        (4, "insert"),
    ]


def test_a_generated_column_with_a_wrong_value_is_a_vote_abort(session: Any, world: Environment, table: str) -> None:
    session.sql(
        f"CREATE TABLE delta.`file://{table}` (id BIGINT, twice BIGINT GENERATED ALWAYS AS (id * 2)) USING delta"
    ).collect()
    for number, commit in enumerate(("deltalake", "spark")):
        sink = DeltaSink(f"s{number}", table, commit=commit)
        attempt = attempt_of(transaction(1))
        wrong = session.sql("SELECT 1L id, 3L twice")
        vote = sink.vote(attempt, stage_with_spark(sink, attempt, wrong, world), world)
        assert vote.vote is VoteKind.VOTE_ABORT
        assert "twice" in (vote.reason or "") or "id * 2" in (vote.reason or "")


@pytest.mark.long
def test_a_lake_that_already_has_the_rows_reads_the_same_after_spark_optimizes_and_checkpoints(
    session: Any, world: Environment, table: str
) -> None:
    sink = DeltaSink("bronze", table)
    previous = None
    for epoch in range(1, 4):
        txn = transaction(epoch)
        spark_epoch(sink, txn, previous, session.range(epoch * 10, epoch * 10 + 2), world)
        previous = txn
    session.sql(f"OPTIMIZE delta.`file://{table}`").collect()
    DeltaTable(table).create_checkpoint()
    assert sink.last_committed("orders", world) == Marker.of(txn)
    assert seen_by_duckdb(table) == seen_by_spark(session, table) == [10, 11, 20, 21, 30, 31]
    history = session.sql(f"DESCRIBE HISTORY delta.`file://{table}`").where("operation = 'WRITE'").collect()
    assert str(txn) in history[0].userMetadata
    assert history[0].operationMetrics["numOutputRows"] == "2"
