"""The books of a pipeline, one per sink, each read by a stranger: deltalake, a consumer, psycopg, sqlite3.

Every row carries the epoch that booked it, so a reader can look at all sinks up to a complete epoch, whatever was
compacted, vacuumed or committed since. Where a sink does not tell which attempts it has committed, the rows do.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable

from airflow_epochs.delta.table import App
from airflow_epochs.event_time import micros
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import CompleteRecord, Marker, TransactionId
from airflow_epochs.testing.history import Origin, SinkState, VisibleRow
from stack.postgres import Postgres
from tests.chaos.windows import Closed, Late, Total, Window
from tests.support.delta_history import commits_of

CREATE_TABLE = (
    "CREATE TABLE {table} ({id}, topic text, part integer, place bigint, crc bigint, epoch bigint, txn_id text, "
    "account text, amount bigint, memo text)"
)
"""``id`` grows with every row, so it tells in which order epochs were booked."""
READ_S = 20


class Sums(NamedTuple):
    """Of all rows up to an epoch: how many, of how many different records, and what their amounts add up to."""

    rows: int
    records: int
    amount: int


class Book(Protocol):
    def sums(self, epoch: int) -> Sums:
        """Of the rows of all epochs up to this one."""
        ...

    def state(self, empty: Iterable[str]) -> SinkState:
        """Everything, at the end.

        Args:
            empty: The transaction ids of complete epochs without rows, which leave no trace in a topic or a database.
        """
        ...

    def commits(self) -> Sequence[Marker] | None:
        """The epochs in the order in which they were booked, where the sink itself tells; None where it does not."""
        ...

    def fingerprint(self) -> Mapping[str, str]:
        """Changes if, and only if, anything changes that a reader can see."""
        ...


@dataclass(frozen=True)
class DeltaBook:
    """A Delta table."""

    path: Path
    app: App

    def sums(self, epoch: int) -> Sums:
        table = self._table("partition", "offset", "amount", "epoch")
        rows = table.filter(pc.field("epoch") <= epoch)
        distinct = rows.group_by(["partition", "offset"]).aggregate([]).num_rows
        return Sums(rows.num_rows, distinct, pc.sum(rows["amount"]).as_py() or 0)

    def state(self, empty: Iterable[str]) -> SinkState:
        table = self._table("topic", "partition", "offset", "crc")
        columns = [column.to_pylist() for column in table.columns]
        rows = [VisibleRow(topic, p, offset, str(crc)) for topic, p, offset, crc in zip(*columns, strict=True)]
        return SinkState(rows=rows, commits=self.commits())

    def commits(self) -> Sequence[Marker]:
        return commits_of(self.path, self.app)

    def fingerprint(self) -> Mapping[str, str]:
        """Of rows and markers. Not of files: a repeat may do upkeep that a fault has kept from being done."""
        rows = sorted(map(str, self._table("topic", "partition", "offset", "crc", "epoch", "amount").to_pylist()))
        return {f"rows of {self.path}": _digest(rows), f"commits of {self.path}": _digest(map(str, self.commits()))}

    def _table(self, *columns: str) -> pa.Table:
        return DeltaTable(str(self.path)).to_pyarrow_table(columns=list(columns))


@dataclass(frozen=True)
class LateBook(DeltaBook):
    """A Delta table of transfers whose window is over."""

    def transfers(self) -> list[tuple[Origin, Late]]:
        """All rows: the transfer, and the epoch that shows it."""
        rows = self._table("topic", "partition", "offset", "crc", "epoch").to_pylist()
        return [(Origin(r["topic"], r["partition"], r["offset"]), Late(r["epoch"], r["crc"])) for r in rows]


@dataclass(frozen=True)
class ClosedBook(DeltaBook):
    """A Delta table of windows that are over. A row stands for several records."""

    def sums(self, epoch: int) -> Sums:
        shown = [(window, closed.total) for window, closed in self.windows() if closed.epoch <= epoch]
        return _sums_of_windows(shown)

    def state(self, empty: Iterable[str]) -> SinkState:
        return SinkState(commits=self.commits())

    def windows(self) -> list[tuple[Window, Closed]]:
        """All rows: the window, its transfers, and the epoch that shows it."""
        return [(_window(row), Closed(row["epoch"], _total(row))) for row in self._rows()]

    def fingerprint(self) -> Mapping[str, str]:
        rows, commits = sorted(map(str, self._rows())), map(str, self.commits())
        return {f"rows of {self.path}": _digest(rows), f"commits of {self.path}": _digest(commits)}

    def _rows(self) -> list[dict[str, Any]]:
        return _rows_of(DeltaTable(str(self.path)))


@dataclass(frozen=True)
class OpenBook(ClosedBook):
    """A state table of windows that are not over: a log of their changes."""

    ledger: Callable[[], Ledger]

    def sums(self, epoch: int) -> Sums:
        """Of the state as this epoch left it, at the version that the epoch has committed."""
        record = self.ledger().complete_record(epoch)
        assert record is not None
        return _sums_of_windows(self.still_open(record, record.receipts["open"].version))

    def still_open(self, record: CompleteRecord, version: int | None = None) -> list[tuple[Window, Total]]:
        """The newest rows of each window that is neither deleted nor over; more than one row of a window is a defect.

        Args:
            version: None: the newest one.
        """
        mark = record.watermarks[0]
        rows = _rows_of(DeltaTable(str(self.path), version=version))
        live = [row for row in rows if mark is None or micros(row["window_end"]) > mark]
        newest = {_window(row): row["__epoch"] for row in sorted(live, key=lambda row: row["__epoch"])}
        now = [row for row in live if row["__epoch"] == newest[_window(row)] and not row["__deleted"]]
        return [(_window(row), _total(row)) for row in now]


class WindowBooks(NamedTuple):
    """The tables of the pipeline of windows. Together they have every transfer once."""

    closed: ClosedBook
    late: LateBook
    open: OpenBook


def _rows_of(table: DeltaTable) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
    return rows


def _window(row: Mapping[str, Any]) -> Window:
    return Window(row["payer"], micros(row["window_start"]))


def _total(row: Mapping[str, Any]) -> Total:
    return Total(row["transfers"], row["amount"], row["crc"])


def _sums_of_windows(shown: Sequence[tuple[Window, Total]]) -> Sums:
    """A window that is shown twice has its records once."""
    rows, amount = (sum(total[column] for _, total in shown) for column in (0, 1))
    return Sums(rows, sum(total.transfers for total in dict(shown).values()), amount)


def _digest(texts: Iterable[str]) -> str:
    return sha256("\n".join(texts).encode()).hexdigest()


class _Booked(NamedTuple):
    """One record of the topic."""

    row: VisibleRow
    epoch: int
    txn_id: str
    amount: int


@dataclass
class TopicBook:
    """A Kafka topic, read on from where the last look ended."""

    bootstrap: str
    topic: str
    _seen: list[_Booked] = field(default_factory=list)
    _at: dict[int, int] = field(default_factory=dict)

    def sums(self, epoch: int) -> Sums:
        self._catch_up()
        found = [each for each in self._seen if each.epoch <= epoch]
        return Sums(len(found), len({each.row.origin for each in found}), sum(each.amount for each in found))

    def state(self, empty: Iterable[str]) -> SinkState:
        self._catch_up()
        txn_ids = (each.txn_id for each in self._seen)
        return SinkState(rows=[each.row for each in self._seen], commits=_commits(txn_ids, empty))

    def commits(self) -> None:
        return None

    def fingerprint(self) -> Mapping[str, str]:
        self._catch_up()
        return {f"{self.topic}[{partition}]": str(end) for partition, end in self._at.items()}

    def _catch_up(self) -> None:
        """Read all that is committed now. Raises OSError if that takes too long."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "reader", "isolation.level": "read_committed"}
        consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True, "log_level": 0})
        deadline = time.monotonic() + READ_S
        with contextlib.closing(consumer):
            partitions = consumer.list_topics(self.topic, timeout=5).topics[self.topic].partitions
            consumer.assign([TopicPartition(self.topic, number, self._at.get(number, 0)) for number in partitions])
            left = set(partitions)
            while left:
                if time.monotonic() > deadline:
                    raise OSError(f"{self.topic} could not be read to its end")
                for message in consumer.consume(5_000, timeout=1):
                    if message.error():
                        left.discard(message.partition())
                    else:
                        self._seen.append(_booked(message.value()))
                        self._at[message.partition()] = message.offset() + 1


