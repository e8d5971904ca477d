"""The SQL sink on a real PostgreSQL and on SQLite: what goes in, what is refused, and who may change the marker."""

from __future__ import annotations

import decimal
import json
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_epochs.errors import BadArgument, Corrupt, NotApplied, Refused
from airflow_epochs.model import Marker
from airflow_epochs.sinks import from_spec
from airflow_epochs.sinks.sql.sink import SqlSink
from tests.support.counted import log_entries_read
from tests.support.delta_world import attempt_of, rows, stage_with_deltalake, transaction
from tests.support.sql_world import PostgresDb, SqlWorld, new_sqlite

ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, city text, total numeric(10,2) CHECK (total >= 0))"
UNIQUE = {"postgres": r"Key \(id\)=\(1\) already exists", "sqlite": "UNIQUE constraint failed: orders.id"}
CHECK = {"postgres": "orders_total_check", "sqlite": "CHECK constraint failed: total >= 0"}


@pytest.fixture
def sql_tables() -> Sequence[str]:
    return (ORDERS,)


def orders(*ids: int, city: str | None = "Rome", total: str = "1.50") -> pa.Table:
    totals = pa.array([decimal.Decimal(total)] * len(ids), pa.decimal128(10, 2))
    return rows(*ids, city=pa.array([city] * len(ids), pa.string()), total=totals)


# -- an epoch -------------------------------------------------------------------------------------------------------


def test_rows_and_marker_are_there_together_and_a_repeat_says_the_same(sql_world: SqlWorld) -> None:
    sink, txn = sql_world.sink(), transaction(1)
    staged, receipt = sql_world.epoch(sink, txn, None, orders(1, 2))
    assert sql_world.db.run("SELECT id, city FROM orders ORDER BY id") == [(1, "Rome"), (2, "Rome")]
    assert sql_world.marker_rows() == [("orders", "orders", 1, str(txn), 2)]
    sink.discard(attempt_of(txn), staged.place, sql_world.env, published=True)
    assert from_spec(sink.spec()).commit(attempt_of(txn), staged, sql_world.env) == receipt
    assert sql_world.ids() == [1, 2]
    assert sink.last_committed("orders", sql_world.env) == Marker.of(txn)
    assert sql_world.env.phases == ["sql.locked", "sql.copied", "sql.commit.before", "sql.commit.after"]


def test_lineage_names_the_table_in_the_schema_in_which_the_server_found_it(pg: SqlWorld) -> None:
    assert isinstance(pg.db, PostgresDb)
    pg.env.connections["db"] = pg.db.connection(extra={"options": f"-c search_path={pg.db.schema}"})
    sink = SqlSink("orders", "db", "orders", staging=str(pg.folder / "staging"))
    _, receipt = pg.epoch(sink, transaction(1), None, orders(1))
    [(port, database)] = pg.db.run("SELECT current_setting('port'), current_database()")
    found = sink.dataset(receipt, pg.env)
    assert (found.namespace, found.name) == (f"postgres://127.0.0.1:{port}", f"{database}.{pg.db.schema}.orders")


