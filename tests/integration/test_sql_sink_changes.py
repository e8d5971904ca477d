"""Upserts with ``sequence_by`` and ``delete_when``, on PostgreSQL and SQLite: what a table shows after the epochs.

The rows are staged as Spark stages them: one row per key, with a column that says whether it deletes the key.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_epochs import codes
from airflow_epochs.errors import BadArgument, Corrupt, Refused
from airflow_epochs.model import TransactionId, VoteKind
from airflow_epochs.sinks import from_spec
from airflow_epochs.sinks.sql.postgres import PostgresSession
from airflow_epochs.sinks.sql.sink import SqlSink
from airflow_epochs.sinks.sql.upsert import Upsert
from airflow_epochs.spark.driver.delta.keys import DELETED
from tests.support.delta_world import attempt_of, transaction
from tests.support.sql_world import SqlWorld, committed_while_another_waits

CUSTOMERS = "CREATE TABLE customers (id bigint PRIMARY KEY, name text NOT NULL, lsn bigint)"
CHANGES: dict[str, Any] = {
    "mode": "upsert",
    "keys": ["id"],
    "sequence_by": "lsn",
    "delete_when": "op = 'd'",
}
LATEST: dict[str, Any] = {"mode": "upsert", "keys": ["id"], "delete_when": "op = 'd'"}

Row = tuple[int, str | None, int]
"""Key, name (None: a deletion), sequence."""


@pytest.fixture
def sql_tables() -> Sequence[str]:
    return (CUSTOMERS,)


def changes(*rows: Row) -> pa.Table:
    """What Spark stages: deletions bring no values."""
    return pa.table(
        {
            "id": pa.array([key for key, _, _ in rows], pa.int64()),
            "name": pa.array([name for _, name, _ in rows], pa.string()),
            "lsn": pa.array([lsn for _, _, lsn in rows], pa.int64()),
            "op": pa.array([None if name is None else "u" for _, name, _ in rows], pa.string()),
            DELETED: pa.array([name is None for _, name, _ in rows], pa.bool_()),
        }
    )


class Epochs:
    """Commits epochs one after the other."""

    def __init__(self, world: SqlWorld, sink: SqlSink) -> None:
        self.world, self.sink = world, sink
        self.last: TransactionId | None = None

    def __call__(self, *rows: Row) -> None:
        self.of(changes(*rows))

    def of(self, staged: pa.Table) -> None:
        txn = transaction(self.last.epoch + 1 if self.last else 1)
        _, receipt = self.world.epoch(self.sink, txn, self.last, staged)
        assert receipt.rows == staged.num_rows
        self.last = txn


def shown(world: SqlWorld, table: str = "customers") -> list[tuple[Any, ...]]:
    return world.db.run(f"SELECT id, name, lsn FROM {table} ORDER BY id")


def notes(world: SqlWorld) -> list[str]:
    query = (
        "SELECT table_name FROM information_schema.tables WHERE table_name LIKE '%_deleted_%' "
        "AND table_schema = current_schema()"
        if world.db.kind == "postgres"
        else "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '%_deleted_%'"
    )
    return [name for (name,) in world.db.run(query)]


def test_a_key_is_deleted_by_its_newest_row_and_the_column_that_tells_so_is_not_stored(sql_world: SqlWorld) -> None:
    epoch = Epochs(sql_world, sql_world.sink("customers", **CHANGES))
    epoch((1, "Ann", 10), (2, "Bob", 11), (3, "Cy", 12))
    epoch((1, None, 20), (2, "Bea", 21), (4, None, 22))
    assert shown(sql_world) == [(2, "Bea", 21), (3, "Cy", 12)]


def test_the_database_returns_few_rows_to_the_task_whatever_the_size_of_the_epoch(
    pg: SqlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch, execute, returned = Epochs(pg, pg.sink("customers", **CHANGES)), PostgresSession.execute, []

    def counted(self: PostgresSession, *statement: Any) -> list[tuple[Any, ...]]:
        found = execute(self, *statement)
        returned.append(len(found))
        return found

    monkeypatch.setattr(PostgresSession, "execute", counted)
    epoch(*((key, "Ann", 1) for key in range(200)))
    epoch(*((key, None if key % 2 else "Bob", 2) for key in range(200)))
    assert len(shown(pg)) == 100
    assert max(returned) < 100


def test_an_older_row_neither_replaces_nor_deletes_a_newer_one(sql_world: SqlWorld) -> None:
    epoch = Epochs(sql_world, sql_world.sink("customers", **CHANGES))
    epoch((1, "Ann", 10), (2, "Bob", 10))
    epoch((1, "late", 9), (2, None, 9), (3, "Cy", 1))
    assert shown(sql_world) == [(1, "Ann", 10), (2, "Bob", 10), (3, "Cy", 1)]
    epoch((1, "as new", 10))
    assert shown(sql_world)[0] == (1, "as new", 10)


LOWER = {
    "postgres": (
        "CREATE FUNCTION low() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.name = lower(NEW.name); RETURN NEW; END'",
        "CREATE TRIGGER low BEFORE INSERT OR UPDATE ON customers FOR EACH ROW EXECUTE FUNCTION low()",
    ),
    "sqlite": (
        "CREATE TRIGGER low AFTER INSERT ON customers"
        " BEGIN UPDATE customers SET name = lower(name) WHERE id = NEW.id; END",
    ),
}


@pytest.mark.parametrize("rehearse", [True, False])
def test_an_older_row_counts_also_in_a_table_whose_trigger_changes_values(sql_world: SqlWorld, rehearse: bool) -> None:
    sql_world.db.run(*LOWER[sql_world.db.kind])
    epoch = Epochs(sql_world, sql_world.sink("customers", **CHANGES, rehearse=rehearse))
    epoch((1, "Ann", 10), (2, "Bob", 10))
    epoch((1, "Late", 9), (2, None, 9), (3, "Cy", 1))
    assert shown(sql_world) == [(1, "ann", 10), (2, "bob", 10), (3, "cy", 1)]


def test_a_row_that_a_trigger_drops_is_missed_also_beside_an_older_row(pg: SqlWorld) -> None:
    pg.db.run(
        "CREATE FUNCTION drop_bob() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN NEW.lsn = NEW.lsn + 1; RETURN CASE NEW.name WHEN ''Bob'' THEN NULL ELSE NEW END; END'",
        "INSERT INTO customers VALUES (1, 'Ann', 10)",
        "CREATE TRIGGER drops BEFORE INSERT OR UPDATE ON customers FOR EACH ROW EXECUTE FUNCTION drop_bob()",
    )
    reason = pg.reason_against(pg.sink("customers", **CHANGES), changes((1, "Late", 9), (2, "Bob", 1), (3, "Cy", 1)))
    assert "The sink sent 3 rows to table customers, and the database wrote 2" in reason


TOUCH = {
    "postgres": (
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.updated_at := now(); RETURN NEW; END'",
        "CREATE TRIGGER touch BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION touch()",
    ),
    "sqlite": (
        "CREATE TRIGGER touch AFTER UPDATE OF name ON accounts"
        " BEGIN UPDATE accounts SET updated_at = '2100-01-01T00:00:00.000000Z' WHERE id = NEW.id; END",
    ),
}


def touched(name: str, day: int, key: int = 1) -> pa.Table:
    when = pa.array([datetime(2026, 1, day, tzinfo=timezone.utc)], pa.timestamp("us", "UTC"))
    return pa.table({"id": pa.array([key], pa.int64()), "name": [name], "updated_at": when})


def test_a_trigger_that_changes_the_sequence_is_a_vote_against_because_newer_rows_would_be_older(
    sql_world: SqlWorld,
) -> None:
    instant = "timestamptz" if sql_world.db.kind == "postgres" else "text"
    sql_world.db.run(f"CREATE TABLE accounts (id bigint PRIMARY KEY, name text, updated_at {instant})")
    sql_world.db.run(*TOUCH[sql_world.db.kind])
    sink = sql_world.sink("accounts", mode="upsert", keys=["id"], sequence_by="updated_at")
    first, second = transaction(1), transaction(2)
    sql_world.epoch(sink, first, None, touched("v1", 1))
    vote = sql_world.voted(sink, attempt_of(second, first), touched("v2", 2))
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "EPOCHS-SQL-ROWS-DROPPED" in (vote.reason or "")
    assert "a trigger changes column 'updated_at' of the rows" in (vote.reason or "")
    sql_world.db.run("DROP TRIGGER touch" + (" ON accounts" if sql_world.db.kind == "postgres" else ""))
    sql_world.epoch(sink, second, first, touched("v2", 2))
    assert sql_world.db.run("SELECT name FROM accounts") == [("v2",)]


def test_rows_that_a_trigger_made_look_newer_count_again_after_the_statement_in_the_reason(
    sql_world: SqlWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    instant = "timestamptz" if sql_world.db.kind == "postgres" else "text"
    sql_world.db.run(f"CREATE TABLE accounts (id bigint PRIMARY KEY, name text, updated_at {instant})")
    sql_world.db.run(*TOUCH[sql_world.db.kind])
    sink = sql_world.sink("accounts", mode="upsert", keys=["id"], sequence_by="updated_at")
    epoch = Epochs(sql_world, sink)
    with monkeypatch.context() as earlier:
        earlier.setattr(Upsert, "_require_kept", lambda *_, **__: None)  # the version before did not look
        epoch.of(pa.concat_tables([touched("v1", 1), touched("old", 1, key=2)]))
        epoch.of(touched("v2", 2))
    epoch.of(touched("v3", 3))
    assert sql_world.db.run("SELECT name FROM accounts WHERE id = 1") == [("v2",)], "v3 looks older"
    newest = pa.concat_tables([touched("v4", 4), touched("new", 4, key=2)])
    reason = sql_world.voted(sink, attempt_of(transaction(4), epoch.last), newest).reason or ""
    assert "Rows that the trigger has changed before look newer than they are" in reason
    (statement,) = re.findall("`(UPDATE [^`]+)`", reason)
    sql_world.db.run("DROP TRIGGER touch" + (" ON accounts" if sql_world.db.kind == "postgres" else ""), statement)
    epoch.of(newest)
    assert sql_world.db.run("SELECT name FROM accounts ORDER BY id") == [("v4",), ("new",)]


MAIL = {
    "postgres": (
        "CREATE FUNCTION low() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN NEW.email := lower(NEW.email); RETURN NEW; END'",
        "CREATE TRIGGER low BEFORE INSERT OR UPDATE ON mails FOR EACH ROW EXECUTE FUNCTION low()",
    ),
    "sqlite": (
        "CREATE TRIGGER low AFTER INSERT ON mails"
        " BEGIN UPDATE mails SET email = lower(email) WHERE email = NEW.email; END",
    ),
}


def mail(key: str) -> pa.Table:
    return changes((1, "v1", 1)).set_column(0, "email", pa.array([key]))


@pytest.mark.parametrize("options", [LATEST, CHANGES], ids=["latest", "sequence"])
def test_a_trigger_that_changes_a_key_is_a_vote_against_because_no_deletion_would_find_it(
    sql_world: SqlWorld, options: dict[str, Any]
) -> None:
    sql_world.db.run("CREATE TABLE mails (email text PRIMARY KEY, name text, lsn bigint)", *MAIL[sql_world.db.kind])
    sink = sql_world.sink("mails", **{**options, "keys": ["email"]})
    reason = sql_world.reason_against(sink, mail("Ann@x"))
    assert "a trigger changes column 'email' of the rows, or deletes them" in reason
    assert "look newer" not in reason
    sql_world.epoch(sink, transaction(1), None, mail("ann@x"))
    assert sql_world.db.run("SELECT email FROM mails") == [("ann@x",)]


def test_a_trigger_may_change_a_key_where_nothing_looks_for_the_old_one(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE mails (email text PRIMARY KEY, name text, lsn bigint)", *MAIL["postgres"])
    rows = mail("Ann@x").drop_columns(["op", DELETED])
    pg.epoch(pg.sink("mails", mode="upsert", keys=["email"]), transaction(1), None, rows)
    assert pg.db.run("SELECT email FROM mails") == [("ann@x",)]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("kind", "lsn"),
    [
        ("char(8)", "numeric(19)"),
        ("varchar(8)", "text"),
        ("shout", "char(9)"),
        ("text", "double precision"),
        ('text COLLATE "POSIX"', "late"),
    ],
)
def test_a_trigger_that_changes_other_columns_is_no_vote_against_whatever_the_types_of_key_and_sequence(
    pg: SqlWorld, kind: str, lsn: str
) -> None:
    """The database pads and rounds the rows by these types, as it does in the table."""
    pg.db.run(
        "CREATE DOMAIN shout AS varchar(9)",
        "CREATE DOMAIN late AS bigint",
        f"CREATE TABLE mails (email {kind} PRIMARY KEY, name text, lsn {lsn})",
        "CREATE FUNCTION low() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN NEW.name := lower(NEW.name) || now(); RETURN NEW; END'",
        "CREATE TRIGGER low BEFORE INSERT OR UPDATE ON mails FOR EACH ROW EXECUTE FUNCTION low()",
    )
    values = {"numeric(19)": pa.decimal128(19, 0), "double precision": pa.float64(), "late": pa.int64()}
    sink = pg.sink("mails", **{**CHANGES, "keys": ["email"]})
    epoch = Epochs(pg, sink)
    for number in (1, 2, 2, 1):
        rows = changes((1, "V1", number)).set_column(0, "email", pa.array(["Ann"]))
        epoch.of(rows.set_column(2, "lsn", rows["lsn"].cast(values.get(lsn, pa.string()))))
    assert pg.db.run("SELECT email = 'Ann', lsn::text::numeric FROM mails") == [(True, 2)]


def test_a_trigger_on_a_partition_that_changes_the_sequence_is_a_vote_against(pg: SqlWorld) -> None:
    pg.db.run(
        "CREATE TABLE parted (id bigint PRIMARY KEY, name text, lsn bigint) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (1) TO (9)",
        "CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.lsn := 99; RETURN NEW; END'",
        "CREATE TRIGGER later BEFORE INSERT ON parted_1 FOR EACH ROW EXECUTE FUNCTION later()",
    )
    assert "a trigger changes column 'lsn'" in pg.reason_against(pg.sink("parted", **CHANGES), changes((1, "Ann", 1)))


def test_a_row_that_a_trigger_leaves_alone_beside_a_newer_one_is_no_vote_against(pg: SqlWorld) -> None:
    """A row that is newer by now, of another pipeline, is not the work of a trigger."""
    pg.db.run(
        "CREATE TRIGGER same BEFORE UPDATE ON customers"
        " FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    epoch = Epochs(pg, pg.sink("customers", **CHANGES))
    epoch((1, "Ann", 10), (2, "Bob", 10))
    epoch((1, "Ann", 10), (2, "late", 9), (3, "Cy", 1))
    assert shown(pg) == [(1, "Ann", 10), (2, "Bob", 10), (3, "Cy", 1)]


def test_a_row_without_a_sequence_in_the_table_is_older_than_any_other(sql_world: SqlWorld) -> None:
    sql_world.db.run("INSERT INTO customers VALUES (1, 'Ann', NULL), (2, 'Bob', NULL)")
    Epochs(sql_world, sql_world.sink("customers", **CHANGES))((1, "new", 1), (2, None, 1))
    assert shown(sql_world) == [(1, "new", 1)]


def test_a_deleted_key_comes_back_only_with_a_row_that_is_not_older_than_its_deletion(sql_world: SqlWorld) -> None:
    epoch = Epochs(sql_world, sql_world.sink("customers", **CHANGES))
    epoch((1, "Ann", 10))
    epoch((1, None, 20), (2, None, 20))
    epoch((1, "late", 19), (2, "never seen before", 19))
    assert shown(sql_world) == []
    epoch((1, None, 5))
    epoch((1, "later still", 15))
    assert shown(sql_world) == []
    epoch((1, "again", 20))
    assert shown(sql_world) == [(1, "again", 20)]
    assert len(notes(sql_world)) == 1


def test_where_the_order_begins_anew_the_documented_statements_let_the_new_rows_in(sql_world: SqlWorld) -> None:
    """As the offsets of a topic that was created again."""
    epoch = Epochs(sql_world, sql_world.sink("customers", **CHANGES))
    again: tuple[Row, ...] = (1, "Ann anew", 0), (2, None, 1), (3, "Cy is back", 2)
    epoch((1, "Ann", 900), (2, "Bob", 901), (3, None, 902))
    epoch(*again)
    assert shown(sql_world) == [(1, "Ann", 900), (2, "Bob", 901)], "all of it is older"
    (noted,) = notes(sql_world)
    sql_world.db.run("UPDATE customers SET lsn = NULL", f'DELETE FROM "{noted}"')
    epoch(*again)
    assert shown(sql_world) == [(1, "Ann anew", 0), (3, "Cy is back", 2)]


SECOND = "CREATE TABLE mailed (id bigint PRIMARY KEY, name text {}, lsn bigint)"


@pytest.mark.parametrize("rehearse", [True, False])
@pytest.mark.parametrize(
    "later",
    [changes((1, "b", 4), (2, "c", 3)), changes((1, "c", 3), (2, "a", 4))],
    ids=["to a smaller key", "to a larger key"],
)
def test_a_value_of_a_deferrable_unique_column_may_move_between_keys_in_one_epoch(
    pg: SqlWorld, later: pa.Table, rehearse: bool
) -> None:
    pg.db.run(SECOND.format("UNIQUE DEFERRABLE INITIALLY DEFERRED"))
    epoch = Epochs(pg, pg.sink("mailed", **CHANGES, rehearse=rehearse))
    epoch((1, "a", 1), (2, "b", 2))
    epoch.of(later)
    rows = sorted(zip(*(later[name].to_pylist() for name in ("id", "name", "lsn")), strict=True))
    assert shown(pg, "mailed") == rows


def test_a_value_of_a_unique_column_that_moves_to_a_smaller_key_is_a_vote_against(sql_world: SqlWorld) -> None:
    sql_world.db.run(SECOND.format("UNIQUE"))
    sink, first = sql_world.sink("mailed", **CHANGES), transaction(1)
    sql_world.epoch(sink, first, None, changes((1, "a", 1), (2, "b", 2)))
    vote = sql_world.voted(sink, attempt_of(transaction(2), first), changes((1, "b", 4), (2, "c", 3)))
    assert (vote.vote, "EPOCHS-SQL-ROW-REFUSED" in (vote.reason or "")) == (VoteKind.VOTE_ABORT, True), vote.reason


def test_without_a_sequence_the_row_of_the_later_epoch_counts_and_nothing_is_noted(sql_world: SqlWorld) -> None:
    epoch = Epochs(sql_world, sql_world.sink("customers", **LATEST))
    epoch((1, "Ann", 10), (2, "Bob", 10))
    epoch((1, None, 9), (2, "older", 9))
    epoch((1, "back", 8))
    assert shown(sql_world) == [(1, "back", 8), (2, "older", 9)]
    assert notes(sql_world) == []


def test_a_table_without_the_row_that_is_deleted_makes_no_table_of_notes_before_a_deletion(sql_world: SqlWorld) -> None:
    epoch = Epochs(sql_world, sql_world.sink("customers", **CHANGES))
    epoch((1, "Ann", 10))
    assert notes(sql_world) == []
    epoch((9, None, 10))
    assert len(notes(sql_world)) == 1
    assert shown(sql_world) == [(1, "Ann", 10)]


@pytest.mark.few(4)
@pytest.mark.parametrize("rehearse", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_after_random_changes_the_table_is_what_a_dictionary_says(
    sql_world: SqlWorld, seed: int, rehearse: bool
) -> None:
    chance = random.Random(seed)
    epoch = Epochs(sql_world, sql_world.sink("customers", **CHANGES, rehearse=rehearse))
    newest: dict[int, tuple[int, str | None]] = {}
    for _ in range(12):
        keys = chance.sample(range(8), chance.randint(0, 6))
        rows = [(key, chance.choice([None, "Ann", "Bob"]), chance.randint(0, 9)) for key in keys]
        epoch(*rows)
        for key, name, lsn in rows:
            if lsn >= newest.get(key, (-1, None))[0]:
                newest[key] = (lsn, name)
        expected = sorted((key, name, lsn) for key, (lsn, name) in newest.items() if name is not None)
        assert shown(sql_world) == expected


def test_a_commit_that_is_repeated_changes_nothing(sql_world: SqlWorld) -> None:
    sink = sql_world.sink("customers", **CHANGES)
    epoch = Epochs(sql_world, sink)
    epoch((1, "Ann", 10))
    attempt = attempt_of(transaction(2), epoch.last)
    staged = sql_world.staged(sink, attempt, changes((1, None, 20)))
    receipt = sink.commit(attempt, staged, sql_world.env)
    sql_world.db.run("INSERT INTO customers VALUES (1, 'by hand', 30)")
    assert from_spec(sink.spec()).commit(attempt, staged, sql_world.env) == receipt
    assert shown(sql_world) == [(1, "by hand", 30)]


def test_the_vote_shows_nothing_of_what_it_rehearses(sql_world: SqlWorld) -> None:
    sink = sql_world.sink("customers", **CHANGES)
    epoch = Epochs(sql_world, sink)
    epoch((1, "Ann", 10))
    sql_world.staged(sink, attempt_of(transaction(2), epoch.last), changes((1, None, 20)))
    assert shown(sql_world) == [(1, "Ann", 10)]
    assert notes(sql_world) == []


def test_an_older_row_of_another_pipeline_waits_for_a_deletion_that_is_on_its_way(pg: SqlWorld) -> None:
    pg.db.run("INSERT INTO customers VALUES (1, 'Ann', 10)")
    sink = pg.sink("customers", **CHANGES)
    pg.epoch(sink, transaction(1), None, changes((9, "first", 1)))  # makes the table of markers
    attempts = {name: attempt_of(transaction(1, pipeline=name)) for name in ("deletes", "late")}
    staged = {
        "deletes": pg.staged(sink, attempts["deletes"], changes((1, None, 20))),
        "late": pg.staged(sink, attempts["late"], changes((1, "late", 15))),
    }
    deletes, late = ((sink, attempts["deletes"], staged["deletes"]), (sink, attempts["late"], staged["late"]))
    assert [receipt.rows for receipt in committed_while_another_waits(pg, deletes, late)] == [1, 1]
    assert shown(pg) == [(9, "first", 1)]


def test_a_deletion_that_a_trigger_swallows_is_a_vote_against(pg: SqlWorld) -> None:
    pg.db.run(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "INSERT INTO customers VALUES (1, 'Ann', 10)",
        "CREATE TRIGGER kept BEFORE DELETE ON customers FOR EACH ROW EXECUTE FUNCTION keep()",
    )
    reason = pg.reason_against(pg.sink("customers", **CHANGES), changes((1, None, 20)))
    assert "The epoch deletes rows of table customers, and 1 of them are still there" in reason


@pytest.mark.few(3)
@pytest.mark.parametrize("options", [LATEST, CHANGES], ids=["latest", "sequence"])
@pytest.mark.parametrize(
    "domain",
    ["varchar(20) NOT NULL", "text CHECK (VALUE IS NOT NULL)", "mood NOT NULL", "inner_text CHECK (VALUE <> 'x')"],
)
def test_a_column_of_a_domain_that_takes_no_null_does_not_keep_a_key_from_its_deletion(
    pg: SqlWorld, domain: str, options: dict[str, Any]
) -> None:
    pg.db.run(
        "CREATE TYPE mood AS ENUM ('Ann', 'x')",
        "CREATE DOMAIN inner_text AS text NOT NULL",
        f"CREATE DOMAIN needed AS {domain}",
        "CREATE TABLE people (id bigint PRIMARY KEY, name needed, lsn bigint)",
    )
    sink = pg.sink("people", **options)
    epoch = Epochs(pg, sink)
    epoch((1, "Ann", 10), (2, "Ann", 10))
    epoch((1, None, 20))
    assert shown(pg, "people") == [(2, "Ann", 10)]
    without = changes((3, None, 30)).set_column(4, DELETED, pa.array([False]))
    vote = pg.voted(sink, attempt_of(transaction(3), epoch.last), without)
    assert vote.vote is VoteKind.VOTE_ABORT
    assert "domain" in str(vote.reason)


def test_a_deletion_that_a_foreign_key_forbids_is_a_vote_against(pg: SqlWorld) -> None:
    pg.db.run(
        "CREATE TABLE bills (id bigint REFERENCES customers)",
        "INSERT INTO customers VALUES (1, 'Ann', 10)",
        "INSERT INTO bills VALUES (1)",
    )
    reason = pg.reason_against(pg.sink("customers", **CHANGES), changes((1, None, 20)))
    assert 'violates foreign key constraint "bills_id_fkey"' in reason


def test_keys_that_the_database_takes_as_equal_have_one_note(sqlite: SqlWorld) -> None:
    sqlite.db.run("CREATE TABLE folded (id text PRIMARY KEY COLLATE NOCASE, name text, lsn bigint)")
    epoch = Epochs(sqlite, sqlite.sink("folded", **CHANGES))
    for number, (key, name, lsn) in enumerate([("a", "Ann", 1), ("A", None, 5), ("a", "late", 4), ("a", "new", 6)], 1):
        epoch.of(changes((0, name, lsn)).set_column(0, "id", pa.array([key])))
        assert len(sqlite.db.run("SELECT * FROM folded")) == (1 if number in (1, 4) else 0)


TWO_INDEXES = [
    (
        "CREATE TABLE mails (id int, email text, region text, lsn bigint, PRIMARY KEY (id, email))",
        "CREATE UNIQUE INDEX u ON mails (region, email COLLATE NOCASE)",
    ),
    (
        "CREATE TABLE mails (id int, email text COLLATE NOCASE, region text, lsn bigint)",
        "CREATE UNIQUE INDEX u ON mails (id, email COLLATE BINARY)",
    ),
]
"""In both, the index on id and email takes ``a`` and ``A`` for two keys; another index, or the column, does not."""


def mails(*rows: tuple[str, str | None, int]) -> pa.Table:
    """E-mail address, region (None: a deletion), sequence."""
    return pa.table(
        {
            "id": pa.array([1] * len(rows), pa.int32()),
            "email": [email for email, _, _ in rows],
            "region": pa.array([region for _, region, _ in rows], pa.string()),
            "lsn": pa.array([lsn for _, _, lsn in rows], pa.int64()),
            DELETED: [region is None for _, region, _ in rows],
        }
    )


@pytest.mark.parametrize("options", [LATEST, CHANGES], ids=["latest", "sequence"])
@pytest.mark.parametrize("statements", TWO_INDEXES, ids=["another index", "the column"])
def test_keys_are_compared_as_their_own_index_does(
    sqlite: SqlWorld, statements: tuple[str, ...], options: dict[str, Any]
) -> None:
    sqlite.db.run(*statements)
    epoch = Epochs(sqlite, sqlite.sink("mails", **{**options, "keys": ["id", "email"]}))
    epoch.of(mails(("a", "eu", 10), ("A", "us", 10)))
    epoch.of(mails(("a", None, 20)))
    assert sqlite.db.run("SELECT email, region FROM mails") == [("A", "us")]
    epoch.of(mails(("A", "late", 15)))
    assert sqlite.db.run("SELECT email, region FROM mails") == [("A", "late")]


def test_notes_that_an_earlier_version_compared_otherwise_are_read_and_get_no_more_notes(sqlite: SqlWorld) -> None:
    """Version 0.1 compared the keys by another index's collation too, so that two keys had one note."""
    sqlite.db.run(*TWO_INDEXES[0])
    epoch = Epochs(sqlite, sqlite.sink("mails", **{**CHANGES, "keys": ["id", "email"]}))
    epoch.of(mails(("a", None, 20)))
    (older,) = notes(sqlite)
    sqlite.db.run(
        f'DROP INDEX "{older}_key"', f'CREATE UNIQUE INDEX "{older}_key" ON "{older}" (id, email COLLATE NOCASE)'
    )
    epoch.of(mails(("A", None, 30)))
    epoch.of(mails(("a", "late", 15), ("A", "later, but late", 25)))
    assert sqlite.db.run("SELECT * FROM mails") == []
    epoch.of(mails(("a", "again", 20), ("A", "too", 30)))
    assert sqlite.db.run("SELECT email FROM mails ORDER BY email") == [("A",), ("a",)]
    assert len(notes(sqlite)) == 2


