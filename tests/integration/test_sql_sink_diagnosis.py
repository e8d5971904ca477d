"""A database that does not show what the ledger expects: each accident has its own error, and its remedy ends in a run.

Every remedy is followed to the letter: statements and offsets are taken from the text of the error.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import Code, Corrupt, Refused
from airflow_epochs.model import Run, TransactionId
from airflow_epochs.testing import Crash
from stack.postgres import Postgres
from tests.support.faults_world import crash
from tests.support.pages import blocks
from tests.support.rebuilt import typed_rebuild
from tests.support.remedies import typed
from tests.support.sql_pipeline import PARENT, Related
from tests.support.sql_world import Db, PostgresDb, SqliteDb, new_postgres, new_sqlite

pytestmark = pytest.mark.proof


@dataclass(frozen=True)
class Elsewhere(PostgresDb):
    """The connection leads to another database of the server."""

    database: str = ""

    def connection(self, **changed: Any) -> Connection:
        return super().connection(schema=self.database, **changed)

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        with self.server.connect(dbname=self.database, options=f"-c search_path={self.schema}") as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


PAGE = Path(__file__).parents[2] / "docs" / "sql.md"


@pytest.fixture
def world(db: Db, tmp_path: Path) -> Related:
    db.run(PARENT)
    made = Related(tmp_path, db, names=("orders",))
    epochs(made, 1, 2)
    return made


def epochs(world: Related, first: int, last: int) -> None:
    for number in range(first, last + 1):
        world.source.produce(3)
        assert world.run(number) is None


def told(world: Related, number: int = 80) -> Corrupt:
    """The error of a new run, which opens nothing and cites a section that exists."""
    before = [path for path in world.ledger_files() if "epochs" in path.parts]
    error = world.run(number)
    assert isinstance(error, Corrupt), error
    assert error.sink == "orders"
    assert [path for path in world.ledger_files() if "epochs" in path.parts] == before
    (section,) = re.findall(r"docs/sql\.md, '([^']+)'", error.remedy)
    assert f"\n## {section}\n" in PAGE.read_text()
    return error


def follow_statement(world: Related, error: Corrupt) -> None:
    (found,) = re.findall(r"((?:CREATE TABLE [^;]*; )?INSERT INTO [^;]*);", error.remedy)
    world.db.run(*found.split("; "))


def goes_on(world: Related, number: int = 90) -> None:
    """One more epoch, and all rows are there once."""
    world.source.produce(2)
    assert world.run(number) is None
    world.require_all_shown("orders")


def under_a_new_name(world: Related, first: int) -> Related:
    return replace(world, names=("orders_again",), tables={"orders_again": "orders"}, backfill={"orders_again": first})


def dump(world: Related) -> None:
    """A backup of rows and markers, within the database."""
    for table in ("orders", "epoch_markers"):
        world.db.run(f"CREATE TABLE dump_of_{table} AS SELECT * FROM {table}")


def restore(world: Related, *tables: str) -> None:
    for table in tables or ("orders", "epoch_markers"):
        world.db.run(f"DELETE FROM {table}", f"INSERT INTO {table} SELECT * FROM dump_of_{table}")


# -- the marker is gone ---------------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("DELETE FROM epoch_markers", "The marker of this sink in the table "),
        ("DROP TABLE epoch_markers", "The marker table "),
    ],
)
def test_a_marker_that_was_deleted_is_put_back_by_the_statement_in_the_error(
    world: Related, loss: str, expected: str
) -> None:
    world.db.run(loss)
    error = told(world)
    assert error.what.startswith(expected)
    assert "'The marker or its table is gone'" in error.remedy
    follow_statement(world, error)
    goes_on(world)


def test_a_marker_that_is_lost_before_the_epoch_is_complete_is_put_back_likewise(world: Related) -> None:
    world.source.produce(2)
    with pytest.raises(Crash):
        world.run(3, {"complete.put": crash})
    world.db.run("DELETE FROM epoch_markers")
    error = world.run(4)
    assert isinstance(error, Corrupt)
    follow_statement(world, error)
    assert world.run(5) is None
    goes_on(world)


def test_a_marker_that_is_lost_before_the_vote_aborts_the_epoch_and_the_next_run_puts_it_back(world: Related) -> None:
    """No statement of the vote's: it would be the marker of an epoch that is not decided."""
    world.source.produce(2)
    error = world.run(3, {"open.landed": lambda: world.db.run("DELETE FROM epoch_markers")})
    assert isinstance(error, Refused), error
    assert "EPOCHS-SQL-MARKER-CHANGED: The last epoch in table" in str(error)
    assert "INSERT INTO" not in str(error)
    follow_statement(world, told(world))
    assert world.run(3) is None, "the failed task, cleared"
    goes_on(world)