@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "keys": ["id"]}], ids=["append", "upsert"])
def test_a_commit_reads_the_log_of_the_staged_rows_once(
    sql_world: SqlWorld, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, attempt = sql_world.sink(**options), attempt_of(transaction(1))
    staged = sql_world.staged(sink, attempt, orders(1, 2))
    read = log_entries_read(monkeypatch)
    sink.commit(attempt, staged, sql_world.env)
    assert (sql_world.ids(), len(read)) == ([1, 2], staged.version + 1)


def test_a_vote_leaves_nothing_in_the_database(sql_world: SqlWorld) -> None:
    sink = sql_world.sink()
    sql_world.staged(sink, attempt_of(transaction(1)), orders(1, 2))
    assert sql_world.ids() == []
    assert sink.last_committed("orders", sql_world.env) is None


def test_an_upserted_row_takes_the_place_of_the_one_with_its_key(sql_world: SqlWorld) -> None:
    sink, first, second = sql_world.sink(mode="upsert", keys=["ID"]), transaction(1), transaction(2)
    sql_world.epoch(sink, first, None, orders(1, 2))
    sql_world.epoch(sink, second, first, orders(2, 3, city="Oslo"))
    assert sql_world.db.run("SELECT id, city FROM orders ORDER BY id") == [(1, "Rome"), (2, "Oslo"), (3, "Oslo")]


def test_an_upsert_of_keys_alone_keeps_what_is_there(sql_world: SqlWorld) -> None:
    sink, first, second = sql_world.sink(mode="upsert", keys=["id"]), transaction(1), transaction(2)
    sql_world.epoch(sink, first, None, orders(1))
    sql_world.epoch(sink, second, first, rows(1, 2))
    assert sql_world.db.run("SELECT id, city FROM orders ORDER BY id") == [(1, "Rome"), (2, None)]


def test_two_sinks_of_two_pipelines_share_table_and_marker_table(sql_world: SqlWorld) -> None:
    first, second = transaction(1), transaction(1, pipeline="returns")
    sql_world.epoch(sql_world.sink(), first, None, orders(1))
    sql_world.epoch(sql_world.sink(), second, None, orders(2))
    assert sql_world.ids() == [1, 2]
    assert sorted(row[3] for row in sql_world.marker_rows()) == sorted([str(first), str(second)])


def test_names_may_have_any_characters(sql_world: SqlWorld) -> None:
    sql_world.db.run('CREATE TABLE "Odd %s ""T""" ("a%b ""c""" bigint PRIMARY KEY, "select" text)')
    table = '"Odd %s ""T"""'
    sink = sql_world.sink(table, mode="upsert", keys=['a%b "c"'])
    sql_world.epoch(sink, transaction(1), None, pa.table({'a%b "c"': [1], "SELECT": ["?%s:x"]}))
    assert sql_world.db.run(f"SELECT * FROM {table}") == [(1, "?%s:x")]


# -- the vote -------------------------------------------------------------------------------------------------------


def test_a_missing_table_is_told_of_with_the_statement_that_creates_it(sql_world: SqlWorld) -> None:
    sink = sql_world.sink("fresh", mode="upsert", keys=["id"])
    reason = sql_world.reason_against(sink, orders(1))
    assert f"Table {sink.table} does not exist in" in reason
    (statement,) = re.findall(r"`(CREATE TABLE [^`]*)`", reason)
    sql_world.db.run(statement.replace(sink.table, "fresh"))
    sql_world.epoch(sink, transaction(1), None, orders(1))
    assert sql_world.ids("fresh") == [1]


@pytest.mark.parametrize(
    ("table", "column", "key"),
    [
        ("v", "orderId", "orderId"),
        ("v", "orderId", "ORDERID"),
        ("v", "order", "order"),
        ("v", 'an "id"', 'an "id"'),
        ("Ärzte", "id", "id"),
    ],
)
def test_the_sink_finds_the_table_and_the_keys_that_the_statement_in_the_error_makes(
    sql_world: SqlWorld, table: str, column: str, key: str
) -> None:
    sink, data = sql_world.sink(table, mode="upsert", keys=[key]), pa.table({column: pa.array([1], pa.int64())})
    (statement,) = re.findall(r"`(CREATE TABLE [^`]*)`", sql_world.reason_against(sink, data))
    sql_world.db.run(statement)
    sql_world.epoch(sink, transaction(1), None, data)
    assert sql_world.db.run(f"SELECT * FROM {table}") == [(1,)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (orders(1).append_column("extra", [["x"]]), r"column 'extra' \(string\) is not in the table"),
        (orders(1).drop_columns(["id"]).append_column("ID2", [[1]]), "column 'ID2' (.*)not in the table"),
        (orders(1).append_column("CITY", [["x"]]).select(["id", "city"]), None),
    ],
)
def test_columns_are_compared_by_name(pg: SqlWorld, data: pa.Table, expected: str | None) -> None:
    vote = pg.voted(pg.sink(), attempt_of(transaction(1)), data)
    assert (vote.reason is None) == (expected is None), vote.reason
    assert re.search(expected or "", vote.reason or "")