FOLDED = (
    "CREATE TYPE {0}.folded",
    "CREATE FUNCTION {0}.read(cstring) RETURNS {0}.folded LANGUAGE internal IMMUTABLE STRICT AS 'textin'",
    "CREATE FUNCTION {0}.shown({0}.folded) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout'",
    "CREATE TYPE {0}.folded (INPUT = {0}.read, OUTPUT = {0}.shown, LIKE = text, CATEGORY = 'S', COLLATABLE = true)",
    "CREATE CAST ({0}.folded AS text) WITHOUT FUNCTION AS IMPLICIT",
    "CREATE FUNCTION {0}.compares({0}.folded, {0}.folded) RETURNS int IMMUTABLE STRICT"
    " AS 'SELECT bttextcmp(lower($1::text), lower($2::text))' LANGUAGE sql",
    *(
        line.format("{0}", name, operator)
        for name, operator in [("lt", "<"), ("le", "<="), ("eq", "="), ("ge", ">="), ("gt", ">")]
        for line in (
            "CREATE FUNCTION {0}.{1}({0}.folded, {0}.folded) RETURNS bool IMMUTABLE STRICT"
            " AS 'SELECT lower($1::text) {2} lower($2::text)' LANGUAGE sql",
            "CREATE OPERATOR {0}.{2} (LEFTARG = {0}.folded, RIGHTARG = {0}.folded, FUNCTION = {0}.{1})",
        )
    ),
    "CREATE OPERATOR CLASS {0}.folded_ops DEFAULT FOR TYPE {0}.folded USING btree AS OPERATOR 1 {0}.<,"
    " OPERATOR 2 {0}.<=, OPERATOR 3 {0}.=, OPERATOR 4 {0}.>=, OPERATOR 5 {0}.>,"
    " FUNCTION 1 {0}.compares({0}.folded, {0}.folded)",
    "CREATE COLLATION {0}.wide (locale = 'C.UTF-8')",
)
"""A type like citext, which the tests' server has not: compared in lower case, and elsewhere a text. In the collation
``wide``, the lower case of Ä is ä; in ``C`` it is Ä."""