def test_a_marker_that_somebody_edits_before_the_vote_is_no_vote_and_stops_until_it_is_put_back(world: Related) -> None:
    world.source.produce(2)
    error = world.run(3, {"open.landed": lambda: world.db.run("UPDATE epoch_markers SET epoch = 7")})
    for stopped in (error, world.run(80)):
        assert isinstance(stopped, Corrupt), stopped
        assert stopped.code is codes.MARKER_FOREIGN
        assert stopped.sink == "orders"
    world.db.run("UPDATE epoch_markers SET epoch = 2")
    assert world.run(3) is None, "the failed task, cleared"
    goes_on(world)


# -- the table is gone ----------------------------------------------------------------------------------------------


def test_a_table_that_was_dropped_is_filled_anew_under_another_name_of_the_sink(world: Related) -> None:
    world.db.run("DROP TABLE orders", "DROP TABLE epoch_markers")
    error = told(world)
    assert error.what.startswith(f"Table {world.db.table()} and its marker do not exist in ")
    assert "'The table is gone'" in error.remedy
    world.db.run(PARENT)
    goes_on(under_a_new_name(world, first=1))


def test_a_table_that_was_dropped_beside_its_marker_is_told_of_by_the_vote_and_filled_anew(world: Related) -> None:
    world.db.run("DROP TABLE orders")
    world.source.produce(1)
    error = str(world.run(3))
    assert "although epoch 2 was committed to it" in error
    assert "'The table is gone'" in error
    assert "CREATE TABLE" not in error, "an empty one would lack two epochs"
    world.db.run(PARENT)
    again = under_a_new_name(world, first=1)
    assert again.run(4) is None
    goes_on(again)


def test_a_table_that_was_loaded_again_from_a_dump_gets_its_marker_back(world: Related) -> None:
    dump(world)
    world.db.run("DROP TABLE orders", "DROP TABLE epoch_markers", PARENT)
    restore(world, "orders")
    error = told(world)
    if world.db.kind == "postgres":
        assert error.what.startswith(f"Somebody dropped table {world.db.table()} and created it again")
        assert "'The table is gone'" in error.remedy
    follow_statement(world, error)
    goes_on(world)


# -- the table goes away with its marker, with an epoch in doubt ----------------------------------------------------


@pytest.fixture
def begun(db: Db, tmp_path: Path, request: pytest.FixtureRequest) -> Related:
    """With so many epochs as the test says."""
    db.run(PARENT)
    made = Related(tmp_path, db, names=("orders",))
    epochs(made, 1, request.param)
    made.source.produce(3)
    return made


def hide(world: Related) -> None:
    """The table and its marker under other names: in PostgreSQL, only the schema has another."""
    if isinstance(world.db, PostgresDb):
        world.db.run(f"ALTER SCHEMA {world.db.schema} RENAME TO {world.db.schema}_z")
    else:
        world.db.run("ALTER TABLE orders RENAME TO orders_z", "ALTER TABLE epoch_markers RENAME TO markers_z")


def give_back_the_old_names(world: Related) -> None:
    if isinstance(world.db, PostgresDb):
        world.db.run(f"ALTER SCHEMA {world.db.schema}_z RENAME TO {world.db.schema}")
    else:
        world.db.run("ALTER TABLE orders_z RENAME TO orders", "ALTER TABLE markers_z RENAME TO epoch_markers")


def hidden(world: Related, moment: str) -> Corrupt:
    """The error of an epoch in doubt whose table and marker got other names at the moment."""
    if moment == "decision.landed":
        error = world.run(3, {moment: lambda: hide(world)})
    else:
        with pytest.raises(Crash):
            world.run(3, {moment: crash})
        hide(world)
        error = world.run(3)
    assert isinstance(error, Corrupt) and error.code is codes.TABLE_GONE, error
    assert f"Table {world.db.table()} and its marker do not exist in " in error.what
    assert "INSERT INTO" not in error.remedy, "there is no place to put a marker back"
    assert "'The table is gone'" in error.remedy
    return error


@pytest.mark.few(2)
@pytest.mark.parametrize("begun", [0, 2], ids=["first epoch", "later epoch"], indirect=True)
@pytest.mark.parametrize("moment", ["decision.landed", "sql.commit.after"], ids=["voted", "committed"])
def test_a_table_that_is_renamed_with_its_marker_after_the_vote_has_every_row_once_it_has_its_name_again(
    begun: Related, moment: str
) -> None:
    assert "their old names back" in hidden(begun, moment).remedy
    give_back_the_old_names(begun)
    assert begun.run(3) is None, "the commit task, cleared"
    begun.require_all_shown("orders")
    goes_on(begun)


