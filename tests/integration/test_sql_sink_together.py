"""Sinks of one connection: rows of one may refer to rows of another, and all show an epoch at one moment."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import Run
from airflow_epochs.sinks.sql.database import Numbers, Session
from airflow_epochs.sinks.sql.participant import SqlParticipant
from airflow_epochs.sinks.sql.postgres import PostgresSession
from airflow_epochs.sinks.sql.sink import SqlSink
from airflow_epochs.sinks.sql.table import SqlTable
from airflow_epochs.spark.driver.delta.keys import DELETED
from airflow_epochs.testing import Crash
from stack.postgres import Postgres
from tests.support.delta_world import attempt_of, rows, transaction
from tests.support.environment import Environment
from tests.support.faults_world import abort, crash
from tests.support.remedies import typed
from tests.support.sql_pipeline import CHILD, COLUMNS, NAMES, Related, related
from tests.support.sql_world import Db, PostgresDb, SqlWorld, new_postgres, new_sqlite

pytestmark = pytest.mark.proof


@pytest.mark.parametrize("rehearse", [True, False])
def test_a_child_and_its_parent_go_in_together(db: Db, tmp_path: Path, rehearse: bool) -> None:
    world = related(tmp_path, db, options={"rehearse": rehearse})
    for number in (1, 2):
        assert world.run(number) is None
        world.require_all_shown()
        world.source.produce(3)


def test_a_child_before_its_parent_goes_in_if_the_constraint_can_wait(pg_db: Db, tmp_path: Path) -> None:
    world = related(tmp_path, pg_db, " DEFERRABLE INITIALLY DEFERRED)", names=NAMES[::-1])
    assert world.run(1) is None
    world.require_all_shown()


def test_a_child_before_its_parent_is_a_vote_against_if_it_cannot(pg_db: Db, tmp_path: Path) -> None:
    world = related(tmp_path, pg_db, names=NAMES[::-1])
    assert "violates foreign key constraint" in str(world.run(1))
    assert replace(world, names=NAMES).run(2) is None
    world.require_all_shown()


def test_a_deferred_constraint_that_the_rows_break_is_a_vote_against(pg_db: Db, tmp_path: Path) -> None:
    world = related(tmp_path, pg_db, " DEFERRABLE INITIALLY DEFERRED)", names=("lines",))
    assert "violates foreign key constraint" in str(world.run(1))
    assert world.shown() == [[], []]


def test_a_parent_that_does_not_take_its_rows_is_named_first(pg_db: Db, tmp_path: Path) -> None:
    world = related(tmp_path, pg_db)
    pg_db.run("ALTER TABLE orders ADD CHECK (payload = '')")
    error = str(world.run(1))
    assert error.index("orders_payload_check") < error.index("Sink lines voted against it: ")
    assert "The vote left out the rows of orders, which also voted VOTE_ABORT." in error


_ENDING = {
    "RAISE": ("RAISE(ROLLBACK, 'not allowed')", "not allowed"),
    "INSERT": ("1; INSERT OR ROLLBACK INTO seen VALUES (1), (1)", "UNIQUE constraint failed: seen.n"),
    "constraint": ("1; INSERT INTO strict VALUES (1), (1)", "UNIQUE constraint failed: strict.n"),
}
"""What a trigger selects, so that SQLite ends the whole transaction with an error; and the error."""


def _ending(db: Db, does: str) -> None:
    """Let the table of orders end the transaction of each row."""
    db.run(f"CREATE TRIGGER t BEFORE INSERT ON orders BEGIN SELECT {does}; END")


@pytest.fixture
def of_sqlite(tmp_path: Path) -> Related:
    """Two sinks of one SQLite file, which have shown an epoch and are to show another."""
    db = new_sqlite(tmp_path)
    db.run("CREATE TABLE seen (n UNIQUE)", "CREATE TABLE strict (n UNIQUE ON CONFLICT ROLLBACK)")
    world = related(tmp_path, db)
    assert world.run(1) is None
    world.source.produce(4)
    return world


@pytest.mark.parametrize("names", [NAMES, NAMES[::-1]], ids=["first", "last"])
@pytest.mark.parametrize("how", _ENDING)
def test_a_vote_shows_nothing_if_the_table_of_a_sink_ends_the_transaction_of_all(
    of_sqlite: Related, how: str, names: tuple[str, ...]
) -> None:
    does, says = _ENDING[how]
    _ending(of_sqlite.db, does)
    before, markers = of_sqlite.shown(), of_sqlite.db.run("SELECT * FROM epoch_markers")
    told = str(replace(of_sqlite, names=names).run(2))
    assert re.search(f"Sink orders voted against it: .* refused a row or a statement: {says}", told)
    assert re.search("Sink lines voted against it: .*The vote left out the rows of orders", told)
    assert of_sqlite.shown() == before
    assert of_sqlite.db.run("SELECT * FROM epoch_markers") == markers
    of_sqlite.db.run("DROP TRIGGER t")  # what the error says
    assert of_sqlite.run(3) is None
    of_sqlite.require_all_shown()


def test_a_trigger_that_aborts_instead_leaves_the_vote_to_each_sink(of_sqlite: Related) -> None:
    _ending(of_sqlite.db, "RAISE(ROLLBACK, 'not allowed')")
    assert "write ABORT instead of ROLLBACK in the triggers and tables of the file" in str(of_sqlite.run(2))
    of_sqlite.db.run("DROP TRIGGER t")
    _ending(of_sqlite.db, "RAISE(ABORT, 'not allowed')")
    told = str(of_sqlite.run(3))
    assert "not allowed" in told and "Sink lines" not in told
    of_sqlite.db.run("DROP TRIGGER t")
    assert of_sqlite.run(4) is None
    of_sqlite.require_all_shown()


@pytest.mark.parametrize("names", [NAMES, NAMES[::-1]], ids=["first", "last"])
def test_a_commit_shows_nothing_if_the_table_of_a_sink_ends_the_transaction_of_all(
    of_sqlite: Related, names: tuple[str, ...]
) -> None:
    before = of_sqlite.shown()
    of = replace(of_sqlite, names=names)
    told = str(of.run(2, {"decision.landed": lambda: _ending(of.db, "RAISE(ROLLBACK, 'not allowed')")}))
    assert "EPOCHS-SQL-COMMIT-REFUSED" in told and "Table orders refuses the rows" in told and "not allowed" in told
    assert of.shown() == before
    of.db.run("DROP TRIGGER t")
    assert of.run(3) is None
    of.require_all_shown()


def test_a_reader_sees_the_epoch_in_all_tables_or_in_none(pg_db: Db, tmp_path: Path) -> None:
    world = related(tmp_path, pg_db)
    seen: list[list[int]] = []
    moments = ("sql.locked", "sql.copied", "sql.commit.before", "sql.commit.after", "committed.orders")
    look = lambda: seen.append([len(table) for table in world.shown()])  # noqa: E731
    assert world.run(1, dict.fromkeys(moments, look)) is None
    assert {tuple(each) for each in seen} == {(0, 0), (4, 4)}
    assert (
        len(pg_db.run("SELECT DISTINCT xmin::text FROM (SELECT xmin FROM orders UNION ALL SELECT xmin FROM lines) x"))
        == 1
    )


def test_commit_tasks_at_one_time_show_the_epoch_once(db: Db, tmp_path: Path) -> None:
    world = related(tmp_path, db)
    run = Run("dag", "run 1")
    with pytest.raises(Crash):
        world.run(1, {"decision.landed": crash})
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(world.coordinator().commit, run, name) for name in (*NAMES, *NAMES)]
        receipts = [task.result(60) for task in done]
    assert all(receipt.receipts for receipt in receipts)
    world.coordinator().complete(run)
    world.require_all_shown()
    assert {name: r.rows for name, r in world.coordinator().newest_complete().receipts.items()} == {
        "orders": 4,
        "lines": 4,
    }


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "phase", ["sql.locked", "sql.copied", "sql.copied#2", "sql.commit.before", "sql.commit.after", "committed.orders"]
)
def test_a_run_that_dies_on_the_way_is_finished_by_the_next(db: Db, tmp_path: Path, phase: str) -> None:
    world = related(tmp_path, db)
    with pytest.raises(Crash):
        world.run(1, {phase: crash})
    assert world.shown() in ([[], []], [world.source.all_rows()] * 2)
    assert world.run(2) is None
    world.require_all_shown()


@pytest.mark.parametrize("lost", [("orders",), ("lines",), NAMES], ids=["parent", "child", "both"])
def test_staged_rows_that_are_gone_are_staged_again_for_the_sink_that_lost_them(
    pg_db: Db, tmp_path: Path, lost: tuple[str, ...]
) -> None:
    world = related(tmp_path, pg_db)

    def lose() -> None:
        for name in lost:
            (folder,) = (tmp_path / "staging").glob(f"*.{name}")
            shutil.rmtree(folder)

    assert world.run(1, {"decision.landed": lose}) is None
    world.require_all_shown()


def test_a_sink_that_is_waived_does_not_hold_up_the_others(pg_db: Db, tmp_path: Path) -> None:
    world = related(tmp_path, pg_db)

    def drop() -> None:
        pg_db.run("DROP TABLE lines")

    error = world.run(1, {"decision.landed": drop})
    assert isinstance(error, Corrupt)
    assert error.sink == "lines"
    assert world.shown("orders") == [[]]
    world.waive("lines")
    pg_db.run(CHILD + ")")
    assert world.run(2) is None
    world.require_all_shown("orders")
    assert world.shown("lines") == [[]]


def test_a_commit_task_leaves_out_a_waived_sink_that_cannot_commit(db: Db, tmp_path: Path) -> None:
    world, run = related(tmp_path, db), Run("dag", "run 1")
    assert isinstance(world.run(1, {"decision.landed": lambda: db.run("DROP TABLE lines")}), Corrupt)
    world.waive("lines")
    world.coordinator().commit(run, "orders")
    assert world.coordinator().complete(run).receipts.keys() == {"orders"}
    world.require_all_shown("orders")


def test_a_commit_task_leaves_out_a_waived_sink_that_still_could(db: Db, tmp_path: Path) -> None:
    world, run = related(tmp_path, db), Run("dag", "run 1")
    with pytest.raises(Crash):
        world.run(1, {"decision.landed": crash})
    world.waive("lines")
    world.coordinator().commit(run, "orders")
    assert world.coordinator().complete(run).receipts.keys() == {"orders"}
    assert world.shown() == [world.source.all_rows(), []]


def test_a_backfill_left_in_the_dag_reads_nothing_twice_for_a_sink_that_lost_its_marker_and_was_waived(
    db: Db, tmp_path: Path
) -> None:
    world = related(tmp_path, db, names=("orders",))
    assert world.run(1) is None
    world = replace(world, names=NAMES, backfill={"lines": 1})
    world.source.produce(4)
    assert world.run(2) is None
    world.require_all_shown()
    world.source.produce(4)
    with pytest.raises(Crash):
        world.run(3, {"decision.landed": crash})
    db.run("DELETE FROM epoch_markers WHERE sink = 'lines'")
    world.waive("lines", 3)
    for number in (3, 4):
        world.source.produce(4)
        assert world.run(number) is None
    rows = world.shown()
    assert rows[0] == world.source.all_rows()
    assert len(rows[1]) == len(set(rows[1])) == len(rows[0]) - 4


@pytest.mark.parametrize("receipts", [("lines",), NAMES], ids=["one", "both"])
def test_sinks_that_lost_their_commit_after_a_receipt_commit_together_again(
    pg_db: Db, tmp_path: Path, receipts: tuple[str, ...]
) -> None:
    world = related(tmp_path, pg_db, " DEFERRABLE INITIALLY DEFERRED)", names=NAMES[::-1])
    seen: list[list[int]] = []
    with pytest.raises(Crash):
        world.run(1, {"decision.landed": crash})
    marker = "epoch_markers"
    pg_db.run(f"CREATE TABLE at_the_standby AS SELECT * FROM {marker}")
    for name in receipts:
        world.coordinator().commit(Run("dag", "run 1"), name)
    pg_db.run("DELETE FROM lines", "DELETE FROM orders", f"DELETE FROM {marker}")
    pg_db.run(f"INSERT INTO {marker} SELECT * FROM at_the_standby")
    assert world.run(2, {"sql.commit.after": lambda: seen.append([len(rows) for rows in world.shown()])}) is None
    world.require_all_shown()
    assert all(each == [4, 4] for each in seen)
    assert seen


def test_sinks_that_version_0_1_has_committed_apart_are_completed(db: Db, tmp_path: Path) -> None:
    world = related(tmp_path, db)
    with pytest.raises(Crash):
        world.run(1, {"decision.landed": crash})
    view, env = world.ledger.view(1), Environment(world.known)
    vote = view.decision.votes["orders"] if view.decision else None
    assert vote
    assert vote.staged
    from airflow_epochs.contracts import SinkAttempt

    world.sink("orders").commit(SinkAttempt.of(view.opened, "orders"), vote.staged, env)
    assert world.run(2) is None
    world.require_all_shown()


# -- who is to blame ------------------------------------------------------------------------------------------------

REGIONS = ("CREATE TABLE regions (partition bigint PRIMARY KEY)", "INSERT INTO regions VALUES (0), (1), (2), (3)")
DEFERRED = "FOREIGN KEY (partition) REFERENCES regions DEFERRABLE INITIALLY DEFERRED"
REFERRING = {
    "a table": (f"CREATE TABLE orders ({COLUMNS}, {DEFERRED})",),
    "a partitioned table": (
        f"CREATE TABLE orders ({COLUMNS}, {DEFERRED}) PARTITION BY LIST (partition)",
        "CREATE TABLE the_orders PARTITION OF orders DEFAULT",
    ),
}
WAIVER = re.compile("`airflow epochs waive ")


def with_regions(db: Db, folder: Path, orders: Sequence[str], **options: Any) -> Related:
    """``orders`` refers to a table that is not the pipeline's, and ``lines``, the last sink, refers to none."""
    db.run(*REGIONS, *orders, f'CREATE TABLE lines ({COLUMNS}, UNIQUE (partition, "offset"))')
    world = Related(folder, db, options=options)
    world.source.produce(4)
    return world


