"""Texts that tell which row is newer, in databases whose texts are not UTF-8: Spark orders texts by their UTF-8."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_epochs.contracts import Connection
from stack.postgres import Postgres
from tests.support.sql_upserts import SqlEpochs, changes
from tests.support.sql_world import PostgresDb, SqliteDb, SqlWorld


@dataclass(frozen=True)
class EncodedDb(PostgresDb):
    """A database of its own in a server."""

    database: str = ""

    def connection(self, **changed: Any) -> Connection:
        return super().connection(**{"schema": self.database, **changed})

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        with self.server.connect(dbname=self.database, client_encoding="utf8") as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(params=["WIN1252", "UTF8", "SQL_ASCII"])
def encoded(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path) -> Iterator[SqlWorld]:
    name = f"texts_in_{request.param.lower()}"
    creating = f"CREATE DATABASE {name} ENCODING '{request.param}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
    with postgres.connect(autocommit=True) as connection:
        connection.execute(creating.encode())
        yield SqlWorld(EncodedDb(postgres, "public", database=name), tmp_path)
        connection.execute(f"DROP DATABASE {name}".encode())


def test_texts_have_the_order_of_their_utf_8_whatever_the_encoding_of_the_database(encoded: SqlWorld) -> None:
    epochs = SqlEpochs(encoded, "id varchar(9) PRIMARY KEY, name text, lsn varchar(9)")
    for name, lsn in (("old", "é"), ("new", "€"), ("older", "ü")):
        epochs.takes(changes(("k", name, lsn), lsn=pa.string()))
    assert epochs.rows() == [("k", "new")]
    for name_or_none, lsn in ((None, "€"), ("older", "ü")):
        epochs.takes(changes(("k", name_or_none, lsn), lsn=pa.string()))
    assert epochs.rows() == []
    epochs.takes(changes(("k", "newer", "™"), lsn=pa.string()))
    assert epochs.rows() == [("k", "newer")]


def test_texts_tell_no_order_in_a_file_of_utf_16_whose_bytes_sort_in_another_way_than_sparks(tmp_path: Path) -> None:
    path = tmp_path / "wide.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA encoding = 'UTF-16le'")
        connection.execute("CREATE TABLE first (id)")  # only now is the encoding fixed
    epochs = SqlEpochs(SqlWorld(SqliteDb(path), tmp_path), "id TEXT PRIMARY KEY, name TEXT, lsn")
    told = ("'lsn', which is string in the rows", "`PRAGMA encoding` is UTF-8")
    epochs.refuses(changes(("k", "old", "a"), lsn=pa.string()), *told)
    epochs.takes(changes(("k", "old", 255)))
    epochs.takes(changes(("k", "new", 256)))
    assert epochs.rows() == [("k", "new")]