@pytest.mark.few(1)
@pytest.mark.parametrize("begun", [2], indirect=True)
def test_a_table_that_is_gone_after_the_vote_is_waived_by_the_command_and_filled_anew_under_another_name(
    begun: Related,
) -> None:
    typed(begun.folder / "ledger", hidden(begun, "sql.commit.after"), "waive")
    assert begun.run(3) is None, "the commit task, cleared"
    if isinstance(begun.db, PostgresDb):
        begun.db.run(f"CREATE SCHEMA {begun.db.schema}")
    begun.db.run(PARENT)
    goes_on(under_a_new_name(begun, 1))


# -- the database is behind -----------------------------------------------------------------------------------------


def test_a_database_that_was_restored_takes_the_missing_epochs_again(world: Related) -> None:
    dump(world)
    epochs(world, 3, 4)
    restore(world)
    error = told(world)
    assert f"The last epoch in table {world.db.table()} is 2, but the ledger says 4." in error.what
    assert "'The database is behind the ledger'" in error.remedy
    (first,) = re.findall(r'backfill=\{"<the new name>": (\d+)\}', error.remedy)
    goes_on(under_a_new_name(world, int(first)))


def drop(world: Related) -> None:
    world.db.run("DROP TABLE orders", "DROP TABLE epoch_markers", PARENT)


@pytest.mark.few(2)
@pytest.mark.parametrize(("lose", "first"), [(drop, 1), (restore, 3)])
def test_a_database_that_loses_epochs_before_the_last_one_is_complete_gets_them_under_another_name(
    world: Related, lose: Callable[[Related], None], first: int
) -> None:
    """It has said that it shows that one, so the epoch in doubt waits for it under its old name."""
    dump(world)
    epochs(world, 3, 3)
    world.source.produce(3)
    with pytest.raises(Crash):
        world.run(4, {"complete.put": crash})
    lose(world)
    error = world.run(80)
    assert isinstance(error, Corrupt)
    typed(world.folder / "ledger", error, "waive")
    assert world.run(4) is None, "the failed task, cleared"
    goes_on(under_a_new_name(world, first))


@pytest.mark.few(1)
def test_a_database_that_loses_the_epoch_before_the_one_in_doubt_gets_both_under_another_name(world: Related) -> None:
    dump(world)
    epochs(world, 3, 3)
    world.source.produce(3)
    with pytest.raises(Crash):
        world.run(4, {"commit.orders": crash})
    restore(world)
    error = world.run(80)
    assert isinstance(error, Corrupt) and error.code is codes.SINK_BEHIND
    typed(world.folder / "ledger", error, "waive")
    assert world.run(4) is None, "the failed task, cleared"
    goes_on(under_a_new_name(world, 3))


def test_a_table_that_does_not_take_what_it_promised_is_waived_by_the_command_in_the_error(world: Related) -> None:
    shown = world.source.all_rows()
    world.source.produce(3)
    with pytest.raises(Crash):
        world.run(3, {"decision.landed": crash})
    waived = set(world.source.all_rows()) - set(shown)
    world.db.run("ALTER TABLE orders RENAME COLUMN payload TO text")
    error = world.run(80)
    assert isinstance(error, Corrupt), error
    assert "refuses the rows of orders/3/" in error.what
    typed(world.folder / "ledger", error, "waive")
    assert world.run(3) is None, "the commit task, cleared"
    world.db.run("ALTER TABLE orders RENAME COLUMN text TO payload")
    world.source.produce(2)
    assert world.run(81) is None
    assert world.shown("orders") == [[row for row in world.source.all_rows() if row not in waived]]


def test_a_database_that_gets_its_later_state_back_goes_on(world: Related) -> None:
    dump(world)
    epochs(world, 3, 3)
    world.db.run(*(f"ALTER TABLE dump_of_{t} RENAME TO early_{t}" for t in ("orders", "epoch_markers")))
    dump(world)
    later = [world.db.run(f"SELECT count(*) FROM {t}") for t in ("orders", "epoch_markers")]
    world.db.run("DELETE FROM epoch_markers", "INSERT INTO epoch_markers SELECT * FROM early_epoch_markers")
    told(world)
    restore(world)
    assert [world.db.run(f"SELECT count(*) FROM {t}") for t in ("orders", "epoch_markers")] == later
    goes_on(world)


def test_a_database_restored_to_before_its_first_epoch_is_told_of(world: Related) -> None:
    world.db.run(
        "DELETE FROM orders",
        "UPDATE epoch_markers SET epoch = 0, txn_id = 'first epoch 1 claimed by ledger x', row_count = 0",
    )
    error = told(world)
    assert "only the reservation of the first epoch" in error.what
    assert "'The database is behind the ledger'" in error.remedy
    goes_on(under_a_new_name(world, first=1))


# -- the ledger is behind -------------------------------------------------------------------------------------------


def in_the_marker_table(world: Related) -> Any:
    """The offsets by the statement of docs/sql.md: an object from PostgreSQL, text from SQLite."""
    (statement,) = blocks("sql.md", "The marker", "sql")
    ((_, ends),) = world.db.run(statement)
    return json.loads(ends) if isinstance(ends, str) else ends


@pytest.mark.few(2)
@pytest.mark.parametrize("lost", ["newest records", "all of it"])
def test_a_pipeline_whose_ledger_is_lost_goes_on_where_the_table_ends(world: Related, lost: str) -> None:
    copy = shutil.copytree(world.folder / "ledger", world.folder / "backup")
    epochs(world, 3, 3)
    newer = (world.folder / "ledger").rename(world.folder / "newer")
    if lost == "newest records":
        shutil.copytree(copy, world.folder / "ledger")
    world.source.produce(2)
    error = told(world)
    ends_at = {
        "newest records": "but the ledger ends at epoch 2",
        "all of it": "but the ledger has no epoch of this sink",
    }
    assert ends_at[lost] in error.what
    assert "'The ledger is behind the database'" in error.remedy
    screen = typed_rebuild(lambda: world.coordinator().task, error, ledger_root=world.folder / "ledger")
    for topic, ends in in_the_marker_table(world).items():
        assert [f"  {topic}[{partition}]: {end}" in screen for partition, end in ends.items()] == [True] * len(ends)
    goes_on(world)
    assert newer.exists()


def rebuilt(world: Related, error: Corrupt, *more: str) -> str:
    return typed_rebuild(lambda: world.coordinator().task, error, *more, ledger_root=world.folder / "ledger")


def test_a_marker_of_another_pipeline_of_these_names_is_not_what_a_ledger_is_rebuilt_from(
    world: Related, tmp_path: Path
) -> None:
    """They share the marker table, and each has a ledger, an input and a table of its own."""
    (tmp_path / "other").mkdir()
    world.db.run(PARENT.replace("orders", "others"))
    other = replace(world, folder=tmp_path / "other", tables={"orders": "others"})
    other.source.produce(5)
    error = told(other)
    assert "Look whose rows table 'orders' in schema " in error.remedy
    assert f"this sink has table {world.db.table('others')}. If they are not this pipeline's" in error.remedy
    with pytest.raises(SystemExit, match="EPOCHS-TABLE-ELSEWHERE") as refused:
        rebuilt(other, error)
    assert "whose rows went to table 'orders'" in str(refused.value)
    assert "give this sink another name, or a `marker_table`" in str(refused.value)
    again = replace(other, options={"marker_table": "others_markers"})
    assert again.run(90) is None
    again.require_all_shown("others")
    goes_on(world)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("epoch", "anew"),
    [
        (1, {"names": ("orders", "copied_2")}),
        (2, {"names": ("orders", "copied_2")}),
        (7, {"options": {"marker_table": "own_markers"}}),
    ],
)
def test_a_sink_whose_marker_another_pipeline_has_written_is_left_out_of_a_rebuilding_as_the_error_says(
    world: Related, epoch: int, anew: dict[str, Any]
) -> None:
    world.db.run(PARENT.replace("orders", "copied"))
    both = replace(world, names=("orders", "copied"), backfill={"copied": 1})
    world.source.produce(3)
    assert both.run(3) is None
    world.db.run(
        f"UPDATE epoch_markers SET epoch = {epoch}, txn_id = 'orders/{epoch}/1/{'1' * 32}', target = 'others'"
        " WHERE sink = 'copied'"
    )
    (world.folder / "ledger").rename(world.folder / "lost")
    error = told(both)
    with pytest.raises(SystemExit, match="EPOCHS-TABLE-ELSEWHERE") as refused:
        rebuilt(both, error)
    (words,) = re.findall("`(--without [^`]+)`", str(refused.value))
    rebuilt(both, error, *words.split())
    world.source.produce(2)
    if epoch == 7:
        stopped = both.run(4)
        assert isinstance(stopped, Corrupt) and stopped.sink == "copied", "it has its old name and marker table yet"
    if "options" in anew:
        world.db.run("CREATE TABLE own_markers AS SELECT * FROM epoch_markers WHERE sink = 'orders'")
        world.db.run("CREATE UNIQUE INDEX own ON own_markers (pipeline, sink)")
    renamed = replace(both, backfill={}, tables={"copied_2": "copied"}, **anew)
    assert renamed.run(5) is None
    renamed.require_all_shown("orders", "copied")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("epoch", "code", "asks_anew"),
    [
        (3, codes.TWO_LEDGERS, False),
        (7, codes.LEDGER_BEHIND, False),
        (3, codes.TWO_LEDGERS, True),
        (7, codes.LEDGER_BEHIND, True),
    ],
)
def test_a_marker_of_another_pipeline_is_left_to_it_while_an_epoch_is_in_doubt_under_another_name_of_the_sink(
    world: Related, epoch: int, code: Code, asks_anew: bool
) -> None:
    """``asks_anew``: the coordinator finds it, before it calls the sink's commit."""
    world.source.produce(3)
    theirs = f"orders/{epoch}/1/{'1' * 32}"

    def overwrite() -> None:
        world.db.run(f"UPDATE epoch_markers SET epoch = {epoch}, txn_id = '{theirs}'")

    if asks_anew:
        with pytest.raises(Crash):
            world.run(3, {"decision.landed": crash})
        overwrite()
        error = world.run(80)
    else:
        error = world.run(3, {"decision.landed": overwrite})
    assert isinstance(error, Corrupt) and error.code is code
    (command,) = re.findall("`(airflow epochs waive [^`]+)`", error.remedy)
    assert "`marker_table`" not in error.remedy, "one of its own lacks the rows of the epoch in doubt"
    again = re.findall(r'backfill=\{"<the new name>": (\d+)\}', error.remedy)
    assert (command, again) == ("airflow epochs waive orders 3 orders --why …", ["3"])
    renamed = under_a_new_name(world, first=3)
    assert isinstance(renamed.run(81), Corrupt), "the DAG of today has no effect before"
    typed(world.folder / "ledger", error, "waive")
    assert world.run(3) is None, "the failed task, cleared"
    goes_on(renamed)
    assert world.db.run("SELECT epoch, txn_id FROM epoch_markers WHERE sink = 'orders'") == [(epoch, theirs)]