@pytest.mark.parametrize("referring", REFERRING)
def test_a_constraint_that_a_commit_breaks_blames_the_sink_of_its_table_whose_waiver_lets_the_others_commit(
    pg_db: Db, tmp_path: Path, referring: str
) -> None:
    world = with_regions(pg_db, tmp_path, REFERRING[referring])
    error = world.run(1, {"decision.landed": lambda: pg_db.run("DELETE FROM regions")})
    assert isinstance(error, Corrupt) and error.sink == "orders"
    assert "Table " + pg_db.table("orders") + " refuses the rows of orders/1/" in error.what
    typed(tmp_path / "ledger", error, "waive")
    assert world.run(2) is None
    assert world.shown() == [[], world.source.all_rows()]


def test_a_constraint_that_a_commit_breaks_is_mended_as_the_error_says_and_every_row_goes_in(
    pg_db: Db, tmp_path: Path
) -> None:
    world = with_regions(pg_db, tmp_path, REFERRING["a table"])
    assert isinstance(world.run(1, {"decision.landed": lambda: pg_db.run("DELETE FROM regions")}), Corrupt)
    pg_db.run(REGIONS[1])
    assert world.run(2) is None
    world.require_all_shown()


def names_all_and_waives_none(error: Exception | None) -> None:
    assert isinstance(error, Corrupt) and error.code is codes.SQL_COMMIT_REFUSED, error
    assert "that the sinks orders, lines write in one transaction" in error.what
    assert error.sink == "orders, lines" and not WAIVER.search(str(error)), "each layout names a sink where none is"


