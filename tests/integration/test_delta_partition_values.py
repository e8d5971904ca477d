"""Values in partition columns come back as they were staged, or the vote says why they would not."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from airflow_epochs import codes
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import Corrupt, OutcomeUnknown
from airflow_epochs.model import VoteKind
from airflow_epochs.sinks.delta.sink import DeltaSink
from orders_demo.duck import duck
from tests.support.delta_modes_world import (
    BERLIN,
    FIRST,
    LOCAL_TEXT,
    SECOND,
    UTC,
    Epochs,
    create,
    empty,
    hours_seen,
    shown,
    shown_by_others,
    values,
    vote_on,
)
from tests.support.delta_world import attempt_of, fill_with_spark, log_of, promised, stage_with_spark, transaction
from tests.support.environment import Environment
from tests.support.spark_world import settings

pytestmark = pytest.mark.jvm


def hour(session: Any, id_: int, second: int) -> Any:
    return values(session, "id, hour", f"({id_}L, timestamp_seconds({second}))")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "how", [{}, {"commit": "spark"}, pytest.param({"mode": "overwrite_partitions"}, marks=pytest.mark.long)], ids=str
)
def test_an_hour_that_comes_twice_in_the_sessions_zone_is_no_partition_until_the_zone_is_utc(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    sink = DeltaSink("bronze", table, partition_by=["hour"], **how)
    epochs = Epochs(sink, world)
    with settings(session, BERLIN):
        epochs.run(hour(session, 1, FIRST))
        vote = vote_on(sink, attempt_of(transaction(2), epochs.previous), hour(session, 2, SECOND), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "column hour" in (vote.reason or "") and "ambiguous in the session's time zone" in (vote.reason or "")
    assert "Set spark.sql.session.timeZone=UTC" in (vote.reason or "")
    with settings(session, UTC):
        epochs.run(hour(session, 2, SECOND))
    assert hours_seen(table) == [(1, FIRST), (2, SECOND)]


@pytest.mark.parametrize("how", [{}, pytest.param({"commit": "spark"}, marks=pytest.mark.long)], ids=str)
def test_an_hour_that_the_table_computes_and_that_comes_twice_is_no_partition_until_the_zone_is_utc(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    computed = "hour TIMESTAMP GENERATED ALWAYS AS (date_trunc('HOUR', at))"
    create(session, table, f"id BIGINT, at TIMESTAMP, {computed}", "PARTITIONED BY (hour)")
    sink, rows = DeltaSink("bronze", table, **how), values(session, "id, at", f"(2L, timestamp_seconds({SECOND + 60}))")
    with settings(session, BERLIN):
        vote = vote_on(sink, attempt_of(transaction(1)), rows, world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "column hour" in (vote.reason or "") and "ambiguous in the session's time zone" in (vote.reason or "")
    with settings(session, UTC):
        Epochs(sink, world).run(rows)
    assert hours_seen(table) == [(2, SECOND)]


@pytest.mark.few(1)
@pytest.mark.parametrize("how", [{}, {"commit": "spark"}], ids=str)
def test_instants_in_partition_columns_are_in_utc_in_the_log_whatever_the_server_is_set_up_to_write(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    with settings(session, BERLIN | LOCAL_TEXT):
        Epochs(DeltaSink("bronze", table, partition_by=["hour"], **how), world).run(hour(session, 1, FIRST))
    told = [action["add"]["partitionValues"] for entry in log_of(table) for action in entry if "add" in action]
    assert told == [{"hour": "2026-10-25T00:00:00.000000Z"}]
    assert hours_seen(table) == [(1, FIRST)]


def fill(session: Any, table: str, properties: str = "") -> None:
    """A table with a row of the first hour and two of the second, each hour in one file."""
    with settings(session, UTC):
        create(session, table, "id BIGINT, hour TIMESTAMP, v BIGINT", f"PARTITIONED BY (hour) {properties}")
        hours = ", ".join(
            f"({id_}L, timestamp_seconds({hour}), 0L)" for id_, hour in enumerate((FIRST, SECOND, SECOND))
        )
        query = f"SELECT /*+ COALESCE(1) */ * FROM VALUES {hours}"
        session.sql(f"INSERT INTO delta.`file://{table}` {query}").collect()


FILLED = [(0, FIRST), (1, SECOND), (2, SECOND)]
BY_ID: dict[str, Any] = {"mode": "upsert", "keys": ["id"]}
ADD: dict[str, Any] = {"mode": "merge", "keys": ["id"], "merge": "WHEN MATCHED THEN UPDATE SET t.v = t.v + s.v"}
AGE: dict[str, Any] = {
    "mode": "merge",
    "keys": ["id"],
    "merge": "WHEN NOT MATCHED BY SOURCE AND t.id = 2 THEN UPDATE SET t.v = t.v + 1",
}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("how", "id_"), [(BY_ID, 1), pytest.param(ADD, 1, marks=pytest.mark.long), (AGE, 0)], ids=["upsert", "add", "age"]
)
def test_a_merge_moves_no_row_of_the_table_out_of_an_hour_that_comes_twice_in_the_sessions_zone(
    session: Any, world: Environment, table: str, how: dict[str, Any], id_: int
) -> None:
    fill(session, table)
    sink, rows = DeltaSink("silver", table, **how), values(session, "id, v", f"({id_}L, 5L)")
    with settings(session, BERLIN):
        vote = vote_on(sink, attempt_of(transaction(1)), rows, world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "column hour is ambiguous in the session's time zone" in (vote.reason or "")
    assert "Set spark.sql.session.timeZone=UTC" in (vote.reason or "")
    with settings(session, UTC):
        Epochs(sink, world).run(rows)
    assert hours_seen(table) == FILLED


@pytest.mark.long
def test_a_merge_of_other_rows_beside_an_hour_that_comes_twice_is_committed_in_any_zone(
    session: Any, world: Environment, table: str
) -> None:
    fill(session, table)
    insert: dict[str, Any] = {
        "mode": "merge",
        "keys": ["id"],
        "merge": "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)",
    }
    with settings(session, BERLIN):
        Epochs(DeltaSink("silver", table, **BY_ID), world).run(values(session, "id, v", "(0L, 5L)", "(3L, 5L)"))
        Epochs(DeltaSink("gold", table, **insert), world).run(values(session, "id, v", "(1L, 5L)"))
        Epochs(DeltaSink("aged", table, **AGE), world).run(empty(session, "id BIGINT, v BIGINT"))
    with duck() as database:
        found = database.execute("SELECT id, epoch(hour)::BIGINT, v FROM delta_scan(?) ORDER BY id", [table]).fetchall()
    assert found == [(0, FIRST, 5), (1, SECOND, 0), (2, SECOND, 0), (3, None, 5)]


@pytest.mark.long
@pytest.mark.parametrize("how", [BY_ID, pytest.param(ADD, marks=pytest.mark.long)], ids=["upsert", "add"])
def test_a_merge_that_would_move_rows_only_at_its_commit_stops_until_the_zone_is_utc(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    fill(session, table)
    sink, attempt = DeltaSink("silver", table, **how), attempt_of(transaction(1))
    with settings(session, UTC):
        staged = promised(vote_on(sink, attempt, values(session, "id, v", "(1L, 5L)"), world))
    with settings(session, BERLIN), pytest.raises(Corrupt) as refused:
        sink.commit(attempt, staged, world)
    assert refused.value.code is codes.DELTA_COMMIT_REFUSED
    assert "column hour is ambiguous in the session's time zone" in refused.value.what
    assert refused.value.remedy.startswith("Set spark.sql.session.timeZone=UTC")
    assert hours_seen(table) == FILLED
    with settings(session, UTC):
        sink.commit(attempt, staged, world)
    assert hours_seen(table) == FILLED


COMMITS: list[Any] = [
    {"commit": "spark"},
    {"mode": "overwrite_partitions"},
    pytest.param({"mode": "overwrite"}, marks=pytest.mark.long),
    pytest.param(BY_ID, marks=pytest.mark.long),
]


@pytest.mark.long
@pytest.mark.parametrize("how", COMMITS, ids=str)
def test_rows_staged_in_utc_are_not_committed_in_a_zone_that_has_their_hour_twice(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    sink, attempt = DeltaSink("bronze", table, partition_by=["hour"], **how), attempt_of(transaction(1))
    with settings(session, UTC):
        staged = promised(vote_on(sink, attempt, hour(session, 2, SECOND), world))
    with settings(session, BERLIN), pytest.raises(Corrupt) as refused:
        sink.commit(attempt, staged, world)
    assert "column hour" in refused.value.what and "ambiguous in the session's time zone" in refused.value.what
    assert refused.value.remedy.startswith("Set spark.sql.session.timeZone=UTC")
    with settings(session, UTC):
        sink.commit(attempt, staged, world)
    assert hours_seen(table) == [(2, SECOND)]


@pytest.mark.long
def test_rows_of_an_hour_that_comes_twice_are_not_committed_to_a_table_that_is_partitioned_by_it_since_the_vote(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT, hour TIMESTAMP")
    sink, attempt = DeltaSink("bronze", table, commit="spark"), attempt_of(transaction(1))
    with settings(session, BERLIN):
        staged = promised(vote_on(sink, attempt, hour(session, 2, SECOND), world))
        again = session.read.format("delta").load(f"file://{table}").write.format("delta").mode("overwrite")
        again.option("overwriteSchema", "true").partitionBy("hour").save(f"file://{table}")
        with pytest.raises(Corrupt, match=r"column hour .* is ambiguous in the session's time zone"):
            sink.commit(attempt, staged, world)
    with settings(session, UTC):
        sink.commit(attempt, staged, world)
    assert hours_seen(table) == [(2, SECOND)]


@pytest.mark.long
def test_an_overwrite_of_the_first_of_two_hours_of_one_name_leaves_the_second(
    session: Any, world: Environment, table: str
) -> None:
    fill(session, table)
    rows = values(session, "id, hour, v", f"(9L, timestamp_seconds({FIRST}), 9L)")
    with settings(session, BERLIN):
        Epochs(DeltaSink("days", table, mode="overwrite_partitions"), world).run(rows)
    assert hours_seen(table) == [(1, SECOND), (2, SECOND), (9, FIRST)]


@pytest.mark.long
def test_a_compaction_by_spark_leaves_an_hour_that_comes_twice_as_it_is(
    session: Any, world: Environment, table: str
) -> None:
    fill(session, table)
    fresh = values(session, "id, hour, v", f"(3L, timestamp_seconds({FIRST}), 0L)")
    with settings(session, UTC):
        session.sql(f"INSERT INTO delta.`file://{table}` VALUES (4L, timestamp_seconds({SECOND}), 0L)").collect()
        sink = DeltaSink("bronze", table, commit="spark", compact_every=1)
    with settings(session, BERLIN):
        Epochs(sink, world).run(fresh)
        assert sink.maintain("orders", 1, world) == {"files_added": 1, "files_removed": 2}
    assert hours_seen(table) == [*FILLED, (3, FIRST), (4, SECOND)]
    with settings(session, UTC):
        assert sink.maintain("orders", 1, world) == {"files_added": 1, "files_removed": 2}
    assert hours_seen(table) == [*FILLED, (3, FIRST), (4, SECOND)]


@pytest.mark.long
def test_an_hour_that_comes_twice_stays_as_it_is_in_a_table_of_a_catalog(
    session: Any, world: Environment, table: str
) -> None:
    fill(session, table)
    name = f"spark_catalog.default.t{uuid.uuid4().hex[:12]}"
    session.sql(f"CREATE TABLE {name} USING delta LOCATION 'file://{table}'").collect()
    try:
        with settings(session, UTC):
            session.sql(f"INSERT INTO {name} VALUES (4L, timestamp_seconds({SECOND}), 0L)").collect()
        sink = DeltaSink("silver", name, compact_every=1, **BY_ID)
        with settings(session, BERLIN):
            vote = vote_on(sink, attempt_of(transaction(1)), values(session, "id, v", "(1L, 5L)"), world)
            Epochs(sink, world).run(values(session, "id, v", "(0L, 5L)"))
            assert sink.maintain("orders", 1, world)["files_removed"] == 0
    finally:
        session.sql(f"DROP TABLE {name}").collect()
    assert "column hour is ambiguous in the session's time zone" in (vote.reason or "")
    assert hours_seen(table) == [*FILLED, (4, SECOND)]


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    [
        {"commit": "spark"},
        {"mode": "upsert", "keys": ["hour"], "sequence_by": "id", "delete_when": "v < 0"},
        {"mode": "upsert", "keys": ["id"], "sequence_by": "hour", "delete_when": "v < 0"},
    ],
    ids=["append", "key", "sequence"],
)
def test_instants_in_other_columns_stay_apart_although_their_hour_comes_twice_in_the_sessions_zone(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    def rows(*given: tuple[int, int, int]) -> Any:
        told = (f"({id_}L, timestamp_seconds({second}), {v}L)" for id_, second, v in given)
        return values(session, "id, hour, v", *told)

    epochs = Epochs(DeltaSink("silver", table, **how), world)
    with settings(session, BERLIN):
        epochs.run(rows((5, FIRST, -1), (5, SECOND, 1)))
        epochs.run(rows((4, FIRST, 3), (6, SECOND, 4)))
    expected = {
        None: [(4, FIRST), (5, FIRST), (5, SECOND), (6, SECOND)],
        "id": [(6, SECOND)],  # the key FIRST was deleted as of 5, so 4 comes too late
        "hour": [(4, FIRST), (5, SECOND), (6, SECOND)],
    }
    assert hours_seen(table) == expected[how.get("sequence_by")]


MODES: list[Any] = [
    {},
    {"commit": "spark"},
    {"mode": "upsert", "keys": ["id"]},
    pytest.param({"mode": "overwrite"}, marks=pytest.mark.long),
    {"mode": "overwrite_partitions"},
]


@pytest.mark.few(1)
@pytest.mark.parametrize("how", MODES, ids=str)
def test_an_empty_text_in_a_partition_column_that_must_not_be_null_is_a_vote_abort(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    create(session, table, "id BIGINT, country STRING NOT NULL", "PARTITIONED BY (country)")
    sink, attempt = DeltaSink("bronze", table, **how), attempt_of(transaction(1))
    vote = vote_on(sink, attempt, session.sql("SELECT 1L id, '' country"), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "not null" in (vote.reason or "").lower() and "country" in (vote.reason or "")
    Epochs(sink, world).run(session.sql("SELECT 1L id, 'DE' country"))
    assert shown_by_others(table) == [(1, "DE")]


@pytest.mark.long
def test_a_check_of_an_empty_text_in_a_partition_column_is_that_of_null(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT, country STRING", "PARTITIONED BY (country)")
    session.sql(f"ALTER TABLE delta.`file://{table}` ADD CONSTRAINT known CHECK (country <> 'XX')").collect()
    sink, attempt = DeltaSink("bronze", table, commit="spark"), attempt_of(transaction(1))
    vote = vote_on(sink, attempt, session.sql("SELECT 1L id, '' country"), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "CHECK constraint known" in (vote.reason or "")


@pytest.mark.few(1)
@pytest.mark.parametrize("how", MODES[1:], ids=str)
def test_an_empty_text_in_a_partition_column_is_digested_and_shown_as_null(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    create(session, table, "id BIGINT, Country STRING COMMENT 'of birth'", "PARTITIONED BY (Country)")
    sink, attempt = DeltaSink("bronze", table, **how), attempt_of(transaction(1))
    staged = [
        promised(sink.vote(attempt, stage_with_spark(sink, attempt, session.sql(query), world), world))
        for query in ("SELECT 1L id, '' country", "SELECT 1L id, CAST(NULL AS STRING) country")
    ]
    assert staged[0].has_rows_of(staged[1])
    sink.commit(attempt, staged[0], world)
    assert shown(session, table) == shown_by_others(table) == [(1, None)]


# -- values that readers would not get ---------------------------------------------------------------------------------

FAR_DAY, BEFORE_CHRIST = "date_from_unix_date(2147483647)", "timestamp'-0044-03-15 00:00:00Z'"
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
YEARS = "is outside of the years 1 to 9999: "


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("how", "value", "told"),
    [
        ({}, FAR_DAY, f"column p of TABLE {YEARS}+5881580-07-11"),
        ({"mode": "upsert", "keys": ["id"]}, f"'{NO_VALUE}'", f"column p of TABLE is the text {NO_VALUE}, which Spark"),
        ({"commit": "spark"}, BEFORE_CHRIST, f"the partition column p of TABLE {YEARS}-0044-03-15 "),
        ({"mode": "overwrite_partitions"}, f"CAST({BEFORE_CHRIST} AS TIMESTAMP_NTZ)", f"of TABLE {YEARS}-0044-03-15 "),
    ],
    ids=str,
)
def test_a_value_that_some_reader_would_not_get_is_no_partition(
    session: Any, world: Environment, table: str, how: dict[str, Any], value: str, told: str
) -> None:
    sink = DeltaSink("bronze", table, partition_by=["p"], **how)
    vote = vote_on(sink, attempt_of(transaction(1)), values(session, "id, p", f"(1L, {value})"), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert told.replace("TABLE", table) in (vote.reason or "")


BY_SPARK = pytest.mark.parametrize(
    "how", [{"commit": "spark"}, {"mode": "upsert", "keys": ["id"]}, {"mode": "overwrite_partitions"}], ids=str
)
LONGEST = "concat('ü/', repeat('x', 248))"
"""Of 255 bytes as the folder `p=ü%2Fxxx…`."""
TOO_LONG = {"long": f"concat({LONGEST}, 'x')", "NUL": "concat('a', char(0))"}


def texts(session: Any, *texts: str) -> Any:
    return values(session, "id, p", *(f"({id_}L, {text})" for id_, text in enumerate(texts, 1)))


def seen_by_duckdb(table: str) -> list[Any]:
    """Each row's id, and how long its text is."""
    with duck() as database:
        return database.execute("SELECT id, length(p) FROM delta_scan(?) ORDER BY id", [table]).fetchall()


