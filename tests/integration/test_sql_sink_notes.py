"""Notes about deleted keys count whatever becomes of the table and of the sinks: a deleted key stays deleted."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from airflow_epochs.contracts import Disagreement
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.spark.driver.delta.keys import DELETED
from tests.support.delta_world import attempt_of, transaction
from tests.support.sql_upserts import SqlEpochs, changes
from tests.support.sql_world import PostgresDb, SqlWorld, committed_while_another_waits

CHANGES: dict[str, Any] = {"mode": "upsert", "sequence_by": "lsn", "delete_when": "op = 'd'"}
FIRST, SECOND, THIRD = (transaction(number) for number in (1, 2, 3))

MEMBERS = "CREATE TABLE members (id varchar(20) PRIMARY KEY, name text, lsn bigint)"
PAIRS = "CREATE TABLE pairs (id bigint, part integer, name text, lsn bigint, PRIMARY KEY (id, part))"
LONG = "a_name_of_more_than_forty_bytes_of_which_the_last"
FORTY = "a" * 40
KEY = "0e02b2c3-d479-4000-8000-000000000000"


def change(name: str | None, lsn: int, **keys: Any) -> pa.Table:
    """One row as Spark stages it; without a name it deletes its keys."""
    return (
        pa.table({**{key: [value] for key, value in keys.items()}, "name": pa.array([name], pa.string())})
        .append_column("lsn", pa.array([lsn], pa.int64()))
        .append_column(DELETED, pa.array([name is None]))
    )


def delete(world: SqlWorld, table: str, lsn: int = 20, **keys: Any) -> None:
    """Two epochs: one inserts the keys, the other deletes them."""
    sink = world.sink(table, keys=list(keys), **CHANGES)
    world.epoch(sink, FIRST, None, change("Ann", 10, **keys))
    world.epoch(sink, SECOND, FIRST, change(None, lsn, **keys))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def notes_of(world: SqlWorld, table: str) -> str:
    """The only table of notes about a table: short names whole, long ones as docs/sql.md says."""
    stem = table if len(table) <= 40 else f"{table[:37]}_{digest(table)}"
    listed = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if world.db.kind == "postgres":
        listed = "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
    (name,) = [name for (name,) in world.db.run(listed) if re.fullmatch(f"{stem}_deleted_[0-9a-f]{{8}}", name)]
    return str(name)


def as_version_0_1_named_them(world: SqlWorld, table: str, **columns: str) -> None:
    """Rename the notes about a table. ``columns``: with their types, in the order of the keys; the sequence is last."""
    older = f"{table[:40]}_deleted_{digest(json.dumps([table, *columns.items()]))}"
    if older != (named := notes_of(world, table)):
        world.db.run(f'ALTER TABLE "{named}" RENAME TO "{older}"')


def comes_back(world: SqlWorld, table: str, lsn: int = 15, **keys: Any) -> bool:
    """Whether a row of the next epoch is in the table."""
    world.epoch(world.sink(table, keys=list(keys), **CHANGES), THIRD, SECOND, change("Ann, late", lsn, **keys))
    return bool(world.db.run(f'SELECT 1 FROM "{table}"'))


@pytest.mark.few(4)
@pytest.mark.parametrize("lsn", [15, 20])
@pytest.mark.parametrize(
    "alter",
    [
        *("id TYPE varchar(40)", "id TYPE text", "id TYPE char(20)", "id TYPE varchar(5)"),
        *("lsn TYPE numeric", "lsn TYPE numeric(20)", "lsn TYPE integer"),
    ],
)
def test_notes_count_after_a_column_got_another_type(pg: SqlWorld, alter: str, lsn: int) -> None:
    pg.db.run(MEMBERS)
    delete(pg, "members", id="a")
    pg.db.run(f"ALTER TABLE members ALTER {alter}")
    late = pa.int32() if "integer" in alter else pa.int64()
    data = change("Ann, late", lsn, id="a")
    data = data.set_column(data.schema.get_field_index("lsn"), "lsn", pa.array([lsn], late))
    pg.epoch(pg.sink("members", keys=["id"], **CHANGES), THIRD, SECOND, data)
    assert bool(pg.db.run("SELECT 1 FROM members")) == (lsn == 20)


def test_notes_about_numbers_count_after_the_key_became_a_text(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE members (id bigint PRIMARY KEY, name text, lsn bigint)")
    delete(pg, "members", id=7)
    pg.db.run("ALTER TABLE members ALTER id TYPE text")
    assert not comes_back(pg, "members", id="7")


def test_notes_count_in_a_sqlite_table_that_was_made_anew_with_another_type(sqlite: SqlWorld) -> None:
    sqlite.db.run("CREATE TABLE members (id INTEGER PRIMARY KEY, name text, lsn bigint)")
    delete(sqlite, "members", id=7)
    sqlite.db.run("DROP TABLE members", MEMBERS)
    assert not comes_back(sqlite, "members", id="7")


@pytest.mark.parametrize("again", ["deletes", "only upserts"])
@pytest.mark.parametrize(
    ("was", "now"), [("members", "Members"), (LONG, LONG.upper()), (LONG.upper(), LONG)], ids=["short", "up", "down"]
)
def test_notes_count_in_a_sqlite_table_that_was_made_anew_with_other_capitals(
    sqlite: SqlWorld, was: str, now: str, again: str
) -> None:
    """SQLite takes such names as the same: tables are made anew, because no column can get another type."""
    sqlite.db.run(MEMBERS.replace("members", was))
    delete(sqlite, was, id="a")
    sqlite.db.run(f"DROP TABLE {was}", f'CREATE TABLE "{now}" (ID varchar(20) PRIMARY KEY, Name text, LSN bigint)')
    other = attempt_of(transaction(1, pipeline="other"))
    if again == "deletes":
        sink = sqlite.sink(now, keys=["id"], **CHANGES)
        sink.commit(other, sqlite.staged(sink, other, change(None, 20, id="b")), sqlite.env)
    assert not comes_back(sqlite, now, id="a")


def test_notes_whose_name_has_the_digest_of_a_name_with_capitals_count_in_sqlite(sqlite: SqlWorld) -> None:
    """As the provider named them for some time after version 0.1."""
    table = LONG.upper()
    sqlite.db.run(MEMBERS.replace("members", table))
    delete(sqlite, table, id="a")
    [(name,)] = sqlite.db.run("SELECT name FROM sqlite_master WHERE name LIKE '%_deleted_________'")
    sqlite.db.run(f'ALTER TABLE "{name}" RENAME TO "{table[:37]}_{digest(table)}_deleted_{name[-8:]}"')
    assert not comes_back(sqlite, table, id="a")


@pytest.mark.few(2)
@pytest.mark.parametrize("deletes_another", [False, True])
@pytest.mark.parametrize(
    ("table", "older"), [("members", False), (LONG, False), (LONG, True)], ids=["short", "long", "long, of 0.1"]
)
def test_notes_that_cannot_be_compared_are_a_vote_against_until_the_remedy_is_done(
    pg: SqlWorld, table: str, older: bool, deletes_another: bool
) -> None:
    pg.db.run(*(f"CREATE TABLE {name} (id text PRIMARY KEY, name text, lsn bigint)" for name in (table, f"{LONG}_2")))
    delete(pg, table, id=KEY)
    if older:
        as_version_0_1_named_them(pg, table, id="text", lsn="bigint")
    pg.db.run(f"ALTER TABLE {table} ALTER id TYPE uuid USING id::uuid")
    attempt, late = attempt_of(THIRD, SECOND), change("Ann, late", 15, id=KEY)
    if deletes_another:
        late = pa.concat_tables([late, change(None, 15, id=KEY.replace("0e", "0f"))])
    sink = pg.sink(table, keys=["id"], **CHANGES)
    reason = pg.voted(sink, attempt, late).reason
    assert reason and f"EPOCHS-SQL-NOTES-UNFIT: Column 'id' of table '{table}' is uuid. It was text" in reason
    pg.db.run(*re.findall("`(ALTER [^`]+)`", reason))
    pg.epoch(sink, THIRD, SECOND, late)
    assert pg.db.run(f"SELECT * FROM {table}") == []


def test_the_remedy_for_a_second_table_of_notes_keeps_the_first(pg: SqlWorld) -> None:
    """The notes have the names of version 0.1, and another table has the same beginning: only a new name helps."""
    pg.db.run(*(f"CREATE TABLE {LONG}{end} (id text, part text, name text, lsn bigint)" for end in ("", "_2")))
    pg.db.run(f"CREATE UNIQUE INDEX ON {LONG} (id, part)")
    keys: dict[str, Any] = {"id": KEY, "part": "1"}
    other: dict[str, Any] = {"part": "2", "id": KEY}
    delete(pg, LONG, **keys)
    as_version_0_1_named_them(pg, LONG, id="text", part="text", lsn="bigint")
    sinks = [pg.sink(LONG, keys=list(each), **CHANGES) for each in (keys, other)]
    pg.epoch(sinks[1], THIRD, SECOND, change(None, 20, **other))
    as_version_0_1_named_them(pg, LONG, part="text", id="text", lsn="bigint")
    pg.db.run(f"ALTER TABLE {LONG} ALTER id TYPE uuid USING id::uuid")
    fourth, late = transaction(4), [change("late", 15, **{name: each[name] for name in keys}) for each in (keys, other)]
    for _ in range(2):
        reason = pg.voted(sinks[0], attempt_of(fourth, THIRD), pa.concat_tables(late)).reason
        assert reason and "EPOCHS-SQL-NOTES-UNFIT" in reason
        pg.db.run(*re.findall("`(ALTER [^`]+)`", reason))
    pg.epoch(sinks[0], fourth, THIRD, pa.concat_tables(late))
    assert pg.db.run(f"SELECT * FROM {LONG}") == []


@pytest.mark.parametrize(("was", "now"), [(LONG, f"{LONG}_2"), (LONG, "members"), ("members", LONG)])
def test_notes_that_were_renamed_as_the_page_says_count_after_the_table_was(
    sql_world: SqlWorld, was: str, now: str
) -> None:
    sql_world.db.run(MEMBERS.replace("members", was))
    delete(sql_world, was, id="a")
    stem = now if len(now) <= 40 else f"{now[:37]}_{digest(now)}"
    sql_world.db.run(
        f"ALTER TABLE {was} RENAME TO {now}",
        f"ALTER TABLE {notes_of(sql_world, was)} RENAME TO {stem}_deleted_01234567",
    )
    assert not comes_back(sql_world, now, id="a")


@pytest.mark.few(4)
@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("column", ["id", "lsn"])
@pytest.mark.parametrize("table", ["members", LONG])
def test_notes_count_after_a_column_was_renamed_in_both_tables(
    sql_world: SqlWorld, table: str, column: str, older: bool
) -> None:
    sql_world.db.run(f"CREATE TABLE {table} (id bigint PRIMARY KEY, name text, lsn bigint)")
    delete(sql_world, table, id=1)
    if older:
        as_version_0_1_named_them(sql_world, table, id="bigint", lsn="bigint")
    (notes,) = sql_world.db.run(
        f"SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE '{table[:37]}%_deleted_%'"
        if sql_world.db.kind == "sqlite"
        else f"SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE '{table[:37]}%_deleted_%' AND"
        " relnamespace = current_schema()::regnamespace"
    )
    sql_world.db.run(*(f"ALTER TABLE {each} RENAME {column} TO renamed" for each in (table, notes[0])))
    late = change("Ann, late", 15, id=1)
    late = late.rename_columns(["renamed" if name == column else name for name in late.column_names])
    options = {**CHANGES, **({"sequence_by": "renamed"} if column == "lsn" else {})}
    sink = sql_world.sink(table, keys=["renamed" if column == "id" else "id"], **options)
    sql_world.epoch(sink, THIRD, SECOND, late)
    assert sql_world.db.run(f"SELECT * FROM {table}") == []


@pytest.mark.few(2)
@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("deleted", [FORTY, f"{FORTY}_archive"])
def test_notes_about_a_table_do_not_count_for_one_with_the_same_beginning(
    sql_world: SqlWorld, deleted: str, older: bool
) -> None:
    tables = [FORTY, f"{FORTY}_archive"]
    sql_world.db.run(*(f"CREATE TABLE {table} (id bigint PRIMARY KEY, name text, lsn bigint)" for table in tables))
    delete(sql_world, deleted, id=1)
    if older:
        as_version_0_1_named_them(sql_world, deleted, id="bigint", lsn="bigint")
    sql_world.db.run("DROP TABLE epoch_markers")
    (other,) = {*tables} - {deleted}
    sql_world.epoch(sql_world.sink(other, keys=["id"], **CHANGES), FIRST, None, change("Ann", 15, id=1))
    assert sql_world.db.run(f"SELECT * FROM {other}") == [(1, "Ann", 15)]
    sql_world.db.run("DROP TABLE epoch_markers")
    sql_world.epoch(sql_world.sink(deleted, keys=["id"], **CHANGES), FIRST, None, change("late", 15, id=1))
    assert sql_world.db.run(f"SELECT * FROM {deleted}") == []


@pytest.mark.parametrize("type_of_id", ["character varying(20)", "varchar(20)"])
def test_notes_that_earlier_versions_made_count_after_the_type_changed(sql_world: SqlWorld, type_of_id: str) -> None:
    """The name is that of version 0.1 with the key's type as PostgreSQL and SQLite spell it."""
    notes = {"character varying(20)": "members_deleted_9fae5c64", "varchar(20)": "members_deleted_72d3dec8"}[type_of_id]
    sql_world.db.run(
        MEMBERS.replace("varchar(20)", "text"),
        f'CREATE TABLE "{notes}" (id {type_of_id}, lsn bigint)',
        f'CREATE UNIQUE INDEX "{notes}_key" ON "{notes}" (id)',
        f"INSERT INTO \"{notes}\" VALUES ('a', 20)",
    )
    sink = sql_world.sink("members", keys=["id"], **CHANGES)
    sql_world.epoch(sink, FIRST, None, change("Ann, late", 15, id="a"))
    assert sql_world.db.run("SELECT * FROM members") == []
    sql_world.epoch(sink, SECOND, FIRST, change("Ann again", 20, id="a"))
    assert sql_world.db.run("SELECT * FROM members") == [("a", "Ann again", 20)]