def test_what_the_database_blames_on_no_table_names_all_sinks_and_no_waiver(pg_db: Db, tmp_path: Path) -> None:
    world = with_regions(pg_db, tmp_path, REFERRING["a table"])
    pg_db.run(
        "CREATE TABLE closed (day date)",
        "CREATE FUNCTION open_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF EXISTS (SELECT 1 FROM {pg_db.table('closed')}) THEN RAISE 'the books are closed'; END IF;"
        " RETURN NULL; END $$",
        "CREATE CONSTRAINT TRIGGER books AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION open_only()",
    )
    error = world.run(1, {"decision.landed": lambda: pg_db.run("INSERT INTO closed VALUES ('2026-01-01')")})
    names_all_and_waives_none(error)
    assert "the books are closed" in str(error)
    pg_db.run("DELETE FROM closed")
    assert world.run(2) is None
    world.require_all_shown()


def test_a_foreign_key_beside_an_upsert_that_may_have_broken_it_names_all_sinks_and_no_waiver(
    pg_db: Db, tmp_path: Path
) -> None:
    orders = f'CREATE TABLE orders ({COLUMNS}, UNIQUE (partition, "offset"), {DEFERRED})'
    world = with_regions(pg_db, tmp_path, [orders], mode="upsert", keys=["partition", "offset"])
    names_all_and_waives_none(world.run(1, {"decision.landed": lambda: pg_db.run("DELETE FROM regions")}))
    pg_db.run(REGIONS[1])
    assert world.run(2) is None
    world.require_all_shown()


