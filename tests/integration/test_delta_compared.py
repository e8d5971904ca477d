"""How an upsert and a merge compare keys and sequences of rows with those of the table, on a real Spark."""

from __future__ import annotations

import re
from typing import Any

import pytest

from airflow_epochs.model import VoteKind
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver.delta import comparison
from airflow_epochs.spark.driver.delta import merge as delta_merge
from tests.support.delta_modes_world import UPSERT, Epochs, Rows, create, shown_by_others, values, vote_on
from tests.support.delta_world import SparkOn, attempt_of, promised, transaction
from tests.support.environment import Environment

pytestmark = pytest.mark.jvm

COUNT = "WHEN MATCHED THEN UPDATE SET t.n = t.n + s.n WHEN NOT MATCHED THEN INSERT (id, n) VALUES (s.id, s.n)"
COUNTER: dict[str, Any] = {"mode": "merge", "keys": ["id"], "merge": COUNT}


# -- keys that are structs ---------------------------------------------------------------------------------------


def keyed(session: Any, *rows: tuple[int, int, int], order: str = "ab") -> Any:
    """Rows of a struct with ``a`` and ``b`` as their key, and a number."""
    fields = ", ".join(f"'{name}', {name}" for name in order)
    return values(session, "a, b, n", *map(str, rows)).selectExpr(f"named_struct({fields}) AS id", "n")


def keys_shown(table: str) -> Rows:
    return sorted((row[0]["a"], row[0]["b"], *row[1:]) for row in shown_by_others(table))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "expected"),
    [({"mode": "upsert", "keys": ["id"]}, [(1, 2, 20), (2, 1, 300)]), (COUNTER, [(1, 2, 21), (2, 1, 300)])],
    ids=["upsert", "merge"],
)
def test_a_struct_is_the_same_key_in_whatever_order_the_table_has_its_fields(
    session: Any, world: Environment, table: str, options: dict[str, Any], expected: Rows
) -> None:
    create(session, table, "id STRUCT<b: INT, a: INT>, n INT")
    epochs = Epochs(DeltaSink("silver", table, **options), world)
    epochs.run(keyed(session, (1, 2, 1)))
    epochs.run(keyed(session, (1, 2, 20)))
    epochs.run(keyed(session, (2, 1, 300)))
    assert keys_shown(table) == expected


@pytest.mark.long
def test_structs_in_arrays_and_structs_are_compared_by_name_too_and_null_is_no_struct_of_nulls(
    session: Any, world: Environment, table: str
) -> None:
    kind = "STRUCT<`l x`: ARRAY<STRUCT<y: INT, x: INT>>, s: STRUCT<d: INT, c: INT>>"
    create(session, table, f"id {kind}, n INT", "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    session.sql(f"INSERT INTO delta.`{table}` VALUES (NULL, 0)").collect()
    epochs = Epochs(DeltaSink("silver", table, mode="upsert", keys=["id"]), world)
    inner = "named_struct('c', {c}, 'd', 2)"
    elements = "array(named_struct('x', 1, 'y', 2), CAST(NULL AS STRUCT<x: INT, y: INT>))"
    nulls = (
        "named_struct('s', CAST(NULL AS STRUCT<c: INT, d: INT>), 'l x', CAST(NULL AS ARRAY<STRUCT<x: INT, y: INT>>))"
    )
    for number in (1, 2):
        full = f"named_struct('s', {inner.format(c=1)}, 'l x', {elements})"
        epochs.run(session.sql(f"SELECT {full} AS id, {number} AS n UNION ALL SELECT {nulls}, {number * 10}"))
    found = [tuple(row) for row in session.sql(f"SELECT id IS NULL, id.s.c, n FROM delta.`{table}`").collect()]
    assert sorted(found, key=repr) == [(False, 1, 2), (False, None, 20), (True, None, 0)]


@pytest.mark.long
def test_a_key_stays_deleted_although_the_transform_orders_its_fields_anew(
    session: Any, world: Environment, table: str
) -> None:
    options: dict[str, Any] = {"mode": "upsert", "keys": ["id"], "sequence_by": "n", "delete_when": "n = 50"}
    epochs = Epochs(DeltaSink("silver", table, **options), world)
    epochs.run(keyed(session, (1, 2, 50)))
    epochs.run(keyed(session, (1, 2, 40), (2, 1, 40), order="ba"))
    assert keys_shown(table) == [(2, 1, 40)]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("there", "given"),
    [
        ("STRUCT<o: STRUCT<d: DECIMAL(20,4)>>", "named_struct('o', named_struct('d', 1))"),
        ("STRUCT<o: STRUCT<d: TIMESTAMP_NTZ>>", "named_struct('o', named_struct('d', DATE'2026-01-01'))"),
    ],
    ids=["a number", "a day"],
)
def test_a_key_with_a_field_that_is_wider_in_the_table_finds_itself(
    session: Any, world: Environment, table: str, there: str, given: str
) -> None:
    create(session, table, f"id {there}, n INT", "TBLPROPERTIES ('delta.feature.timestampNtz' = 'supported')")
    epochs = Epochs(DeltaSink("silver", table, **COUNTER), world)
    for _ in range(2):
        epochs.run(session.sql(f"SELECT {given} AS id, 1 AS n"))
    assert [row["n"] for row in session.sql(f"SELECT n FROM delta.`{table}`").collect()] == [2]