@pytest.mark.parametrize("keys", [["id", "part"], ["part", "id"]])
@pytest.mark.parametrize("notes", ["pairs_deleted_9b1da921", "pairs_deleted_ba273dd1"])
def test_notes_that_earlier_versions_made_count_for_keys_in_any_order(
    sql_world: SqlWorld, notes: str, keys: list[str]
) -> None:
    sql_world.db.run(
        PAIRS,
        f'CREATE TABLE "{notes}" AS SELECT id, part, lsn FROM pairs WHERE 1 = 0',
        f'CREATE UNIQUE INDEX "{notes}_key" ON "{notes}" (id, part)',
        f'INSERT INTO "{notes}" VALUES (1, 1, 20)',
    )
    late = change("Ann, late", 15, id=1, part=pa.scalar(1, pa.int32()))
    sql_world.epoch(sql_world.sink("pairs", keys=keys, **CHANGES), FIRST, None, late)
    assert sql_world.db.run("SELECT * FROM pairs") == []


def test_sinks_that_name_the_keys_in_another_order_share_their_notes(sql_world: SqlWorld) -> None:
    sql_world.db.run(PAIRS)
    part = pa.scalar(1, pa.int32())
    delete(sql_world, "pairs", id=1, part=part)
    other = sql_world.sink("pairs", keys=["part", "id"], **CHANGES)
    sql_world.epoch(other, THIRD, SECOND, change("Ann, late", 15, id=1, part=part))
    assert sql_world.db.run("SELECT * FROM pairs") == []
    fourth, fifth = transaction(4), transaction(5)
    sql_world.epoch(other, fourth, THIRD, change(None, 30, id=1, part=part))
    sql_world.epoch(
        sql_world.sink("pairs", keys=["id", "part"], **CHANGES), fifth, fourth, change("late", 25, id=1, part=part)
    )
    assert sql_world.db.run("SELECT * FROM pairs") == []


