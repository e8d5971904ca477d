"""The Delta sink that commits through Spark: refused features, catalog names, other Spark writers, repeats."""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema
from pyspark.sql import functions as F

from airflow_epochs import codes
from airflow_epochs.contracts import LastEpoch
from airflow_epochs.errors import Corrupt, EpochError, OutcomeUnknown, Refused, RowsGone
from airflow_epochs.model import Marker, Receipt, TransactionId, Vote, VoteKind
from airflow_epochs.sinks.delta.sink import DeltaSink
from tests.support.cells import fired
from tests.support.delta_modes_world import create
from tests.support.delta_world import (
    attempt_of,
    log_of,
    promised,
    seen_by_duckdb,
    spark_epoch,
    stage_with_spark,
    transaction,
)
from tests.support.environment import Environment

pytestmark = pytest.mark.jvm
FILLS_PARTITIONS = {"mode": "overwrite_partitions", "partition_by": ["p"]}


@pytest.fixture
def named(session: Any) -> Iterator[str]:
    """A table in the catalog, empty."""
    name = f"spark_catalog.default.t{uuid.uuid4().hex[:12]}"
    session.sql(f"CREATE TABLE {name} (id BIGINT NOT NULL, p STRING) USING delta PARTITIONED BY (p)").collect()
    yield name
    session.sql(f"DROP TABLE {name}").collect()


def ids(session: Any, table: str) -> list[int]:
    source = f"delta.`file://{table}`" if "/" in table else table
    return sorted(row.id for row in session.sql(f"SELECT id FROM {source}").collect())


@pytest.mark.long
def test_files_of_a_commit_through_spark_that_vanish_before_the_receipt_are_told(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT")
    sink, attempt = DeltaSink("bronze", table, commit="spark"), attempt_of(transaction(1))
    staged = promised(sink.vote(attempt, stage_with_spark(sink, attempt, session.range(2), world), world))
    files: dict[Path, Path] = {}

    def vacuum() -> None:
        for path in Path(table).glob("*.parquet"):
            files[path] = path.rename(path.with_suffix(".kept"))

    world.at["delta.commit.after"] = vacuum
    with pytest.raises(Corrupt, match=r"(?s)are gone.*Restore the files") as caught:
        sink.commit(attempt, staged, world)
    assert not isinstance(caught.value, RowsGone)
    for path, kept in files.items():
        kept.rename(path)
    world.at.clear()
    assert sink.commit(attempt, staged, world).rows == 2
    assert ids(session, table) == [0, 1]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", pytest.param("upsert", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "first", [pytest.param(1, marks=pytest.mark.long), 2], ids=["of the first epoch", "of a later epoch"]
)
def test_a_commit_through_spark_that_has_lost_its_files_is_taken_back_by_the_statement_in_the_error(
    session: Any, world: Environment, table: str, mode: str, first: int
) -> None:
    how = {"mode": "upsert", "keys": ["id"]} if mode == "upsert" else {"commit": "spark"}
    sink, previous = DeltaSink("bronze", table, **how), None
    if first == 2:
        previous = transaction(1)
        spark_epoch(sink, previous, None, session.range(3), world)
    attempt = attempt_of(transaction(first), previous)
    rows = session.range(2, 6)
    staged = promised(sink.vote(attempt, stage_with_spark(sink, attempt, rows, world), world))

    def vacuum() -> None:
        """It spares what the version before has."""
        spared = set() if first == 1 else set(DeltaTable(table, version=DeltaTable(table).version() - 1).file_uris())
        for path in Path(table).glob("*.parquet"):
            if str(path) not in spared:
                path.unlink()

    world.at["delta.commit.after"] = vacuum
    with pytest.raises(Corrupt, match="are gone") as caught:
        sink.commit(attempt, staged, world)
    world.at.clear()
    (statement,) = re.findall(r"((?:RESTORE TABLE|DELETE FROM) .*?) in Spark", caught.value.remedy)
    session.sql(statement).collect()
    before = [0, 1, 2] if first == 2 else []
    assert ids(session, table) == before
    assert "airflow epochs waive orders" in caught.value.remedy
    spark_epoch(DeltaSink("bronze_2", table, **how), transaction(first + 1), None, rows, world)
    assert ids(session, table) == sorted(before + [id_ for id_ in range(2, 6) if mode == "append" or id_ not in before])