@pytest.mark.few(1)
def test_a_pipeline_whose_ledger_is_lost_and_whose_table_got_another_name_is_rebuilt_after_the_statement(
    world: Related,
) -> None:
    world.db.run("ALTER TABLE orders RENAME TO moved")
    moved = replace(world, tables={"orders": "moved"})
    (world.folder / "ledger").rename(world.folder / "lost")
    error = told(moved)
    with pytest.raises(SystemExit, match="EPOCHS-TABLE-ELSEWHERE") as refused:
        rebuilt(moved, error)
    (statement,) = re.findall("`(UPDATE [^`]+)`", str(refused.value))
    world.db.run(statement)
    rebuilt(moved, error)
    world.source.produce(2)
    assert moved.run(90) is None
    moved.require_all_shown("moved")


class Quoted(PostgresDb):
    """The DAG names the tables in quotes, and without their schema."""

    def connection(self, **changed: Any) -> Connection:
        return super().connection(extra={"options": f"-c search_path={self.schema}"}, **changed)

    def table(self, name: str = "orders") -> str:
        return f'"{name}"'


QUOTED = {"orders": '"orders"'}
"""As ``Quoted`` spells the table."""


class InMain(SqliteDb):
    """The DAG names the tables in quotes, with their schema and in capitals."""

    def table(self, name: str = "orders") -> str:
        return f'main."{name.upper()}"'


def spelled_anew(world: Related) -> Related:
    if isinstance(world.db, PostgresDb):
        return replace(world, db=Quoted(world.db.server, world.db.schema))
    return replace(world, db=InMain(world.db.path))


@pytest.mark.few(1)
def test_a_table_that_the_dag_spells_in_another_way_is_the_same_to_the_next_epoch_and_to_a_rebuilding(
    world: Related,
) -> None:
    anew = spelled_anew(world)
    epochs(anew, 3, 3)
    world.require_all_shown("orders")
    if isinstance(world.db, SqliteDb):
        world.db.run("ALTER TABLE orders RENAME TO x", 'ALTER TABLE x RENAME TO "Orders"')
    (world.folder / "ledger").rename(world.folder / "lost")
    rebuilt(anew, told(anew))
    goes_on(world)


@pytest.mark.parametrize("db", ["postgres"], indirect=True)  # SQLite has no ids of tables
def test_a_table_that_was_dropped_and_made_again_under_another_spelling_is_no_other_table(world: Related) -> None:
    world.db.run("DROP TABLE orders", "DELETE FROM epoch_markers", PARENT)
    assert told(spelled_anew(world)).code is codes.TABLE_REPLACED


