"""Names that have a meaning in a driver's statements, such as ``%s``, ``?`` and ``:x``, are names like any others."""

from __future__ import annotations

import re
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt, EpochError
from airflow_epochs.sinks.sql.table import quoted
from airflow_epochs.spark.driver.delta.keys import DELETED
from tests.support.delta_world import transaction
from tests.support.sql_pipeline import COLUMNS, Related
from tests.support.sql_world import Db, PostgresDb, SqliteDb, SqlWorld

NAMES = {"percent": "50% off", "placeholders": "a%s :x ? %(b)s $1", "quotes": """it's "so" %% \\%b"""}


class OddPostgres(PostgresDb):
    """The schema and every table have names that must be quoted."""

    def table(self, name: str = "orders") -> str:
        return f"{quoted(self.schema)}.{quoted(name)}"

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        with self.server.connect() as connection:
            for statement in (f"SET search_path = {quoted(self.schema)}", *statements):
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


class OddSqlite(SqliteDb):
    """As ``OddPostgres``, without schemas."""

    def table(self, name: str = "orders") -> str:
        return quoted(name)


@pytest.fixture(params=list(NAMES.values()), ids=list(NAMES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def odd(db: Db, name: str) -> Db:
    if isinstance(db, SqliteDb):
        return OddSqlite(db.path)
    made = OddPostgres(db.server, f"{name} {uuid.uuid4().hex[:8]}")
    with db.server.connect() as connection:
        connection.execute(f"CREATE SCHEMA {quoted(made.schema)}".encode())
    return made


# -- a pipeline -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pipeline(odd: Db, name: str, tmp_path: Path) -> Related:
    """Two epochs, in a table that has a unique index."""
    odd.run(creation(odd, name))
    made = Related(tmp_path, odd, names=("orders",), tables={"orders": name})
    for number in (1, 2):
        made.source.produce(3)
        assert made.run(number) is None
    return made


def creation(db: Db, name: str) -> str:
    return f'CREATE TABLE {db.table(name)} ({COLUMNS}, PRIMARY KEY (partition, "offset"))'


def goes_on(pipeline: Related, name: str) -> None:
    """One more epoch, and every row is there once."""
    pipeline.source.produce(2)
    error = pipeline.run(90)
    assert error is None, error
    pipeline.require_all_shown(pipeline.db.table(name))


def under_a_new_name(pipeline: Related, name: str, first: int) -> Related:
    return replace(pipeline, names=("again",), tables={"again": name}, backfill={"again": first})


def told(pipeline: Related) -> EpochError:
    error = pipeline.run(80)
    assert isinstance(error, EpochError), error
    return error


def test_a_dropped_table_of_any_name_is_filled_anew_under_another_name_of_the_sink(
    pipeline: Related, name: str
) -> None:
    pipeline.db.run(f"DROP TABLE {pipeline.db.table(name)}", "DROP TABLE epoch_markers")
    assert told(pipeline).code is codes.TABLE_GONE
    pipeline.db.run(creation(pipeline.db, name))
    goes_on(under_a_new_name(pipeline, name, first=1), name)


def test_a_restored_table_of_any_name_gets_the_missing_epochs_under_another_name_of_the_sink(
    pipeline: Related, name: str
) -> None:
    table = pipeline.db.table(name)
    copies = {table: "copied_rows", "epoch_markers": "copied_markers"}
    pipeline.db.run(*(f"CREATE TABLE {copy} AS SELECT * FROM {each}" for each, copy in copies.items()))
    pipeline.source.produce(3)
    assert pipeline.run(3) is None
    for each, copy in copies.items():
        pipeline.db.run(f"DELETE FROM {each}", f"INSERT INTO {each} SELECT * FROM {copy}")
    assert told(pipeline).code is codes.SINK_BEHIND
    goes_on(under_a_new_name(pipeline, name, first=3), name)


@pytest.mark.few(6)
@pytest.mark.parametrize("lose", ["DROP TABLE epoch_markers", "DELETE FROM epoch_markers"])
def test_the_marker_of_a_table_of_any_name_is_put_back_by_the_statement_in_the_error(
    pipeline: Related, name: str, lose: str
) -> None:
    pipeline.db.run(lose)
    error = told(pipeline)
    assert isinstance(error, Corrupt) and error.code is codes.MARKERS_GONE
    (found,) = re.findall(r"((?:CREATE TABLE (?:[^;])*; )?INSERT INTO [^;]*);", error.remedy)
    pipeline.db.run(*found.split("; "))
    goes_on(pipeline, name)


# -- an upsert with deletions ---------------------------------------------------------------------------------------


def changes(name: str, *rows: tuple[int, str | None, int]) -> pa.Table:
    """Key, value (None: a deletion) and sequence, as Spark stages them."""
    keys, values, sequences = zip(*rows, strict=True)
    return pa.table(
        {
            f"id {name}": pa.array(keys, pa.int64()),
            f"name {name}": pa.array(values, pa.string()),
            f"lsn {name}": pa.array(sequences, pa.int64()),
            DELETED: pa.array([value is None for value in values]),
        }
    )


def columns(name: str) -> str:
    key, value, sequence = (quoted(f"{each} {name}") for each in ("id", "name", "lsn"))
    return f"{key} bigint PRIMARY KEY, {value} text, {sequence} bigint"


@pytest.fixture
def world(odd: Db, name: str, tmp_path: Path) -> SqlWorld:
    """A table whose columns have such names too; in PostgreSQL with a sequence and a trigger."""
    odd.run(f"CREATE TABLE {odd.table(name)} ({columns(name)})")
    if odd.kind == "postgres":
        odd.run(
            f"ALTER TABLE {odd.table(name)} ADD COLUMN {quoted(f'nr {name}')} serial",
            f"CREATE TRIGGER skips_equal_rows BEFORE UPDATE ON {odd.table(name)} FOR EACH ROW "
            "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        )
    return SqlWorld(odd, tmp_path)


def test_keys_columns_notes_sequences_and_triggers_may_have_any_name(world: SqlWorld, name: str) -> None:
    options = {"mode": "upsert", "keys": [f"id {name}"], "sequence_by": f"lsn {name}", "delete_when": "op = 'd'"}
    sink, txns = world.sink(name, **options), [transaction(number) for number in (1, 2, 3)]
    sink.require_ready("orders", None, world.env)
    world.epoch(sink, txns[0], None, changes(name, (1, "Ann", 10), (2, "?%s:x", 11)))
    world.db.run("ALTER TABLE epoch_markers DROP COLUMN target")  # as in version 0.1: the next vote adds it
    world.epoch(sink, txns[1], txns[0], changes(name, (1, None, 20), (2, "Bea", 21), (3, "%", 22)))
    world.epoch(sink, txns[2], txns[1], changes(name, (1, "late", 15), (2, "late", 15), (3, "%", 22)))
    key, value = quoted(f"id {name}"), quoted(f"name {name}")
    shown = world.db.run(f"SELECT {key}, {value} FROM {world.db.table(name)} ORDER BY 1")
    assert shown == [(2, "Bea"), (3, "%")]
    assert world.db.run("SELECT epoch, target FROM epoch_markers") == [(3, name)]


def test_types_may_have_any_name(pg: SqlWorld) -> None:
    """Such types are PostgreSQL's. A deletion leaves its other columns NULL, whatever their type."""
    pg.db.run("""CREATE TYPE "id %s" AS ENUM ('a', 'b')""", 'CREATE DOMAIN "50% off" AS text NOT NULL')
    pg.db.run('CREATE TABLE orders (id "id %s" PRIMARY KEY, name "50% off", lsn bigint)')
    sink, first = pg.sink(mode="upsert", keys=["id"], sequence_by="lsn", delete_when="op = 'd'"), transaction(1)

    def staged(*rows: tuple[str, str | None, int]) -> pa.Table:
        keys, values, sequences = zip(*rows, strict=True)
        deleted = [value is None for value in values]
        return pa.table({"id": keys, "name": pa.array(values, pa.string()), "lsn": sequences, DELETED: deleted})

    pg.epoch(sink, first, None, staged(("a", "Ann", 1), ("b", "Bob", 1)))
    pg.epoch(sink, transaction(2), first, staged(("a", None, 2), ("b", "Bea", 2)))
    assert pg.db.run("SELECT id, name FROM orders") == [("b", "Bea")]
