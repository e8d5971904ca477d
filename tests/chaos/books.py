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
from airflow_epochs.model import Marker, TransactionId
from airflow_epochs.testing.history import SinkState, VisibleRow
from stack.postgres import Postgres
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