@pytest.mark.few(2)
@pytest.mark.parametrize("options", [LATEST, CHANGES], ids=["latest", "sequence"])
@pytest.mark.parametrize(
    ("first", "again", "collation"), [("a", "A", ""), ("ä", "Ä", 'COLLATE "{0}".wide')], ids=["type", "collation"]
)
def test_keys_are_compared_as_their_index_does_although_the_search_path_lacks_the_schema_of_their_type(
    pg: SqlWorld, first: str, again: str, collation: str, options: dict[str, Any]
) -> None:
    types = f"Types_{pg.db.table().partition('.')[0]}"[:40]
    pg.db.run(
        f'CREATE SCHEMA "{types}"',
        *(statement.format(f'"{types}"') for statement in FOLDED),
        f'CREATE TABLE mails (id int, email "{types}".folded COLLATE "C", region text, lsn bigint)',
        f"CREATE UNIQUE INDEX ON mails (id, email {collation.format(types)})",
    )
    epoch = Epochs(pg, pg.sink("mails", **{**options, "keys": ["id", "email"]}))
    epoch.of(mails((first, "eu", 10)))
    epoch.of(mails((again, "eu", 10)))
    assert pg.db.run("SELECT email::text, region FROM mails") == [(first, "eu")]
    reason = pg.voted(epoch.sink, attempt_of(transaction(3), epoch.last), mails((first, "eu", 11), (again, "us", 11)))
    assert "The keys (id, email) are not unique in the epoch's rows" in str(reason.reason)
    epoch.of(mails((again, None, 20)))
    assert pg.db.run("SELECT * FROM mails") == []
    epoch.of(mails((first, "late", 15)))
    assert len(pg.db.run("SELECT * FROM mails")) == (0 if "sequence_by" in options else 1)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("then", "now"), [("inner_mood", "inner_mood"), ("nested", "nested"), ("mood", "nested"), ("nested", "mood")]
)
def test_a_key_may_be_of_a_domain_over_an_enum_and_become_the_enum(pg: SqlWorld, then: str, now: str) -> None:
    pg.db.run(
        "CREATE TYPE mood AS ENUM ('b', 'a', 'c')",
        "CREATE DOMAIN inner_mood AS mood",
        "CREATE DOMAIN nested AS inner_mood NOT NULL",
        f"CREATE TABLE moods (email {then} PRIMARY KEY, region text, lsn bigint)",
    )
    sink = pg.sink("moods", **{**CHANGES, "keys": ["email"]})
    sink.require_ready("orders", None, pg.env)
    epoch = Epochs(pg, sink)
    epoch.of(of_moods(("a", "eu", 10), ("b", "eu", 10)))
    epoch.of(of_moods(("a", None, 20), ("b", "us", 20)))
    pg.db.run(f"ALTER TABLE moods ALTER email TYPE {now}")
    epoch.of(of_moods(("a", "late", 15), ("b", "late", 15), ("c", "eu", 15)))
    epoch.of(of_moods(("c", None, 30)))
    assert pg.db.run("SELECT email::text, region FROM moods") == [("b", "us")]


