"""The table of markers: one row per sink, locked by whoever commits. It is what makes a commit happen once.

A zombie whose transaction still lives holds the row's lock; its successor waits for it, and then sees what became of
it. One that comes later finds another marker than its previous epoch, and writes nothing.

Before its first epoch a sink has no marker. That the row was never there and that somebody has deleted it must not look
alike, or rows would go in twice. So the vote leaves a *reservation* in a transaction of its own: a row of
epoch 0 that names the ledger and the epoch. A commit turns the reservation into the marker, and writes nothing where it
finds neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import JsonDict, Marker, TransactionId
from airflow_epochs.sinks.sql.database import Session
from airflow_epochs.sinks.sql.table import SqlTable

_NO_EPOCH = 0
"""Of a reservation, or of a row that was inserted to be locked, which nobody but its own transaction ever sees."""
_ENDS = "ends"
"""The column of the position after the epoch. Version 0.1 made the table without it."""


@dataclass(frozen=True)
class MarkerRow:
    """A marker with what its commit's receipt says; ``ends`` as in ``SinkAttempt``, if the table has it."""

    txn: TransactionId
    rows: int
    committed_at: str
    ends: JsonDict | None = None


@dataclass(frozen=True)
class Reservation:
    """What the vote on a sink's first epoch leaves: nothing has been committed since. ``text`` tells whose it is."""

    text: str

    @classmethod
    def of(cls, attempt: SinkAttempt) -> Reservation:
        """That of any attempt at the epoch; another ledger's would be another one."""
        return cls(f"first epoch {attempt.txn.epoch} claimed by ledger {attempt.ledger_id}")


