"""Committing an epoch to PostgreSQL: the SQL sink against a bare COPY of psycopg that loads the same rows.

Both load the same table of one server on this machine, in one transaction each. The bare COPY has its rows in memory
already, once as the text that PostgreSQL reads, once as the tuples that a program has; the sink reads them from staging
and makes that text, and looks at its marker. The server runs without fsync, which both would wait for once.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psycopg
import pyarrow as pa

from airflow_epochs import SqlSink
from airflow_epochs.contracts import Connection, SinkAttempt
from airflow_epochs.model import JsonDict, Staged, TransactionId
from airflow_epochs.sinks.sql.values import csv_of
from stack.postgres import Postgres
from tests.perf.figures import RUNS, Figure, figure, peak_mb, ratios, stopwatch
from tests.support.delta_world import attempt_of, transaction
from tests.support.environment import Environment
from tests.support.sql_world import PostgresDb, SqlWorld, new_postgres

ROWS = 300_000
MANY = 4
"""How many times as many rows are in the larger of the two epochs whose memory is compared."""
COLUMNS = "id bigint, at timestamp with time zone, what text"
FIELDS: list[JsonDict] = [
    {"name": "id", "type": "long"},
    {"name": "at", "type": "timestamp"},
    {"name": "what", "type": "string"},
]


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, Postgres(Path(folder, "postgres")) as server:
        db = new_postgres(server)
        feed = Feed(SqlWorld(db, Path(folder)), db)
        data = _data(ROWS)
        text, tuples = csv_of(data.combine_chunks().to_batches()[0], FIELDS), list(_tuples(data))
        ours, of_text, of_tuples = [], [], []
        for _ in range(RUNS + 1):  # the first warms up
            ours.append(feed.epoch(data))
            of_text.append(feed.bare("csv", lambda copy: copy.write(text)))
            of_tuples.append(feed.bare("text", lambda copy: _write_rows(copy, tuples)))
        peaks = [feed.peak(_data(rows)) for rows in (ROWS, MANY * ROWS)]
    return [
        figure("SQL sink: rows committed, of 200 bytes", "rows/s", [ROWS / seconds for seconds in ours[1:]]),
        figure("SQL sink ÷ bare COPY of text made before", "ratio", ratios(ours[1:], of_text[1:])),
        figure("SQL sink ÷ bare COPY of psycopg, row by row", "ratio", ratios(ours[1:], of_tuples[1:]), least=1),
        figure("SQL sink: memory of the process that commits", "MB", peaks[:1], most=300),
        figure(f"SQL sink: memory for {MANY} times as many rows ÷", "ratio", [peaks[1] / peaks[0]], most=1.25),
    ]


def _data(rows: int) -> pa.Table:
    """Rows that do not compress well, or a whole file of them would fit into memory unnoticed."""
    start, drawn = datetime(2026, 1, 1, tzinfo=timezone.utc), random.Random(0)
    return pa.table(
        {
            "id": range(rows),
            "at": pa.array([start + timedelta(microseconds=n) for n in range(rows)], pa.timestamp("us", "UTC")),
            "what": [drawn.randbytes(80).hex() for _ in range(rows)],
        }
    )


def _tuples(data: pa.Table) -> zip[tuple[object, ...]]:
    return zip(*(column.to_pylist() for column in data.columns), strict=True)


def _write_rows(copy: psycopg.Copy, rows: Iterable[tuple[object, ...]]) -> None:
    for row in rows:
        copy.write_row(row)


class Feed:
    """Epochs of one sink, and bare loads of the same table."""

    def __init__(self, world: SqlWorld, db: PostgresDb) -> None:
        self.world, self.db = world, db
        self.world.db.run(f"CREATE TABLE bench ({COLUMNS})")
        self.sink = world.sink("bench", rehearse=False)
        self.previous: TransactionId | None = None

    def epoch(self, data: pa.Table) -> float:
        """Commit an epoch; the seconds that took."""
        attempt, staged = self._staged(data)
        with stopwatch() as seconds:
            self.sink.commit(attempt, staged, self.world.env)
        self._clear_away(attempt, staged)
        return seconds()

    def bare(self, form: str, load: Callable[[psycopg.Copy], object]) -> float:
        """Copy the rows in one transaction, and nothing else."""
        options = {"autocommit": False, "options": f"-c search_path={self.db.schema}"}
        with stopwatch() as seconds:
            with self.db.server.connect(**options) as connection:
                with connection.cursor().copy(f"COPY bench FROM STDIN (FORMAT {form})".encode()) as copy:
                    load(copy)
        self.world.db.run("TRUNCATE bench")
        return seconds()

    def peak(self, data: pa.Table) -> float:
        """The most memory that a process had that did nothing but commit an epoch."""
        attempt, staged = self._staged(data)
        result = self.world.folder / "peak"
        connection = asdict(self.world.db.connection())
        args = (self.sink.spec(), connection, str(attempt.txn), str(attempt.previous), asdict(staged), str(result))
        process = multiprocessing.get_context("spawn").Process(target=commit_and_weigh, args=args)
        process.start()
        process.join()
        self._clear_away(attempt, staged)
        return float(result.read_text())

    def _staged(self, data: pa.Table) -> tuple[SinkAttempt, Staged]:
        epoch = self.previous.epoch + 1 if self.previous else 1
        attempt = attempt_of(transaction(epoch, pipeline="bench"), self.previous)
        self.previous = attempt.txn
        return attempt, self.world.staged(self.sink, attempt, data)

    def _clear_away(self, attempt: SinkAttempt, staged: Staged) -> None:
        self.sink.discard(attempt, staged.place, self.world.env, published=True)
        self.world.db.run("TRUNCATE bench")


def commit_and_weigh(
    spec: JsonDict, connection: JsonDict, txn: str, previous: str, staged: JsonDict, result: str
) -> None:
    env = Environment(connections={"db": Connection(**connection)})
    attempt = attempt_of(TransactionId.parse(txn), TransactionId.parse(previous))
    SqlSink.from_spec(spec).commit(attempt, Staged(**staged), env)
    Path(result).write_text(str(peak_mb()))