def of_moods(*changed: tuple[str, str | None, int]) -> pa.Table:
    return mails(*changed).drop_columns("id")


@pytest.mark.parametrize("column", ["text", "varchar(20)"])
def test_a_sequence_of_texts_is_compared_byte_by_byte_as_spark_does(sql_world: SqlWorld, column: str) -> None:
    folded = " COLLATE NOCASE" if sql_world.db.kind == "sqlite" else ""
    sql_world.db.run(f"CREATE TABLE texts (id bigint PRIMARY KEY, name text, lsn {column}{folded})")
    epoch = Epochs(sql_world, sql_world.sink("texts", **CHANGES))
    for number, lsn in enumerate(["a", "B", "Z"], 1):  # in a dictionary, Z comes behind a
        epoch.of(changes((1, f"row {number}", 0)).set_column(2, "lsn", pa.array([lsn])))
    assert shown(sql_world, "texts") == [(1, "row 1", "a")]


@pytest.mark.parametrize(
    ("column", "sequence"),
    [
        ("uuid", pa.array(["0e02b2c3-d479-4000-8000-000000000000"])),
        ("jsonb", pa.array([{"a": 1}])),
    ],
)
def test_a_sequence_that_postgresql_orders_in_its_own_way_is_a_vote_against(
    pg: SqlWorld, column: str, sequence: pa.Array
) -> None:
    pg.db.run(f"CREATE TABLE odd (id bigint PRIMARY KEY, name text, lsn {column})")
    reason = pg.reason_against(pg.sink("odd", **CHANGES), changes((1, "a", 0)).set_column(2, "lsn", sequence))
    assert "orders such values in another way than Spark" in reason