def test_an_older_row_waits_for_a_deletion_of_a_sink_that_names_the_keys_in_another_order(pg: SqlWorld) -> None:
    pg.db.run(PAIRS, "INSERT INTO pairs VALUES (1, 1, 'Ann', 10)")
    part = pa.scalar(1, pa.int32())
    sinks = {"deletes": pg.sink("pairs", keys=["id", "part"], **CHANGES)}
    sinks["late"] = pg.sink("pairs", keys=["part", "id"], **CHANGES)
    pg.epoch(sinks["late"], FIRST, None, change("first", 1, id=9, part=part))  # makes the table of markers
    attempts = {name: attempt_of(transaction(1, pipeline=name)) for name in sinks}
    data = {"deletes": change(None, 20, id=1, part=part), "late": change("Ann, late", 15, id=1, part=part)}
    staged = {name: pg.staged(sinks[name], attempts[name], data[name]) for name in sinks}
    deletes, late = (
        (sinks["deletes"], attempts["deletes"], staged["deletes"]),
        (sinks["late"], attempts["late"], staged["late"]),
    )
    assert [receipt.rows for receipt in committed_while_another_waits(pg, deletes, late)] == [1, 1]
    assert pg.db.run("SELECT id FROM pairs") == [(9,)]


@pytest.mark.parametrize(
    ("table", "older"), [("members", False), (LONG, False), (LONG, True)], ids=["short", "long", "long, of 0.1"]
)
def test_notes_count_when_the_connection_gets_another_search_path(pg: SqlWorld, table: str, older: bool) -> None:
    pg.db.run(
        "CREATE TYPE region AS ENUM ('eu')", f"CREATE TABLE {table} (id region PRIMARY KEY, name text, lsn bigint)"
    )
    delete(pg, table, id="eu")
    schema = pg.db.table().partition(".")[0]
    if older:
        as_version_0_1_named_them(pg, table, id=f"{schema}.region", lsn="bigint")
    pg.env.connections["db"] = pg.db.connection(extra={"options": f"-c search_path={schema}"})
    assert not comes_back(pg, table, id="eu")


