"""The Delta sink's modes on a real Spark: what a table shows after upserts, merges and overwrites, once each."""

from __future__ import annotations

import os
import re
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_epochs import codes
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import Corrupt, OutcomeUnknown, RowsGone
from airflow_epochs.model import Staged, VoteKind
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver.delta import schema as delta_schema
from tests.support.cells import fired
from tests.support.delta_modes_world import (
    COUNTER,
    UPSERT,
    Epochs,
    Rows,
    create,
    empty,
    shown,
    shown_by_others,
    values,
    vote_on,
)
from tests.support.delta_world import SparkOn, attempt_of, log_of, promised, transaction
from tests.support.environment import Environment

pytestmark = pytest.mark.jvm


# -- upsert ------------------------------------------------------------------------------------------------------


def test_the_newest_row_of_a_key_wins_within_an_epoch_and_against_the_table(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT, name STRING, v BIGINT, note STRING")
    session.sql(f"INSERT INTO delta.`file://{table}` VALUES (9, 'of old', NULL, 'kept')").collect()
    epochs = Epochs(DeltaSink("silver", table, **UPSERT), world)
    epochs.run(values(session, "id, name, v", "(1L, 'new', 2L)", "(1L, 'old', 1L)", "(2L, 'b', 5L)", "(9L, 'x', 0L)"))
    expected = [(1, "new", 2, None), (2, "b", 5, None), (9, "x", 0, "kept")]
    assert shown(session, table) == shown_by_others(table) == expected
    epochs.run(values(session, "ID, v, name", "(1L, 1L, 'late')", "(2L, 5L, 'as new')", "(3L, 1L, 'c')"))
    expected = [(1, "new", 2, None), (2, "as new", 5, None), (3, "c", 1, None), (9, "x", 0, "kept")]
    assert shown(session, table) == shown_by_others(table) == expected


@pytest.mark.long
def test_an_epoch_of_older_rows_or_of_none_moves_only_the_marker(session: Any, world: Environment, table: str) -> None:
    epochs = Epochs(DeltaSink("silver", table, **UPSERT), world)
    epochs.run(values(session, "id, v", "(1L, 5L)"))
    epochs.run(values(session, "id, v", "(1L, 4L)"))
    _, _, receipt = epochs.run(empty(session, "id BIGINT, v BIGINT"))
    assert receipt.rows == 0
    assert shown(session, table) == shown_by_others(table) == [(1, 5)]


@pytest.mark.long
def test_without_a_sequence_the_row_of_the_later_epoch_wins(session: Any, world: Environment, table: str) -> None:
    sink = DeltaSink("silver", table, mode="upsert", keys=["id", "p"], delete_when="name = ''", partition_by=["p"])
    epochs = Epochs(sink, world)
    epochs.run(values(session, "id, p, name", "(1L, 'x', 'a')", "(1L, 'y', 'b')", "(2L, 'x', '')"))
    epochs.run(values(session, "id, p, name", "(1L, 'x', 'c')", "(1L, 'y', '')"))
    assert shown(session, table) == shown_by_others(table) == [(1, "x", "c")]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (["(1L, 1L, 'a')", "(CAST(NULL AS BIGINT), 1L, 'b')"], "Some rows have NULL in id or v: id=None, v=1."),
        (["(1L, CAST(NULL AS BIGINT), 'a')"], "Some rows have NULL in id or v: id=1, v=None."),
        (
            ["(1L, 1L, 'a')", "(7L, 2L, 'a')", "(7L, 2L, 'b')"],
            "several newest rows, which differ although their v is equal: id=7, v=2.",
        ),
    ],
)
def test_rows_of_a_key_without_a_newest_one_are_a_vote_abort_that_names_the_key(
    session: Any, world: Environment, table: str, rows: list[str], names: str
) -> None:
    sink = DeltaSink("silver", table, **UPSERT)
    vote = vote_on(sink, attempt_of(transaction(1)), values(session, "id, v, name", *rows), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert names in (vote.reason or "")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "columns", "told"),
    [
        (UPSERT, "*", "their v is equal: id=7, v=2, records=['t 0 1', 't 0 2', 't 0 3']."),
        (UPSERT, "id, v, struct(topic, partition, offset) AS r", "v=2, records=['t 0 1', 't 0 2', 't 0 3']."),
        ({**UPSERT, "sequence_by": None}, "*", "the newest: id=7, records=['t 0 0', 't 0 1', 't 0 2']."),
    ],
)
def test_a_vote_against_a_key_without_a_newest_row_names_records_of_its_rows(
    session: Any, world: Environment, table: str, options: dict[str, Any], columns: str, told: str
) -> None:
    offsets = [(0, 1), (1, 2), (2, 2), (3, 2), (4, 2)]
    rows = [f"(7L, {v}L, 't', 0, {offset}L)" for offset, v in offsets]
    frame = values(session, "id, v, topic, partition, offset", "(1L, 1L, 't', 1, 0L)", *rows)
    frame = frame.selectExpr(*columns.split(", ", 2))
    vote = vote_on(DeltaSink("silver", table, **options), attempt_of(transaction(1)), frame, world)
    assert told in (vote.reason or "")


def test_a_key_that_is_a_time_only_spark_knows_is_named_in_a_vote_abort(
    session: Any, world: Environment, table: str
) -> None:
    sink = DeltaSink("silver", table, mode="upsert", keys=["at", "day"])
    row = "(timestamp_micros(9223372036854775807L), date'2026-01-31')"
    vote = vote_on(sink, attempt_of(transaction(1)), values(session, "at, day", row, row), world)
    assert "is the newest: at='+294247-01-10 04:00:54.775807', day='2026-01-31'." in (vote.reason or "")