@pytest.mark.parametrize(
    ("column", "sequence"),
    [
        ("text", pa.array([1], pa.int64())),
        ("numeric", pa.array([Decimal("1.5")])),
        ("double", pa.array([1.5])),
    ],
)
def test_a_sequence_that_sqlite_orders_in_its_own_way_is_a_vote_against(
    sqlite: SqlWorld, column: str, sequence: pa.Array
) -> None:
    sqlite.db.run(f"CREATE TABLE odd (id bigint PRIMARY KEY, name text, lsn {column})")
    reason = sqlite.reason_against(sqlite.sink("odd", **CHANGES), changes((1, "a", 0)).set_column(2, "lsn", sequence))
    assert "orders such values in another way than Spark" in reason


def test_a_column_that_the_condition_names_only_in_a_text_must_be_in_the_table(sql_world: SqlWorld) -> None:
    sink = sql_world.sink("customers", mode="upsert", keys=["id"], delete_when="name = 'op' OR name = \"op\" OR s.op")
    assert "column 'op' (string) is not in the table" in sql_world.reason_against(sink, changes((1, "a", 1)))


@pytest.mark.parametrize(
    ("name", "condition"),
    [
        ("left", "left(op, 1) = 'd'"),
        ("left", "left (op, 1) = 'd'"),
        ("date", "CAST(op AS date) IS NULL"),
        ("date", "op::date IS NULL"),
        ("date", "lsn > DATE'2024-01-01'"),
        ("date", "lsn > DATE '2024-01-01'"),
        ("part", "CAST(op AS struct<part: string>) IS NULL"),
        ("day", "lsn < now() - INTERVAL 1 DAY"),
        ("day", "lsn < now() - INTERVAL '1' DAY"),
    ],
)
def test_a_column_that_the_condition_names_only_as_a_function_or_a_type_must_be_in_the_table(
    sqlite: SqlWorld, name: str, condition: str
) -> None:
    sqlite.db.run(CUSTOMERS)
    sink = sqlite.sink("customers", mode="upsert", keys=["id"], delete_when=f"op = 'd' AND {condition}")
    data = changes((1, "a", 1)).append_column(name, pa.array(["kept"]))
    assert f"column '{name}' (string) is not in the table" in sqlite.reason_against(sink, data)


