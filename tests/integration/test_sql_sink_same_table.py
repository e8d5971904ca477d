"""Two SQL sinks of one pipeline on one table, whatever connections and spellings call it, are refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.sql.sink import SqlSink
from tests.support.sql_pipeline import Related, related
from tests.support.sql_world import PostgresDb, new_postgres, new_sqlite

pytestmark = pytest.mark.proof

ONE_TABLE = {"lines": "orders"}
PLAIN_USER = "somebody_with_few_rights"


@pytest.fixture
def plain_user(pg_db: PostgresDb) -> Iterator[Mapping[str, Any]]:
    """What the connection of a user says who may use the tables of the schema, and nothing else."""
    pg_db.run(
        f"CREATE ROLE {PLAIN_USER} LOGIN PASSWORD 'plain'",
        f"GRANT USAGE, CREATE ON SCHEMA {pg_db.schema} TO {PLAIN_USER}",
        f"ALTER DEFAULT PRIVILEGES IN SCHEMA {pg_db.schema} GRANT ALL ON TABLES TO {PLAIN_USER}",
    )
    yield {"login": PLAIN_USER, "password": "plain"}
    pg_db.run(f"DROP OWNED BY {PLAIN_USER}", f"DROP ROLE {PLAIN_USER}")


def require_refused(world: Related, place: str, number: int = 1) -> None:
    """Before anything is staged; a DAG without the second sink takes the same offsets."""
    shown = world.shown()
    error = world.run(number)
    assert isinstance(error, Refused)
    assert f"The sinks 'orders' and 'lines' write to the same place: table {place}" in error.what
    assert "Give each sink a table of its own" in error.remedy
    assert world.ledger.tries(number) == []
    assert world.shown() == shown
    assert replace(world, names=("orders",), backfill={}).run(number + 1) is None
    world.require_all_shown("orders")


def test_two_connections_to_one_database_of_postgres_are_seen_through(
    pg_db: PostgresDb, tmp_path: Path, plain_user: Mapping[str, Any]
) -> None:
    world = related(tmp_path, pg_db, tables=ONE_TABLE, connections={"lines": {"host": "localhost", **plain_user}})
    require_refused(world, f'"{pg_db.schema}"."orders" of database \'postgres\'')


class WithoutSchema(Related):
    """The second sink names the first one's table without its schema."""

    def sink(self, name: str) -> SqlSink:
        found = super().sink(name)
        return found if name == "orders" else SqlSink(name, found.conn_id, "Orders", staging=found.staging)


def test_a_table_with_and_without_its_schema_is_one_table(pg_db: PostgresDb, tmp_path: Path) -> None:
    related(tmp_path, pg_db)
    search_path = {"extra": {"options": f"-c search_path={pg_db.schema}"}}
    require_refused(
        WithoutSchema(tmp_path, pg_db, connections={"db": search_path}), f'"{pg_db.schema}"."orders" of database'
    )


def test_a_sink_that_is_to_catch_up_in_the_table_of_another_one_is_refused(pg_db: PostgresDb, tmp_path: Path) -> None:
    world = related(tmp_path, pg_db, tables=ONE_TABLE, connections={"lines": {"host": "localhost"}})
    assert replace(world, names=("orders",)).run(1) is None
    world.source.produce(3)
    shown = world.shown()
    error = replace(world, backfill={"lines": 1}).run(2)
    assert isinstance(error, Refused) and error.code is codes.SINK_RENAMED
    assert "under the name 'orders'" in error.what and "give the sink another table" in error.remedy
    assert world.shown() == shown
    require_refused(world, f'"{pg_db.schema}"."orders" of database', number=3)


def test_a_table_that_was_moved_to_another_schema_is_not_filled_again_under_a_new_name(
    pg_db: PostgresDb, tmp_path: Path
) -> None:
    world = replace(related(tmp_path, pg_db), names=("orders",))
    assert world.run(1) is None
    world.source.produce(3)
    elsewhere = new_postgres(pg_db.server)
    pg_db.run("DROP TABLE lines", f"ALTER TABLE orders SET SCHEMA {elsewhere.schema}")
    today = replace(world, db=elsewhere, names=("gold",), tables={"gold": "orders"}, backfill={"gold": 1})
    error = today.run(2)
    assert isinstance(error, Refused) and error.code is codes.SINK_RENAMED and "up to epoch 1" in error.what
    assert replace(today, backfill={}).run(3) is None
    today.require_all_shown("orders")


def test_tables_that_are_only_called_alike_are_two(pg_db: PostgresDb, tmp_path: Path) -> None:
    pg_db.run(f"CREATE DATABASE {pg_db.schema}")
    elsewhere = PostgresDb(pg_db.server, pg_db.schema)
    with pg_db.server.connect(dbname=pg_db.schema) as other:
        other.execute(f"CREATE SCHEMA {pg_db.schema}".encode())
        other.execute(f'CREATE TABLE {elsewhere.table()} (source text, partition bigint, "offset" bigint)'.encode())
        other.execute(f"ALTER TABLE {elsewhere.table()} ADD payload text".encode())
        world = related(tmp_path, pg_db, tables=ONE_TABLE, connections={"lines": {"schema": pg_db.schema}})
        assert world.run(1) is None
        world.require_all_shown("orders")
        assert other.execute(f"SELECT count(*) FROM {elsewhere.table()}".encode()).fetchall() == [(4,)]


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_two_paths_to_one_file_of_sqlite_are_seen_through(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    db = new_sqlite(tmp_path)
    link(db.path, other := tmp_path / "other.db")
    world = related(tmp_path, db, tables=ONE_TABLE, connections={"lines": {"host": str(other)}})
    require_refused(world, f"orders of the SQLite file {db.path.stat().st_ino} on device")


def test_a_copy_of_a_file_of_sqlite_is_another_database(tmp_path: Path) -> None:
    db, other = new_sqlite(tmp_path), tmp_path / "other.db"
    world = related(tmp_path, db, tables=ONE_TABLE, connections={"lines": {"host": str(other)}})
    shutil.copyfile(db.path, other)
    assert world.run(1) is None
    world.require_all_shown("orders")
    assert len(replace(db, path=other).run("SELECT 1 FROM orders")) == 4