# -- a sequence that is a struct ---------------------------------------------------------------------------------

OTHER_ORDER = "id INT, v STRUCT<b: INT, a: STRUCT<y: INT, x: INT>>, name STRING"


def sequenced(session: Any, *rows: tuple[int, int, str], order: str = "ab") -> Any:
    """Rows of one key whose place in the order is a struct, and a name."""
    values_of = {"a": "named_struct('x', a, 'y', 0)", "b": "b"}
    fields = ", ".join(f"'{name}', {values_of[name]}" for name in order)
    frame = values(session, "a, b, name", *(f"({a}, {b}, '{name}')" for a, b, name in rows))
    return frame.selectExpr("1 AS id", f"named_struct({fields}) AS v", "name")


def names_shown(table: str) -> list[str]:
    return [row[2] for row in shown_by_others(table)]


def test_a_sequence_whose_fields_the_table_has_in_another_order_is_a_vote_abort_with_the_statements_that_order_them(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, OTHER_ORDER)
    epochs = Epochs(DeltaSink("silver", table, **UPSERT), world)
    old = sequenced(session, (1, 9, "old"))
    vote = vote_on(epochs.sink, attempt_of(transaction(1)), old, world)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "'v' is struct<a: struct<x: integer, y: integer>, b: integer> in the rows and struct<b: integer, a: " in (
        vote.reason or ""
    )
    for statement in re.findall(r"ALTER TABLE [^;]*?(?:FIRST|AFTER `\w+`)", vote.reason or ""):
        session.sql(statement).collect()
    epochs.run(old)
    epochs.run(sequenced(session, (2, 5, "new")))
    epochs.run(sequenced(session, (1, 99, "older")))
    assert names_shown(table) == ["new"]


@pytest.mark.long
def test_rows_with_the_order_of_the_table_are_taken_as_the_vote_says(
    session: Any, world: Environment, table: str
) -> None:
    create(session, table, "id INT, v STRUCT<b: INT, a: STRUCT<x: INT, y: INT>>, name STRING")
    epochs = Epochs(DeltaSink("silver", table, **UPSERT), world)
    vote = vote_on(epochs.sink, attempt_of(transaction(1)), sequenced(session, (1, 9, "old")), world)
    assert "Let the transform return them in the table's order." in (vote.reason or "")
    epochs.run(sequenced(session, (1, 9, "old"), order="ba"))
    epochs.run(sequenced(session, (2, 5, "older by b"), (0, 10, "new"), order="ba"))
    assert names_shown(table) == ["new"]


def test_a_table_whose_fields_are_moved_after_the_vote_gets_the_row_that_is_newer_by_the_order_of_the_vote(
    session: Any, world: Environment, table: str
) -> None:
    epochs = Epochs(DeltaSink("silver", table, **UPSERT), world)
    epochs.run(sequenced(session, (1, 9, "old")))
    attempt = attempt_of(transaction(2), epochs.previous)
    staged = promised(vote_on(epochs.sink, attempt, sequenced(session, (2, 5, "new")), world))
    session.sql(f"ALTER TABLE delta.`{table}` ALTER COLUMN v.b FIRST").collect()
    epochs.sink.commit(attempt, staged, world)
    assert names_shown(table) == ["new"]


@pytest.mark.long
def test_an_epoch_that_an_earlier_version_decided_is_finished_by_the_order_of_its_rows(
    session: Any, world: Environment, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(session, table, OTHER_ORDER)
    session.sql(f"INSERT INTO delta.`{table}` SELECT 1, struct(9, struct(0, 1)), 'old'").collect()
    sink, attempt = DeltaSink("silver", table, **UPSERT), attempt_of(transaction(1))
    with monkeypatch.context() as patched:  # as an earlier version did not look
        patched.setattr(comparison, "problems_of_order", lambda *_: [])
        staged = promised(vote_on(sink, attempt, sequenced(session, (2, 5, "new"), (1, 99, "older")), world))
    sink.commit(attempt, staged, world)
    assert names_shown(table) == ["new"]


@pytest.mark.long
def test_a_deletion_that_another_sink_notes_meanwhile_is_compared_by_the_names_of_the_fields(
    session: Any, other_session: Any, world: Environment, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(session, table, "id INT, v STRUCT<a: STRUCT<x: INT, y: INT>, b: INT>, name STRING")
    theirs = Environment(spark=SparkOn(other_session))
    deleting = Epochs(DeltaSink("gold", table, **UPSERT, delete_when="name = 'gone'"), theirs, "corrections")
    merge, begun = delta_merge._merge_into, list[str]()

    def merge_behind_a_deletion(*args: Any) -> None:
        if not begun:
            begun.append("ours")
            deleting.run(sequenced(other_session, (5, 0, "gone")))
        merge(*args)

    monkeypatch.setattr(delta_merge, "_merge_into", merge_behind_a_deletion)
    sink, attempt = DeltaSink("silver", table, **UPSERT), attempt_of(transaction(1))
    staged = promised(vote_on(sink, attempt, sequenced(session, (4, 99, "too late")), world))
    world.at["delta.commit.after"] = lambda: session.sql(f"ALTER TABLE delta.`{table}` ALTER COLUMN v.b FIRST")
    sink.commit(attempt, staged, world)
    assert begun and names_shown(table) == []