def test_types_that_would_change_a_value_are_refused(pg: SqlWorld) -> None:
    pg.db.run(
        "CREATE TABLE v (n integer, t text, d numeric(5,2), g bigint GENERATED ALWAYS AS (1) STORED, q int NOT NULL)"
    )
    given = pa.table({"n": [1], "t": [1], "d": pa.array([None], pa.decimal128(10, 4)), "g": [1]})
    reason = pg.reason_against(pg.sink("v"), given)
    for part in (
        "column 'n' is long in the rows and integer in the table",
        "column 't' is long in the rows and text in the table",
        "column 'd' is decimal(10,4) in the rows and numeric(5,2) in the table",
        "the database computes column 'g', so the rows must not have it",
        "column 'q' is NOT NULL without a default",
    ):
        assert part in reason


def test_rows_that_break_a_rule_of_the_table_are_a_vote_against(sql_world: SqlWorld) -> None:
    sql_world.epoch(sql_world.sink(), transaction(1, pipeline="other"), None, orders(1))
    for data, expected in (
        (orders(1), UNIQUE[sql_world.db.kind]),
        (orders(2, total="-1"), CHECK[sql_world.db.kind]),
        (orders(3, 3), {"postgres": r"\(3\)", "sqlite": "UNIQUE"}[sql_world.db.kind]),
    ):
        assert re.search(expected, sql_world.reason_against(sql_world.sink(), data))
    assert sql_world.ids() == [1]


def test_postgresql_refuses_at_the_vote_what_it_would_refuse_at_the_commit(pg: SqlWorld) -> None:
    pg.db.run(
        "CREATE TABLE cities (name text PRIMARY KEY)",
        "CREATE TABLE v (city text REFERENCES cities DEFERRABLE INITIALLY DEFERRED, short varchar(3))",
    )
    for column, value, expected in (
        ("city", "Atlantis", 'not present in table "cities"'),
        ("short", "abcd", "column 'short' is too long for character varying(3): 'abcd'"),
        ("short", "a\0b", "column 'short' has a NUL character, which PostgreSQL cannot store: 'a\\x00b'"),
    ):
        assert expected in pg.reason_against(pg.sink("v"), pa.table({column: [value]}))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ("CREATE VIEW v AS SELECT * FROM orders", "it is a view"),
        ("CREATE UNLOGGED TABLE v (id bigint)", "UNLOGGED"),
        ("CREATE MATERIALIZED VIEW v AS SELECT * FROM orders", "it is a materialized view"),
    ],
)
def test_what_is_no_lasting_table_is_refused(pg: SqlWorld, made: str, expected: str) -> None:
    pg.db.run(made)
    assert expected in pg.reason_against(pg.sink("v"), rows(1))


@pytest.mark.parametrize(
    ("virtual", "shown"),
    [("rtree (id, low, high)", [(7, 1.123456597328186, 2.1234569549560547)]), ("fts5 (id, low, high)", None)],
    ids=["rtree", "fts5"],
)
def test_a_virtual_table_of_sqlite_is_refused_and_a_trigger_fills_it(
    sqlite: SqlWorld, virtual: str, shown: list[tuple[Any, ...]] | None
) -> None:
    sqlite.db.run(f"CREATE VIRTUAL TABLE found USING {virtual}")
    row, data = (7, 1.123456789, 2.123456789), pa.table({"id": [7], "low": [1.123456789], "high": [2.123456789]})
    with pytest.raises(Refused, match="cannot write to table found: it is a virtual table") as refused:
        sqlite.sink("found").require_ready("orders", None, sqlite.env)
    assert refused.value.reason == sqlite.reason_against(sqlite.sink("found"), data)
    assert refused.value.remedy == (
        "Give the sink an ordinary table, and let a trigger of that table fill the virtual one. Then clear the failed "
        "task."
    )
    sqlite.db.run(
        "CREATE TABLE v (id INTEGER PRIMARY KEY, low REAL, high REAL)",
        "CREATE TRIGGER fills AFTER INSERT ON v BEGIN INSERT INTO found VALUES (new.id, new.low, new.high); END",
    )
    sqlite.sink("v").require_ready("orders", None, sqlite.env)
    sqlite.epoch(sqlite.sink("v"), transaction(1), None, data)
    assert sqlite.db.run("SELECT * FROM v") == [row]
    assert sqlite.db.run("SELECT * FROM found") == (shown or [row])


