"""An error may end the whole transaction in SQLite. A statement after it would be one of its own, and stay."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.sql.database import Session, part_of
from airflow_epochs.sinks.sql.sqlite import Sqlite
from airflow_epochs.sinks.sql.table import SqlTable

ORDERS = SqlTable(schema="main", name="orders", columns=(), unique={}, problem=None)
INSERT = "INSERT INTO orders VALUES (1)"
ROWS = pa.table({"id": [1]}).to_batches()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "test.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
        connection.execute("CREATE TABLE strict (id UNIQUE ON CONFLICT ROLLBACK)")
    return path


@pytest.fixture
def session(file: Path) -> Iterator[Session]:
    """One whose transaction an error has ended."""
    with Sqlite().connect(Connection(conn_id="db", conn_type="sqlite", host=str(file)), ["test"]) as session:
        session.execute(INSERT)
        with pytest.raises(Refused, match="UNIQUE constraint failed"), part_of(session):
            session.execute("INSERT INTO strict VALUES (1), (1)")
        yield session


@pytest.mark.parametrize(
    "goes_on",
    [
        lambda session: session.execute(INSERT),
        lambda session: session.change(INSERT),
        lambda session: session.load(ORDERS, ["id"], [{"name": "id", "type": "long"}], ROWS),
        lambda session: part_of(session).__enter__(),
        lambda session: session.settle(),
        lambda session: session.commit(),
    ],
    ids=["execute", "change", "load", "savepoint", "settle", "commit"],
)
def test_nothing_follows_an_error_that_ended_the_transaction(
    session: Session, file: Path, goes_on: Callable[[Session], object]
) -> None:
    with pytest.raises(Refused, match="rolled back the whole transaction") as refused:
        goes_on(session)
    assert refused.value.code is codes.SQL_ROW_REFUSED
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT * FROM orders").fetchall() == []