@pytest.mark.few(1)
def test_a_ledger_that_gets_its_records_back_goes_on(world: Related) -> None:
    shutil.copytree(world.folder / "ledger", world.folder / "backup")
    epochs(world, 3, 3)
    (world.folder / "ledger").rename(world.folder / "newer")
    (world.folder / "backup").rename(world.folder / "ledger")
    told(world)
    shutil.rmtree(world.folder / "ledger")
    (world.folder / "newer").rename(world.folder / "ledger")
    goes_on(world)


@pytest.mark.few(1)
def test_two_ledgers_under_one_name_are_told_of_and_one_goes_on(world: Related) -> None:
    shutil.copytree(world.folder / "ledger", world.folder / "backup")
    epochs(world, 3, 3)
    (world.folder / "ledger").rename(world.folder / "other installation")
    (world.folder / "backup").rename(world.folder / "ledger")
    dump(world)
    ((txn,),) = world.db.run("SELECT txn_id FROM epoch_markers")
    theirs = "orders/2/1/" + "0" * 32
    world.db.run(f"UPDATE epoch_markers SET epoch = 2, txn_id = '{theirs}'")
    error = told(world)
    assert "and the ledger have different transactions of epoch 2" in error.what
    assert "'Two ledgers write under one name'" in error.remedy
    world.db.run(f"UPDATE epoch_markers SET epoch = 3, txn_id = '{txn}'")
    shutil.rmtree(world.folder / "ledger")
    (world.folder / "other installation").rename(world.folder / "ledger")
    goes_on(world)


# -- another database -----------------------------------------------------------------------------------------------


def another_database(world: Related, folder: Path) -> Db:
    """One without the sink's schema or table."""
    if isinstance(world.db, PostgresDb):
        name = f"other_{world.db.schema}"
        world.db.run(f"CREATE DATABASE {name}")
        return Elsewhere(world.db.server, world.db.schema, database=name)
    (folder / "other").mkdir()
    return new_sqlite(folder / "other")


@pytest.mark.few(1)
def test_a_connection_to_another_database_is_told_of_and_corrected(world: Related, tmp_path: Path) -> None:
    astray = another_database(world, tmp_path)
    error = told(replace(world, db=astray))
    assert "leads to another database than the last epoch was committed to" in error.what
    assert "'The connection leads to another database'" in error.remedy
    goes_on(world)


def with_the_tables(astray: Db, marker: str = "") -> Db:
    """A database with the sink's table, and perhaps a marker of an earlier epoch: as a copy, or one for tests, has."""
    if isinstance(astray, PostgresDb):
        astray.run(f"CREATE SCHEMA {astray.schema}")
    astray.run(PARENT)
    if marker:
        with_a_marker(astray, TransactionId.parse(marker))
    return astray


def with_a_marker(astray: Db, txn: TransactionId) -> None:
    time, ends = ("timestamptz", "jsonb") if isinstance(astray, PostgresDb) else ("text", "text")
    astray.run(
        "CREATE TABLE epoch_markers (pipeline varchar(63), sink varchar(63), epoch bigint, txn_id text, "
        f"row_count bigint, committed_at {time}, ends {ends}, target text, PRIMARY KEY (pipeline, sink))",
        "INSERT INTO epoch_markers (pipeline, sink, epoch, txn_id, row_count, committed_at) VALUES "
        f"('orders', 'orders', {txn.epoch}, '{txn}', 3, CURRENT_TIMESTAMP)",
    )


def in_doubt_elsewhere(begun: Related, astray: Db, *, landed: bool = False) -> Corrupt:
    """The error of the commit of epoch 1 or 3 whose connection leads astray since the vote, or since a lost receipt."""
    with pytest.raises(Crash):
        begun.run(3, {"sql.commit.after" if landed else "decision.landed": crash})
    error = replace(begun, db=astray).run(3)
    assert isinstance(error, Corrupt) and error.code is codes.TABLE_ELSEWHERE, error
    assert "The epoch is in doubt: it waits for sink orders." in error.what
    assert "leads to another database than at the vote. Database of the connection: " in error.what
    assert all(str(name) in error.what for name in names_of(begun.db, astray))
    assert "INSERT INTO" not in error.remedy, "the statement would run in the wrong database"
    assert "'The connection leads to another database'" in error.remedy
    return error


def names_of(*those: Db) -> list[str]:
    return [db.path.name if isinstance(db, SqliteDb) else str(db.connection().schema) for db in those]