def test_a_parent_that_deletes_what_another_client_has_referred_to_does_not_blame_its_child(
    postgres: Postgres, tmp_path: Path
) -> None:
    pg = SqlWorld(new_postgres(postgres), tmp_path)
    pg.db.run(
        "CREATE TABLE people (id bigint PRIMARY KEY)",
        "INSERT INTO people VALUES (1), (2)",
        "CREATE TABLE mails (id bigint, person bigint REFERENCES people DEFERRABLE INITIALLY DEFERRED)",
    )
    deleting: dict[str, Any] = {"mode": "upsert", "keys": ["id"], "delete_when": "gone"}
    people = SqlSink("people", "db", pg.db.table("people"), staging=str(tmp_path / "staging"), **deleting)
    mails = SqlSink("mails", "db", pg.db.table("mails"), staging=str(tmp_path / "staging"))
    attempt = attempt_of(transaction(1))
    deleted = rows(1).append_column(DELETED, [[True]])
    those = [
        (people, attempt, pg.staged(people, attempt, deleted)),
        (mails, attempt, pg.staged(mails, attempt, rows(7, person=[2]))),
    ]
    pg.db.run("INSERT INTO mails VALUES (6, 1)")
    with pytest.raises(Corrupt, match="the sinks people, mails write in one transaction") as error:
        people.commit_together(those, pg.env)
    assert not WAIVER.search(str(error.value))
    pg.db.run("DELETE FROM mails WHERE id = 6")
    assert {name: receipt.rows for name, receipt in people.commit_together(those, pg.env).items()} == {
        "people": 1,
        "mails": 1,
    }
    assert (pg.ids("people"), pg.ids("mails")) == ([2], [7])