@dataclass(frozen=True, kw_only=True)
class MarkerTable:
    """The marker of one sink of one pipeline, seen in one transaction."""

    session: Session
    schema: str
    name: str
    pipeline: str
    sink: str

    def read(self) -> MarkerRow | None:
        """The marker as it is committed now; None if there is none."""
        found = self.look()
        return found if isinstance(found, MarkerRow) else None

    def look(self) -> MarkerRow | Reservation | None:
        """What the table has for the sink now; None also if there is no table."""
        return self._selected("") if self.table else None

    def lock(self) -> MarkerRow | Reservation | None:
        """The same, and nobody else can change it before this transaction has ended. Writes nothing.

        Raises:
            Refused: The table does not last, or cannot be written to.
        """
        self._require_lasting()
        return self._selected(self.session.row_lock) if self.table else None

    def make(self) -> MarkerRow | Reservation | None:
        """The same as ``lock``; creates the table, and a row to lock, where they are missing."""
        self._require_lasting()
        if not self.table:
            self._create()
        mark = self.session.mark
        self.session.execute(
            f"INSERT INTO {self.spelled} (pipeline, sink, epoch, txn_id, row_count, committed_at)"
            f" VALUES ({mark}, {mark}, {_NO_EPOCH}, '', 0, {mark}) ON CONFLICT (pipeline, sink) DO NOTHING",
            (self.pipeline, self.sink, _now()),
        )
        return self._selected(self.session.row_lock)

    def reserve(self, attempt: SinkAttempt) -> None:
        """Leave the reservation of a first epoch, unless it is there. The transaction must have called ``make``."""
        self._set(_NO_EPOCH, Reservation.of(attempt).text, 0, _now(), None)

    def write(self, attempt: SinkAttempt, rows: int) -> MarkerRow:
        """Set the marker. The transaction must have locked it."""
        row = MarkerRow(attempt.txn, rows, _now())
        self._set(attempt.txn.epoch, str(attempt.txn), rows, row.committed_at, attempt.ends)
        return row

    def add_ends(self) -> None:
        """Give a table of version 0.1 the column that it lacks."""
        if self.table and not self._has_ends:
            self.session.execute(f"ALTER TABLE {self.spelled} ADD COLUMN {_ENDS} {self.session.json}")

    @property
    def lacks_ends(self) -> bool:
        return self.table is not None and not self._has_ends

    # -- statements ----------------------------------------------------------------------------------------------

    @property
    def definition(self) -> str:
        """The statement that creates the table."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.spelled} (pipeline varchar(63) NOT NULL, sink varchar(63) NOT NULL,"
            f" epoch bigint NOT NULL, txn_id text NOT NULL, row_count bigint NOT NULL,"
            f" committed_at {self.session.instant} NOT NULL, {_ENDS} {self.session.json}, PRIMARY KEY (pipeline, sink))"
        )

    def putting_back(self, txn: TransactionId, rows: int) -> str:
        """The statement with which a person puts the marker of ``txn`` back."""
        return self._putting(txn.epoch, str(txn), rows)

    def putting_reservation_back(self, attempt: SinkAttempt) -> str:
        return self._putting(_NO_EPOCH, Reservation.of(attempt).text, 0)

    def _putting(self, epoch: int, text: str, rows: int) -> str:
        create, name = "" if self.table else f"{self.definition}; ", self.spelled.replace("%%", "%")
        return (
            f"{create}INSERT INTO {name} (pipeline, sink, epoch, txn_id, row_count, committed_at) VALUES "
            f"('{self.pipeline}', '{self.sink}', {epoch}, '{text}', {rows}, CURRENT_TIMESTAMP) ON CONFLICT (pipeline, "
            "sink) DO UPDATE SET epoch = excluded.epoch, txn_id = excluded.txn_id, row_count = excluded.row_count;"
        )

    def _create(self) -> None:
        self.session.serialise(f"airflow_epochs:{self.schema}.{self.name}")
        self.session.execute(self.definition)
        self.__dict__.pop("table", None)  # looked up anew: somebody else's may have been first
        self.__dict__.pop("_has_ends", None)

    def _set(self, epoch: int, text: str, rows: int, at: str, ends: Mapping[str, Any] | None) -> None:
        mark = self.session.mark
        columns: dict[str, Any] = {"epoch": epoch, "txn_id": text, "row_count": rows, "committed_at": at}
        if self._has_ends:
            columns[_ENDS] = json.dumps(ends) if ends else None
        changed = self.session.change(
            f"UPDATE {self.spelled} SET {', '.join(f'{name} = {mark}' for name in columns)}"
            f" WHERE pipeline = {mark} AND sink = {mark}",
            (*columns.values(), self.pipeline, self.sink),
        )
        if changed != 1:
            raise Refused(
                f"The marker in {self.schema}.{self.name} could not be set: {changed} rows were changed, not one.",
                remedy="Remove the triggers, rules and policies of that table, and clear the failed tasks.",
                sink=self.sink,
            )

    def _selected(self, lock: str) -> MarkerRow | Reservation | None:
        mark = self.session.mark
        found = self.session.execute(
            f"SELECT epoch, txn_id, row_count, committed_at, {_ENDS if self._has_ends else 'NULL'} FROM {self.spelled}"
            f" WHERE pipeline = {mark} AND sink = {mark} {lock}",
            (self.pipeline, self.sink),
        )
        if not found:
            return None
        ((epoch, txn_id, rows, committed_at, ends),) = found
        if epoch == _NO_EPOCH:
            return Reservation(txn_id) if txn_id else None
        return MarkerRow(self._parsed(epoch, txn_id), rows, _iso(committed_at), _json(ends))

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

    def _require_lasting(self) -> None:
        if self.table and self.table.problem:
            raise Refused(
                f"{self.schema}.{self.name} cannot be the table of markers: {self.table.problem}.",
                remedy=f"Make it an ordinary table (ALTER TABLE {self.name} SET LOGGED), or give the sink another "
                "`marker_table`, and clear the failed tasks.",
                sink=self.sink,
            )

    @cached_property
    def table(self) -> SqlTable | None:
        """As the database describes it; None if there is none."""
        return self.session.table(self.schema, self.name) if self.session.exists(self.schema, self.name) else None

    @cached_property
    def _has_ends(self) -> bool:
        return any(column.name == _ENDS for column in (self.table.columns if self.table else ()))

    @property
    def spelled(self) -> str:
        return f"{self.session.quoted(self.schema)}.{self.session.quoted(self.name)}"


def txn_of(found: MarkerRow | Reservation | None) -> TransactionId | None:
    return found.txn if isinstance(found, MarkerRow) else None


def marker_of(found: MarkerRow | Reservation | None) -> Marker | None:
    return Marker.of(found.txn) if isinstance(found, MarkerRow) else None


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


def _iso(value: datetime | str) -> str:
    return value if isinstance(value, str) else value.astimezone(timezone.utc).isoformat()


def _json(value: Any) -> JsonDict | None:
    found = json.loads(value) if isinstance(value, str) else value
    return found if isinstance(found, dict) else None