@pytest.mark.long
def test_epochs_are_inserted_once_beside_other_spark_writers_and_optimize(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT")
    sink = DeltaSink("bronze", table, commit="spark", compact_every=2)

    def others() -> None:
        for number in range(2):
            session.sql(f"INSERT INTO delta.`file://{table}` VALUES ({1000 + number})").collect()
            session.sql(f"OPTIMIZE delta.`file://{table}`").collect()

    other = Thread(target=others)
    other.start()
    previous = None
    for epoch in (1, 2):
        txn = transaction(epoch)
        staged, receipt = spark_epoch(sink, txn, previous, session.range(10 * epoch, 10 * epoch + 3), world)
        assert sink.commit(attempt_of(txn, previous), staged, world) == receipt
        assert sink.last_committed("orders", world) == Marker.of(txn)
        previous = txn
    other.join()
    expected = [10, 11, 12, 20, 21, 22, 1000, 1001]
    assert ids(session, table) == expected
    assert sink.maintain("orders", 2, world)["files_removed"] >= 0
    assert ids(session, table) == seen_by_duckdb(table) == expected


ENDS = {"orders": {"0": 7, "1": 9}}


def require_told(last: LastEpoch | None, txn: TransactionId, receipt: Receipt) -> None:
    """Spark tells all that a ledger is rebuilt from."""
    assert last and last.receipt
    assert (last.marker, last.txn, last.ends) == (Marker.of(txn), txn, ENDS)
    assert (last.receipt.version, last.receipt.txn_id) == (receipt.version, receipt.txn_id)


@pytest.mark.long
def test_a_table_with_an_identity_column_is_committed_through_spark_and_the_log_says_why(
    session: Any, world: Environment, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    create(session, table, "key BIGINT GENERATED ALWAYS AS IDENTITY, id BIGINT")
    sink = DeltaSink("bronze", table)
    with caplog.at_level(logging.WARNING):
        _, receipt = spark_epoch(sink, transaction(1), None, session.range(3), world)
    (told,) = caplog.messages
    assert 'commit="spark"' in told and "deltalake does not support" in told
    assert receipt.detail["committer"] == "spark"
    assert ids(session, table) == [0, 1, 2]
    keys = session.read.format("delta").load(f"file://{table}").select("key").distinct().count()
    assert keys == 3


@pytest.mark.long
def test_a_table_that_deltalake_cannot_even_open_is_left_to_spark_altogether(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT NOT NULL", "TBLPROPERTIES ('delta.feature.geospatial' = 'supported')")
    sink = DeltaSink("bronze", table)
    attempt = replace(attempt_of(transaction(1)), ends=ENDS)
    misfit = stage_with_spark(sink, attempt, session.sql("SELECT 'x' note"), world)
    assert "'id' is NOT NULL in the table and missing" in (misfit.problem or "")
    staged = promised(sink.vote(attempt, stage_with_spark(sink, attempt, session.range(2), world), world))
    receipt = sink.commit(attempt, staged, world)
    assert sink.last_committed("orders", world) == Marker.of(attempt.txn)
    require_told(sink.last_epoch("orders", world), attempt.txn, receipt)
    sink.discard(attempt, staged.place, world, published=True)
    assert sink.commit(attempt, staged, world) == receipt
    assert ids(session, table) == [0, 1]
    assert not Path(staged.place).exists()
    fence = transaction(2).fence
    assert sink.fence("orders", [attempt.txn], fence, world)
    last = sink.last_epoch("orders", world)
    assert last and (last.txn, last.ends) == (fence, ENDS), "it tells where the epoch before it ended"


@pytest.mark.long
def test_columns_that_a_table_computes_are_left_to_it_though_deltalake_cannot_open_it(
    session: Any, world: Environment, table: str
) -> None:
    computed = "day DATE NOT NULL GENERATED ALWAYS AS (CAST(at AS DATE)), key BIGINT GENERATED ALWAYS AS IDENTITY"
    create(session, table, f"at TIMESTAMP, {computed}", "TBLPROPERTIES ('delta.feature.geospatial' = 'supported')")
    sink, at = DeltaSink("bronze", table), "SELECT TIMESTAMP'2026-01-02 03:04:05' at"
    for given, named in (
        ("7L key", "identity column"),
        ("DATE'2026-01-03' day", "generation expression of column day"),
    ):
        attempt = attempt_of(transaction(1))
        vote = sink.vote(attempt, stage_with_spark(sink, attempt, session.sql(f"{at}, {given}"), world), world)
        assert vote.vote is VoteKind.VOTE_ABORT
        assert named in (vote.reason or "")
    txn = transaction(1)
    spark_epoch(sink, txn, None, session.sql(at), world)
    assert session.read.format("delta").load(table).selectExpr("CAST(day AS STRING)").collect() == [("2026-01-02",)]
    fence = transaction(2).fence
    assert sink.fence("orders", [txn], fence, world)
    assert sink.last_committed("orders", world) == Marker.of(fence)
    assert session.read.format("delta").load(table).count() == 1


def test_rows_with_values_for_an_identity_column_are_a_vote_abort(session: Any, world: Environment, table: str) -> None:
    create(session, table, "key BIGINT GENERATED ALWAYS AS IDENTITY, id BIGINT")
    sink = DeltaSink("bronze", table)
    attempt = attempt_of(transaction(1))
    vote = sink.vote(attempt, stage_with_spark(sink, attempt, session.sql("SELECT 7L key, 1L id"), world), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "'key'" in (vote.reason or "") and "generate" in (vote.reason or "").lower()


def test_deltalake_asked_for_by_name_refuses_a_table_it_cannot_commit_to(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT", "CLUSTER BY (id)")
    sink = DeltaSink("bronze", table, commit="deltalake")
    with pytest.raises(Refused, match="clustering"):
        sink.plan_stage(attempt_of(transaction(1)), "n", world)


def test_a_table_named_in_the_catalog_takes_epochs(session: Any, world: Environment, named: str) -> None:
    sink = DeltaSink("bronze", named)
    first, second = transaction(1), transaction(2)
    rows = session.sql("SELECT 1L id, 'ü/ %20' p UNION ALL SELECT 2L, NULL")
    staged, receipt = spark_epoch(sink, first, None, rows, world)
    assert staged.rows == receipt.rows == 2
    spark_epoch(sink, second, first, session.sql("SELECT 3L id, 'b' p"), world)
    assert ids(session, named) == [1, 2, 3]
    assert sink.last_committed("orders", world) == Marker.of(second)
    told = sink.last_epoch("orders", world)
    assert told and (told.txn, told.ends) == (second, None), "as of version 0.1, without ends"
    third = replace(attempt_of(transaction(3), second), ends=ENDS)
    staged = promised(sink.vote(third, stage_with_spark(sink, third, rows, world), world))
    receipt = sink.commit(third, staged, world)
    require_told(sink.last_epoch("orders", world), third.txn, receipt)
    sink.discard(third, staged.place, world, published=True)
    location = staged.place.split("/epochs/")[0]
    assert not list(Path(location, "epochs").rglob("*.parquet"))


def test_a_name_that_is_not_in_the_catalog_is_refused(session: Any, world: Environment) -> None:
    sink = DeltaSink("bronze", "spark_catalog.default.not_there")
    with pytest.raises(Refused, match="there is no such table"):
        sink.plan_stage(attempt_of(transaction(1)), "n", world)


@pytest.mark.parametrize("when", ["before the stage", pytest.param("after the vote", marks=pytest.mark.long)])
def test_a_view_in_the_place_of_a_table_is_told_until_the_table_has_its_name_back(
    session: Any, world: Environment, tmp_path: Path, when: str
) -> None:
    name, other = (f"default.t{uuid.uuid4().hex[:12]}" for _ in range(2))
    # On a path: a rename takes the folder of others along, with what is staged in it.
    session.sql(f"CREATE TABLE {name} (id BIGINT, p STRING) USING delta LOCATION 'file://{tmp_path}/t'").collect()
    named, first = f"spark_catalog.{name}", transaction(1)
    sink = DeltaSink("bronze", named)
    spark_epoch(sink, first, None, session.sql("SELECT 1L id, 'a' p"), world)
    attempt, rows = attempt_of(transaction(2), first), session.sql("SELECT 2L id, 'b' p")
    staged = (
        None if when == "before the stage" else sink.vote(attempt, stage_with_spark(sink, attempt, rows, world), world)
    )
    session.sql(f"ALTER TABLE {named} RENAME TO {other}").collect()
    session.sql(f"CREATE VIEW {named} AS SELECT * FROM {other}").collect()
    with pytest.raises(EpochError) as refused:
        sink.commit(attempt, promised(staged), world) if staged else sink.plan_stage(attempt, "n", world)
    assert refused.value.code is (codes.DELTA_COMMIT_UNKNOWN if staged else codes.DELTA_NOT_A_TABLE)
    assert f"{named} is not a Delta table: in the catalog, it is a view." in refused.value.what
    drop, rename = re.findall(r"`((?:DROP|ALTER) .*?)`(?: in Spark|\))", refused.value.remedy)
    for statement in (drop, rename.replace("…", other)):  # as the remedy says
        session.sql(statement).collect()
    if staged:
        sink.commit(attempt, promised(staged), world)
    else:
        spark_epoch(sink, attempt.txn, first, rows, world)
    assert ids(session, named) == [1, 2]
    session.sql(f"DROP TABLE {named}").collect()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ("SELECT CAST(NULL AS BIGINT) id", "NOT NULL constraint of column id"),
        ("SELECT -1L id", "CHECK constraint positive"),
        ("SELECT 1L id, 2L extra", "'extra'"),
        ("SELECT 'a' note", "'id' is NOT NULL"),
        ("SELECT 1L id, 'four' short", "length of column short"),
        ("SELECT 1L id, 'abc   ' short", "length of column short"),
        ("SELECT 1L id, named_struct('a', CAST(NULL AS INT), 'b', 1) s", "NOT NULL constraint of column s.a"),
        ("SELECT 1L id, CAST(NULL AS STRUCT<a: INT, b: INT>) s", "NOT NULL constraint of column s.a"),
        ("SELECT 1L id, 'abc' short", ""),
    ],
)
def test_the_targets_rules_hold_while_staging_for_spark(
    session: Any, world: Environment, table: str, rows: str, names: str
) -> None:
    create(session, table, "id BIGINT NOT NULL, note STRING, short VARCHAR(3), s STRUCT<a: INT NOT NULL, b: INT>")
    session.sql(f"ALTER TABLE delta.`file://{table}` ADD CONSTRAINT positive CHECK (id IS NULL OR id > 0)").collect()
    sink = DeltaSink("bronze", table, commit="spark")
    attempt, frame = attempt_of(transaction(1)), session.sql(rows)
    if "s" not in frame.columns:
        frame = frame.withColumn("s", F.expr("named_struct('a', 1, 'b', 2)"))
    vote = sink.vote(attempt, stage_with_spark(sink, attempt, frame, world), world)
    assert vote.vote is (VoteKind.VOTE_ABORT if names else VoteKind.VOTE_COMMIT)
    assert names in (vote.reason or "")
    if not names:
        sink.commit(attempt, promised(vote), world)
        assert ids(session, table) == [1]


@pytest.mark.long
@pytest.mark.parametrize("how", [{"commit": "spark"}, {"mode": "overwrite"}], ids=str)
def test_rows_without_a_struct_that_has_a_required_field_are_a_vote_abort(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    create(session, table, "id BIGINT, s STRUCT<b: STRUCT<c: INT NOT NULL>>")
    sink, attempt = DeltaSink("bronze", table, **how), attempt_of(transaction(1))
    vote = sink.vote(attempt, stage_with_spark(sink, attempt, session.range(2), world), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "column 's.b.c' is NOT NULL in the table and missing in the rows" in (vote.reason or "")
    rows = session.sql("SELECT 1L id, named_struct('b', named_struct('c', 1)) s")
    spark_epoch(sink, transaction(1), None, rows, world)
    assert ids(session, table) == seen_by_duckdb(table) == [1]


NESTED = {
    "tags": "ARRAY<VARCHAR(3)>",
    "part": "STRUCT<note: STRING, code: CHAR(3)>",
    "byname": "MAP<VARCHAR(3), ARRAY<STRUCT<long: VARCHAR(5), short: VARCHAR(2)>>>",
}
"""Columns with texts inside whose length their owner limits."""
LONG = {
    "tags": "array('one', NULL, 'four')",
    "part": "named_struct('note', 'as long as it likes', 'code', 'four')",
    "byname": "map('a', array(named_struct('long', 'three', 'short', 'two')))",
}
FITTING = {
    "tags": "array('one', NULL, '')",
    "part": "named_struct('note', 'as long as it likes', 'code', 'abc')",
    "byname": "map('abc', array(named_struct('long', 'three', 'short', 'of'), NULL), 'no', NULL)",
}


@pytest.mark.parametrize("how", [{"commit": "spark"}, {"mode": "upsert", "keys": ["id"]}], ids=str)
@pytest.mark.long
def test_a_text_inside_a_value_that_is_longer_than_the_table_allows_is_a_vote_abort(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    create(session, table, "id BIGINT, " + ", ".join(f"{name} {kind}" for name, kind in NESTED.items()))
    sink, attempt = DeltaSink("bronze", table, **how), attempt_of(transaction(1))

    def voted(values: dict[str, str]) -> Vote:
        rows = session.sql("SELECT 1L id, " + ", ".join(f"{value} {name}" for name, value in values.items()))
        return sink.vote(attempt, stage_with_spark(sink, attempt, rows, world), world)

    for name, value in LONG.items():
        vote = voted(FITTING | {name: value})
        assert vote.vote is VoteKind.VOTE_ABORT
        assert f"length of column {name}" in (vote.reason or "")
    sink.commit(attempt, promised(voted(FITTING)), world)
    assert ids(session, table) == seen_by_duckdb(table) == [1]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("mode", "check", "n", "names"),
    [
        ("append", "twice < 100", 5, ""),
        ("append", "twice < 100", 50, "CHECK constraint small"),
        pytest.param("append", "number >= 0", 5, "", marks=pytest.mark.long),
        ("append", "note IS NOT NULL", 5, "CHECK constraint small"),
        pytest.param("upsert", "twice < 100 AND n < 100", 5, "", marks=pytest.mark.long),
        ("upsert", "twice < 100", 50, "CHECK constraint small"),
        ("upsert", "n < 100", 100, "CHECK constraint small"),
    ],
)
def test_rules_about_columns_that_the_rows_lack_hold_as_they_will_in_the_table(
    session: Any, world: Environment, table: str, mode: str, check: str, n: int, names: str
) -> None:
    identity = ", number BIGINT GENERATED ALWAYS AS IDENTITY" if "number" in check else ""
    create(session, table, f"id BIGINT, n BIGINT, twice BIGINT GENERATED ALWAYS AS (n * 2), note STRING{identity}")
    session.sql(f"ALTER TABLE delta.`file://{table}` ADD CONSTRAINT small CHECK ({check})").collect()
    how: dict[str, Any] = {"commit": "spark"} if mode == "append" else {"mode": "upsert", "keys": ["id"]}
    sink, attempt = DeltaSink("bronze", table, **how), attempt_of(transaction(1))
    rows = session.sql(f"SELECT 1L id, {n}L n")
    vote = sink.vote(attempt, stage_with_spark(sink, attempt, rows, world), world)
    assert vote.vote is (VoteKind.VOTE_ABORT if names else VoteKind.VOTE_COMMIT), vote.reason
    assert names in (vote.reason or "")
    if not names:
        sink.commit(attempt, promised(vote), world)
        assert [(row.id, row.twice) for row in session.read.format("delta").load(table).collect()] == [(1, 10)]


@pytest.mark.few(1)
@pytest.mark.parametrize("how", [{"commit": "spark"}, {"mode": "upsert", "keys": ["id"]}], ids=str)
def test_a_value_that_the_table_computes_and_does_not_take_is_a_vote_abort(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    create(session, table, "id BIGINT, at TIMESTAMP, day DATE NOT NULL GENERATED ALWAYS AS (CAST(at AS DATE))")
    sink, attempt = DeltaSink("bronze", table, **how), attempt_of(transaction(1))
    rows = session.sql("SELECT 1L id, CAST(NULL AS TIMESTAMP) at")
    vote = sink.vote(attempt, stage_with_spark(sink, attempt, rows, world), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "NOT NULL constraint of column day" in (vote.reason or "")


def test_an_empty_text_that_the_table_computes_for_a_partition_is_null_for_its_rules(
    session: Any, world: Environment, table: str
) -> None:
    computed = "country STRING NOT NULL GENERATED ALWAYS AS (substring(code, 1, 2))"
    create(session, table, f"id BIGINT, code STRING, {computed}", "PARTITIONED BY (country)")
    sink, attempt = DeltaSink("bronze", table, commit="spark"), attempt_of(transaction(1))
    vote = sink.vote(attempt, stage_with_spark(sink, attempt, session.sql("SELECT 1L id, '' code"), world), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "NOT NULL constraint of column country" in (vote.reason or "")


@pytest.mark.long
@pytest.mark.parametrize("how", [{"commit": "spark"}, {"mode": "overwrite"}], ids=str)
def test_rows_may_lack_what_the_table_computes_its_columns_from(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    create(session, table, "id BIGINT, at TIMESTAMP, day DATE GENERATED ALWAYS AS (CAST(at AS DATE))")
    spark_epoch(DeltaSink("bronze", table, **how), transaction(1), None, session.sql("SELECT 1L id"), world)
    assert session.read.format("delta").load(table).collect() == [(1, None, None)]


def test_an_invariant_of_an_old_table_is_a_rule_of_its_rows(session: Any, world: Environment, table: str) -> None:
    invariant = json.dumps({"expression": {"expression": "n < 100"}})
    fields = [Field("id", "long"), Field("n", "long", metadata={"delta.invariants": invariant})]
    DeltaTable.create(table, Schema(fields))
    sink, attempt = DeltaSink("bronze", table, commit="spark"), attempt_of(transaction(1))
    vote = sink.vote(attempt, stage_with_spark(sink, attempt, session.sql("SELECT 1L id, 100L n"), world), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "invariant of column n (n < 100)" in (vote.reason or "")


@pytest.mark.long
def test_a_missing_table_on_a_path_is_created_by_sparks_commit(session: Any, world: Environment, table: str) -> None:
    sink = DeltaSink("bronze", table, commit="spark", partition_by=["p"], properties={"delta.appendOnly": "true"})
    txn = transaction(1)
    spark_epoch(sink, txn, None, session.sql("SELECT 1L id, 'x' p"), world)
    assert ids(session, table) == [1]
    made = DeltaTable(table)
    assert made.metadata().partition_columns == ["p"]
    assert made.metadata().configuration.get("delta.appendOnly") == "true"
    assert sink.last_committed("orders", world) == Marker.of(txn)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "how", [{"commit": "spark"}, {"mode": "upsert", "keys": ["id"]}, {"mode": "overwrite"}, FILLS_PARTITIONS], ids=str
)
def test_a_first_commit_that_died_while_it_wrote_files_is_made_by_the_next_try_beside_them(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    sink, attempt = DeltaSink("bronze", table, **how), attempt_of(transaction(1))
    rows = session.sql("SELECT id, CAST(id % 2 AS STRING) p FROM range(4)")
    staged = promised(sink.vote(attempt, stage_with_spark(sink, attempt, rows, world), world))
    rows.write.format("parquet").mode("append").partitionBy(*sink.partition_by).save(table)
    for path in Path(table).glob("*_SUCCESS*"):  # which Delta's writer does not make
        path.unlink()
    assert len([*Path(table).rglob("part-*")]) > len([*Path(table, "epochs").rglob("part-*")])
    sink.commit(attempt, staged, world)
    assert seen_by_duckdb(table) == [0, 1, 2, 3]


@pytest.mark.long
def test_rows_for_spark_that_vanish_after_the_vote_are_staged_again_and_both_places_are_cleared_away(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT", "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    sink = DeltaSink("bronze", table, commit="spark")
    attempt = attempt_of(transaction(1))
    lost = promised(sink.vote(attempt, stage_with_spark(sink, attempt, session.range(5), world), world))
    for file in Path(lost.place).glob("**/*.parquet"):
        file.unlink()
    with pytest.raises(RowsGone):
        sink.commit(attempt, lost, world)
    again = promised(sink.vote(attempt, stage_with_spark(sink, attempt, session.range(5), world), world))
    assert (again.digest, again.place != lost.place) == (lost.digest, True)
    receipt = sink.commit(attempt, again, world)
    assert receipt.place == again.place
    assert sink.commit(attempt, lost, world) == receipt
    for place in (lost.place, again.place):
        sink.discard(attempt, place, world, published=place == receipt.place)
        assert not Path(place).exists()
    assert ids(session, table) == [0, 1, 2, 3, 4]
    fired("F19", 8, "C")


def test_an_answer_of_spark_that_is_lost_is_found_again(session: Any, world: Environment, table: str) -> None:
    create(session, table, "id BIGINT")
    sink = DeltaSink("bronze", table, commit="spark")
    attempt = attempt_of(transaction(1))
    staged = promised(sink.vote(attempt, stage_with_spark(sink, attempt, session.range(2), world), world))

    def lost() -> None:
        raise OutcomeUnknown("the answer is lost", remedy="look")

    world.at["delta.commit.after"] = lost
    with pytest.raises(OutcomeUnknown):
        sink.commit(attempt, staged, world)
    world.at.clear()
    receipt = sink.commit(attempt, staged, world)
    assert receipt.version == 1
    assert ids(session, table) == [0, 1]


def test_another_transactions_rows_for_the_epoch_stop_sparks_commit(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT")
    sink = DeltaSink("bronze", table, commit="spark")
    loser = attempt_of(transaction(1))
    staged = promised(sink.vote(loser, stage_with_spark(sink, loser, session.range(2), world), world))
    spark_epoch(sink, transaction(1, attempt=2), None, session.range(5, 6), world)
    with pytest.raises(Corrupt, match="has epoch 1 of transaction"):
        sink.commit(loser, staged, world)
    assert ids(session, table) == [5]


@pytest.mark.long
def test_the_marker_is_found_in_the_log_when_the_history_no_longer_shows_it(
    session: Any, world: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_epochs.spark.driver.delta import jobs as delta_jobs
    from airflow_epochs.spark.driver.delta.plans import FoundMarker, MarkerPlan

    table = str(tmp_path / "orders [1]")
    create(session, table, "id BIGINT")
    sink = DeltaSink("bronze", table, commit="spark")
    txn = transaction(1)
    spark_epoch(sink, txn, None, session.range(2), world)
    for number in range(3):
        session.sql(f"INSERT INTO delta.`file://{table}` VALUES ({number})").collect()
    plan = MarkerPlan(target=table, app="airflow_epochs/orders/bronze")
    assert delta_jobs.delta_marker(session, plan).marker.txn == str(txn)
    in_history = delta_jobs.delta_marker(session, plan).marker
    monkeypatch.setattr(delta_jobs, "HISTORY_DEPTHS", (2,))
    in_log = delta_jobs.delta_marker(session, plan).marker
    assert in_log == in_history and in_log.version == 1
    DeltaTable(table).create_checkpoint()
    for entry in sorted(Path(table, "_delta_log").glob("0*.json"))[:-1]:
        entry.unlink()
    assert delta_jobs.delta_marker(session, plan).marker == FoundMarker(epoch=1)
    assert sink.last_committed("orders", world) == Marker(1, None)


def test_columns_added_after_the_vote_do_not_hinder_the_commit(session: Any, world: Environment, table: str) -> None:
    create(session, table, "id BIGINT")
    sink = DeltaSink("bronze", table)
    attempt = attempt_of(transaction(1))
    staged = promised(sink.vote(attempt, stage_with_spark(sink, attempt, session.range(2), world), world))
    session.sql(f"ALTER TABLE delta.`file://{table}` ADD COLUMN note STRING").collect()
    session.sql(f"ALTER TABLE delta.`file://{table}` SET TBLPROPERTIES ('delta.appendOnly' = 'true')").collect()
    assert sink.commit(attempt, staged, world).detail["committer"] == "deltalake"
    assert ids(session, table) == [0, 1]


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"commit": "spark"},
        pytest.param({"mode": "overwrite"}, marks=pytest.mark.long),
        pytest.param({"mode": "overwrite_partitions"}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_columns_widened_after_the_vote_do_not_hinder_a_commit_through_spark(
    session: Any, world: Environment, table: str, options: dict[str, Any]
) -> None:
    widening = "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')"
    create(session, table, "id INT, m DECIMAL(6,2), p INT", f"PARTITIONED BY (p) {widening}")
    sink, attempt = DeltaSink("bronze", table, **options), attempt_of(transaction(1))
    frame = session.sql("SELECT 1 AS id, CAST(1.25 AS DECIMAL(6,2)) AS m, 2 AS p")
    staged = promised(sink.vote(attempt, stage_with_spark(sink, attempt, frame, world), world))
    for column, kind in (("id", "BIGINT"), ("m", "DECIMAL(12,4)")):
        session.sql(f"ALTER TABLE delta.`file://{table}` ALTER COLUMN {column} TYPE {kind}").collect()
    sink.commit(attempt, staged, world)
    (row,) = session.read.format("delta").load(f"file://{table}").collect()
    assert tuple(row) == (1, Decimal("1.2500"), 2)


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [{"commit": "spark"}, pytest.param({"mode": "overwrite"}, marks=pytest.mark.long)], ids=str
)
def test_fields_widened_after_the_vote_do_not_hinder_a_commit_through_spark(
    session: Any, world: Environment, table: str, options: dict[str, Any]
) -> None:
    nested = "s STRUCT<a: INT, b: STRUCT<c: SMALLINT NOT NULL, d: STRING>>, l ARRAY<INT>, m MAP<STRING, INT>"
    create(session, table, nested, "TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    sink, attempt = DeltaSink("bronze", table, **options), attempt_of(transaction(1))
    rows = "named_struct('b', named_struct('d', 'x', 'c', 3S), 'a', 1) AS s, array(1, NULL) AS l, map('k', 5) AS m"
    staged = promised(sink.vote(attempt, stage_with_spark(sink, attempt, session.sql(f"SELECT {rows}"), world), world))
    for field, kind in (("s.a", "BIGINT"), ("s.b.c", "INT"), ("l.element", "BIGINT"), ("m.value", "BIGINT")):
        session.sql(f"ALTER TABLE delta.`file://{table}` ALTER COLUMN {field} TYPE {kind}").collect()
    sink.commit(attempt, staged, world)
    (row,) = session.read.format("delta").load(f"file://{table}").collect()
    assert row.asDict(recursive=True) == {"s": {"a": 1, "b": {"c": 3, "d": "x"}}, "l": [1, None], "m": {"k": 5}}


@pytest.mark.long
def test_a_table_given_rules_after_the_vote_gets_its_rows_through_spark(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT")
    sink = DeltaSink("bronze", table)
    first, second = transaction(1), transaction(2)
    attempt = attempt_of(first)
    staged = promised(sink.vote(attempt, stage_with_spark(sink, attempt, session.range(2), world), world))
    session.sql(f"ALTER TABLE delta.`file://{table}` ADD CONSTRAINT small CHECK (id < 10)").collect()
    receipt = sink.commit(attempt, staged, world)
    assert receipt.detail["committer"] == "spark"
    assert sink.commit(attempt, staged, world) == receipt
    assert sink.last_committed("orders", world) == Marker.of(first)
    sink.discard(attempt, staged.place, world, published=True)
    assert not Path(staged.place).exists()
    _, receipt = spark_epoch(sink, second, first, session.range(2, 4), world)
    assert receipt.detail["committer"] == "deltalake"
    assert sink.last_committed("orders", world) == Marker.of(second)
    assert ids(session, table) == seen_by_duckdb(table) == [0, 1, 2, 3]


def test_rows_that_a_new_rule_forbids_stop_the_commit_and_say_so(session: Any, world: Environment, table: str) -> None:
    create(session, table, "id BIGINT")
    sink = DeltaSink("bronze", table)
    attempt = attempt_of(transaction(1))
    staged = promised(sink.vote(attempt, stage_with_spark(sink, attempt, session.range(20), world), world))
    session.sql(f"ALTER TABLE delta.`file://{table}` ADD CONSTRAINT small CHECK (id < 10)").collect()
    before = log_of(table)
    with pytest.raises(Corrupt, match=r"CHECK constraint small \(id < 10\) violated") as caught:
        sink.commit(attempt, staged, world)
    assert caught.value.code is codes.DELTA_COMMIT_REFUSED
    assert log_of(table) == before
    (statement,) = re.findall(r"\((ALTER TABLE .*?) in Spark\)", caught.value.remedy)
    session.sql(statement).collect()
    sink.commit(attempt, staged, world)
    assert ids(session, table) == list(range(20))


@pytest.mark.long
def test_two_sinks_are_staged_at_once_in_one_session(session: Any, world: Environment, tmp_path: Path) -> None:
    sinks = [DeltaSink(f"s{n}", str(tmp_path / f"t{n}")) for n in range(3)]
    txn = transaction(1)
    attempts = [attempt_of(txn) for _ in sinks]
    claims: dict[int, Any] = {}

    def work(number: int) -> None:
        frame = session.range(number * 10, number * 10 + 3)
        claims[number] = stage_with_spark(sinks[number], attempts[number], frame, world)

    threads = [Thread(target=work, args=(number,)) for number in range(len(sinks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, sink in enumerate(sinks):
        staged = promised(sink.vote(attempts[number], claims[number], world))
        sink.commit(attempts[number], staged, world)
        assert ids(session, sink.table) == [number * 10 + i for i in range(3)]


def test_what_spark_is_told_is_plain_json(session: Any, world: Environment, table: str) -> None:
    create(session, table, "id BIGINT")
    plan = DeltaSink("bronze", table).plan_stage(attempt_of(transaction(1)), "n", world)
    assert json.loads(json.dumps(plan)) == plan