# -- sequences ------------------------------------------------------------------------------------------------------

NUMBERED = {
    "serial": ("CREATE SEQUENCE s MAXVALUE 7", "n bigint DEFAULT nextval('s')"),
    "identity": ("SELECT 1", "n bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 7)"),
    "narrow": ("CREATE SEQUENCE s START 2147483641", "n integer DEFAULT nextval('s')"),
    "downwards": ("CREATE SEQUENCE s INCREMENT -2 MINVALUE -14 MAXVALUE -1", "n bigint DEFAULT nextval('s')"),
}


@pytest.mark.parametrize("kind", NUMBERED)
@pytest.mark.parametrize("rehearse", [True, False])
def test_a_sequence_that_the_commit_would_use_up_is_a_vote_against(
    postgres: Postgres, tmp_path: Path, kind: str, rehearse: bool
) -> None:
    world = SqlWorld(new_postgres(postgres), tmp_path)
    before, column = NUMBERED[kind]
    world.db.run(before, f"CREATE TABLE orders (id bigint, {column})")
    sink = world.sink(rehearse=rehearse)
    too_many = range(1, 5) if rehearse else range(1, 9)
    reason = world.reason_against(sink, rows(*too_many))
    assert "numbers left, and the epoch needs" in reason
    (statement,) = re.findall(r"`(ALTER [^`]*)`", reason)
    world.db.run(statement if kind != "downwards" else statement.replace("MAXVALUE", "MINVALUE"))
    world.epoch(sink, transaction(1), None, rows(*too_many))
    assert world.ids() == [*too_many]


@pytest.mark.parametrize(("rehearse", "numbers"), [(True, 3), (False, 1)])
def test_a_sequence_that_two_sinks_share_must_have_numbers_for_both(
    pg_db: Db, tmp_path: Path, rehearse: bool, numbers: int
) -> None:
    world = related(tmp_path, pg_db, options={"rehearse": rehearse})
    rows_each = len(world.source.all_rows())
    pg_db.run(f"CREATE SEQUENCE s MAXVALUE {numbers * rows_each}")
    for table in NAMES:
        pg_db.run(f"ALTER TABLE {table} ADD COLUMN n bigint DEFAULT nextval('s')")
    assert f"numbers left, and the epoch needs {2 * rows_each}" in str(world.run(1))
    pg_db.run("ALTER SEQUENCE s NO MAXVALUE")
    assert world.run(2) is None
    world.require_all_shown()


def test_a_default_that_computes_with_a_number_is_not_limited_by_the_type_of_its_column(
    postgres: Postgres, tmp_path: Path
) -> None:
    world = SqlWorld(new_postgres(postgres), tmp_path)
    world.db.run("CREATE SEQUENCE s START 2147483648")
    world.db.run("CREATE TABLE orders (id bigint, n integer DEFAULT nextval('s') % 100)")
    world.epoch(world.sink(), transaction(1), None, rows(1, 2))
    assert world.ids() == [1, 2]


