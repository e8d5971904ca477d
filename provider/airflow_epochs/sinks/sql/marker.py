"""The table of markers: one row per sink. Each commit locks the sink's row, so that an epoch is committed only once.

A zombie with an open transaction holds the row's lock. Its successor waits for the lock, and then sees the zombie's
outcome. A zombie that comes later finds a marker that is not its previous epoch, and writes nothing.

Before its first epoch a sink has no marker. If a missing row could also mean that the row was deleted, rows might be
written twice. So the vote leaves a *reservation*, in a transaction of its own: a row with epoch 0 that names the
ledger and the epoch. The commit turns the reservation into the marker. If it finds neither, it writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from typing import Any

from airflow_epochs import codes
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import JsonDict, Marker, TransactionId
from airflow_epochs.sinks.sql.database import Session
from airflow_epochs.sinks.sql.rights import lacking
from airflow_epochs.sinks.sql.table import SqlTable, qualified, quoted

_NO_EPOCH = 0
"""The epoch of a reservation, and of a row that ``make`` inserts to lock it; only its own transaction sees that row."""
_NAMED = ("pipeline", "sink")
_SET = ("epoch", "txn_id", "row_count", "committed_at")
"""The columns that name a row, and the columns that each commit sets, in tables of all versions."""
_USED = ("SELECT", "UPDATE")
_ENDS = "ends"
"""The column with the position after the epoch. Tables of version 0.1 lack it."""
_TARGET = "target"
"""The column with the name of the table that got the rows, which is in the schema of the markers. Older tables lack
it."""


@dataclass(frozen=True)
class MarkerRow:
    """A marker, with the facts for its commit's receipt.

    ``ends``: as in ``SinkAttempt``; None in an old table. ``target``: the name of the table that got the rows; None in
    an old table.
    """

    txn: TransactionId
    rows: int
    committed_at: str
    ends: JsonDict | None = None
    target: str | None = None


@dataclass(frozen=True)
class Reservation:
    """The row that the vote on a first epoch leaves, before any commit. ``text`` names the ledger and the epoch."""

    text: str

    @classmethod
    def of(cls, attempt: SinkAttempt) -> Reservation:
        """The reservation for any attempt at this epoch. Another ledger's differs."""
        return cls(f"first epoch {attempt.txn.epoch} claimed by ledger {attempt.ledger_id}")