@pytest.mark.parametrize("table", ["members", f"{LONG}_1"])
def test_what_only_looks_like_notes_about_the_table_is_not_read(pg: SqlWorld, table: str) -> None:
    """A table of the user's own, and the notes about a table whose long name begins as this one's."""
    pg.db.run(*(MEMBERS.replace("members", f'"{name}"') for name in (table, f"{LONG}_2")))
    columns = "(id varchar(20) PRIMARY KEY, lsn bigint)"
    pg.db.run(
        f"CREATE TABLE {table}_deleted_archive {columns}", f"INSERT INTO {table}_deleted_archive VALUES ('a', 99)"
    )
    delete(pg, f"{LONG}_2", id="a", lsn=99)
    pg.db.run("DROP TABLE epoch_markers")
    delete(pg, table, id="a")
    assert comes_back(pg, table, lsn=50, id="a")


@pytest.mark.parametrize("alter", ["id TYPE text", "lsn TYPE numeric"])
def test_notes_about_a_table_with_a_long_name_count_after_a_column_got_another_type(pg: SqlWorld, alter: str) -> None:
    pg.db.run(MEMBERS.replace("members", LONG))
    delete(pg, LONG, id="a")
    pg.db.run(f"ALTER TABLE {LONG} ALTER {alter}")
    assert not comes_back(pg, LONG, id="a")