@pytest.mark.few(2)
@pytest.mark.parametrize("begun", [0, 2], ids=["first epoch", "later epoch"], indirect=True)
@pytest.mark.parametrize("has", ["nothing", "the tables", "an older marker"])
@pytest.mark.parametrize("landed", [False, True], ids=["voted", "committed"])
def test_a_connection_that_leads_to_another_database_after_the_vote_gets_no_row_there_and_all_once_it_leads_back(
    begun: Related, tmp_path: Path, has: str, landed: bool
) -> None:
    astray = another_database(begun, tmp_path)
    if has != "nothing":
        with_the_tables(astray, f"orders/1/1/{'0' * 32}" if has == "an older marker" else "")
    error = in_doubt_elsewhere(begun, astray, landed=landed)
    assert error.remedy.startswith("Point the connection to the database of the vote again.")
    assert has == "nothing" or astray.run("SELECT count(*) FROM orders") == [(0,)]
    assert begun.run(3) is None, "the commit task, cleared"
    begun.require_all_shown("orders")
    goes_on(begun)


@pytest.mark.few(1)
@pytest.mark.parametrize("begun", [2], indirect=True)
def test_a_database_that_was_moved_after_the_vote_without_its_marker_goes_on_once_the_marker_is_there_too(
    begun: Related, tmp_path: Path
) -> None:
    moved = with_the_tables(another_database(begun, tmp_path))
    in_doubt_elsewhere(begun, moved)
    for source, partition, offset, payload in begun.db.run("SELECT * FROM orders"):
        moved.run(f"INSERT INTO orders VALUES ('{source}', {partition}, {offset}, '{payload}')")
    ((txn,),) = begun.db.run("SELECT txn_id FROM epoch_markers")
    with_a_marker(moved, TransactionId.parse(txn))
    there = replace(begun, db=moved)
    assert there.run(3) is None, "the commit task, cleared"
    there.require_all_shown("orders")
    goes_on(there)


@pytest.mark.few(1)
@pytest.mark.parametrize("begun", [2], indirect=True)
def test_a_database_that_is_gone_for_good_after_the_vote_is_left_by_the_command_in_the_error(
    begun: Related, tmp_path: Path
) -> None:
    astray = with_the_tables(another_database(begun, tmp_path))
    typed(begun.folder / "ledger", in_doubt_elsewhere(begun, astray), "waive")
    there, voted = replace(begun, db=astray), begun.source.all_rows()
    assert there.run(3) is None, "the commit task, cleared"
    begun.source.produce(2)
    assert there.run(80) is None
    assert there.shown("orders") == [sorted(set(begun.source.all_rows()) - set(voted))]


@pytest.mark.few(2)
@pytest.mark.parametrize("begun", [2], indirect=True)
def test_a_database_with_an_older_copy_that_takes_the_place_of_a_lost_one_gets_the_rest_under_another_name(
    begun: Related, tmp_path: Path
) -> None:
    first = begun.ledger.complete_record(1)
    assert first
    ends = {each.partition: each.end for ranges in first.ranges.values() for each in ranges}
    astray = with_the_tables(another_database(begun, tmp_path), first.txn_id)
    for source, partition, offset, payload in begun.db.run("SELECT * FROM orders"):
        if offset < ends[partition]:
            astray.run(f"INSERT INTO orders VALUES ('{source}', {partition}, {offset}, '{payload}')")
    error = in_doubt_elsewhere(begun, astray)
    typed(begun.folder / "ledger", error, "waive")
    assert replace(begun, db=astray).run(3) is None, "the commit task, cleared"
    (again,) = re.findall(r"another name in the DAG, with EpochPipeline\(…, backfill=.*?: (\d+)\}", error.remedy)
    goes_on(under_a_new_name(replace(begun, db=astray), int(again)))


@pytest.mark.few(2)
@pytest.mark.parametrize("begun", [0, 2], ids=["first epoch", "later epoch"], indirect=True)
def test_a_database_with_the_marker_of_another_ledger_that_takes_the_place_of_a_lost_one_needs_another_name(
    begun: Related, tmp_path: Path
) -> None:
    foreign = f"orders/{max(1, begun.ledger.newest_complete())}/1/{'0' * 32}"
    astray, voted = with_the_tables(another_database(begun, tmp_path), foreign), begun.source.all_rows()
    error = in_doubt_elsewhere(begun, astray)
    typed(begun.folder / "ledger", error, "waive")
    there = replace(begun, db=astray)
    assert there.run(3) is None, "the commit task, cleared"
    assert f"shows {foreign}. Give the sink another name in the DAG: it begins there" in error.remedy
    begun.source.produce(2)
    assert replace(there, names=("orders_again",), tables={"orders_again": "orders"}).run(80) is None
    assert there.shown("orders") == [sorted(set(begun.source.all_rows()) - set(voted))]