def test_rows_that_differ_by_a_microsecond_only_are_different(session: Any, world: Environment, table: str) -> None:
    at = "TIMESTAMP '2026-01-01 00:00:00.00000{}'"
    frame = values(session, "id, v, at", f"(1L, 1L, {at.format(1)})", f"(1L, 1L, {at.format(2)})")
    vote = vote_on(DeltaSink("silver", table, **UPSERT), attempt_of(transaction(1)), frame, world)
    assert "several newest rows, which differ although" in (vote.reason or "")


@pytest.mark.long
def test_ties_that_change_nothing_are_no_problem(session: Any, world: Environment, table: str) -> None:
    frame = values(session, "id, v, name", "(1L, 1L, 'a')", "(1L, 1L, 'b')", "(1L, 2L, 'c')", "(1L, 2L, 'c')")
    Epochs(DeltaSink("silver", table, **UPSERT), world).run(frame)
    assert shown(session, table) == [(1, 2, "c")]


@pytest.mark.parametrize("options", [{"mode": "upsert", "keys": ["id"]}, COUNTER], ids=["upsert", "merge"])
def test_null_keys_without_a_sequence_are_a_vote_abort(
    session: Any, world: Environment, table: str, options: dict[str, Any]
) -> None:
    frame = values(session, "id, n", "(1L, 1L)", "(CAST(NULL AS BIGINT), 8L)")
    vote = vote_on(DeltaSink("silver", table, **options), attempt_of(transaction(1)), frame, world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "NULL in id: id=None." in (vote.reason or "")


@pytest.mark.parametrize("options", [{"mode": "upsert", "keys": ["id"]}, COUNTER], ids=["upsert", "merge"])
def test_a_key_twice_without_a_sequence_is_a_vote_abort(
    session: Any, world: Environment, table: str, options: dict[str, Any]
) -> None:
    frame = values(session, "id, n", "(1L, 1L)", "(1L, 1L)", "(2L, 1L)")
    vote = vote_on(DeltaSink("silver", table, **options), attempt_of(transaction(1)), frame, world)
    assert "more than one row" in (vote.reason or "") and "id=1." in (vote.reason or "")


@pytest.mark.long
def test_deleted_keys_stay_deleted_until_a_newer_row_comes_also_for_a_sink_that_deletes_none(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT, v BIGINT, name STRING NOT NULL")
    epochs = Epochs(DeltaSink("silver", table, **UPSERT, delete_when="name IS NULL"), world)
    epochs.run(values(session, "id, v, name", "(1L, 1L, 'a')", "(2L, 1L, 'b')", "(3L, 1L, 'c')"))
    epochs.run(values(session, "id, v, name", "(1L, 5L, NULL)", "(2L, 0L, NULL)", "(4L, 9L, NULL)", "(4L, 3L, 'd')"))
    assert shown(session, table) == [(2, 1, "b"), (3, 1, "c")]
    epochs.run(values(session, "id, v, name", "(1L, 4L, 'too late')", "(4L, 8L, 'too late')", "(3L, 2L, 'C')"))
    assert shown(session, table) == shown_by_others(table) == [(2, 1, "b"), (3, 2, "C")]
    session.sql(f"VACUUM delta.`file://{table}` RETAIN 0 HOURS").collect()
    epochs.run(values(session, "id, v, name", "(1L, 6L, 'again')", "(4L, 8L, 'too late')"))
    assert shown(session, table) == [(1, 6, "again"), (2, 1, "b"), (3, 2, "C")]
    other = Epochs(DeltaSink("gold", table, **UPSERT), world, pipeline="deletes-none")
    other.run(values(session, "id, v, name", "(4L, 8L, 'too late')", "(5L, 1L, 'e')"))
    assert shown(session, table) == [(1, 6, "again"), (2, 1, "b"), (3, 2, "C"), (5, 1, "e")]


@pytest.mark.long
def test_where_the_order_begins_anew_the_documented_statements_let_the_new_rows_count(
    session: Any, world: Environment, table: str
) -> None:
    epochs = Epochs(DeltaSink("silver", table, **UPSERT, delete_when="name IS NULL"), world)
    epochs.run(values(session, "id, v, name", "(1L, 900L, 'Ann')", "(2L, 901L, NULL)", "(3L, 902L, 'Cy')"))
    late = values(session, "id, v, name", "(1L, 1L, 'taken for older')", "(2L, 2L, 'taken for deleted')")
    _, _, receipt = epochs.run(late)
    assert shown(session, table) == [(1, 900, "Ann"), (3, 902, "Cy")]
    session.sql(f"UPDATE delta.`{table}` SET v = NULL").collect()
    [notes] = Path(table, "_epochs").glob("*/deleted-*")
    session.sql(f"DELETE FROM delta.`{notes}`").collect()
    assert epochs.sink.foreign_changes(receipt, "orders", [], world) == []
    epochs.run(values(session, "id, v, name", "(1L, 3L, 'Ann anew')", "(2L, 2L, 'back')", "(3L, 4L, NULL)"))
    assert shown(session, table) == shown_by_others(table) == [(1, 3, "Ann anew"), (2, 2, "back")]


@pytest.mark.long
def test_deleted_keys_stay_deleted_under_a_new_name_of_the_sink(session: Any, world: Environment, table: str) -> None:
    create(session, table, "id BIGINT, v BIGINT, name STRING")
    how: dict[str, Any] = {**UPSERT, "delete_when": "name IS NULL"}
    Epochs(DeltaSink("silver", table, **how), world).run(
        values(session, "id, v, name", "(1L, 5L, NULL)", "(2L, 5L, NULL)", "(3L, 1L, 'c')")
    )
    renamed = Epochs(DeltaSink("gold", table, **how), world)
    renamed.run(values(session, "id, v, name", "(1L, 4L, 'too late')", "(3L, 7L, NULL)"))
    assert shown(session, table) == shown_by_others(table) == []
    session.sql(f"VACUUM delta.`file://{table}` RETAIN 0 HOURS").collect()
    renamed.run(values(session, "id, v, name", "(2L, 4L, 'too late')", "(3L, 6L, 'too late')", "(1L, 6L, 'again')"))
    assert shown(session, table) == shown_by_others(table) == [(1, 6, "again")]


@pytest.mark.parametrize(
    ("column", "old", "new"), [("id", "INT", "BIGINT"), ("v", "INT", "BIGINT"), ("v", "DATE", "TIMESTAMP_NTZ")]
)
@pytest.mark.long
def test_deleted_keys_stay_deleted_after_a_column_got_a_wider_type(
    session: Any, world: Environment, table: str, column: str, old: str, new: str
) -> None:
    kinds = {"id": "BIGINT", "v": "BIGINT", column: old}

    def rows(*rows: tuple[int, int, str | None]) -> Any:
        literal = "date_from_unix_date(v)" if kinds["v"] in ("DATE", "TIMESTAMP_NTZ") else "v"
        frame = session.createDataFrame(list(rows), "id INT, v INT, name STRING")
        return frame.selectExpr(f"CAST(id AS {kinds['id']}) id", f"CAST({literal} AS {kinds['v']}) v", "name")

    features = "TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')"
    create(session, table, f"id {kinds['id']}, v {kinds['v']}, name STRING", features)
    epochs = Epochs(DeltaSink("silver", table, **UPSERT, delete_when="name IS NULL"), world)
    epochs.run(rows((1, 5, None), (2, 5, None), (3, 1, "c")))
    session.sql(f"ALTER TABLE delta.`file://{table}` SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')").collect()
    session.sql(f"ALTER TABLE delta.`file://{table}` ALTER COLUMN {column} TYPE {new}").collect()
    kinds[column] = new
    epochs.run(rows((1, 4, "too late"), (3, 7, None)))
    assert shown(session, table) == []
    epochs.run(rows((1, 4, "too late"), (3, 6, "too late"), (2, 6, "again")))
    assert [(key, name) for key, _, name in shown(session, table)] == [(2, "again")]


@pytest.mark.long
def test_notes_of_another_type_that_no_cast_turns_into_the_new_one_stop_the_commit_until_they_are_gone(
    session: Any, world: Environment, table: str
) -> None:
    epochs = Epochs(DeltaSink("silver", table, **UPSERT, delete_when="name IS NULL"), world)
    epochs.run(values(session, "id, v, name", "('1', 'then', NULL)", "('x', 'then', NULL)", "('3', 'now', 'c')"))
    session.sql(f"SELECT CAST(id AS INT) id, 7L v, name FROM delta.`file://{table}`").write.format("delta").mode(
        "overwrite"
    ).option("overwriteSchema", "true").save(table)
    late = values(session, "id, v, name", "(1, 4L, 'late')", "(3, 8L, 'C')")
    with pytest.raises(Corrupt, match="cannot be cast: v is bigint now") as caught:
        epochs.run(late)
    assert caught.value.code == codes.DELTA_COMMIT_REFUSED
    other = Epochs(DeltaSink("gold", table, **UPSERT), world, pipeline="deletes-none")
    other.run(values(session, "id, v, name", "(4, 4L, 'd')"))
    assert shown(session, table) == [(3, 7, "c"), (4, 4, "d")]
    place = str(caught.value).split("deleted keys in ")[1].split(" have ")[0]
    session.sql(f"DELETE FROM delta.`{place}`").collect()
    epochs.run(late)
    assert shown(session, table) == [(1, 4, "late"), (3, 8, "C"), (4, 4, "d")]


@pytest.mark.long
def test_a_key_with_blanks_in_its_name_can_be_deleted(session: Any, world: Environment, table: str) -> None:
    how: dict[str, Any] = {"mode": "upsert", "keys": ["the id"], "sequence_by": "v", "delete_when": "v = 5"}
    create(session, table, "`the id` BIGINT, v BIGINT", "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    epochs = Epochs(DeltaSink("silver", table, **how), world)
    epochs.run(values(session, "`the id`, v", "(1L, 5L)", "(2L, 1L)"))
    epochs.run(values(session, "`the id`, v", "(1L, 4L)", "(2L, 2L)"))
    assert shown(session, table) == [(2, 2)]


@pytest.mark.long
def test_a_table_of_nothing_but_a_key_and_its_sequence_has_its_keys_deleted(
    session: Any, world: Environment, table: str
) -> None:
    epochs = Epochs(DeltaSink("silver", table, **UPSERT, delete_when="v = 5"), world)
    epochs.run(values(session, "id, v", "(1L, 4L)", "(2L, 4L)"))
    epochs.run(values(session, "id, v", "(1L, 5L)", "(1L, 5L)"))
    assert shown(session, table) == shown_by_others(table) == [(2, 4)]


@pytest.mark.long
def test_notes_of_deletions_are_about_a_renamed_key_after_the_command_that_the_vote_names(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT, v BIGINT", "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    epochs = Epochs(DeltaSink("silver", table, **UPSERT, delete_when="v = 5"), world)
    epochs.run(values(session, "id, v", "(1L, 5L)", "(2L, 1L)"))
    session.sql(f"ALTER TABLE delta.`file://{table}` RENAME COLUMN id TO `the id`").collect()
    epochs.sink = DeltaSink("silver", table, **{**UPSERT, "keys": ["the id"]}, delete_when="v = 5")
    late = values(session, "`the id`, v", "(1L, 4L)", "(2L, 2L)")
    vote = vote_on(epochs.sink, attempt_of(transaction(2), epochs.previous), late, world)
    copy = re.search(r"CREATE TABLE .*? FROM delta\.`.*?`", vote.reason or "")
    assert vote.vote is VoteKind.VOTE_ABORT and copy
    session.sql(copy[0]).collect()
    epochs.run(late)
    assert shown(session, table) == [(2, 2)]
    epochs.run(values(session, "`the id`, v", "(2L, 5L)"))
    epochs.run(values(session, "`the id`, v", "(1L, 3L)", "(2L, 4L)", "(3L, 1L)"))
    assert shown(session, table) == [(3, 1)]


def test_a_name_in_the_catalog_and_a_path_of_one_table_are_known_for_one_from_their_staging_places(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT")
    name = f"spark_catalog.default.t{uuid.uuid4().hex[:12]}"
    session.sql(f"CREATE TABLE {name} USING delta LOCATION 'file://{table}'").collect()
    try:
        sinks = (DeltaSink("one", name), DeltaSink("two", table), DeltaSink("three", f"{table}_3"))
        attempt = attempt_of(transaction(1))
        found = [sink.table_of(attempt, sink.place(attempt, "0" * 32, world), world) for sink in sinks]
    finally:
        session.sql(f"DROP TABLE {name}").collect()
    assert found == [os.path.realpath(table), os.path.realpath(table), os.path.realpath(f"{table}_3")]


@pytest.mark.long
def test_deletions_of_the_first_epoch_are_kept_in_mind_although_there_is_no_table_yet(
    session: Any, world: Environment, table: str
) -> None:
    epochs = Epochs(DeltaSink("silver", table, **UPSERT, delete_when="name = ''", partition_by=["id"]), world)
    epochs.run(values(session, "id, v, name", "(1L, 5L, '')", "(2L, 1L, 'b')"))
    epochs.run(values(session, "id, v, name", "(1L, 4L, 'too late')"))
    assert shown(session, table) == shown_by_others(table) == [(2, 1, "b")]
    assert DeltaTable(table).metadata().partition_columns == ["id"]


@pytest.mark.parametrize(("column", "columns"), [("id", "id CHAR(3), v BIGINT"), ("v", "id STRING, v CHAR(3)")])
@pytest.mark.long
def test_a_column_that_spark_pads_is_compared_once_the_command_in_the_vote_has_changed_its_type(
    session: Any, world: Environment, table: str, column: str, columns: str
) -> None:
    create(session, table, columns)
    epochs = Epochs(DeltaSink("silver", table, **UPSERT), world)
    first, second = ("('a', 1L)", "('a', 2L)") if column == "id" else ("('a', 'b')", "('a', 'c')")
    vote = vote_on(epochs.sink, attempt_of(transaction(1)), values(session, "id, v", first), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert f"column '{column}' is char(3) there" in (vote.reason or "")
    (command,) = re.findall(r"in Spark: (ALTER TABLE .* TYPE STRING)", vote.reason or "")
    session.sql(command).collect()
    epochs.run(values(session, "id, v", first))
    epochs.run(values(session, "id, v", second))
    assert shown(session, table) == shown_by_others(table) == [("a", 2 if column == "id" else "c")]


def test_a_delete_when_that_depends_on_the_time_is_a_vote_abort(session: Any, world: Environment, table: str) -> None:
    frame = values(session, "id, v, until", "(1L, 1L, now())")
    sink = DeltaSink("silver", table, **UPSERT, delete_when="until < current_timestamp()")
    vote = vote_on(sink, attempt_of(transaction(1)), frame, world)
    assert "it uses current_timestamp, so its result may be another one" in (vote.reason or "")
    sink = DeltaSink("silver", table, **UPSERT, delete_when="until < timestamp'2000-01-01'")
    assert vote_on(sink, attempt_of(transaction(1)), frame, world).vote is VoteKind.VOTE_COMMIT


@pytest.mark.parametrize("condition", ["nothing = 1", "1 +", "id"])
def test_a_delete_when_that_is_no_condition_is_a_vote_abort(
    session: Any, world: Environment, table: str, condition: str
) -> None:
    sink = DeltaSink("silver", table, **UPSERT, delete_when=condition)
    vote = vote_on(sink, attempt_of(transaction(1)), values(session, "id, v", "(1L, 1L)"), world)
    assert "`delete_when` is not a valid condition on the rows: " in (vote.reason or "")


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ("id, name", "The rows lack column 'v' (see `sequence_by`)."),
        ("id, v, extra", "column 'extra' (long) is not in the table"),
    ],
)
def test_columns_that_do_not_fit_are_a_vote_abort_that_names_them(
    session: Any, world: Environment, table: str, columns: str, names: str
) -> None:
    create(session, table, "id BIGINT, v BIGINT, name STRING")
    row = f"({', '.join('1L' for _ in columns.split(','))})"
    vote = vote_on(
        DeltaSink("silver", table, **UPSERT), attempt_of(transaction(1)), values(session, columns, row), world
    )
    assert names in (vote.reason or "")


def test_a_table_without_the_sequence_is_a_vote_abort_even_if_columns_may_be_added(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT")
    sink = DeltaSink("silver", table, **UPSERT, schema_evolution="add_columns")
    vote = vote_on(sink, attempt_of(transaction(1)), values(session, "id, v", "(1L, 1L)"), world)
    assert f"{table} lacks column 'v' (see `sequence_by`). `schema_evolution` does not add" in (vote.reason or "")


# -- partition columns -------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [{}, {"commit": "spark"}, {"mode": "overwrite"}],
    ids=["append by deltalake", "append by Spark", "overwrite"],
)
def test_rows_without_a_partition_column_are_a_vote_abort_that_names_the_column(
    session: Any, world: Environment, table: str, options: dict[str, Any]
) -> None:
    create(session, table, "id BIGINT, day STRING", "PARTITIONED BY (day)")
    vote = vote_on(DeltaSink("silver", table, **options), attempt_of(transaction(1)), session.range(1), world)
    assert "column 'day' partitions the table and is missing in the rows" in (vote.reason or "")


@pytest.mark.long
@pytest.mark.parametrize("options", [{"commit": "spark"}, {"mode": "overwrite"}], ids=["append", "overwrite"])
def test_an_epoch_that_was_decided_without_a_partition_column_goes_into_the_partition_of_null(
    session: Any, world: Environment, table: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = "id BIGINT, `d``ay` DATE, odd BIGINT GENERATED ALWAYS AS (id % 2)"
    create(session, table, columns, "PARTITIONED BY (odd, `d``ay`) TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    sink, attempt = DeltaSink("silver", table, **options), attempt_of(transaction(1))
    with monkeypatch.context() as patched:  # as an earlier version did not look
        patched.setattr(delta_schema, "problems", lambda *_, **__: [])
        staged = promised(vote_on(sink, attempt, session.range(2), world))
    sink.commit(attempt, staged, world)
    assert shown(session, table) == [(0, None, 0), (1, None, 1)]


# -- merge: not idempotent by itself -----------------------------------------------------------------------------


def test_a_counter_counts_every_epoch_once_however_often_its_commit_is_repeated(
    session: Any, world: Environment, table: str
) -> None:
    epochs = Epochs(DeltaSink("silver", table, **COUNTER), world)
    epochs.run(values(session, "id, n", "(1L, 1L)", "(2L, 10L)"))
    attempt, staged, receipt = epochs.run(values(session, "id, n", "(1L, 1L)", "(3L, 100L)"))
    before = log_of(table)
    assert epochs.sink.commit(attempt, staged, world) == receipt
    assert log_of(table) == before
    epochs.run(empty(session, "id BIGINT, n BIGINT"))
    assert shown(session, table) == shown_by_others(table) == [(1, 2), (2, 10), (3, 100)]
    for setting in ("write.txnAppId", "write.txnVersion", "commitInfo.userMetadata"):
        assert session.conf.get(f"spark.databricks.delta.{setting}", None) is None


@pytest.mark.long
def test_a_commit_that_was_cut_off_before_its_receipt_is_found_and_not_counted_again(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT, n BIGINT")
    sink, attempt = DeltaSink("silver", table, **COUNTER), attempt_of(transaction(1))
    staged = promised(vote_on(sink, attempt, values(session, "id, n", "(1L, 1L)"), world))

    def lost() -> None:
        raise OutcomeUnknown("the answer is lost", remedy="look")

    for phase in ("delta.commit.before", "delta.commit.after"):
        world.at = {phase: lost}
        with pytest.raises(OutcomeUnknown):
            sink.commit(attempt, staged, world)
    world.at.clear()
    receipt = sink.commit(attempt, staged, world)
    assert (receipt.version, receipt.detail["committer"]) == (1, "spark")
    sink.discard(attempt, staged.place, world, published=True)
    assert sink.commit(attempt, staged, world) == receipt
    assert not Path(staged.place).exists()
    assert shown(session, table) == [(1, 1)]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("exists", "clauses", "names"),
    [
        (True, "WHEN MATCHED THEN UPDATE SET t.not_there = s.n", "not_there"),
        (True, "WHEN MATCHED THEN UPDATE t.n = s.n", "syntax"),
        (False, "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.not_there)", "not_there"),
    ],
)
def test_clauses_that_spark_cannot_plan_are_a_vote_abort(
    session: Any, world: Environment, table: str, exists: bool, clauses: str, names: str
) -> None:
    if exists:
        create(session, table, "id BIGINT, n BIGINT")
    sink = DeltaSink("silver", table, mode="merge", keys=["id"], merge=clauses)
    vote = vote_on(sink, attempt_of(transaction(1)), values(session, "id, n", "(1L, 1L)"), world)
    assert "The MERGE into" in (vote.reason or "") and names in (vote.reason or "").lower()


@pytest.mark.long
def test_rows_of_a_merge_need_not_look_like_the_table(session: Any, world: Environment, table: str) -> None:
    create(session, table, "id BIGINT NOT NULL, total DOUBLE, p STRING NOT NULL", "PARTITIONED BY (p)")
    merge = (
        "WHEN MATCHED AND s.delta = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET total = t.total + s.delta "
        "WHEN NOT MATCHED THEN INSERT (id, total, p) VALUES (s.id, s.delta, 'x')"
    )
    epochs = Epochs(DeltaSink("silver", table, mode="merge", keys=["id"], on="t.p = 'x'", merge=merge), world)
    epochs.run(values(session, "id, delta", "(1L, 2)", "(2L, 3)"))
    epochs.run(values(session, "id, delta", "(1L, 5)", "(2L, 0)"))
    epochs.run(empty(session, "id BIGINT, delta INT"))
    assert shown(session, table) == shown_by_others(table) == [(1, 7.0, "x")]


def test_a_type_that_a_merge_would_round_or_cut_is_a_vote_abort_that_names_the_column(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id BIGINT, d DECIMAL(12,2), n INT, at TIMESTAMP_NTZ")
    merge = "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    row = "SELECT 1 AS id, CAST('1.0050' AS DECIMAL(12,4)) AS d, 1.9D AS n, TIMESTAMP '2026-01-01 00:00:00Z' AS at"
    sink = DeltaSink("silver", table, mode="merge", keys=["id"], merge=merge)
    vote = vote_on(sink, attempt_of(transaction(1)), session.sql(row), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    for told in ("'d' is decimal(12,4)", "'n' is double", "'at' is timestamp in"):
        assert f"column {told}" in (vote.reason or "")
    written_out = "WHEN NOT MATCHED THEN INSERT (id, d) VALUES (s.id, s.d)"
    Epochs(DeltaSink("silver", table, mode="merge", keys=["id"], merge=written_out), world).run(session.sql(row))
    assert shown(session, table) == [(1, Decimal("1.01"), None, None)]


# -- merged values that the table does not take ------------------------------------------------------------------

RULE = "TBLPROPERTIES ('delta.constraints.c' = 'a > 0 OR v < 5')"
ADDED = {"mode": "upsert", "keys": ["id"]}


def updating(assignment: str) -> dict[str, Any]:
    return {"mode": "merge", "keys": ["id"], "merge": f"WHEN MATCHED THEN UPDATE SET {assignment}"}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("how", "types", "rule", "given", "told", "corrected"),
    [
        (ADDED, ("BIGINT", "BIGINT"), RULE, "0", "CHECK constraint c ((a > 0) OR (v < 5)) violated", (9, 1)),
        (updating("t.v = s.v"), ("BIGINT", "BIGINT"), RULE, "0", "CHECK constraint c", (9, 1)),
        (updating("t.v = s.v + t.a"), ("BIGINT", "BIGINT"), "", f"{2**63 - 1}", "overflow", (10, 1)),
        (updating("t.v = s.v - t.a"), ("BIGINT NOT NULL", "BIGINT"), "", "NULL", "violated for column: v", (8, 1)),
        (updating("t.a = concat(t.a, s.v)"), ("BIGINT", "VARCHAR(2)"), "", "'12'", "length limitation", (1, "19")),
    ],
    ids=["CHECK, upsert", "CHECK, merge", "overflow", "NOT NULL", "VARCHAR"],
)
def test_merged_values_that_the_table_does_not_take_stop_the_commit_until_its_row_is_corrected(
    session: Any,
    world: Environment,
    table: str,
    how: dict[str, Any],
    types: tuple[str, str],
    rule: str,
    given: str,
    told: str,
    corrected: tuple[Any, Any],
) -> None:
    create(session, table, f"id BIGINT, v {types[0]}, a {types[1]}", rule)
    session.sql(f"INSERT INTO delta.`file://{table}` VALUES (1, 1, {given})").collect()
    sink, attempt = DeltaSink("silver", table, **how), attempt_of(transaction(1))
    staged = promised(vote_on(sink, attempt, values(session, "id, v", "(1L, 9L)"), world))
    before = log_of(table)
    error = refused_commit(sink, attempt, staged, world)
    assert told in error.what
    assert "orrect the row of the table whose values" in error.remedy and "waive orders 1 silver" in error.remedy
    assert log_of(table) == before
    session.sql(f"UPDATE delta.`file://{table}` SET a = '1' WHERE id = 1").collect()
    receipt = sink.commit(attempt, staged, world)
    assert sink.commit(attempt, staged, world) == receipt
    assert shown(session, table) == shown_by_others(table) == [(1, *corrected)]


def refused_commit(sink: DeltaSink, attempt: SinkAttempt, staged: Staged, world: Environment) -> Corrupt:
    with pytest.raises(Corrupt) as caught:
        sink.commit(attempt, staged, world)
    assert caught.value.code is codes.DELTA_COMMIT_REFUSED
    return caught.value


@pytest.mark.long
@pytest.mark.parametrize(
    "how", [ADDED, pytest.param(updating("t.v = s.v"), marks=pytest.mark.long)], ids=["upsert", "merge"]
)
def test_merged_values_that_break_a_check_are_taken_once_after_the_statement_in_the_error(
    session: Any, world: Environment, table: str, how: dict[str, Any]
) -> None:
    create(session, table, "id BIGINT, v BIGINT, a BIGINT", RULE)
    session.sql(f"INSERT INTO delta.`file://{table}` VALUES (1, 1, 0)").collect()
    sink, attempt = DeltaSink("silver", table, **how), attempt_of(transaction(1))
    staged = promised(vote_on(sink, attempt, values(session, "id, v", "(1L, 9L)"), world))
    error = refused_commit(sink, attempt, staged, world)
    (statement,) = re.findall(r"\((ALTER TABLE .*?) in Spark\)", error.remedy)
    session.sql(statement).collect()
    receipt = sink.commit(attempt, staged, world)
    assert sink.commit(attempt, staged, world) == receipt
    assert shown(session, table) == shown_by_others(table) == [(1, 9, 0)]


# -- overwrite ---------------------------------------------------------------------------------------------------


def test_an_overwritten_table_shows_the_last_epoch_that_had_rows(session: Any, world: Environment, table: str) -> None:
    create(session, table, "id BIGINT NOT NULL, note STRING", "TBLPROPERTIES ('kept' = 'yes')")
    epochs = Epochs(DeltaSink("silver", table, mode="overwrite"), world)
    epochs.run(session.range(5))
    epochs.run(session.range(7, 9))
    assert shown(session, table) == [(7, None), (8, None)]
    epochs.run(session.range(0))
    assert not {"add", "remove"} & {kind for action in log_of(table)[-1] for kind in action}
    assert shown(session, table) == shown_by_others(table) == [(7, None), (8, None)]
    assert DeltaTable(table).metadata().configuration["kept"] == "yes"
    assert DeltaTable(table).schema().fields[0].nullable is False


@pytest.mark.long
def test_an_empty_epoch_truncates_where_it_is_asked_to(session: Any, world: Environment, table: str) -> None:
    epochs = Epochs(DeltaSink("silver", table, mode="overwrite", empty="truncate"), world)
    epochs.run(session.range(5))
    attempt, staged, receipt = epochs.run(session.range(0))
    assert shown(session, table) == shown_by_others(table) == []
    assert epochs.sink.commit(attempt, staged, world) == receipt
    epochs.run(session.range(0))
    epochs.run(session.range(1))
    assert shown(session, table) == [(0,)]


def test_only_the_partitions_of_the_epochs_rows_are_replaced(session: Any, world: Environment, table: str) -> None:
    sink = DeltaSink("silver", table, mode="overwrite_partitions", partition_by=["p"])
    epochs = Epochs(sink, world)
    epochs.run(values(session, "id, p", "(1L, 'a')", "(2L, 'b')", "(3L, NULL)"))
    epochs.run(values(session, "id, p", "(4L, 'b')", "(5L, NULL)", "(6L, 'ü/ %20')"))
    expected = [(1, "a"), (4, "b"), (5, None), (6, "ü/ %20")]
    assert shown(session, table) == shown_by_others(table) == expected
    epochs.run(empty(session, "id BIGINT, p STRING"))
    assert shown(session, table) == expected


@pytest.mark.long
def test_partitions_are_replaced_on_a_server_that_is_set_up_to_refuse_it(other_session: Any, table: str) -> None:
    other_session.conf.set("spark.databricks.delta.dynamicPartitionOverwrite.enabled", "false")
    sink = DeltaSink("silver", table, mode="overwrite_partitions", partition_by=["p"])
    epochs = Epochs(sink, Environment(spark=SparkOn(other_session)))
    epochs.run(values(other_session, "id, p", "(1L, 'a')", "(2L, 'b')"))
    epochs.run(values(other_session, "id, p", "(3L, 'b')"))
    assert shown(other_session, table) == shown_by_others(table) == [(1, "a"), (3, "b")]


@pytest.mark.long
def test_a_server_that_replaces_single_partitions_replaces_all_of_an_overwritten_table(
    session: Any, world: Environment, named: str, table: str
) -> None:
    create(session, table, "id BIGINT, p STRING", "PARTITIONED BY (p)")
    session.sql(f"INSERT INTO delta.`file://{table}` VALUES (0, 'a'), (0, 'b')").collect()
    session.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    for target in (named, table):
        epochs = Epochs(DeltaSink("silver", target, mode="overwrite", empty="truncate"), world)
        epochs.run(values(session, "id, p", "(1L, 'b')"))
        assert shown(session, target) == [(1, "b")]
        epochs.run(empty(session, "id BIGINT, p STRING"))
        assert shown(session, target) == []
    session.conf.unset("spark.sql.sources.partitionOverwriteMode")


def test_rows_of_a_table_that_somebody_created_since_the_vote_are_not_replaced(
    session: Any, world: Environment, table: str
) -> None:
    sink, attempt = DeltaSink("silver", table, mode="overwrite"), attempt_of(transaction(1))
    staged = promised(vote_on(sink, attempt, session.range(2), world))
    session.range(50, 51).write.format("delta").save(f"file://{table}")
    with pytest.raises(Corrupt, match="somebody created the table after these rows were staged"):
        sink.commit(attempt, staged, world)
    assert shown(session, table) == [(50,)]


# -- every mode --------------------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (UPSERT, [(0, 0, 0, None), (1, 2, 2, "new"), (2, 2, 2, "new")]),
        pytest.param(COUNTER, [(0, 0, 0, None), (1, 0, 2, None), (2, 2, 2, "new")], marks=pytest.mark.long),
        ({"mode": "overwrite"}, [(1, 2, 2, "new"), (2, 2, 2, "new")]),
        pytest.param(
            {"mode": "overwrite_partitions"},
            [(0, 0, 0, None), (1, 2, 2, "new"), (2, 2, 2, "new")],
            marks=pytest.mark.long,
        ),
        (
            {"mode": "append", "commit": "spark"},
            [(0, 0, 0, None), (1, 0, 0, None), (1, 2, 2, "new"), (2, 2, 2, "new")],
        ),
    ],
    ids=["upsert", "merge", "overwrite", "partitions", "append"],
)
def test_columns_are_added_where_that_is_asked_for(
    session: Any, world: Environment, table: str, options: dict[str, Any], expected: Rows
) -> None:
    create(session, table, "id BIGINT, v BIGINT, n BIGINT", "PARTITIONED BY (id)")
    session.sql(f"INSERT INTO delta.`file://{table}` VALUES (0, 0, 0), (1, 0, 0)").collect()
    epochs = Epochs(DeltaSink("silver", table, **options, schema_evolution="add_columns"), world)
    epochs.run(values(session, "id, v, n, extra", "(1L, 2L, 2L, 'new')", "(2L, 2L, 2L, 'new')"))
    assert shown(session, table) == expected
    assert sorted(shown_by_others(table), key=repr) == expected


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "append", "commit": "spark"},
        {"mode": "upsert", "keys": ["id"]},
        pytest.param({"mode": "overwrite"}, marks=pytest.mark.long),
    ],
    ids=["append", "upsert", "overwrite"],
)
def test_a_column_whose_type_needs_a_feature_is_added_after_the_command_that_the_vote_names(
    session: Any, world: Environment, table: str, options: dict[str, Any]
) -> None:
    create(session, table, "id BIGINT")
    columns = "1L AS id, timestamp_ntz '2026-01-01 00:00:00' AS at, array(named_struct('v', parse_json('1'))) AS deep"
    frame = session.sql(f"SELECT {columns}")
    sink = DeltaSink("silver", table, **options, schema_evolution="add_columns")
    vote = vote_on(sink, attempt_of(transaction(1)), frame, world)
    found = re.search(r"ALTER TABLE .* SET TBLPROPERTIES \(.*?\)", vote.reason or "")
    assert vote.vote is VoteKind.VOTE_ABORT and found
    session.sql(found[0]).collect()
    Epochs(sink, world).run(frame)
    read = f"SELECT id, CAST(at AS STRING), to_json(deep) FROM delta.`file://{table}`"
    assert list(map(tuple, session.sql(read).collect())) == [(1, "2026-01-01 00:00:00", '[{"v":1}]')]


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        UPSERT,
        {"mode": "merge", "keys": ["id"], "merge": "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"},
        {"mode": "overwrite"},
        {"mode": "append", "commit": "spark"},
    ],
    ids=["upsert", "merge", "overwrite", "append"],
)
def test_a_name_in_another_case_is_no_new_column(
    session: Any, world: Environment, table: str, options: dict[str, Any]
) -> None:
    create(session, table, "id BIGINT, v BIGINT, s STRUCT<a: BIGINT>")
    epochs = Epochs(DeltaSink("silver", table, **options, schema_evolution="add_columns"), world)
    epochs.run(session.sql("SELECT 1L AS id, 2L AS V, named_struct('A', 3L) AS S, 'new' AS extra"))
    assert shown_by_others(table) == [(1, 2, {"a": 3}, "new")]
    assert [field.name for field in DeltaTable(table).schema().fields] == ["id", "v", "s", "extra"]


@pytest.mark.parametrize("mode", ["overwrite", "overwrite_partitions"])
@pytest.mark.long
def test_columns_are_added_to_a_table_in_the_catalog(session: Any, world: Environment, named: str, mode: str) -> None:
    epochs = Epochs(DeltaSink("silver", named, mode=mode, schema_evolution="add_columns"), world)
    epochs.run(values(session, "id, p, extra", "(1L, 'b', 'new')"))
    kept = [(0, "a", None)] if mode == "overwrite_partitions" else []
    assert shown(session, named) == [*kept, (1, "b", "new")]


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "merge", "keys": ["id"], "merge": "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"},
        {"mode": "merge", "keys": ["id"], "merge": "WHEN NOT MATCHED THEN INSERT (id, extra) VALUES (s.id, s.extra)"},
        UPSERT,
        {"mode": "overwrite"},
        {"mode": "append", "commit": "spark"},
    ],
    ids=["merge", "named in a merge", "upsert", "overwrite", "append"],
)
def test_a_server_that_adds_columns_by_itself_adds_none_unasked(
    session: Any, world: Environment, table: str, options: dict[str, Any]
) -> None:
    create(session, table, "id BIGINT, v BIGINT")
    sink, attempt = DeltaSink("silver", table, **options), attempt_of(transaction(1))
    session.conf.set("spark.databricks.delta.schema.autoMerge.enabled", "true")
    vote = vote_on(sink, attempt, values(session, "id, v, extra", "(1L, 1L, 'x')"), world)
    if vote.vote is VoteKind.VOTE_COMMIT:  # then the clauses leave it out
        session.conf.set("spark.databricks.delta.schema.autoMerge.enabled", "true")
        sink.commit(attempt, promised(vote), world)
        assert shown(session, table) == [(1, 1)]
    else:
        assert "extra" in (vote.reason or "")
    session.conf.unset("spark.databricks.delta.schema.autoMerge.enabled")
    assert [field.name for field in DeltaTable(table).schema().fields] == ["id", "v"]


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        UPSERT,
        pytest.param(COUNTER, marks=pytest.mark.long),
        {"mode": "overwrite"},
        pytest.param({"mode": "overwrite", "empty": "truncate"}, marks=pytest.mark.long),
        pytest.param({"mode": "overwrite_partitions"}, marks=pytest.mark.long),
    ],
    ids=["upsert", "merge", "overwrite", "truncate", "partitions"],
)
def test_a_first_epoch_without_rows_makes_an_empty_table_with_its_marker(
    session: Any, world: Environment, table: str, options: dict[str, Any]
) -> None:
    epochs = Epochs(DeltaSink("silver", table, **options, partition_by=["id"]), world)
    epochs.run(empty(session, "id BIGINT, v BIGINT, n BIGINT"))
    assert shown(session, table) == shown_by_others(table) == []
    epochs.run(values(session, "id, v, n", "(1L, 1L, 1L)"))
    assert shown(session, table) == [(1, 1, 1)]