def in_the_name_of_another_user(pg: SqlWorld, table: str) -> str:
    """A user with all rights on a table and its markers, and none on its notes; the connection has it from now on."""
    schema = pg.db.table().partition(".")[0]
    user = f"u_{schema}"
    pg.db.run(
        f"CREATE ROLE {user} LOGIN PASSWORD 'secret'",
        f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {table}, epoch_markers TO {user}",
    )
    pg.env.connections["db"] = pg.db.connection(login=user, password="secret")
    return user


SEQUENCE_ONLY = {"mode": "upsert", "sequence_by": "lsn"}


@pytest.mark.parametrize("options", [CHANGES, SEQUENCE_ONLY], ids=["deletes", "sequence only"])
def test_a_right_that_the_user_lacks_on_another_sinks_notes_is_named_before_the_epoch(
    pg: SqlWorld, options: dict[str, Any]
) -> None:
    pg.db.run(MEMBERS)
    delete(pg, "members", id="a")
    pg.db.run("ALTER TABLE members ALTER id TYPE text")
    user = in_the_name_of_another_user(pg, "members")
    sink = pg.sink("members", keys=["id"], **options)
    with pytest.raises(Refused, match=r"the connection's user lacks SELECT on table") as refused:
        sink.require_ready("orders", SECOND, pg.env)
    (grant,) = re.findall("`(GRANT [^`]+)`", str(refused.value))
    pg.db.run(grant.replace("<the user>", user))
    sink.require_ready("orders", SECOND, pg.env)
    pg.epoch(sink, THIRD, SECOND, change("Ann, late", 15, id="a"))
    assert pg.db.run("SELECT * FROM members") == []


