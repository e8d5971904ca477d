"""Keys that an upsert has deleted, noted in a table beside the target: an older row must not bring them back later.

A note is a key with the sequence of its deletion. It is written in the transaction that deletes the key. A sink writes
into one table of notes, whose name depends on the order and the types of the columns. It reads all that have these
columns: another sink may name them in another order, and somebody may have changed their types since.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.sql.database import Session
from airflow_epochs.sinks.sql.statements import Names
from airflow_epochs.sinks.sql.table import SqlColumn, SqlTable

_STEM_BYTES = 40
"""Of the target's name, in that of the notes: PostgreSQL cuts names to 63 bytes."""
_DIGEST = re.compile("[0-9a-f]{8}")


@dataclass(frozen=True, kw_only=True)
class Deletions:
    """The notes of all sinks that upsert into ``table`` with these columns."""

    session: Session
    table: SqlTable
    keys: Sequence[str]
    sequence: str

    @property
    def name(self) -> str:
        """The name of the table that the sink writes its notes into."""
        return self._named(self.table, self._columns)

    def _named(self, typed: SqlTable, columns: Iterable[str]) -> str:
        """The name of a table of notes with these columns, of the types that they have in ``typed``."""
        kinds = [(name, found.kind if (found := typed.column_of(name)) else "") for name in columns]
        digest = hashlib.sha256(json.dumps([self.table.name, *kinds]).encode()).hexdigest()[:8]
        return f"{self._prefix}{digest}"

    @property
    def _prefix(self) -> str:
        return f"{self._stem}_deleted_"

    @property
    def _stem(self) -> str:
        return self.table.name.encode()[:_STEM_BYTES].decode(errors="ignore")

    @property
    def exist(self) -> bool:
        """Whether there is the table that the sink writes its notes into."""
        return self.session.exists(self.table.schema, self.name)

    @property
    def spelled(self) -> str:
        """The table that the sink writes its notes into, for people."""
        return f"{self.table.schema}.{self.name}"

    def lacks(self) -> list[str]:
        """The rights that the connection's user needs for the notes and does not have, as GRANT spells them."""
        creates = [] if self.exist or self.session.may_create_in(self.table.schema) else ["CREATE"]
        lacking = [f"{right} on schema {self.table.schema_spelled}" for right in creates]
        for notes in self._tables():
            needed = ("SELECT", "INSERT", "UPDATE") if notes.name == self.name else ("SELECT",)
            lacking += [f"{right} on table {_spelled(notes)}" for right in self.session.lacks(notes, *needed)]
        return lacking

    def apply(self, batch: str, deleted: str) -> int:
        """Note the deletions among the rows of a table, and take away rows that are older than a note of their key.

        Of all transactions that do so for one target, one goes on at a time, and the others wait until it ends.

        Args:
            batch: The table, quoted: one row per key.
            deleted: Its column that says whether a row deletes its key.

        Returns:
            How many rows it took away.
        """
        self._serialise()
        if self.session.execute(f"SELECT 1 FROM {batch} WHERE {self.session.quoted(deleted)} LIMIT 1"):
            if not self.exist:
                self._create()
            self._note(batch, deleted)
        return sum(self._take_older(batch, notes) for notes in self._tables())

    def _serialise(self) -> None:
        # Else an older row, of another pipeline, could follow a deletion that is not committed, and not see its note.
        columns = json.dumps([sorted(self.keys), self.sequence])
        self.session.serialise(f"airflow_epochs:{self.table.schema}.{self.table.name} deletes by {columns}")
        # A worker that still has an earlier version of the provider waits only for this.
        self.session.serialise(f"airflow_epochs:{self.spelled}")

    def _note(self, batch: str, deleted: str) -> None:
        columns, keys = self._names.listed(self._columns), self._names.listed(self.keys)
        later = f"{self._names.ordered(self.sequence, 'excluded')} > {self._names.ordered(self.sequence, 'n')}"
        sequence = self.session.quoted(self.sequence)
        self.session.execute(
            f"INSERT INTO {self._notes} AS n ({columns}) SELECT {columns} FROM {batch} "
            f"WHERE {self.session.quoted(deleted)} ORDER BY {keys} ON CONFLICT ({self._index}) "
            f"DO UPDATE SET {sequence} = excluded.{sequence} WHERE {later}"
        )

    def _take_older(self, batch: str, notes: SqlTable) -> int:
        older = f"{self._names.ordered(self.sequence, 'b')} < {self._names.ordered(self.sequence, 'n')}"
        return self.session.change(
            f"DELETE FROM {batch} AS b WHERE EXISTS (SELECT 1 FROM {self._as_today(notes)} n "
            f"WHERE {self._names.same_keys(self.keys, 'n', 'b')} AND {older})"
        )

    # -- all tables of notes -------------------------------------------------------------------------------------

    def _tables(self) -> Iterator[SqlTable]:
        """All tables of notes with these columns."""
        for name in self.session.names(self.table.schema, self._prefix):
            found = self.session.table(self.table.schema, name)
            if found and (name == self.name or self._is_alike(found)):
                yield found

    def _is_alike(self, found: SqlTable) -> bool:
        """Whether a table is one of notes about this target, in another order or with other types."""
        columns = [column.name for column in found.columns]
        if sorted(columns) != sorted(self._columns) or frozenset(self.keys) not in found.unique:
            return False
        if self._stem == self.table.name:
            return bool(_DIGEST.fullmatch(found.name.removeprefix(self._prefix)))
        # The name is cut, and so may be that of another target's notes.
        return found.name in (self._named(found, columns), self._named(self.table, columns))

    def _as_today(self, notes: SqlTable) -> str:
        """Notes with the types that the target has today, in parentheses."""
        values = (f"{self._value(notes, name)} AS {self.session.quoted(name)}" for name in self._columns)
        return f"(SELECT {', '.join(values)} FROM {self._names.spelled(notes.schema, notes.name)})"

    def _value(self, notes: SqlTable, name: str) -> str:
        was, now = notes.column_of(name), self.table.column_of(name)
        assert was and now
        value = self.session.retyped(was, now)
        if value is None:
            raise self._unfit(notes, was, now)
        return value

    def _unfit(self, notes: SqlTable, was: SqlColumn, now: SqlColumn) -> Refused:
        alter = (
            f'ALTER TABLE {_spelled(notes)} ALTER "{was.name}" TYPE {now.kind} USING CAST("{was.name}" AS {now.kind})'
        )
        rename = "" if self.exist else f', and `ALTER TABLE {_spelled(notes)} RENAME TO "{self.name}"`'
        return Refused(
            f"Column {now.name!r} of table {self.table.name!r} is {now.kind}. It was {was.kind} when earlier epochs "
            f"noted the keys that they deleted, in {_spelled(notes)}. The sink cannot compare such values, so an older "
            "row could bring a deleted key back.",
            code=codes.SQL_NOTES_UNFIT,
            remedy=f"Change the notes too: `{alter}`{rename}. Or drop the table of notes, if no row can come any more "
            "that is older than one of its deletions. Then clear the failed task.",
        )

    def _create(self) -> None:
        target = self._names.spelled(self.table.schema, self.table.name)
        self.session.execute(
            f"CREATE TABLE {self._notes} AS SELECT {self._names.listed(self._columns)} FROM {target} WHERE 1 = 0"
        )
        self.session.make_unique(self.table.schema, self.name, self._index)

    @property
    def _index(self) -> str:
        return ", ".join(map(self._names.compared, self.keys))

    @property
    def _columns(self) -> list[str]:
        return [*self.keys, self.sequence]

    @property
    def _names(self) -> Names:
        return Names(self.session, self.table)

    @property
    def _notes(self) -> str:
        return self._names.spelled(self.table.schema, self.name)


def _spelled(notes: SqlTable) -> str:
    return f'"{notes.schema}"."{notes.name}"'
