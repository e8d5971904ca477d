"""What ``open`` finds out about a table of a database before Spark runs; each remedy is typed as it is told."""

from __future__ import annotations

import re
import uuid
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import Marker
from airflow_epochs.sinks.sql.sink import SqlSink
from tests.support.delta_world import attempt_of, rows, stage_with_deltalake, transaction
from tests.support.sql_world import PostgresDb, SqlWorld

UPSERT: dict[str, Any] = {"mode": "upsert", "keys": ["id"]}
DELETING: dict[str, Any] = {**UPSERT, "delete_when": "op = 'd'"}


def ready(world: SqlWorld, sink: SqlSink, previous: int | None = None) -> None:
    sink.require_ready("orders", transaction(previous) if previous else None, world.env)


def refusal(world: SqlWorld, sink: SqlSink, previous: int | None = None) -> Refused:
    with pytest.raises(Refused) as refused:
        ready(world, sink, previous)
    return refused.value


def test_a_table_that_does_not_exist_is_missed_before_the_first_epoch_and_later(sql_world: SqlWorld) -> None:
    sink = sql_world.sink(**UPSERT)
    first, later = refusal(sql_world, sink), refusal(sql_world, sink, previous=3)
    assert first.code is later.code is codes.SQL_TABLE_MISSING
    assert "prints a CREATE TABLE to start from" in first.remedy
    assert "although epoch 3 was committed to it" in later.what and "Restore the table" in later.remedy
    sql_world.db.run("CREATE TABLE orders (id bigint PRIMARY KEY, city text)")
    ready(sql_world, sink)


@pytest.mark.parametrize("spelled", ["sales_{0}.orders", '"Sales {0}".orders'], ids=["plain", "quoted"])
@pytest.mark.parametrize("by", ["preview", "vote"])
def test_the_statement_that_creates_a_table_creates_its_schema_too_if_the_database_lacks_it(
    pg: SqlWorld, spelled: str, by: str
) -> None:
    assert isinstance(pg.db, PostgresDb)
    table = spelled.format(pg.db.schema)
    sink = SqlSink("orders", "db", table, staging=str(pg.folder / "staging"), **UPSERT)
    attempt = attempt_of(transaction(1))
    claim = stage_with_deltalake(sink.plan_stage(attempt, uuid.uuid4().hex, pg.env), rows(1, 2))

    def told() -> str:
        if by == "preview":
            return sink.sample(attempt, claim.place, 1, pg.env).creates or ""
        found = re.search(r"Create the table, for example: `([^`]*)`", sink.vote(attempt, claim, pg.env).reason or "")
        assert found
        return found[1]

    statement = told()
    assert statement.startswith("CREATE SCHEMA IF NOT EXISTS ")
    pg.db.run(statement)
    vote = sink.vote(attempt, claim, pg.env)
    assert vote.staged, vote.reason
    sink.commit(attempt, vote.staged, pg.env)
    assert pg.ids(table) == [1, 2]
    pg.db.run(f"DROP TABLE {table}")
    assert told().startswith("CREATE TABLE "), "the schema is there"


def test_a_key_column_that_the_table_lacks_is_named(sql_world: SqlWorld) -> None:
    sql_world.db.run("CREATE TABLE orders (id bigint PRIMARY KEY, city text)")
    refused = refusal(sql_world, sql_world.sink(mode="upsert", keys=["ID", "nr"]))
    assert refused.code is codes.SQL_ROWS_UNFIT
    assert "has no column 'nr', which `keys` of the sink names. Its columns are: id, city." in refused.what
    ready(sql_world, sql_world.sink(mode="upsert", keys=["ID"]))


def test_the_statement_that_the_error_names_creates_the_index_that_an_upsert_needs(sql_world: SqlWorld) -> None:
    sql_world.db.run("CREATE TABLE orders (id bigint, city text)")
    sink = sql_world.sink(**UPSERT)
    ready(sql_world, sql_world.sink())
    refused = refusal(sql_world, sink)
    assert refused.code is codes.SQL_UNIQUE_INDEX_MISSING
    (statement,) = re.findall(r"`(CREATE [^`]*)`", refused.remedy)
    sql_world.db.run(statement)
    ready(sql_world, sink)