@pytest.mark.parametrize("options", [CHANGES, SEQUENCE_ONLY], ids=["deletes", "sequence only"])
def test_notes_that_row_level_security_hides_from_the_user_are_refused_before_the_epoch(
    pg: SqlWorld, options: dict[str, Any]
) -> None:
    pg.db.run(MEMBERS)
    delete(pg, "members", id="a")
    user, notes = in_the_name_of_another_user(pg, "members"), notes_of(pg, "members")
    pg.db.run(f"GRANT SELECT, INSERT, UPDATE ON {notes} TO {user}", f"ALTER TABLE {notes} ENABLE ROW LEVEL SECURITY")
    sink = pg.sink("members", keys=["id"], **options)
    with pytest.raises(Refused, match="where deleted keys are noted, applies to the connection's user") as refused:
        sink.require_ready("orders", SECOND, pg.env)
    (disable,) = re.findall("`(ALTER TABLE [^`]+)`", str(refused.value))
    pg.db.run(disable)
    sink.require_ready("orders", SECOND, pg.env)
    pg.epoch(sink, THIRD, SECOND, change("Ann, late", 15, id="a"))
    assert pg.db.run("SELECT * FROM members") == []


@pytest.mark.few(2)
@pytest.mark.parametrize("options", [CHANGES, SEQUENCE_ONLY], ids=["deletes", "sequence only"])
@pytest.mark.parametrize("whose", ["its own", "another sink's"])
def test_notes_that_a_crash_would_lose_are_refused_until_they_are_logged_as_the_error_says(
    pg: SqlWorld, options: dict[str, Any], whose: str
) -> None:
    pg.db.run(MEMBERS)
    delete(pg, "members", id="a")
    notes = notes_of(pg, "members")
    pg.db.run(f"ALTER TABLE {notes} SET UNLOGGED")
    if whose == "another sink's":
        pg.db.run("ALTER TABLE members ALTER id TYPE text")
    sink = pg.sink("members", keys=["id"], **options)
    with pytest.raises(Refused, match="where deleted keys are noted, is UNLOGGED") as refused:
        sink.require_ready("orders", SECOND, pg.env)
    assert "UNLOGGED" in str(pg.voted(sink, attempt_of(THIRD, SECOND), change(None, 30, id="b")).reason)
    (logged,) = re.findall("`(ALTER TABLE [^`]+)`", refused.value.remedy)
    pg.db.run(logged)
    sink.require_ready("orders", SECOND, pg.env)
    pg.epoch(sink, THIRD, SECOND, change("Ann, late", 15, id="a"))
    assert pg.db.run("SELECT * FROM members") == []
    assert pg.db.run(f"SELECT relpersistence::text FROM pg_class WHERE oid = '{notes}'::regclass") == [("p",)]