@dataclass(frozen=True, kw_only=True)
class MarkerTable:
    """The marker of one sink of one pipeline, within one transaction."""

    session: Session
    schema: str
    name: str
    pipeline: str
    sink: str

    def read(self) -> MarkerRow | None:
        """The committed marker; None if there is none. Takes no lock."""
        found = self.look()
        return found if isinstance(found, MarkerRow) else None

    def look(self) -> MarkerRow | Reservation | None:
        """The marker or reservation; None if there is neither, or no table. Takes no lock."""
        if self._rights is None:
            return None
        if not all("SELECT" in self._rights.get(name, ()) for name in (*_NAMED, *_SET)):
            self.require_writable()
        return self._selected("")

    def require_writable(self) -> None:
        """Check that ``make`` and ``write`` may do what they do. Writes nothing, and takes no lock.

        Raises:
            Refused: The table could lose rows in a crash, or the connection's user lacks rights.
        """
        self._require_lasting()
        if self.table is None:
            lacks = [] if self.session.may_create_in(self.schema) else [f"CREATE on schema {quoted(self.schema)}"]
        else:
            lacks = self._lacking(self.table)
        if lacks:
            raise self._refused(lacks)

    def _refused(self, lacks: Sequence[str]) -> Refused:
        return Refused(
            f"The sink keeps its marker in {self.spelled}, but the connection's user lacks {', '.join(lacks)}.",
            code=codes.SQL_MARKER_TABLE,
            remedy="Grant the user these rights: "
            f"{', '.join(f'`GRANT {each} TO <the user>`' for each in lacks)}. Then clear the failed task.",
        )

    def _lacking(self, table: SqlTable) -> list[str]:
        """The rights that the connection's user lacks, on the table or on single columns of it, as GRANT has them."""
        needed = {
            "SELECT": [*_NAMED, *_SET, *sorted(self._added)],
            "INSERT": [*_NAMED, *_SET],
            "UPDATE": [*_SET, *sorted(self._added)],
        }
        return [f"{right} on table {self.spelled}" for right in lacking(self.session, table, needed)]

    def lock(self) -> MarkerRow | Reservation | None:
        """The marker or reservation, locked until this transaction ends. Writes nothing.

        Raises:
            Refused: The table could lose rows in a crash, or cannot be written to.
        """
        self._require_lasting()
        self._require_insertable()
        self.session.expect_wait()
        return self._selected(self.session.row_lock) if self.table else None

    def make(self) -> MarkerRow | Reservation | None:
        """Like ``lock``, but creates the table, and a row to lock, if they are missing."""
        self._require_lasting()
        self._require_insertable()
        self.session.expect_wait()
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
        """Set the reservation of a first epoch. Call ``make`` before, in the same transaction."""
        self._set(_NO_EPOCH, Reservation.of(attempt).text, 0, _now(), {_ENDS: None, _TARGET: None})

    def write(self, attempt: SinkAttempt, rows: int, target: str) -> MarkerRow:
        """Set the marker. Call ``lock`` or ``make`` before, in the same transaction."""
        row = MarkerRow(attempt.txn, rows, _now())
        ends = json.dumps(attempt.ends, separators=(",", ":")) if attempt.ends else None
        self._set(attempt.txn.epoch, str(attempt.txn), rows, row.committed_at, {_ENDS: ends, _TARGET: target})
        return row

    def fence(self, by: TransactionId) -> None:
        """Set the marker to a fence, which has no rows. Call ``lock`` or ``make`` before, in the same transaction.

        The marker keeps the position and the table of the epoch before.
        """
        self._set(by.epoch, str(by), 0, _now(), {})

    def add_columns(self) -> None:
        """Add the columns that a table of an earlier version lacks."""
        if self.table:
            kinds = {_ENDS: self.session.json, _TARGET: "text"}
            for name in sorted(kinds.keys() - self._added):
                self.session.execute(f"ALTER TABLE {self.spelled} ADD COLUMN {name} {kinds[name]}")

    @property
    def takes_columns(self) -> bool:
        """Whether the table is one of an earlier version, without ``ends`` or ``target``, and the user may alter it."""
        return self.table is not None and self._added != {_ENDS, _TARGET} and self.session.owns(self.table)

    # -- statements ----------------------------------------------------------------------------------------------

    @property
    def definition(self) -> str:
        """The statement that creates the table."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.spelled} (pipeline varchar(63) NOT NULL, sink varchar(63) NOT NULL,"
            f" epoch bigint NOT NULL, txn_id text NOT NULL, row_count bigint NOT NULL,"
            f" committed_at {self.session.instant} NOT NULL, {_ENDS} {self.session.json}, {_TARGET} text,"
            " PRIMARY KEY (pipeline, sink))"
        )

    @property
    def forgetting_target(self) -> str:
        """A statement with which an operator removes the name of the table that got the rows from the marker."""
        return f"UPDATE {self.spelled} SET {_TARGET} = NULL WHERE pipeline = '{self.pipeline}' AND sink = '{self.sink}'"

    def putting_back(self, txn: TransactionId, rows: int) -> str:
        """A statement with which an operator puts the marker of ``txn`` back."""
        return self._putting(txn.epoch, str(txn), rows)

    def putting_reservation_back(self, attempt: SinkAttempt) -> str:
        """A statement with which an operator puts the first epoch's reservation back."""
        return self._putting(_NO_EPOCH, Reservation.of(attempt).text, 0)

    def _putting(self, epoch: int, text: str, rows: int) -> str:
        create = "" if self.table else f"{self.definition}; "
        unknown = "".join(f", {name} = NULL" for name in sorted(self._added))
        return (
            f"{create}INSERT INTO {self.spelled} (pipeline, sink, epoch, txn_id, row_count, committed_at) VALUES "
            f"('{self.pipeline}', '{self.sink}', {epoch}, '{text}', {rows}, CURRENT_TIMESTAMP) ON CONFLICT (pipeline, "
            "sink) DO UPDATE SET epoch = excluded.epoch, txn_id = excluded.txn_id, row_count = excluded.row_count"
            f"{unknown};"
        )

    def _create(self) -> None:
        self.session.serialise(f"airflow_epochs:{self.schema}.{self.name}")
        self.session.execute(self.definition)
        self.__dict__.pop("table", None)  # look it up again: another session may have created it first
        self.__dict__.pop("_added", None)
        self.__dict__.pop("_rights", None)

    def _set(self, epoch: int, text: str, rows: int, at: str, more: Mapping[str, str | None]) -> None:
        mark = self.session.mark
        columns: dict[str, Any] = {"epoch": epoch, "txn_id": text, "row_count": rows, "committed_at": at}
        columns |= {name: value for name, value in more.items() if name in self._later}
        changed = self.session.change(
            f"UPDATE {self.spelled} SET {', '.join(f'{name} = {mark}' for name in columns)}"
            f" WHERE pipeline = {mark} AND sink = {mark}",
            (*columns.values(), self.pipeline, self.sink),
        )
        if changed != 1:
            raise Refused(
                f"The provider could not set the marker in {self.schema}.{self.name}: UPDATE changed {changed} rows "
                "instead of 1.",
                code=codes.SQL_MARKER_TABLE,
                remedy="Remove the triggers, rules and policies of that table. Then clear the failed task.",
            )

    def _selected(self, lock: str) -> MarkerRow | Reservation | None:
        mark = self.session.mark
        ends, target = (name if name in self._later else "NULL" for name in (_ENDS, _TARGET))
        found = self.session.execute(
            f"SELECT epoch, txn_id, row_count, committed_at, {ends}, {target} FROM {self.spelled}"
            f" WHERE pipeline = {mark} AND sink = {mark} {lock}",
            (self.pipeline, self.sink),
        )
        if not found:
            return None
        if len(found) > 1:
            self._require_alone()
        ((epoch, txn_id, rows, committed_at, position, table),) = found
        if epoch == _NO_EPOCH:
            return Reservation(txn_id) if txn_id else None
        return MarkerRow(self._parsed(epoch, txn_id), rows, _iso(committed_at), _json(position), table)

    def _parsed(self, epoch: int, txn_id: str) -> TransactionId:
        try:
            txn = TransactionId.parse(txn_id)
        except ValueError:
            txn = None
        if txn is None or (txn.pipeline, txn.epoch) != (self.pipeline, epoch):
            raise Corrupt(
                f"Somebody changed the row of this sink in {self.schema}.{self.name}: the provider does not "
                f"write epoch {epoch} with txn_id {txn_id!r}. Nothing was written.",
                code=codes.MARKER_FOREIGN,
                remedy="Find out who or what changed the row. Then put back `epoch` and `txn_id` of the last epoch "
                f"that the sink committed: `airflow epochs list {self.pipeline}` shows both.",
            )
        return txn

    def _require_lasting(self) -> None:
        if self.table and self.table.problem:
            raise Refused(
                f"{self.schema}.{self.name} cannot be the marker table: {self.table.problem}.",
                code=codes.SQL_MARKER_TABLE,
                remedy="Make it an ordinary table that the connection's user may write to. For an UNLOGGED table: "
                f"`ALTER TABLE {self.spelled} SET LOGGED`. If no sink has an epoch in it yet, you may give the sink "
                "another `marker_table` instead. Then clear the failed task.",
            )

    def _require_alone(self) -> None:
        """Require that no other table inherits from the table: it would show their markers, too."""
        if self.table and self.table.heirs:
            raise Refused(
                f"{self.schema}.{self.name} cannot be the marker table, because other tables inherit from it: "
                f"{', '.join(self.table.heirs)}. It shows their markers too.",
                code=codes.SQL_MARKER_TABLE,
                remedy=f"Let nothing inherit from it: {self.table.disinheriting}. Then clear the failed task.",
            )

    def _require_insertable(self) -> None:
        if self.table and not self.table.writable:
            raise self._refused([f"INSERT on table {self.spelled}"])

    @cached_property
    def table(self) -> SqlTable | None:
        """The table as the database describes it; None if it does not exist."""
        return self.session.table(self.schema, self.name)

    @cached_property
    def _added(self) -> frozenset[str]:
        """The columns that the table has, among the columns that tables of earlier versions lack."""
        columns = self.table.columns if self.table else ()
        return frozenset(column.name for column in columns) & {_ENDS, _TARGET}

    @cached_property
    def _rights(self) -> Mapping[str, Collection[str]] | None:
        """Each column -> the rights to read and to set it that the user has; None if the table does not exist."""
        return self.session.rights_on(self.schema, self.name, *_USED)

    @property
    def _later(self) -> frozenset[str]:
        """The columns that tables of earlier versions lack, if they are there and the user may read and set them.

        Somebody may have added one after ``open`` looked at the rights on each. No epoch needs it.
        """
        rights = self._rights or {}
        return frozenset(name for name in (_ENDS, _TARGET) if {*_USED} <= {*rights.get(name, ())})

    @property
    def spelled(self) -> str:
        """Schema and name, quoted for a statement."""
        return qualified(self.schema, self.name)


def txn_of(found: MarkerRow | Reservation | None) -> TransactionId | None:
    """The transaction of a marker; None for anything else."""
    return found.txn if isinstance(found, MarkerRow) else None


def marker_of(found: MarkerRow | Reservation | None) -> Marker | None:
    """``found`` as ``contracts.Sink.last_committed`` returns it; None for anything but a marker."""
    return Marker.of(found.txn) if isinstance(found, MarkerRow) else None


def _now() -> str:
    return datetime.now(timezone.utc).isoformat()


def _iso(value: datetime | str) -> str:
    return value if isinstance(value, str) else value.astimezone(timezone.utc).isoformat()


def _json(value: Any) -> JsonDict | None:
    found = json.loads(value) if isinstance(value, str) else value
    return found if isinstance(found, dict) else None
