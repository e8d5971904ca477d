"""Writes one epoch's rows into a table: appended in one load, or upserted (``upsert``).

It trusts the database's count of the rows, not its own: a trigger, a rule or a clause of the table may drop rows
without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.row_flaws import Check, require_sound, row_named
from airflow_epochs.sinks.sql.database import RowRefused, Session
from airflow_epochs.sinks.sql.table import SqlTable
from airflow_epochs.sinks.sql.upsert import By, Upsert
from airflow_epochs.sinks.sql.values import longest_key, row_at_line

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_epochs.sinks.sql.database import Batches

ReadBatches = Callable[[], "Batches"]
"""Reads the staged rows. Each call begins with the first one."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Writes ``fields`` into ``columns``, which have the same order.

    Attributes:
        by: How to upsert; None: rows are appended.
        rehearses: Whether nothing is promised yet, so that an upsert looks also at what triggers make of its rows.
    """

    session: Session
    table: SqlTable
    fields: Sequence[JsonDict]
    columns: Sequence[str]
    by: By | None = None
    rehearses: bool = False

    def run(self, read: ReadBatches, rows: int) -> None:
        """Write all rows.

        Raises:
            Refused: The database refuses, drops or changes rows, keys are NULL or repeated, or the number of rows is
                not ``rows``. The transaction must be rolled back.
        """
        sent = _Counted(self._sound(read()))
        try:
            taken = self._upsert(self.by, sent) if self.by else self._append(sent)
        except RowRefused as refused:
            if found := refused.row or (row_at_line(read(), self.fields, refused.line) if refused.line else None):
                refused.what += f" The refused row: {row_named(*found, self._key_fields())}."
            elif refused.code is codes.SQL_LIMIT and (found := longest_key(read(), self._key_fields())):
                refused.what += f" The row with the longest key: {row_named(*found, self._key_fields())}."
            raise
        self._require_all(sent.rows, rows)
        self.require_taken(taken, rows)

    def look(self, read: ReadBatches, rows: int) -> None:
        """Check all rows as ``run`` does, without writing them. Raises Refused."""
        seen = _Counted(self._sound(read()))
        for _ in seen:
            self.session.execute("SELECT 1")  # else the server ends a session that seems to be idle
        self._require_all(seen.rows, rows)

    def _require_all(self, read: int, rows: int) -> None:
        if read != rows:
            raise Refused(
                f"The sink read {read} staged rows for table {self.table.name}, but Spark staged {rows}.",
                code=codes.STAGED_INCOMPLETE,
            )

    def require_taken(self, taken: int, rows: int) -> None:
        """Raise Refused if the database's count differs from the number of rows sent."""
        if taken != rows:
            raise Refused(
                f"The sink sent {rows} rows to table {self.table.name}, and the database wrote {taken}: a trigger, "
                "a rule or a clause of the table drops rows without an error.",
                code=codes.SQL_ROWS_DROPPED,
            )

    # -- the rows ------------------------------------------------------------------------------------------------

    def _sound(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        checks, keys = self._checks(), self._key_fields()
        for batch in batches:
            require_sound(batch, checks, keys)
            yield batch

    def _checks(self) -> dict[str, Check]:
        columns = {column.name: column for column in self.table.columns}
        return {
            field["name"]: self.session.check(columns[name], field["type"])
            for field, name in zip(self.fields, self.columns, strict=True)
        }

    def _key_fields(self) -> list[str]:
        named = dict(zip(self.columns, (field["name"] for field in self.fields), strict=True))
        return [named[key] for key in self.by.keys] if self.by else []

    def _append(self, sent: _Counted) -> int:
        return self.session.load(self.table, self.columns, self.fields, sent)

    def _upsert(self, by: By, sent: _Counted) -> int:
        upsert = Upsert(session=self.session, table=self.table, columns=self.columns, by=by, rehearses=self.rehearses)
        return upsert.run(self.fields, sent)


class _Counted:
    """Batches, and how many of their rows have been read."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch
