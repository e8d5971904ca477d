"""What a database hears of a task that looks at an epoch's rows and writes none."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pyarrow as pa

from airflow_epochs.sinks.sql.load import Load
from airflow_epochs.sinks.sql.sqlite import SqliteSession
from airflow_epochs.sinks.sql.table import SqlTable


def test_a_session_is_not_idle_while_its_task_looks_at_many_rows() -> None:
    batches = pa.table({"id": range(5)}).to_batches(max_chunksize=1)
    heard: list[str] = []
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        session = SqliteSession("test")
        session.begin(connection)
        connection.execute("CREATE TABLE orders (id bigint)")
        table = session.table(None, "orders")
        assert isinstance(table, SqlTable)
        connection.set_trace_callback(heard.append)
        load = Load(session=session, table=table, fields=[{"name": "id", "type": "long"}], columns=["id"])
        load.look(lambda: batches, 5)
        assert len(heard) == len(batches)
        assert connection.execute("SELECT * FROM orders").fetchall() == []
