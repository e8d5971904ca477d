"""The table of markers: one row per sink, locked by whoever commits. It is what makes a commit happen once.

A zombie whose transaction still lives holds the row's lock; its successor waits for it, and then sees what became of
it. One that comes later finds another marker than its previous epoch, and writes nothing. The first epoch has no row
to lock, so the row is inserted first: of two transactions that do so, one waits for the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import Marker, TransactionId
from airflow_epochs.sinks.sql_database import Session

_NO_EPOCH = 0
"""Of a row that was inserted to be locked; nobody but its own transaction ever sees it."""


@dataclass(frozen=True)
class Row:
    """A marker with what its commit's receipt says."""

    txn: TransactionId
    rows: int
    committed_at: str


@dataclass(frozen=True, kw_only=True)
class MarkerTable:
    """The marker of one sink of one pipeline, seen in one transaction."""

    session: Session
    schema: str
    name: str
    pipeline: str
    sink: str

    def read(self) -> Row | None:
        """The marker as it is committed now; None if there is none."""
        return self._selected("") if self.session.exists(self.schema, self.name) else None

    def lock(self) -> Row | None:
        """The marker, which nobody else can change before this transaction has ended. Creates the table if missing."""
        if not self.session.exists(self.schema, self.name):
            self._create()
        mark = self.session.mark
        self.session.execute(
            f"INSERT INTO {self._name} (pipeline, sink, epoch, txn_id, row_count, committed_at)"
            f" VALUES ({mark}, {mark}, {_NO_EPOCH}, '', 0, {mark}) ON CONFLICT (pipeline, sink) DO NOTHING",
            (self.pipeline, self.sink, _now()),
        )
        return self._selected(self.session.row_lock)

    def write(self, txn: TransactionId, rows: int) -> Row:
        """Set the marker. The transaction must have locked it."""
        mark, row = self.session.mark, Row(txn, rows, _now())
        changed = self.session.change(
            f"UPDATE {self._name} SET epoch = {mark}, txn_id = {mark}, row_count = {mark}, committed_at = {mark}"
            f" WHERE pipeline = {mark} AND sink = {mark}",
            (txn.epoch, str(txn), rows, row.committed_at, self.pipeline, self.sink),
        )
        if changed != 1:
            raise Refused(
                f"The marker in {self.schema}.{self.name} could not be set: {changed} rows were changed, not one.",
                remedy="Remove the triggers, rules and policies of that table, and clear the failed tasks.",
                sink=self.sink,
            )
        return row

    def _create(self) -> None:
        self.session.serialise(f"airflow_epochs:{self.schema}.{self.name}")
        self.session.execute(
            f"CREATE TABLE IF NOT EXISTS {self._name} (pipeline varchar(63) NOT NULL, sink varchar(63) NOT NULL,"
            f" epoch bigint NOT NULL, txn_id text NOT NULL, row_count bigint NOT NULL,"
            f" committed_at {self.session.instant} NOT NULL, PRIMARY KEY (pipeline, sink))"
        )

    def _selected(self, lock: str) -> Row | None:
        mark = self.session.mark
        found = self.session.execute(
            f"SELECT epoch, txn_id, row_count, committed_at FROM {self._name}"
            f" WHERE pipeline = {mark} AND sink = {mark} {lock}",
            (self.pipeline, self.sink),
        )
        if not found or found[0][0] == _NO_EPOCH:
            return None
        ((epoch, txn_id, rows, committed_at),) = found
        return Row(self._parsed(epoch, txn_id), rows, _iso(committed_at))

    def _parsed(self, epoch: int, txn_id: str) -> TransactionId:
        try:
            txn = TransactionId.parse(txn_id)
        except ValueError:
            txn = None
        if txn is None or (txn.pipeline, txn.epoch) != (self.pipeline, epoch):
            raise Corrupt(
                f"The row of this sink in {self.schema}.{self.name} was not written by the provider: epoch {epoch}, "
                f"txn_id {txn_id!r}.",
                remedy="Find out who changed it, and put back what the ledger says (`airflow epochs show`).",
                sink=self.sink,
            )
        return txn

    @property
    def _name(self) -> str:
        return f"{self.session.quoted(self.schema)}.{self.session.quoted(self.name)}"


def marker_of(row: Row | None) -> Marker | None:
    return Marker.of(row.txn) if row else None


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


def _iso(value: datetime | str) -> str:
    return value if isinstance(value, str) else value.astimezone(timezone.utc).isoformat()