@pytest.mark.parametrize("kind", ["serial", "identity"])
def test_numbers_are_counted_whatever_the_plan_of_the_server(postgres: Postgres, tmp_path: Path, kind: str) -> None:
    world = SqlWorld(new_postgres(postgres), tmp_path)
    before, column = NUMBERED[kind]
    world.db.run(before, f"CREATE TABLE orders (id bigint, {column})")
    options = {"options": "-c enable_indexscan=off -c enable_bitmapscan=off"}
    world.env.connections["db"] = world.db.connection(extra=options)
    sink = world.sink(rehearse=False)
    assert "numbers left" in world.reason_against(sink, rows(*range(1, 9)))
    world.epoch(sink, transaction(1), None, rows(1, 2))
    assert world.ids() == [1, 2]


def test_a_database_that_does_not_tell_the_numbers_of_a_sink_is_a_vote_against_by_this_sink(
    pg_db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = PostgresSession.numbers_left

    def numbers_left(session: PostgresSession, table: SqlTable, given: Sequence[str]) -> list[Numbers]:
        if table.name == "lines":
            session.execute("SELECT 1 / 0")
        return asked(session, table, given)

    world = related(tmp_path, pg_db)
    monkeypatch.setattr(PostgresSession, "numbers_left", numbers_left)
    said = str(world.run(1))
    assert "division by zero" in said and "lines" in said and "left out the rows" not in said
    monkeypatch.undo()
    assert world.run(2) is None
    world.require_all_shown()


def test_a_sequence_with_room_for_rehearsal_and_commit_is_enough(postgres: Postgres, tmp_path: Path) -> None:
    world = SqlWorld(new_postgres(postgres), tmp_path)
    world.db.run("CREATE TABLE orders (id bigint, n bigint GENERATED BY DEFAULT AS IDENTITY (MAXVALUE 8))")
    world.epoch(world.sink(), transaction(1), None, rows(1, 2, 3, 4))
    given = rows(5, n=[1])
    second = attempt_of(transaction(1, pipeline="other"))
    assert world.voted(world.sink(), second, given).staged, "no number is drawn for a column that the rows have"


def test_sinks_that_swap_their_names_or_tables_are_refused_and_go_on_at_their_own_places(
    db: Db, tmp_path: Path
) -> None:
    db.run(*(f"CREATE TABLE {table} ({COLUMNS})" for table in ("first", "second")))
    world = Related(tmp_path, db, names=("a", "b"), tables={"a": "first", "b": "second"})
    world.source.produce(4)
    assert world.run(1) is None
    world.source.produce(2)
    for swapped in (replace(world, names=("b", "a")), world):
        error = replace(swapped, tables={"a": "second", "b": "first"}).run(2)
        assert isinstance(error, Corrupt) and error.code is codes.TABLE_ELSEWHERE
    assert world.run(3) is None
    world.require_all_shown("first", "second")
    anew = replace(world, names=("c", "d"), tables={"c": "second", "d": "first"})
    world.source.produce(2)
    assert anew.run(4) is None, "both have new names, as the error says"
    world.require_all_shown("first", "second")


RESTARTED = {
    "an identity": ("n bigint GENERATED BY DEFAULT AS IDENTITY (MAXVALUE 100)", "ALTER TABLE orders ALTER n RESTART"),
    "a sequence": ("n bigint DEFAULT nextval('\"s %\"')", 'ALTER SEQUENCE "s %" RESTART'),
}
RIGHTS = {"an identity": ["SELECT", "SELECT, USAGE"], "a sequence": ["USAGE", "SELECT, USAGE"]}


@pytest.mark.parametrize(("kind", "rights"), [(kind, each) for kind, some in RIGHTS.items() for each in some])
@pytest.mark.parametrize("rehearse", [True, False])
def test_a_sequence_that_was_restarted_near_its_end_is_a_vote_against_until_it_has_more_numbers(
    postgres: Postgres, tmp_path: Path, kind: str, rights: str, rehearse: bool
) -> None:
    """A user who may not read a sequence draws a number to know where it is."""
    world, (column, restart) = SqlWorld(new_postgres(postgres), tmp_path), RESTARTED[kind]
    numbers_only_to_100(world, column, rights)
    sink, drawn = world.sink(rehearse=rehearse), 3 * rehearse + (not rehearse and rights == "USAGE")
    world.db.run(f"{restart} WITH {99 - 3 * rehearse}")
    reason = world.reason_against(sink, rows(1, 2, 3))
    assert f"has {2 + 3 * rehearse - drawn} numbers left, and the epoch needs 3" in reason
    (statement,) = re.findall(r"`(ALTER [^`]*)`", reason)
    world.db.run(statement)
    world.epoch(sink, transaction(1), None, rows(1, 2, 3))
    assert world.ids() == [1, 2, 3]


@pytest.mark.parametrize("kind", RESTARTED)
def test_a_sequence_that_was_restarted_far_from_its_end_is_no_reason_to_abort(
    postgres: Postgres, tmp_path: Path, kind: str
) -> None:
    world, (column, restart) = SqlWorld(new_postgres(postgres), tmp_path), RESTARTED[kind]
    numbers_only_to_100(world, column, "SELECT, USAGE")
    world.db.run(f"{restart.partition(' RESTART')[0]} {'SET ' if kind == 'an identity' else ''}START 99")
    world.db.run(f"{restart} WITH 98")
    world.epoch(world.sink(rehearse=False), transaction(1), None, rows(1, 2, 3))
    assert world.db.run("SELECT n FROM orders ORDER BY n") == [(98,), (99,), (100,)]


def numbers_only_to_100(world: SqlWorld, column: str, rights: str) -> None:
    """A table ``orders`` with such a column; the sink's user has these rights on the sequence."""
    user, schema = f"u{world.db.table().partition('.')[0]}", world.db.table().partition(".")[0]
    world.db.run('CREATE SEQUENCE "s %" MAXVALUE 100', f"CREATE TABLE orders (id bigint, {column})")
    world.db.run(
        f"CREATE USER {user} PASSWORD 'x'",
        f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {user}",
        f"GRANT INSERT ON orders TO {user}",
        f"GRANT {rights} ON ALL SEQUENCES IN SCHEMA {schema} TO {user}",
    )
    world.env.connections["db"] = world.db.connection(login=user, password="x")


# -- places that exchange their sinks ---------------------------------------------------------------------------------


def live_and_shadow(db: Db, folder: Path) -> Related:
    """A pipeline that fills two tables alike, with an epoch and then new input."""
    db.run(*(f"CREATE TABLE {table} ({COLUMNS})" for table in ("orders", "orders_v2")))
    world = Related(folder, db, names=("live", "shadow"), tables={"live": "orders", "shadow": "orders_v2"})
    world.source.produce(4)
    assert world.run(1) is None
    world.source.produce(2)
    return world


@pytest.mark.parametrize("stays", [True, False], ids=["the other sink stays", "the other sink goes"])
def test_a_sink_that_follows_its_renamed_table_to_the_name_of_another_goes_on(
    pg_db: Db, tmp_path: Path, stays: bool
) -> None:
    world = live_and_shadow(pg_db, tmp_path)
    pg_db.run("ALTER TABLE orders RENAME TO orders_old", "ALTER TABLE orders_v2 RENAME TO orders")
    names = ("live", "shadow") if stays else ("shadow",)
    assert replace(world, names=names, tables={"live": "orders_old", "shadow": "orders"}).run(2) is None
    world.require_all_shown("orders", *(["orders_old"] if stays else []))


def test_sinks_that_follow_tables_whose_names_were_exchanged_go_on_in_their_own(pg_db: Db, tmp_path: Path) -> None:
    world = live_and_shadow(pg_db, tmp_path)
    pg_db.run(
        "ALTER TABLE orders RENAME TO x",
        "ALTER TABLE orders_v2 RENAME TO orders",
        "ALTER TABLE x RENAME TO orders_v2",
    )
    followed = replace(world, tables={"live": "orders_v2", "shadow": "orders"})
    assert followed.run(2) is None
    world.source.produce(1)
    error = world.run(3)
    assert isinstance(error, Corrupt) and error.code is codes.TABLE_ELSEWHERE, "the old names are a swap now"
    assert followed.run(4) is None
    world.require_all_shown("orders", "orders_v2")


@dataclass(frozen=True)
class Quoting(PostgresDb):
    """Spells its tables in another way."""

    def table(self, name: str = "orders") -> str:
        return f'{self.schema}."{name}"'


def test_sinks_that_swap_tables_are_refused_however_the_tables_are_spelled(pg_db: Db, tmp_path: Path) -> None:
    world = live_and_shadow(pg_db, tmp_path)
    assert isinstance(pg_db, PostgresDb)
    quoting = replace(world, db=Quoting(pg_db.server, pg_db.schema))
    error = replace(quoting, tables={"live": "orders_v2", "shadow": "orders"}).run(2)
    assert isinstance(error, Corrupt) and error.code is codes.TABLE_ELSEWHERE
    assert quoting.run(3) is None, "each at its own table"
    world.require_all_shown("orders", "orders_v2")


def test_only_a_sink_whose_table_is_spelled_anew_asks_which_table_it_has(
    pg_db: Db, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, asked = live_and_shadow(pg_db, tmp_path), list[str]()
    assert isinstance(pg_db, PostgresDb)
    session = SqlParticipant.session

    def counted(self: SqlParticipant, who: Sequence[str]) -> AbstractContextManager[Session]:
        asked.append(self.sink.name)
        return session(self, who)

    monkeypatch.setattr(SqlParticipant, "session", counted)
    world.coordinator().open(Run("dag", "run 2"))
    usual = sorted(asked)
    assert usual == ["live", "live", "shadow", "shadow"], "the marker, and whether the sink is ready"
    abort(world.coordinator(), Run("dag", "run 2"))
    asked.clear()
    replace(world, db=Quoting(pg_db.server, pg_db.schema)).coordinator().open(Run("dag", "run 3"))
    assert sorted(asked) == ["live", "live", "live", "shadow", "shadow", "shadow"]


def test_a_sink_may_take_the_table_of_a_sink_that_is_gone_from_the_dag(db: Db, tmp_path: Path) -> None:
    world = live_and_shadow(db, tmp_path)
    assert replace(world, names=("shadow",), tables={"shadow": "orders"}).run(2) is None
    world.require_all_shown("orders")


def test_sinks_of_tables_without_ids_are_told_to_take_new_names_if_the_tables_were_renamed(tmp_path: Path) -> None:
    db = new_sqlite(tmp_path)
    world = live_and_shadow(db, tmp_path)
    db.run(
        "ALTER TABLE orders RENAME TO x",
        "ALTER TABLE orders_v2 RENAME TO orders",
        "ALTER TABLE x RENAME TO orders_v2",
    )
    error = replace(world, tables={"live": "orders_v2", "shadow": "orders"}).run(2)
    assert isinstance(error, Corrupt) and error.code is codes.TABLE_ELSEWHERE
    assert "or if somebody renamed the tables" in error.remedy
    anew = replace(world, names=("l", "s"), tables={"l": "orders_v2", "s": "orders"})
    assert anew.run(3) is None
    world.require_all_shown("orders", "orders_v2")


# -- a sink that is waived, and then taken out of the DAG --------------------------------------------------------------


@pytest.fixture
def waived(tmp_path: Path) -> Related:
    """Epoch 2 waits for a sink with a connection of its own, and somebody has waived it. The records are unsigned."""
    world = related(tmp_path, new_sqlite(tmp_path), connections={"lines": {}})
    assert world.run(1) is None
    world.source.produce(2)
    with pytest.raises(Crash):
        world.run(2, {"commit.lines": crash})
    world.source.produce(2)
    world.waive("lines", 2)
    return world


def staged_in(world: Related) -> list[Path]:
    return [place for place in world.folder.glob("staging/*.lines/*") if place.is_dir()]


def told_of_staging(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of places that cannot be deleted: a line each, without a remedy for an epoch that is over."""
    assert "Traceback" not in caplog.text and "Undo the change" not in caplog.text
    lines = [line for line in caplog.messages if line.startswith("deleting the staging place")]
    assert not any("\n" in line for line in lines)
    return lines


def test_what_a_waived_sink_staged_is_said_to_stay_after_it_left_the_dag_and_is_deleted_when_it_is_back(
    waived: Related, caplog: pytest.LogCaptureFixture
) -> None:
    [place] = staged_in(waived)
    assert replace(waived, names=("orders",)).run(3) is None
    stays = (
        f"deleting the staging place {place} failed; what is left there stays; the next epoch tries again, and for the "
        "last time the epoch that prunes epoch 2: EPOCHS-RECORD-CONNECTION-FOREIGN: "
    )
    assert any(line.startswith(stays) for line in told_of_staging(caplog)), caplog.text
    assert staged_in(waived) == [place]
    caplog.clear()
    assert waived.run(4) is None
    assert not told_of_staging(caplog) and not staged_in(waived)


def test_of_what_a_sink_outside_the_dag_staged_the_log_says_when_no_epoch_will_try_to_delete_it_again(
    waived: Related, caplog: pytest.LogCaptureFixture
) -> None:
    [place] = staged_in(waived)
    without = replace(waived, names=("orders",), keep_epochs=1)
    assert without.run(3) is None, "it completes epoch 2"
    assert without.run(4) is None
    last = [line for line in told_of_staging(caplog) if "since epoch 2 is pruned now, and no later epoch" in line]
    assert len(last) == 1 and str(place) in last[0]
    caplog.clear()
    without.source.produce(2)
    assert without.run(5) is None
    assert not told_of_staging(caplog) and staged_in(waived) == [place]