def refused(sink: DeltaSink, world: Environment, attempt: SinkAttempt, rows: Any) -> str:
    """What the vote says."""
    vote = vote_on(sink, attempt, rows, world)
    assert vote.vote is VoteKind.VOTE_ABORT and "column p of " in (vote.reason or "")
    return vote.reason or ""


def obeyed(session: Any, remedy: str) -> None:
    """Run the statement that a remedy names in Spark."""
    _, _, rest = remedy.partition("`ALTER ")
    session.sql(f"ALTER {rest.partition(')`')[0]})").collect()


@pytest.mark.few(1)
@pytest.mark.parametrize("text", TOO_LONG.values(), ids=TOO_LONG)
@BY_SPARK
def test_a_text_that_makes_no_folders_name_is_refused_by_the_vote_until_the_table_has_random_folders(
    session: Any, world: Environment, table: str, how: dict[str, Any], text: str
) -> None:
    sink = DeltaSink("bronze", table, partition_by=["p"], **how)
    epochs, rows = Epochs(sink, world), texts(session, "'a'", text)
    epochs.run(texts(session, "'b'", LONGEST))
    obeyed(session, refused(sink, world, attempt_of(transaction(2), epochs.previous), rows))
    epochs.run(rows)
    assert (1, 1) in seen_by_duckdb(table) and (2, 251 if "x" in text else 2) in seen_by_duckdb(table)