@pytest.mark.few(1)
@pytest.mark.parametrize("begun", [2], indirect=True)
def test_an_epoch_that_went_to_a_copy_by_mistake_comes_to_the_first_database_under_another_name(
    begun: Related, tmp_path: Path
) -> None:
    """The copy counts as the same database, moved. The next run, whose connection leads back, tells of it."""
    before = begun.ledger.complete_record(2)
    assert before
    copy = with_the_tables(another_database(begun, tmp_path), before.txn_id)
    with pytest.raises(Crash):
        begun.run(3, {"decision.landed": crash})
    assert replace(begun, db=copy).run(3) is None
    assert copy.run("SELECT count(*) FROM orders") == [(3,)]
    error = told(begun)
    assert error.code is codes.TABLE_ELSEWHERE
    (again,) = re.findall(r"another name in the DAG, with EpochPipeline\(…, backfill=.*?: (\d+)\}", error.remedy)
    goes_on(under_a_new_name(begun, int(again)))


def test_a_connection_to_a_database_of_another_kind_is_told_of_by_open_and_by_the_commit(
    postgres: Postgres, tmp_path: Path
) -> None:
    db = new_postgres(postgres)
    db.run(PARENT)
    world = Related(tmp_path, Quoted(postgres, db.schema), names=("orders",))
    epochs(world, 1, 2)
    astray = with_the_tables(new_sqlite(tmp_path))
    assert "leads to another database than the last epoch" in told(replace(world, db=astray, tables=QUOTED)).what
    world.source.produce(2)
    with pytest.raises(Crash):
        world.run(3, {"decision.landed": crash})
    with pytest.raises(Corrupt) as error:
        replace(world, db=astray, tables=QUOTED).coordinator().commit(Run("dag", "run 3"), "orders")
    assert error.value.code is codes.TABLE_ELSEWHERE
    assert "leads to another database than at the vote. Database of the connection: file " in error.value.what
    assert world.run(3) is None, "the commit task, cleared"
    goes_on(world)


def test_a_database_that_refuses_the_marker_after_the_vote_may_be_another_one(
    postgres: Postgres, tmp_path: Path
) -> None:
    """One for tests, say, whose owner has set the tables to ``UNLOGGED``."""
    db = new_postgres(postgres)
    db.run(PARENT)
    world = Related(tmp_path, db, names=("orders",))
    epochs(world, 1, 2)
    astray = with_the_tables(another_database(world, tmp_path), f"orders/1/1/{'0' * 32}")
    astray.run("ALTER TABLE epoch_markers SET UNLOGGED")
    world.source.produce(2)
    with pytest.raises(Crash):
        world.run(3, {"decision.landed": crash})
    error = replace(world, db=astray).run(3)
    assert isinstance(error, Corrupt) and error.code is codes.SQL_COMMIT_REFUSED
    assert "or point the connection back if it leads to another database than at the vote. Then" in error.remedy
    assert world.run(3) is None, "the commit task, cleared"
    goes_on(world)


@pytest.mark.few(1)
def test_a_connection_that_leads_to_another_database_before_the_vote_is_told_of_by_the_next_open(
    world: Related, tmp_path: Path
) -> None:
    astray = with_the_tables(another_database(world, tmp_path))
    world.source.produce(2)
    with pytest.raises(Crash):
        world.run(3, {"stage.done": crash})
    there = replace(world, db=astray)
    run = Run("dag", "run 3")
    report = there.coordinator().stage(run).stage
    with pytest.raises(Refused) as refused:
        there.coordinator().vote(run, report)
    assert "or edited the connection, which leads to " in refused.value.what
    assert refused.value.remedy == codes.SQL_MARKER_CHANGED.remedy
    error = told(there)
    assert error.code is codes.TABLE_ELSEWHERE and error.remedy.startswith("Point the connection to the database of")
    assert world.run(3) is None, "all its tasks, cleared"
    assert astray.run("SELECT count(*) FROM orders") == [(0,)]
    goes_on(world)


@pytest.mark.few(1)
def test_a_file_that_was_moved_with_its_marker_goes_on(world: Related, tmp_path: Path) -> None:
    if isinstance(world.db, SqliteDb):
        moved = world.db.path.rename(tmp_path / "moved.db")
        goes_on(replace(world, db=SqliteDb(moved)))
    else:
        goes_on(replace(world, db=replace(world.db)))