@pytest.mark.parametrize(
    "condition",
    ["left(op, 1) = left", "CAST(left AS date) IS NULL", "`left` IS NULL", "op IN (left)", "DATE'1' < left"],
)
def test_a_column_that_the_condition_names_need_not_be_in_the_table(sqlite: SqlWorld, condition: str) -> None:
    sqlite.db.run(CUSTOMERS)
    epoch = Epochs(sqlite, sqlite.sink("customers", mode="upsert", keys=["id"], delete_when=f"op = 'd' OR {condition}"))
    epoch.of(changes((1, "a", 1)).append_column("left", pa.array(["used"])))
    assert shown(sqlite) == [(1, "a", 1)]


STOCK: dict[str, Any] = {"mode": "upsert", "keys": ["id"]}


def stock(*rows: tuple[int, int], column: str = "qty") -> pa.Table:
    quantities = [quantity for _, quantity in rows]
    return pa.table(
        {
            "id": pa.array([key for key, _ in rows], pa.int64()),
            column: pa.array(quantities, pa.int64()),
            DELETED: pa.array([quantity == 0 for quantity in quantities]),
        }
    )


@pytest.mark.parametrize("alter", ["RENAME COLUMN qty TO quantity", "DROP COLUMN qty"], ids=["renamed", "dropped"])
def test_a_stored_column_that_the_condition_names_is_not_left_out_when_somebody_renames_or_drops_it(
    sqlite: SqlWorld, alter: str
) -> None:
    sqlite.db.run("CREATE TABLE stock (id bigint PRIMARY KEY, qty bigint)")
    sink, first = sqlite.sink("stock", **STOCK, delete_when="qty = 0"), transaction(1)
    _, receipt = sqlite.epoch(sink, first, None, stock((1, 10), (2, 20)))
    assert receipt.detail["stored"] == ["id", "qty"]
    second = replace(attempt_of(transaction(2), first), stored=("id", "qty"))
    staged = sqlite.staged(sink, second, stock((1, 11), (2, 0), (3, 30)))
    assert staged.detail["stored"] == ["id", "qty"]
    sqlite.db.run(f"ALTER TABLE stock {alter}")

    told = r"has no column 'qty' any more, which the sink stored before"
    reason = sqlite.voted(sink, second, stock((1, 11))).reason
    assert reason and re.search(told, reason) and "Put the column back" in reason
    for attempt in (second, replace(second, stored=())):  # the vote alone has seen the column, too
        with pytest.raises(Corrupt, match=told) as refused:
            sink.commit(attempt, staged, sqlite.env)
        assert refused.value.code is codes.SQL_COMMIT_REFUSED

    other = sqlite.sink("stock", **STOCK, delete_when="left = 0")
    assert sqlite.voted(other, second, stock((1, 11), column="left")).staged
    back = "RENAME COLUMN quantity TO qty" if "RENAME" in alter else "ADD COLUMN qty bigint"
    sqlite.db.run(f"ALTER TABLE stock {back}")
    again = sink.commit(second, staged, sqlite.env)
    assert sqlite.db.run("SELECT id, qty FROM stock ORDER BY id") == [(1, 11), (3, 30)]
    assert sink.commit(second, staged, sqlite.env) == again