@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "keys": ["id"]}], ids=["append", "upsert"])
def test_a_partitioned_table_takes_epochs(pg: SqlWorld, options: dict[str, Any]) -> None:
    pg.db.run(
        "CREATE TABLE v (id bigint PRIMARY KEY, made timestamptz NOT NULL DEFAULT now()) PARTITION BY RANGE (id)",
        "CREATE TABLE v1 PARTITION OF v FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE v2 PARTITION OF v FOR VALUES FROM (10) TO (20)",
    )
    assert "no partition of relation" in pg.reason_against(pg.sink("v", **options), rows(20))
    pg.epoch(pg.sink("v", **options), transaction(1), None, rows(1, 11))
    assert (pg.ids("v1"), pg.ids("v2")) == ([1], [11])


@pytest.mark.parametrize(
    "index",
    [
        "CREATE INDEX ON v (id)",
        "CREATE UNIQUE INDEX ON v (id) WHERE n > 0",
        "CREATE UNIQUE INDEX ON v (abs(id))",
        "CREATE UNIQUE INDEX ON v (id, n)",
    ],
)
def test_an_upsert_needs_an_index_that_it_can_go_by(pg: SqlWorld, index: str) -> None:
    pg.db.run("CREATE TABLE v (id bigint, n bigint)", index)
    sink = pg.sink("v", mode="upsert", keys=["id"], rehearse=False)
    assert "no unique index on exactly id" in pg.reason_against(sink, rows(1))


def test_the_index_that_the_error_of_an_upsert_creates_will_do(sql_world: SqlWorld) -> None:
    sql_world.db.run('CREATE TABLE "V 2" (id bigint, "N" bigint)')
    sink = sql_world.sink('"V 2"', mode="upsert", keys=["id", "N"])
    reason = sql_world.reason_against(sink, rows(1, N=[1]))
    assert reason.startswith("EPOCHS-SQL-UNIQUE-INDEX-MISSING: ")
    (statement,) = re.findall(r"`(CREATE UNIQUE INDEX [^`]*)`", reason)
    sql_world.db.run(statement)
    sql_world.epoch(sink, transaction(1), None, rows(1, N=[1]))
    assert sql_world.ids('"V 2"') == [1]


DEFERRABLE = {
    "primary key": 'CREATE TABLE "V 2" (id bigint PRIMARY KEY DEFERRABLE, city text)',
    "unique": 'CREATE TABLE "V 2" (city text, id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED)',
    "both": 'CREATE TABLE "V 2" (id bigint PRIMARY KEY DEFERRABLE, city text, UNIQUE (id) INCLUDE (city) DEFERRABLE)',
    "and an index": 'CREATE TABLE "V 2" (id bigint PRIMARY KEY, city text, CONSTRAINT "d" UNIQUE (id) DEFERRABLE)',
    "of its partitioned table": 'CREATE TABLE "all" (id bigint PRIMARY KEY DEFERRABLE, city text)'
    ' PARTITION BY RANGE (id); CREATE TABLE "V 2" PARTITION OF "all" DEFAULT',
}


def dropped_as_the_error_says(world: SqlWorld, error: str) -> None:
    assert "EPOCHS-SQL-UNIQUE-INDEX-MISSING: Table 'V 2' has a unique constraint on exactly id that is deferr" in error
    statements = re.findall(r"`((?:ALTER TABLE|CREATE UNIQUE INDEX) [^`]*)`", error)
    assert statements
    world.db.run(*statements)


