"""Databases for tests of the SQL sink, each with a table ``orders``; and commits in processes that can be killed."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sqlite3
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from airflow_epochs.contracts import Connection, SinkAttempt
from airflow_epochs.model import JsonDict, Receipt, Staged, TransactionId, Vote, VoteKind
from airflow_epochs.sinks.sql.sink import SqlSink
from stack.postgres import DATABASE, USER, Postgres
from tests.support.delta_world import attempt_of, promised, rows, stage_with_deltalake, transaction
from tests.support.environment import Action, Environment
from tests.support.waiting import wait_until

DEADLINE_S = 60.0
_PRELOADED = [
    "airflow_epochs.sinks.sql.participant",
    "tests.support.delta_world",
    "tests.support.sql_world",
    "psycopg",
    "pyarrow.csv",
    "pyarrow.parquet",
]


@dataclass(frozen=True)
class PostgresDb:
    """A schema of its own in a server."""

    server: Postgres
    schema: str
    kind: str = "postgres"

    def connection(self, **changed: Any) -> Connection:
        values = {
            "conn_id": "db",
            "conn_type": "postgres",
            "host": "127.0.0.1",
            "port": self.server.port,
            "login": USER,
            "password": self.server.password,
            "schema": DATABASE,
            **changed,
        }
        return Connection(**values)

    def table(self, name: str = "orders") -> str:
        return f"{self.schema}.{name}"

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        with self.server.connect(options=f"-c search_path={self.schema}") as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@dataclass(frozen=True)
class SqliteDb:
    """A file."""

    path: Path
    kind: str = "sqlite"

    def connection(self, **changed: Any) -> Connection:
        return Connection(**{"conn_id": "db", "conn_type": "sqlite", "host": str(self.path), **changed})

    def table(self, name: str = "orders") -> str:
        return name

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as connection:
            for statement in statements:
                found = connection.execute(statement).fetchall()
            return found


Db = PostgresDb | SqliteDb


def new_postgres(server: Postgres) -> PostgresDb:
    schema = f"s{uuid.uuid4().hex}"
    with server.connect() as connection:
        connection.execute(f"CREATE SCHEMA {schema}".encode())
    return PostgresDb(server, schema)


def new_sqlite(folder: Path) -> SqliteDb:
    path = folder / "test.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")
    return SqliteDb(path)


@dataclass
class SqlWorld:
    """A database with what a sink needs around it."""

    db: Db
    folder: Path
    env: Environment = field(default_factory=Environment)

    def __post_init__(self) -> None:
        self.env.connections["db"] = self.db.connection()

    def sink(self, table: str = "orders", **options: Any) -> SqlSink:
        return SqlSink("orders", "db", self.db.table(table), staging=str(self.folder / "staging"), **options)

    def voted(self, sink: SqlSink, attempt: SinkAttempt, data: pa.Table) -> Vote:
        plan = sink.plan_stage(attempt, uuid.uuid4().hex, self.env)
        return sink.vote(attempt, stage_with_deltalake(plan, data), self.env)

    def reason_against(self, sink: SqlSink, data: pa.Table) -> str:
        """Why it votes against a first epoch of these rows, which it must."""
        vote = self.voted(sink, attempt_of(transaction(1)), data)
        assert vote.vote is VoteKind.VOTE_ABORT
        assert vote.reason
        return vote.reason

    def staged(self, sink: SqlSink, attempt: SinkAttempt, data: pa.Table) -> Staged:
        return promised(self.voted(sink, attempt, data))

    def epoch(
        self, sink: SqlSink, txn: TransactionId, previous: TransactionId | None, data: pa.Table
    ) -> tuple[Staged, Receipt]:
        attempt = attempt_of(txn, previous)
        staged = self.staged(sink, attempt, data)
        return staged, sink.commit(attempt, staged, self.env)

    def second_epoch(self, sink: SqlSink) -> SinkAttempt:
        """Show an epoch; the attempt of the next."""
        first = transaction(1)
        self.epoch(sink, first, None, rows(1))
        return attempt_of(transaction(2), first)

    def ids(self, table: str = "orders") -> list[int]:
        return [row[0] for row in self.db.run(f"SELECT id FROM {table} ORDER BY id")]

    def marker_rows(self) -> list[tuple[Any, ...]]:
        return self.db.run("SELECT pipeline, sink, epoch, txn_id, row_count FROM epoch_markers")

    def commit_elsewhere(self, sink: SqlSink, attempt: SinkAttempt, staged: Staged, at: Signals) -> Committer:
        """Start a commit in a process of its own that sends itself signals at phases."""
        return Committer(sink.spec(), self.env.connections, attempt, staged, at)


Signals = dict[str, int]


class Committer:
    """One commit in a process of its own. A context manager: the process is gone afterwards.

    ``grown_mb``: by how much its memory was ever larger than before, once it has answered.
    """

    def __init__(
        self, spec: JsonDict, connections: dict[str, Connection], attempt: SinkAttempt, staged: Staged, at: Signals
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self.grown_mb = 0.0
        self._answer, theirs = context.Pipe(duplex=False)
        self.process: ForkServerProcess = context.Process(
            target=_commit, args=(theirs, spec, connections, attempt, staged, at)
        )
        self.process.start()
        theirs.close()

    def __enter__(self) -> Committer:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()

    def signal(self, number: int) -> None:
        assert self.process.pid
        os.kill(self.process.pid, number)

    def wait_stopped(self) -> None:
        stat = Path(f"/proc/{self.process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", what="the writer stops")

    def wait_killed(self) -> None:
        self.process.join(DEADLINE_S)
        assert self.process.exitcode == -signal.SIGKILL, self.process.exitcode

    def answer(self) -> Receipt | str:
        """The receipt, or the name of the error."""
        assert self._answer.poll(DEADLINE_S), "no answer"
        answer: Receipt | str
        answer, self.grown_mb = self._answer.recv()
        return answer


def _commit(
    answer: Any, spec: JsonDict, connections: dict[str, Connection], attempt: SinkAttempt, staged: Staged, at: Signals
) -> None:
    before = psutil.Process().memory_info().rss
    actions: dict[str, Action] = {phase: partial(os.kill, os.getpid(), number) for phase, number in at.items()}
    try:
        said: Receipt | str = SqlSink.from_spec(spec).commit(
            attempt, staged, Environment(connections=connections, at=actions)
        )
    except Exception as error:
        said = type(error).__name__
    grown_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before / 2**20
    answer.send((said, grown_mb))


Committed = tuple[SqlSink, SinkAttempt, Staged]


def committed_while_another_waits(pg: SqlWorld, first: Committed, second: Committed) -> tuple[Receipt, Receipt]:
    """Commit ``first``, and hold it behind its rows until ``second`` waits for its lock; the receipts of both."""
    written, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        written.set()
        assert goes_on.wait(DEADLINE_S)

    held = Environment(connections=pg.env.connections, at={"sql.copied": hold})
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with ThreadPoolExecutor(2) as pool:
        earlier = pool.submit(first[0].commit, *first[1:], held)
        assert written.wait(DEADLINE_S)
        later = pool.submit(second[0].commit, *second[1:], pg.env)
        wait_until(lambda: pg.db.run(waiting) == [(1,)], what="the second commit waits")
        goes_on.set()
        return earlier.result(DEADLINE_S), later.result(DEADLINE_S)
