"""Keys that an upsert has deleted, noted in a table beside the target: an older row must not bring them back later.

A note is a key with the sequence of its deletion. It is written in the transaction that deletes the key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_epochs.sinks.sql.database import Session
from airflow_epochs.sinks.sql.statements import Names
from airflow_epochs.sinks.sql.table import SqlTable

_STEM_BYTES = 40
"""Of the target's name, in that of the notes: PostgreSQL cuts names to 63 bytes."""


@dataclass(frozen=True, kw_only=True)
class Deletions:
    """The notes of all sinks that upsert into ``table`` with these columns."""

    session: Session
    table: SqlTable
    keys: Sequence[str]
    sequence: str

    @property
    def name(self) -> str:
        """The name of the table of notes: another one for other columns, as those could not be compared."""
        columns = [(name, found.kind if (found := self.table.column_of(name)) else "") for name in self._columns]
        digest = hashlib.sha256(json.dumps([self.table.name, *columns]).encode()).hexdigest()[:8]
        return f"{self.table.name.encode()[:_STEM_BYTES].decode(errors='ignore')}_deleted_{digest}"

    @property
    def exist(self) -> bool:
        """Whether there is a table of notes."""
        return self.session.exists(self.table.schema, self.name)

    @property
    def spelled(self) -> str:
        """The table of notes, for people."""
        return f"{self.table.schema}.{self.name}"

    def lacks(self) -> list[str]:
        """The rights that the connection's user needs for the notes and does not have, as GRANT spells them."""
        if not self.exist:
            may = self.session.may_create_in(self.table.schema)
            return [] if may else [f"CREATE on schema {self.table.schema}"]
        found = self.session.table(self.table.schema, self.name)
        lacking = self.session.lacks(found, "SELECT", "INSERT", "UPDATE") if found else []
        return [f'{right} on table {self.table.schema}."{self.name}"' for right in lacking]

    def apply(self, batch: str, deleted: str) -> int:
        """Note the deletions among the rows of a table, and take away rows that are older than a note of their key.

        Of all transactions that do so for one target, one goes on at a time, and the others wait until it ends.

        Args:
            batch: The table, quoted: one row per key.
            deleted: Its column that says whether a row deletes its key.

        Returns:
            How many rows it took away.
        """
        # Else an older row, of another pipeline, could follow a deletion that is not committed, and not see its note.
        self.session.serialise(f"airflow_epochs:{self.table.schema}.{self.name}")
        if not self.exist:
            deletes = self.session.execute(f"SELECT 1 FROM {batch} WHERE {self.session.quoted(deleted)} LIMIT 1")
            if not deletes:
                return 0
            self._create()
        columns, keys = self._names.listed(self._columns), self._names.listed(self.keys)
        later = f"{self._names.ordered(self.sequence, 'excluded')} > {self._names.ordered(self.sequence, 'n')}"
        sequence = self.session.quoted(self.sequence)
        self.session.execute(
            f"INSERT INTO {self._notes} AS n ({columns}) SELECT {columns} FROM {batch} "
            f"WHERE {self.session.quoted(deleted)} ORDER BY {keys} ON CONFLICT ({self._index}) "
            f"DO UPDATE SET {sequence} = excluded.{sequence} WHERE {later}"
        )
        older = f"{self._names.ordered(self.sequence, 'b')} < {self._names.ordered(self.sequence, 'n')}"
        return self.session.change(
            f"DELETE FROM {batch} AS b WHERE EXISTS (SELECT 1 FROM {self._notes} n "
            f"WHERE {self._names.same_keys(self.keys, 'n', 'b')} AND {older})"
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