@pytest.mark.few(5)
@pytest.mark.parametrize("made", DEFERRABLE)
@pytest.mark.parametrize("rehearse", [True, False])
def test_a_deferrable_key_is_replaced_by_the_statements_of_the_error_and_then_the_upsert_works(
    pg: SqlWorld, made: str, rehearse: bool
) -> None:
    pg.db.run(*DEFERRABLE[made].split("; "))
    sink = pg.sink('"V 2"', mode="upsert", keys=["id"], rehearse=rehearse)
    reason = pg.reason_against(sink, rows(1, city=["Rome"]))
    with pytest.raises(Refused) as refused:
        sink.require_ready("orders", None, pg.env)
    assert reason == refused.value.reason
    dropped_as_the_error_says(pg, reason)
    sink.require_ready("orders", None, pg.env)
    first, second = transaction(1), transaction(2)
    pg.epoch(sink, first, None, rows(1, city=["Rome"]))
    pg.epoch(sink, second, first, rows(1, 2, city=["Oslo", "Bonn"]))
    assert pg.db.run('SELECT id, city FROM "V 2" ORDER BY id') == [(1, "Oslo"), (2, "Bonn")]


def test_a_deferrable_constraint_that_the_keys_get_after_the_vote_stops_the_commit_until_it_is_dropped(
    pg: SqlWorld,
) -> None:
    pg.db.run('CREATE TABLE "V 2" (id bigint PRIMARY KEY, city text)')
    sink, attempt = pg.sink('"V 2"', mode="upsert", keys=["id"]), attempt_of(transaction(1))
    staged = pg.staged(sink, attempt, rows(1, city=["Rome"]))
    pg.db.run('ALTER TABLE "V 2" ADD CONSTRAINT late UNIQUE (id) DEFERRABLE')
    with pytest.raises(Corrupt, match="has a unique constraint on exactly id that is deferrable") as stopped:
        sink.commit(attempt, staged, pg.env)
    assert "Undo what was changed in the database" in stopped.value.remedy
    pg.db.run('ALTER TABLE "V 2" DROP CONSTRAINT late')
    sink.commit(attempt, staged, pg.env)
    assert pg.ids('"V 2"') == [1]


def test_each_set_of_keys_gets_an_index_of_another_name(sql_world: SqlWorld) -> None:
    sql_world.db.run("CREATE TABLE v (id bigint, region text)")
    for keys in (["id"], ["id", "region"]):
        sink = sql_world.sink("v", mode="upsert", keys=keys)
        with pytest.raises(Refused) as refused:
            sink.require_ready("orders", None, sql_world.env)
        (statement,) = re.findall(r"`(CREATE UNIQUE INDEX [^`]*)`", refused.value.remedy)
        sql_world.db.run(statement)
        sink.require_ready("orders", None, sql_world.env)