def test_notes_that_become_unlogged_after_the_vote_stop_the_commit(pg: SqlWorld) -> None:
    pg.db.run(MEMBERS)
    delete(pg, "members", id="a")
    sink, attempt, notes = (
        pg.sink("members", keys=["id"], **CHANGES),
        attempt_of(THIRD, SECOND),
        notes_of(pg, "members"),
    )
    staged = pg.staged(sink, attempt, change(None, 30, id="b"))
    pg.db.run(f"ALTER TABLE {notes} SET UNLOGGED")
    with pytest.raises(Corrupt, match="UNLOGGED"):
        sink.commit(attempt, staged, pg.env)
    pg.db.run(f"ALTER TABLE {notes} SET LOGGED")
    sink.commit(attempt, staged, pg.env)
    assert pg.db.run(f"SELECT id, lsn FROM {notes} ORDER BY id") == [("a", 20), ("b", 30)]


def test_a_deferrable_constraint_on_the_notes_is_dropped_as_the_error_says(pg: SqlWorld) -> None:
    pg.db.run(MEMBERS)
    delete(pg, "members", id="a")
    notes = notes_of(pg, "members")
    pg.db.run(f"ALTER TABLE {notes} ADD UNIQUE (id) DEFERRABLE")
    sink = pg.sink("members", keys=["id"], **CHANGES)
    with pytest.raises(Refused, match="that is deferrable") as refused:
        sink.require_ready("orders", SECOND, pg.env)
    pg.db.run(*re.findall("`(ALTER TABLE [^`]+)`", refused.value.remedy))
    sink.require_ready("orders", SECOND, pg.env)
    pg.epoch(sink, THIRD, SECOND, change(None, 30, id="b"))
    assert pg.db.run(f"SELECT id, lsn FROM {notes} ORDER BY id") == [("a", 20), ("b", 30)]


def test_notes_of_another_sink_whose_key_is_deferrable_count_all_the_same(pg: SqlWorld) -> None:
    pg.db.run(
        MEMBERS,
        "CREATE TABLE members_deleted_00000000 (id varchar(20) PRIMARY KEY DEFERRABLE, lsn bigint)",
        "INSERT INTO members_deleted_00000000 VALUES ('a', 20)",
    )
    pg.epoch(pg.sink("members", keys=["id"], **CHANGES), FIRST, None, change("Ann, late", 15, id="a"))
    assert pg.db.run("SELECT * FROM members") == []


def test_a_publication_of_all_tables_stops_no_epoch_that_deletes(pg: SqlWorld) -> None:
    """As Debezium makes one. Of a published table without an identity, PostgreSQL updates no row."""
    pg.db.run("CREATE TABLE members (id text PRIMARY KEY, name text, lsn bigint)")
    schema = pg.db.table().partition(".")[0]
    pg.db.run(f"CREATE PUBLICATION p_{schema} FOR TABLES IN SCHEMA {schema}")
    try:
        sink = pg.sink("members", keys=["id"], **CHANGES)
        pg.epoch(sink, FIRST, None, change("Ann", 10, id="a"))
        pg.epoch(sink, SECOND, FIRST, change(None, 20, id="a"))
        pg.epoch(sink, THIRD, SECOND, change(None, 30, id="a"))
    finally:
        pg.db.run(f"DROP PUBLICATION p_{schema}")
    assert pg.db.run("SELECT * FROM members") == []