def _booked(value: bytes) -> _Booked:
    record = json.loads(value)
    origin = record["origin"]
    row = VisibleRow(origin["topic"], origin["partition"], origin["offset"], str(record["crc"]))
    return _Booked(row, record["epoch"], record["txn_id"], record["amount"])


@dataclass(frozen=True)
class SqlBook:
    """A table of a database; ``query`` answers a SELECT."""

    query: Callable[[str], list[tuple[Any, ...]]]
    table: str

    def sums(self, epoch: int) -> Sums:
        counts = "count(*), count(DISTINCT part || '/' || place), coalesce(sum(amount), 0)"
        ((rows, records, amount),) = self.query(f"SELECT {counts} FROM {self.table} WHERE epoch <= {int(epoch)}")
        return Sums(rows, records, int(amount))

    def state(self, empty: Iterable[str]) -> SinkState:
        found = self.query(f"SELECT topic, part, place, crc, txn_id FROM {self.table} ORDER BY id")
        rows = [VisibleRow(topic, part, place, str(crc)) for topic, part, place, crc, _ in found]
        return SinkState(rows=rows, commits=_commits((row[4] for row in found), empty))

    def commits(self) -> None:
        return None

    def fingerprint(self) -> Mapping[str, str]:
        ((rows, newest),) = self.query(f"SELECT count(*), max(id) FROM {self.table}")
        return {self.table: f"{rows} rows, the newest {newest}"}


def _commits(txn_ids: Iterable[str], empty: Iterable[str]) -> list[str]:
    """The attempts of the rows, in their order; those without rows where their epoch belongs."""
    shown = list(dict.fromkeys(txn_ids))
    for txn_id in empty:
        at = next((index for index, each in enumerate(shown) if _epoch(each) > _epoch(txn_id)), len(shown))
        shown.insert(at, txn_id)
    return shown


def _epoch(txn_id: str) -> int:
    return TransactionId.parse(txn_id).epoch


def of_postgres(server: Postgres, table: str) -> SqlBook:
    """Creates the table, which the sink asks for."""
    with server.connect() as connection:
        connection.execute(CREATE_TABLE.format(table=table, id="id bigserial PRIMARY KEY"))

    def query(text: str) -> list[tuple[Any, ...]]:
        with server.connect(connect_timeout=5) as connection:
            return connection.execute(text).fetchall()

    return SqlBook(query, table)


def of_sqlite(file: Path, table: str) -> SqlBook:
    """Creates file and table, which the sink asks for."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with _opened(file) as connection:
        connection.execute(CREATE_TABLE.format(table=table, id="id integer PRIMARY KEY AUTOINCREMENT"))

    def query(text: str) -> list[tuple[Any, ...]]:
        with _opened(file) as connection:
            return connection.execute(text).fetchall()

    return SqlBook(query, table)


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(file, timeout=20)) as connection, connection:
        yield connection