@pytest.mark.long
def test_rows_that_vanish_after_the_vote_are_staged_again(session: Any, world: Environment, table: str) -> None:
    create(session, table, "id BIGINT, v BIGINT")
    sink, attempt = DeltaSink("silver", table, **UPSERT), attempt_of(transaction(1))
    frame = values(session, "id, v", "(1L, 1L)", "(1L, 2L)", "(2L, 1L)")
    lost = promised(vote_on(sink, attempt, frame, world))
    for file in Path(lost.place).glob("**/*.parquet"):
        file.unlink()
    with pytest.raises(RowsGone):
        sink.commit(attempt, lost, world)
    again = promised(vote_on(sink, attempt, frame, world))
    assert again.digest == lost.digest
    assert sink.commit(attempt, again, world).place == again.place
    assert shown(session, table) == [(1, 2), (2, 1)]
    fired("F19", 8, "C")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mode": "upsert", "keys": ["id", "p"]}, [(0, "a"), (0, "b"), (1, "b")]),
        ({"mode": "merge", "keys": ["id"], "merge": "WHEN NOT MATCHED THEN INSERT *"}, [(0, "a"), (0, "b"), (1, "b")]),
        ({"mode": "overwrite"}, [(1, "b")]),
        ({"mode": "overwrite", "empty": "truncate"}, []),
        ({"mode": "overwrite_partitions"}, [(0, "a"), (1, "b")]),
    ],
    ids=["upsert", "merge", "overwrite", "truncate", "partitions"],
)
@pytest.mark.long
def test_a_table_named_in_the_catalog_takes_every_mode_and_stays_what_it_is(
    session: Any, world: Environment, named: str, options: dict[str, Any], expected: Rows
) -> None:
    epochs = Epochs(DeltaSink("silver", named, **options), world)
    attempt, staged, receipt = epochs.run(values(session, "id, p", "(1L, 'b')"))
    assert epochs.sink.commit(attempt, staged, world) == receipt
    epochs.run(empty(session, "id BIGINT, p STRING"))
    assert shown(session, named) == expected
    properties = session.sql(f"DESCRIBE DETAIL {named}").collect()[0]["properties"]
    assert (properties["kept"], properties["delta.constraints.positive"]) == ("yes", "id >= 0")