def test_a_table_without_the_sequence_is_refused_before_the_first_epoch(sql_world: SqlWorld) -> None:
    sql_world.db.run("CREATE TABLE plain (id bigint PRIMARY KEY, name text)")
    with pytest.raises(Refused, match="no column 'lsn', which `sequence_by` of the sink names") as refused:
        sql_world.sink("plain", **CHANGES).require_ready("orders", None, sql_world.env)
    assert "Add the column to the table" in str(refused.value)
    sql_world.db.run("ALTER TABLE plain ADD COLUMN lsn bigint")
    sql_world.sink("plain", **CHANGES).require_ready("orders", None, sql_world.env)


def test_rights_that_deletions_need_are_named_before_the_first_epoch_and_granting_them_helps(pg: SqlWorld) -> None:
    table, user = pg.db.table("customers"), f"u_{pg.db.table().partition('.')[0]}"
    schema = table.partition(".")[0]
    pg.db.run(
        f"CREATE ROLE {user} LOGIN PASSWORD 'secret'",
        f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}",
        f"GRANT SELECT, INSERT, UPDATE ON {table} TO {user}",
    )
    pg.env.connections["db"] = pg.db.connection(login=user, password="secret")
    sink = pg.sink("customers", **CHANGES)
    with pytest.raises(Refused, match="the connection's user lacks DELETE"):
        sink.require_ready("orders", None, pg.env)
    pg.db.run(f"GRANT DELETE ON {table} TO {user}")
    sink.require_ready("orders", None, pg.env)
    epoch = Epochs(pg, sink)
    epoch((1, "Ann", 1))
    pg.db.run(f"REVOKE CREATE ON SCHEMA {schema} FROM {user}")
    with pytest.raises(Refused, match=f'lacks CREATE on schema "{schema}"'):
        sink.require_ready("orders", None, pg.env)
    pg.db.run(f"GRANT CREATE ON SCHEMA {schema} TO {user}")
    sink.require_ready("orders", None, pg.env)
    epoch((1, None, 2))
    assert shown(pg) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"sequence_by": "v"}, "`sequence_by` is 'v', and `mode` is 'append'"),
        ({"delete_when": "v"}, "`delete_when` is 'v', and `mode` is 'append'"),
        ({"mode": "upsert", "keys": ["id"], "delete_when": " "}, "`delete_when` is ' '. It must not be empty"),
        ({"mode": "upsert", "keys": ["id"], "sequence_by": "ID"}, "`sequence_by` is 'ID', which is one of the keys"),
    ],
)
def test_options_that_mean_nothing_together_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadArgument) as refused:
        SqlSink("s", "db", "t", staging="/s", **options)
    assert problem in str(refused.value)


def test_the_options_survive_the_ledger_and_one_without_them_is_as_earlier_versions_wrote_it() -> None:
    sink = SqlSink("s", "db", "t", staging="/s", **CHANGES)
    again = from_spec(sink.spec())
    assert again.spec() == sink.spec()
    assert repr(again).endswith("keys=['id'], sequence_by='lsn', delete_when=\"op = 'd'\")")
    assert not {"sequence_by", "delete_when"} & SqlSink("s", "db", "t", staging="/s").spec().keys()


def test_several_rows_of_a_key_are_told_of_with_the_option_that_would_choose_one(sql_world: SqlWorld) -> None:
    reason = sql_world.reason_against(sql_world.sink("customers", **LATEST), changes((1, "a", 1), (1, None, 2)))
    assert "not unique in the epoch's rows, among them: 1. The sink has no `sequence_by`" in reason