def test_an_index_with_further_columns_included_will_do(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE v (id bigint, n bigint)", "CREATE UNIQUE INDEX ON v (id) INCLUDE (n)")
    pg.epoch(pg.sink("v", mode="upsert", keys=["id"]), transaction(1), None, rows(1))
    assert pg.ids("v") == [1]


def test_rights_are_checked_before_the_promise(pg: SqlWorld) -> None:
    assert isinstance(pg.db, PostgresDb)
    user = f"u{pg.db.schema}"
    pg.db.run(f"CREATE USER {user} PASSWORD 'x'", f"GRANT USAGE ON SCHEMA {pg.db.schema} TO {user}")
    pg.env.connections["db"] = pg.db.connection(login=user, password="x")
    assert "may not INSERT" in pg.reason_against(pg.sink(), orders(1))
    pg.db.run(f"GRANT INSERT ON orders TO {user}")
    assert "permission denied for schema" in pg.reason_against(pg.sink(), orders(1))
    pg.db.run(f"GRANT CREATE ON SCHEMA {pg.db.schema} TO {user}")
    pg.epoch(pg.sink(), transaction(1), None, orders(1))
    assert pg.ids() == [1]


def test_without_a_rehearsal_rights_are_checked_all_the_same(pg: SqlWorld) -> None:
    assert isinstance(pg.db, PostgresDb)
    user = f"u{pg.db.schema}"
    pg.db.run(
        f"CREATE USER {user} PASSWORD 'x'",
        f"GRANT USAGE, CREATE ON SCHEMA {pg.db.schema} TO {user}",
        f"GRANT SELECT, INSERT ON orders TO {user}",
    )
    pg.env.connections["db"] = pg.db.connection(login=user, password="x")
    sink = pg.sink(mode="upsert", keys=["id"], rehearse=False)
    (grant,) = re.findall(r"`(GRANT UPDATE ON .*) TO <the user>`", pg.reason_against(sink, orders(1)))
    pg.db.run(f"{grant} TO {user}")
    pg.epoch(sink, transaction(1), None, orders(1))
    assert pg.ids() == [1]


def test_a_marker_that_may_be_locked_but_not_set_is_a_vote_against(pg: SqlWorld) -> None:
    pg.epoch(pg.sink(), transaction(1, pipeline="other"), None, orders(1))
    pg.db.run("ALTER TABLE epoch_markers ADD CHECK (epoch < 2 OR pipeline = 'other')")
    sink, first = pg.sink(), transaction(1)
    pg.epoch(sink, first, None, orders(2))
    vote = pg.voted(sink, attempt_of(transaction(2), first), orders(3))
    assert "epoch_markers" in (vote.reason or "")


def test_a_table_that_takes_no_updates_at_all_is_a_vote_against_an_upsert(pg: SqlWorld) -> None:
    assert isinstance(pg.db, PostgresDb)
    pg.db.run(
        "CREATE TABLE v (id bigint, city text)",
        "CREATE UNIQUE INDEX ON v (id)",
        f"CREATE PUBLICATION {pg.db.schema} FOR TABLE v",
    )
    sink = pg.sink("v", mode="upsert", keys=["id"])
    assert "does not have a replica identity" in pg.reason_against(sink, rows(1, city=["Rome"]))


def test_fewer_rows_than_the_log_of_the_staged_table_says_are_a_vote_against(sql_world: SqlWorld) -> None:
    sink, attempt = sql_world.sink(), attempt_of(transaction(1))
    claim = stage_with_deltalake(sink.plan_stage(attempt, "a", sql_world.env), orders(1, 2))
    entry = next(Path(claim.place, "_delta_log").glob("*0.json"))
    told = (
        entry.read_text()
        .replace('numRecords\\":2', 'numRecords\\":3')
        .replace('"num_added_rows":2', '"num_added_rows":3')
    )
    entry.write_text(told)
    assert "read 2 staged rows for table orders, but Spark staged 3" in (
        sink.vote(attempt, claim, sql_world.env).reason or ""
    )


def test_keys_that_are_missing_repeated_or_not_unique_are_named(sql_world: SqlWorld) -> None:
    sql_world.db.run("CREATE TABLE v (a bigint, b text, c text, UNIQUE (a, b))")
    sink = sql_world.sink("v", mode="upsert", keys=["a", "b"])
    assert "are NULL in some rows, among them: 1, None" in sql_world.reason_against(
        sink, pa.table({"a": [1, 2], "b": [None, "x"]})
    )
    assert "are not unique in the epoch's rows, among them: 2, x; 3, y." in sql_world.reason_against(
        sink, pa.table({"a": [2, 2, 3, 3, 4], "b": ["x", "x", "y", "y", "z"]})
    )
    assert "no unique index on exactly a" in sql_world.reason_against(
        sql_world.sink("v", mode="upsert", keys=["a"]), pa.table({"a": [1]})
    )
    assert "do not have all key columns" in sql_world.reason_against(sink, pa.table({"a": [1]}))


# -- after the decision ---------------------------------------------------------------------------------------------


def test_what_was_not_rehearsed_or_was_changed_since_stops_until_it_is_undone(sql_world: SqlWorld) -> None:
    for sink in (sql_world.sink(), sql_world.sink(rehearse=False)):
        attempt = attempt_of(transaction(1))
        staged = sql_world.staged(sink, attempt, orders(1, 2))
        sql_world.db.run("INSERT INTO orders (id) VALUES (1)")
        with pytest.raises(Corrupt, match=UNIQUE[sql_world.db.kind]):
            sink.commit(attempt, staged, sql_world.env)
        assert sql_world.ids() == [1]
        sql_world.db.run("DELETE FROM orders")
    sink.commit(attempt, staged, sql_world.env)
    assert sql_world.ids() == [1, 2]


def test_a_table_that_was_dropped_after_the_vote_stops_until_it_is_back(sql_world: SqlWorld) -> None:
    sink, attempt = sql_world.sink(), attempt_of(transaction(1))
    staged = sql_world.staged(sink, attempt, orders(1))
    sql_world.db.run("DROP TABLE orders")
    with pytest.raises(Corrupt, match=r"Table .* does not exist in"):
        sink.commit(attempt, staged, sql_world.env)
    sql_world.db.run(ORDERS)
    sink.commit(attempt, staged, sql_world.env)
    assert sql_world.ids() == [1]


def test_a_marker_that_somebody_has_edited_stops_everything(sql_world: SqlWorld) -> None:
    sink, txn = sql_world.sink(), transaction(1)
    sql_world.epoch(sink, txn, None, orders(1))
    sql_world.db.run("UPDATE epoch_markers SET epoch = 7")
    with pytest.raises(Corrupt, match="EPOCHS-MARKER-FOREIGN: Somebody changed the row of this sink"):
        sink.last_committed("orders", sql_world.env)


def test_many_first_commits_at_once_make_one_marker_table_and_show_the_rows_once(pg: SqlWorld) -> None:
    sink, attempt = pg.sink(), attempt_of(transaction(1))
    staged = pg.staged(sink, attempt, orders(1, 2))
    start, receipts = threading.Barrier(6), []

    def commit() -> None:
        start.wait()
        receipts.append(sink.commit(attempt, staged, pg.env))

    threads = [threading.Thread(target=commit) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(receipts) == 6
    assert all(receipt == receipts[0] for receipt in receipts)
    assert pg.ids() == [1, 2]


# -- configuration --------------------------------------------------------------------------------------------------


def test_a_commit_is_durable_also_where_the_role_says_otherwise(pg: SqlWorld) -> None:
    from airflow_epochs.sinks.sql.postgres import Postgres as Database

    extra = {"options": "-c synchronous_commit=off -c lock_timeout=7s", "cursor": "dict", "sslmode": "prefer"}
    with Database().connect(pg.db.connection(extra=extra), ["test"]) as session:
        assert session.execute("SHOW synchronous_commit") == [("on",)]
        assert session.execute("SHOW lock_timeout") == [("7s",)]
        assert session.execute("SHOW idle_in_transaction_session_timeout") == [("5min",)]


def test_no_session_waits_for_ever_or_is_waited_for(pg: SqlWorld) -> None:
    from airflow_epochs.sinks.sql.postgres import SERVER
    from airflow_epochs.sinks.sql.postgres import Postgres as Database

    assert {"lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"} < set(SERVER)
    with Database().connect(pg.db.connection(), ["test"]) as session:
        for setting, value in SERVER.items():
            ((found,),) = session.execute("SELECT current_setting(%s)", (setting,))
            assert found.removesuffix("s") == value.removesuffix("s")


def test_sqlite_survives_a_power_cut(tmp_path: Path) -> None:
    from airflow_epochs.sinks.sql.sqlite import Sqlite

    with Sqlite().connect(new_sqlite(tmp_path).connection(), ["test"]) as session:
        assert session.execute("PRAGMA synchronous") == [(3,)], "EXTRA: the journal's folder is synced, too"


def test_a_wrong_password_is_an_error_that_may_pass_and_does_not_tell_it(pg: SqlWorld) -> None:
    password = pg.db.connection().password
    assert password
    pg.env.connections["db"] = pg.db.connection(password=f"wrong {password}")
    with pytest.raises(NotApplied, match="password authentication failed") as caught:
        pg.sink().last_committed("orders", pg.env)
    chain: BaseException | None = caught.value
    while chain is not None:
        assert password not in f"{chain} {chain!r} {chain.args}"
        chain = chain.__cause__ or chain.__context__


def test_a_connection_of_another_kind_or_without_a_file_is_refused(sql_world: SqlWorld) -> None:
    for connection, expected in (
        (sql_world.db.connection(conn_type="mysql"), "SqlSink supports postgres and sqlite"),
        (
            sql_world.db.connection(conn_type="sqlite", host="relative.db", schema=None),
            "absolute path of a SQLite file",
        ),
    ):
        sql_world.env.connections["db"] = connection
        with pytest.raises(Refused, match=expected):
            sql_world.sink().last_committed("orders", sql_world.env)


def test_a_sqlite_file_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    world = SqlWorld(new_sqlite(tmp_path), tmp_path)
    world.env.connections["db"] = world.db.connection(host=str(tmp_path / "none.db"))
    with pytest.raises(NotApplied, match="unable to open"):
        world.sink().last_committed("orders", world.env)
    assert not (tmp_path / "none.db").exists()


def sinks_with(**changed: Any) -> SqlSink:
    return SqlSink(**{"name": "orders", "conn_id": "db", "table": "orders", "staging": "/lake", **changed})


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"mode": "merge"}, "`mode` is 'merge'. It must be 'append' or 'upsert'"),
        ({"mode": "upsert"}, "Mode 'upsert' needs keys"),
        ({"keys": ["id"]}, "mode 'append' takes none"),
        ({"mode": "upsert", "keys": "id"}, "`keys` is the text 'id'. It must be a list"),
        ({"marker_table": "a b"}, "`marker_table` is 'a b'. It must have 1 to 63 lower-case letters"),
    ],
)
def test_options_that_make_no_sense_are_refused_at_once(changed: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadArgument, match=expected):
        sinks_with(**changed)