def test_a_name_that_the_driver_cannot_send_is_refused_until_it_is_corrected(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE orders (id bigint PRIMARY KEY)")
    refused = refusal(pg, pg.sink('"or\0ders"'))
    assert refused.code is codes.SQL_ROW_REFUSED
    assert "cannot contain NUL" in refused.what and "did not send" in refused.what
    assert refused.remedy.startswith("Correct the name or the value that the message means")
    ready(pg, pg.sink('"orders"'))


def test_what_is_no_table_is_refused(sql_world: SqlWorld) -> None:
    sql_world.db.run("CREATE TABLE t (id bigint)", "CREATE VIEW orders AS SELECT * FROM t")
    assert refusal(sql_world, sql_world.sink()).code is codes.SQL_TABLE_UNUSABLE


def policed(pg: SqlWorld, policy: str) -> str:
    """Give the table row-level security with this policy, and the sink a user to whom it applies."""
    user, schema = Granting(pg).user, pg.db.table().partition(".")[0]
    pg.db.run(
        "CREATE TABLE orders (id bigint PRIMARY KEY)",
        f"GRANT ALL ON orders TO {user}",
        f"GRANT CREATE ON SCHEMA {schema} TO {user}",
        "ALTER TABLE orders ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY policy ON orders {policy}",
    )
    return user


CHILD = 'CREATE TABLE "old %s" (note text, PRIMARY KEY (id)) INHERITS (orders)'


def test_an_upsert_into_a_table_with_children_is_warned_of_and_goes_on(
    pg: SqlWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """The parent's index knows nothing of a child's keys. A trigger, or TimescaleDB, may know them."""
    pg.db.run("CREATE TABLE orders (id bigint PRIMARY KEY, city text)", CHILD, "CREATE TABLE seen () INHERITS (orders)")
    sink = pg.sink(**UPSERT)
    with caplog.at_level("WARNING"):
        ready(pg, sink)
    assert re.search(r'Other tables inherit from table \S+: \S+"old %s", \S+"seen"\.', caplog.text)
    pg.epoch(sink, transaction(1), None, rows(1, 2, city=["Oslo", "Bonn"]))
    assert pg.db.run("SELECT id, city FROM orders ORDER BY id") == [(1, "Oslo"), (2, "Bonn")]


def test_a_table_with_children_may_be_appended_to_and_a_child_upserted_into(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE orders (id bigint PRIMARY KEY)", "CREATE TABLE old (PRIMARY KEY (id)) INHERITS (orders)")
    ready(pg, pg.sink())
    pg.epoch(pg.sink(), transaction(1), None, rows(1))
    child = pg.sink("old", **UPSERT)
    ready(pg, child)
    pg.epoch(child, transaction(1, pipeline="old"), None, rows(2))
    assert pg.ids() == [1, 2]


def test_partitions_are_no_children(pg: SqlWorld) -> None:
    pg.db.run(
        "CREATE TABLE orders (id bigint PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id)",
        "CREATE TABLE lowest PARTITION OF low FOR VALUES FROM (0) TO (5)",
    )
    ready(pg, pg.sink(**UPSERT))
    pg.epoch(pg.sink(**UPSERT), transaction(1), None, rows(1))
    assert pg.ids() == [1]


def test_a_marker_table_with_children_is_refused_until_they_no_longer_inherit(pg: SqlWorld) -> None:
    """A copy of the marker in a child would be read as a second one."""
    first = transaction(1)
    pg.db.run("CREATE TABLE orders (id bigint)")
    pg.epoch(pg.sink(), first, None, rows(1))
    pg.db.run("CREATE TABLE old () INHERITS (epoch_markers)", "INSERT INTO old SELECT * FROM epoch_markers")
    with pytest.raises(Refused) as refused:
        pg.sink().last_committed("orders", pg.env)
    assert refused.value.code is codes.SQL_MARKER_TABLE and "inherit" in refused.value.what
    pg.db.run(*re.findall(r"`(ALTER TABLE [^`]*)`", refused.value.remedy))
    ready(pg, pg.sink(), previous=1)
    pg.epoch(pg.sink(), transaction(2), first, rows(2))
    assert pg.ids() == [1, 2]


@pytest.mark.parametrize("options", [{}, DELETING], ids=["append", "deleting"])
def test_a_table_whose_policies_may_hide_rows_from_the_user_is_refused_until_they_do_not(
    pg: SqlWorld, options: dict[str, Any]
) -> None:
    user = policed(pg, "USING (id > 0)")
    refused = refusal(pg, pg.sink(**options))
    assert refused.code is codes.SQL_TABLE_UNUSABLE and "row-level security" in refused.what
    assert refused.code.name in pg.reason_against(pg.sink(**options), rows(1))
    pg.db.run(f"ALTER ROLE {user} BYPASSRLS")
    ready(pg, pg.sink(**options))


def test_an_upsert_without_deletions_goes_through_policies_and_refuses_a_row_whose_key_they_hide(pg: SqlWorld) -> None:
    policed(pg, "USING (id > 0) WITH CHECK (true)")
    pg.db.run("INSERT INTO orders VALUES (-1)")
    pg.db.run("ALTER TABLE orders ADD COLUMN city text")
    ready(pg, pg.sink(**UPSERT))
    assert "row-level security" in pg.reason_against(pg.sink(**UPSERT), rows(-1, 1, city=["Rome", "Oslo"]))
    pg.epoch(pg.sink(**UPSERT), transaction(1), None, rows(1, city=["Oslo"]))
    assert pg.ids() == [-1, 1]


@pytest.mark.parametrize("options", [{}, UPSERT, DELETING], ids=["append", "upsert", "deleting"])
def test_policies_set_on_after_the_vote_stop_a_commit_only_if_they_could_lose_its_rows(
    pg: SqlWorld, options: dict[str, Any]
) -> None:
    policed(pg, "USING (true)")
    pg.db.run("ALTER TABLE orders DISABLE ROW LEVEL SECURITY")
    sink, attempt = pg.sink(**options), attempt_of(transaction(1))
    staged = pg.staged(sink, attempt, rows(1))
    pg.db.run("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    if options != UPSERT:
        with pytest.raises(Corrupt, match="row-level security") as stopped:
            sink.commit(attempt, staged, pg.env)
        assert "Undo what was changed in the database" in stopped.value.remedy
        pg.db.run("ALTER TABLE orders DISABLE ROW LEVEL SECURITY")
    sink.commit(attempt, staged, pg.env)
    assert pg.ids() == [1]


def test_a_marker_table_of_another_user_may_have_policies_that_show_the_sink_its_row(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE orders (id bigint PRIMARY KEY)")
    pg.epoch(pg.sink(), transaction(1, pipeline="others"), None, rows(1))
    user = Granting(pg).user
    pg.db.run(
        f"GRANT ALL ON orders, epoch_markers TO {user}",
        "ALTER TABLE epoch_markers ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY own ON epoch_markers USING (pipeline = 'orders')",
    )
    ready(pg, pg.sink())
    first = transaction(1)
    pg.epoch(pg.sink(), first, None, rows(2))
    ready(pg, pg.sink(), previous=1)
    pg.epoch(pg.sink(), transaction(2), first, rows(3))
    assert pg.ids() == [1, 2, 3]


def test_the_look_leaves_nothing_in_the_database(sql_world: SqlWorld) -> None:
    sql_world.db.run("CREATE TABLE orders (id bigint PRIMARY KEY)")
    ready(sql_world, sql_world.sink(**UPSERT))
    everything = {
        "postgres": "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema()",
        "sqlite": "SELECT count(*) FROM sqlite_schema WHERE type = 'table'",
    }
    assert sql_world.db.run(everything[sql_world.db.kind]) == [(1,)], "no marker table, no temporary one"


class Granting:
    """A user without rights, who gets those that the errors name."""

    def __init__(self, world: SqlWorld) -> None:
        assert isinstance(world.db, PostgresDb)
        self.world, self.db, self.user = world, world.db, f"u{world.db.schema}"
        self.db.run(f"CREATE USER {self.user} PASSWORD 'x'", f"GRANT USAGE ON SCHEMA {self.db.schema} TO {self.user}")
        world.env.connections["db"] = self.db.connection(login=self.user, password="x")

    def obey(self, refused: Refused) -> None:
        """Type what the remedy says."""
        found = re.findall(r"`(GRANT [^`]*)`", refused.remedy)
        assert found, refused.remedy
        self.db.run(*(statement.replace("<the user>", self.user) for statement in found))


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
def test_rights_that_the_errors_name_are_all_that_an_epoch_needs(pg: SqlWorld, options: dict[str, Any]) -> None:
    pg.db.run("CREATE TABLE orders (id bigint PRIMARY KEY, city text)")
    sink, user = pg.sink(**options), Granting(pg)
    assert "may not INSERT" in refusal(pg, sink).what
    pg.db.run(f"GRANT INSERT ON orders TO {user.user}")
    if options:
        upserting = refusal(pg, sink)
        assert upserting.code is codes.SQL_TABLE_UNUSABLE and "lacks SELECT, UPDATE" in upserting.what
        user.obey(upserting)
    marking = refusal(pg, sink)
    assert marking.code is codes.SQL_MARKER_TABLE and "lacks CREATE on schema" in marking.what
    user.obey(marking)
    ready(pg, sink)
    pg.epoch(sink, transaction(1), None, rows(1, city=["Rome"]))
    assert pg.ids() == [1]


@pytest.mark.parametrize("changes", [{}, {"sequence_by": "lsn", "delete_when": "op = 'd'"}], ids=["markers", "notes"])
def test_rights_on_a_schema_with_capitals_can_be_granted_as_the_error_says(
    pg: SqlWorld, changes: dict[str, Any]
) -> None:
    user, table = Granting(pg), f'"My-{pg.db.table().partition(".")[0][:8]}"."V"'
    schema = table.partition(".")[0]
    pg.db.run(f"CREATE SCHEMA {schema}", f"CREATE TABLE {table} (id bigint PRIMARY KEY, lsn bigint)")
    pg.db.run(f"GRANT USAGE ON SCHEMA {schema} TO {user.user}", f"GRANT ALL ON {table} TO {user.user}")
    sink = SqlSink("orders", "db", table, staging=str(pg.folder / "staging"), **UPSERT, **changes)
    refused = refusal(pg, sink)
    assert f"lacks CREATE on schema {schema}" in refused.what
    user.obey(refused)
    ready(pg, sink)


def test_rights_on_a_marker_table_that_another_user_has_made_are_looked_at(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE orders (id bigint PRIMARY KEY)")
    pg.epoch(pg.sink(), transaction(1, pipeline="others"), None, rows(1))
    user = Granting(pg)
    pg.db.run(f"GRANT INSERT ON orders, epoch_markers TO {user.user}")
    refused = refusal(pg, pg.sink())
    assert refused.code is codes.SQL_MARKER_TABLE
    assert "lacks SELECT on table" in refused.what and "UPDATE on table" in refused.what
    user.obey(refused)
    ready(pg, pg.sink())
    pg.epoch(pg.sink(), transaction(1), None, rows(2))
    assert pg.ids() == [1, 2]


def test_an_upsert_without_the_right_to_make_temporary_tables_is_refused_until_it_is_granted(pg: SqlWorld) -> None:
    """In a database of its own, where nobody has the right by PUBLIC. A sink that appends does not need it."""
    assert isinstance(pg.db, PostgresDb)
    name = f'Other "{pg.db.schema}"'
    quoted, user = '"' + name.replace('"', '""') + '"', f"u{pg.db.schema}"
    pg.db.run(f"CREATE USER {user} PASSWORD 'x'", f"CREATE DATABASE {quoted}")
    pg.db.run(f"REVOKE TEMPORARY ON DATABASE {quoted} FROM PUBLIC")
    with pg.db.server.connect(dbname=name) as there:
        for statement in (
            f"CREATE SCHEMA {pg.db.schema}",
            f"CREATE TABLE {pg.db.table()} (id bigint PRIMARY KEY)",
            f"GRANT USAGE, CREATE ON SCHEMA {pg.db.schema} TO {user}",
            f"GRANT ALL ON {pg.db.table()} TO {user}",
        ):
            there.execute(statement.encode())
        pg.env.connections["db"] = pg.db.connection(schema=name, login=user, password="x")
        ready(pg, pg.sink())
        refused = refusal(pg, pg.sink(**UPSERT))
        assert refused.code is codes.SQL_TABLE_UNUSABLE
        (grant,) = re.findall(r"`(GRANT [^`]*)`", refused.remedy)
        there.execute(grant.replace("<the user>", user).encode())
        ready(pg, pg.sink(**UPSERT))
        pg.epoch(pg.sink(**UPSERT), transaction(1), None, rows(1))
        assert there.execute(f"SELECT id FROM {pg.db.table()}".encode()).fetchall() == [(1,)]


def test_rights_on_single_columns_are_enough(pg: SqlWorld) -> None:
    pg.db.run("CREATE TABLE orders (id bigint PRIMARY KEY, city text)")
    user = Granting(pg)
    rights = "SELECT (id, city), INSERT (id, city), UPDATE (id, city)"
    pg.db.run(f"GRANT {rights} ON orders TO {user.user}", f"GRANT CREATE ON SCHEMA {user.db.schema} TO {user.user}")
    ready(pg, pg.sink(**UPSERT))
    pg.epoch(pg.sink(**UPSERT), transaction(1), None, rows(1, city=["Rome"]))
    assert pg.ids() == [1]


MARKING = "pipeline, sink, epoch, txn_id, row_count, committed_at, ends"
SET = "epoch, txn_id, row_count, committed_at, ends"


def of_single_columns(pg: SqlWorld) -> Granting:
    """A user with rights on each column of the marker table but ``target``, which is added later."""
    pg.db.run("CREATE TABLE orders (id bigint PRIMARY KEY)")
    pg.epoch(pg.sink(), transaction(1, pipeline="others"), None, rows(1))
    user = Granting(pg)
    pg.db.run(
        "ALTER TABLE epoch_markers DROP COLUMN target",
        f"GRANT INSERT ON orders TO {user.user}",
        f"GRANT SELECT ({MARKING}), INSERT ({MARKING}), UPDATE ({SET}) ON epoch_markers TO {user.user}",
    )
    return user


def test_a_right_on_a_column_that_the_marker_table_has_got_is_named_before_an_epoch_is_opened(pg: SqlWorld) -> None:
    user, first = of_single_columns(pg), transaction(1)
    ready(pg, pg.sink())
    pg.epoch(pg.sink(), first, None, rows(2))
    pg.db.run("ALTER TABLE epoch_markers ADD COLUMN target text")
    assert pg.sink().last_committed("orders", pg.env) == Marker.of(first)
    refused = refusal(pg, pg.sink(), previous=1)
    assert refused.code is codes.SQL_MARKER_TABLE
    assert 'lacks SELECT ("target") on table' in refused.what and 'UPDATE ("target") on table' in refused.what
    user.obey(refused)
    ready(pg, pg.sink(), previous=1)
    pg.epoch(pg.sink(), transaction(2), first, rows(3))
    assert pg.db.run("SELECT epoch, target FROM epoch_markers WHERE pipeline = 'orders'") == [(2, "orders")]


@pytest.mark.parametrize("may_read", [True, False])
def test_a_column_that_the_marker_table_gets_after_the_vote_stops_no_commit(pg: SqlWorld, may_read: bool) -> None:
    user, first, sink = of_single_columns(pg), transaction(1), pg.sink()
    attempt = attempt_of(first)
    staged = pg.staged(sink, attempt, rows(2))
    pg.db.run("ALTER TABLE epoch_markers ADD COLUMN target text")
    if may_read:
        pg.db.run(f"GRANT SELECT (target) ON epoch_markers TO {user.user}")
    receipt = sink.commit(attempt, staged, pg.env)
    assert sink.commit(attempt, staged, pg.env) == receipt
    assert (pg.ids(), sink.last_committed("orders", pg.env)) == ([1, 2], Marker.of(first))


def test_rights_that_some_columns_of_the_marker_table_lack_are_named_column_by_column(pg: SqlWorld) -> None:
    user = of_single_columns(pg)
    pg.db.run(
        f"REVOKE INSERT (txn_id) ON epoch_markers FROM {user.user}",
        f"REVOKE UPDATE (epoch, row_count) ON epoch_markers FROM {user.user}",
    )
    refused = refusal(pg, pg.sink())
    assert 'UPDATE ("epoch", "row_count") on table' in refused.what and 'INSERT ("txn_id") on table' in refused.what
    user.obey(refused)
    ready(pg, pg.sink())
    pg.epoch(pg.sink(), transaction(1), None, rows(2))
    assert pg.ids() == [1, 2]