@pytest.mark.parametrize("name", ["Ann, late", None], ids=["brings", "deletes"])
def test_a_right_on_notes_that_appeared_after_the_epoch_was_opened_is_named_by_the_vote(
    pg: SqlWorld, name: str | None
) -> None:
    pg.db.run(MEMBERS)
    delete(pg, "members", id="a")
    user = in_the_name_of_another_user(pg, "members")
    sink, attempt = pg.sink("members", keys=["id"], **CHANGES), attempt_of(THIRD, SECOND)
    reason = str(pg.voted(sink, attempt, change(name, 15, id="a")).reason)
    assert "EPOCHS-SQL-TABLE-UNUSABLE" in reason
    grants = re.findall("`(GRANT [^`]+)`", reason)
    pg.db.run(*(grant.replace("<the user>", user) for grant in grants))
    pg.epoch(sink, THIRD, SECOND, change(name, 15, id="a"))
    assert pg.db.run("SELECT * FROM members") == []


@pytest.mark.parametrize("notes_too", [True, False])
def test_notes_that_move_with_the_table_to_another_schema_count_and_the_error_tells_of_them(
    pg: SqlWorld, notes_too: bool
) -> None:
    assert isinstance(pg.db, PostgresDb)
    pg.db.run(MEMBERS)
    delete(pg, "members", id="a")
    other = f"{pg.db.schema}_there"
    there = SqlWorld(replace(pg.db, schema=other), pg.folder)
    moved = ["members", "epoch_markers", *([notes_of(pg, "members")] if notes_too else [])]
    moves = [f'ALTER TABLE "{name}" SET SCHEMA {other}' for name in moved]
    pg.db.run(f"CREATE SCHEMA {other}", *moves)
    sink = pg.sink("members", keys=["id"], **CHANGES)
    told = sink.diagnose(Disagreement(pipeline=FIRST.pipeline, found=None, expected=SECOND), pg.env)
    assert told
    assert "do the same with its notes of deletions, members_deleted_<8 hex digits>" in told.remedy
    assert comes_back(there, "members", id="a") is not notes_too


@pytest.mark.parametrize("notes_too", [True, False])
def test_notes_do_not_count_for_other_keys_unless_they_get_the_columns_and_the_index_too(
    sql_world: SqlWorld, notes_too: bool
) -> None:
    sql_world.db.run(PAIRS, "CREATE UNIQUE INDEX pairs_by_id ON pairs (id)")
    sink, part = sql_world.sink("pairs", keys=["id"], **CHANGES), pa.scalar(1, pa.int32())
    for txn, before, name, lsn in ((FIRST, None, "Ann", 10), (SECOND, FIRST, None, 20)):
        sql_world.epoch(sink, txn, before, change(name, lsn, id=1, part=part))
    if notes_too:
        notes = notes_of(sql_world, "pairs")
        sql_world.db.run(
            f"ALTER TABLE {notes} ADD COLUMN part integer",
            f"UPDATE {notes} SET part = 1",
            f"CREATE UNIQUE INDEX notes_by_both ON {notes} (id, part)",
        )
    assert comes_back(sql_world, "pairs", id=1, part=part) is not notes_too


@pytest.mark.timeout(30)
def test_thousands_of_deletions_take_no_time_by_the_square_of_their_number(sqlite: SqlWorld) -> None:
    """A second here. Without an index on the epoch's rows, SQLite reads all of them for each row of the table."""
    epochs, keys = (
        SqlEpochs(sqlite, "id TEXT PRIMARY KEY, name TEXT, lsn INTEGER"),
        [f"k{n:07d}" for n in range(30_000)],
    )
    epochs.takes(changes(*((key, "a", 1) for key in keys)))
    epochs.takes(changes(*((key, None, 2) for key in keys)))
    assert epochs.rows() == []