def test_a_specification_holds_all_and_no_secret() -> None:
    sink = sinks_with(mode="upsert", keys=["id"], storage_conn_id="lake", rehearse=False, marker_table="m")
    assert json.loads(json.dumps(sink.spec())) == sink.spec()
    assert from_spec(sink.spec()).spec() == sink.spec()


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("Sales.Orders", ("sales", "orders")),
        ('"Sales"."Or""ders.x"', ("Sales", 'Or"ders.x')),
        (" orders ", (None, "orders")),
        ("a.b.c", None),
        ("orders; DROP TABLE x", None),
        ("", None),
    ],
)
def test_a_table_is_spelled_as_in_sql(table: str, expected: tuple[str | None, str] | None) -> None:
    if expected is None:
        with pytest.raises(Refused, match="not the name of a table in SQL"):
            sinks_with(table=table).destination()
    else:
        assert sinks_with(table=table).table_name == expected


def test_the_destination_of_a_sink_spells_its_table_as_in_sql() -> None:
    spelled = {"orders": "orders", "Sales.orders": "sales.orders", '"Sales"."a.b"': '"Sales"."a.b"', '"a""b"': '"a""b"'}
    assert {table: sinks_with(table=table).destination() for table in spelled} == {
        table: f"sql:db/{told}" for table, told in spelled.items()
    }
    assert sinks_with(table='"a.b"').destination() != sinks_with(table="a.b").destination()


def test_a_sink_has_one_destination_and_none_while_it_is_a_template() -> None:
    assert sinks_with(table="Sales.orders").destination() == sinks_with(table='sales."orders"').destination()
    assert sinks_with(table="{{ params.table }}").destination() is None
    assert sinks_with().asset_uri("p") == "epochs://p/orders"
    assert repr(sinks_with()) == "SqlSink('orders', 'db', 'orders', mode='append')"