@pytest.mark.few(1)
@pytest.mark.parametrize("text", TOO_LONG.values(), ids=TOO_LONG)
@BY_SPARK
def test_a_table_that_is_to_be_created_gets_random_folders_by_the_sinks_properties(
    session: Any, world: Environment, table: str, how: dict[str, Any], text: str
) -> None:
    rows, random = texts(session, "'a'", text), {"delta.randomizeFilePrefixes": "true"}
    reason = refused(DeltaSink("bronze", table, partition_by=["p"], **how), world, attempt_of(transaction(1)), rows)
    assert f"Set `properties={random}` of the sink" in reason
    Epochs(DeltaSink("bronze", table, partition_by=["p"], properties=random, **how), world).run(rows)
    assert seen_by_duckdb(table) == [(1, 1), (2, 251 if "x" in text else 2)]


@pytest.mark.long
@BY_SPARK
def test_a_table_with_mapped_columns_takes_texts_that_make_no_folders_name(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    create(
        session, table, "id BIGINT, p STRING", "PARTITIONED BY (p) TBLPROPERTIES ('delta.columnMapping.mode'='name')"
    )
    Epochs(DeltaSink("bronze", table, **how), world).run(texts(session, *TOO_LONG.values()))
    assert [(id_, len(text)) for id_, text in shown(session, table)] == [(1, 251), (2, 2)]


@pytest.mark.long
@pytest.mark.parametrize("text", TOO_LONG.values(), ids=TOO_LONG)
@BY_SPARK
def test_a_text_that_makes_no_folders_name_and_was_promised_before_is_committed_once_the_remedy_was_followed(
    session: Any, world: Environment, table: str, how: dict[str, Any], text: str
) -> None:
    """An earlier version has voted for it."""
    sink = DeltaSink("bronze", table, partition_by=["p"], **how)
    epochs = Epochs(sink, world)
    epochs.run(texts(session, "'a'"))
    attempt = attempt_of(transaction(2), epochs.previous)
    claim = stage_with_spark(sink, attempt, values(session, "id, p", f"(2L, {text})"), world)
    staged = promised(sink.vote(replace(attempt, promised=True), claim, world))
    with pytest.raises(OutcomeUnknown, match="Mkdirs failed to create") as unknown:
        sink.commit(attempt, staged, world)
    obeyed(session, unknown.value.remedy)
    sink.commit(attempt, staged, world)
    assert (2, 251 if "x" in text else 2) in seen_by_duckdb(table)


@pytest.mark.long
def test_a_day_that_the_table_computes_and_others_do_not_know_is_no_partition(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "at TIMESTAMP, day DATE GENERATED ALWAYS AS (CAST(at AS DATE))", "PARTITIONED BY (day)")
    rows = values(session, "at", "(timestamp_micros(9223372036854775807L))")
    vote = vote_on(DeltaSink("bronze", table), attempt_of(transaction(1)), rows, world)
    assert f"the partition column day of {table} {YEARS}+294247-01-10" in (vote.reason or "")


@pytest.mark.long
def test_a_date_that_others_do_not_know_is_refused_in_every_column_but_of_a_row_that_deletes_its_key(
    session: Any, world: Environment, table: str
) -> None:
    """Spark commits an upsert, with statistics in which deltalake would find the date."""
    sink = DeltaSink("silver", table, mode="upsert", keys=["id"], sequence_by="v", delete_when="gone")
    rows = [f"({id_}L, 1L, {FAR_DAY}, {at}, {id_} = 2)" for id_, at in ((1, "NULL"), (2, BEFORE_CHRIST))]
    columns = "id, v, day, at, gone"
    vote = vote_on(sink, attempt_of(transaction(1)), values(session, columns, *rows), world)
    assert f"A value of column day of {table} {YEARS}+5881580-07-11" in (vote.reason or "")
    near = f"(3L, 1L, date'9999-12-31', {BEFORE_CHRIST}, false)"
    Epochs(sink, world).run(values(session, columns, rows[1], near))
    assert DeltaTable(table).to_pyarrow_table()["id"].to_pylist() == [3]


@pytest.mark.few(1)
@pytest.mark.parametrize("partition_by", [[], ["day"]], ids=str)
def test_rows_that_an_earlier_version_has_promised_are_staged_again_whatever_their_dates(
    session: Any, world: Environment, table: str, partition_by: list[str]
) -> None:
    sink, attempt = DeltaSink("bronze", table, partition_by=partition_by), attempt_of(transaction(1))
    rows = values(session, "id, day", f"(1L, {FAR_DAY})")
    claim = fill_with_spark(session, sink.plan_stage(attempt, "again", world), rows, again=True)
    promised(sink.vote(replace(attempt, promised=True), claim, world))


def test_rows_that_a_join_drops_are_not_judged_and_a_date_is_computed_once(
    session: Any, world: Environment, table: str, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"

    def day(id_: int) -> date:
        with calls.open("a") as file:
            file.write("x")
        return date(2026, 1, id_)

    rows = values(session, "id, p, far", "(1L, 'a', NULL)", f"(2L, '{NO_VALUE}', {FAR_DAY})")
    kept = rows.join(values(session, "id", "(1L)"), "id").withColumn("day", F.udf(day, "date", useArrow=False)("id"))
    Epochs(DeltaSink("bronze", table, partition_by=["p"]), world).run(kept)
    assert shown_by_others(table) == [(1, "a", None, date(2026, 1, 1))]
    assert calls.read_text() == "x"


@pytest.mark.long
def test_a_day_that_was_staged_in_a_zone_of_the_transforms_own_is_committed_once_the_session_has_that_zone(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT, at TIMESTAMP, day DATE GENERATED ALWAYS AS (CAST(at AS DATE))")
    sink, attempt = DeltaSink("silver", table, mode="upsert", keys=["id"]), attempt_of(transaction(1))
    rows = values(session, "id, at, day", "(1L, timestamp'2026-07-01 02:00:00Z', date'2026-06-30')")
    zone = {"spark.sql.session.timeZone": "America/New_York"}
    with settings(session, zone):
        staged = promised(sink.vote(attempt, stage_with_spark(sink, attempt, rows, world), world))
    with settings(session, UTC), pytest.raises(Corrupt) as refused:
        sink.commit(attempt, staged, world)
    assert refused.value.code is codes.DELTA_COMMIT_REFUSED and "`session_conf` of SparkConnect" in refused.value.remedy
    with settings(session, zone):
        sink.commit(attempt, staged, world)
    with duck() as database:
        assert database.execute("SELECT id, day FROM delta_scan(?)", [table]).fetchall() == [(1, date(2026, 6, 30))]
