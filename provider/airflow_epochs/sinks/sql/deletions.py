"""Keys that an upsert has deleted, noted in a table beside the target: an older row must not bring them back later.

A note is a key with the sequence of its deletion. It is written in the transaction that deletes the key. A sink writes
into one table of notes, ``<stem>_deleted_<8 hex digits>``. The stem is the target's name; of a long name, its beginning
and a digest of the whole. The digits depend on the order and the types of the columns. The sink reads all tables of
notes that have this stem and these columns: another sink may name the columns in another order, and somebody may have
changed their types since.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.sql.database import Session
from airflow_epochs.sinks.sql.forms import Forms
from airflow_epochs.sinks.sql.statements import Names
from airflow_epochs.sinks.sql.table import SqlColumn, SqlTable, quoted, require_none_deferrable

_WHOLE_BYTES = 40
"""A target's name of this size is the stem as it is: PostgreSQL cuts names to 63 bytes."""
_CUT_BYTES = 37
"""How many bytes of a longer name its stem keeps."""
_NOTES = re.compile("(?P<stem>.+)_deleted_(?P<digits>[0-9a-f]{8})", re.DOTALL)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _cut(name: str, size: int) -> str:
    return name.encode()[:size].decode(errors="ignore")


def _stem(target: str, folded: str) -> str:
    """docs/sql.md says how to compute it: if the target is renamed, the notes must be renamed too.

    ``folded``: as ``Session.folded`` has the target's name, so that all spellings of one table lead to the same notes.
    """
    return target if _older_stem(target) == target else f"{_cut(target, _CUT_BYTES)}_{_digest(folded)}"


def _older_stem(target: str) -> str:
    """The stem in version 0.1: long names that begin alike had the same stem."""
    return _cut(target, _WHOLE_BYTES)


@dataclass(frozen=True, kw_only=True)
class Deletions:
    """The notes of all sinks that upsert into ``table`` with these columns."""

    session: Session
    table: SqlTable
    keys: Sequence[str]
    sequence: str

    @cached_property
    def name(self) -> str:
        """The name of the table that the sink writes its notes into."""
        older = self._of_stem(_older_stem(self.table.name))
        name = older if self.session.exists(self.table.schema, older) else self._of_stem(self._stem)
        return name if self._compares_alike(name) else self._other_than(name)

    def _compares_alike(self, name: str) -> bool:
        """Whether notes of this name, if there are any, compare texts in the keys as the target does."""
        found = self.session.table(self.table.schema, name, keyed=True)
        return found is None or self._collations(found) in (None, self._collations(self.table))

    def _collations(self, table: SqlTable) -> list[tuple[str, str | None]] | None:
        index = table.unique.get(frozenset(self.keys))
        return None if index is None else sorted((key, compared.collation) for key, compared in index.items())

    def _other_than(self, name: str) -> str:
        return f"{self._stem}_deleted_{_digest(json.dumps([name, self._collations(self.table)]))}"

    @property
    def _stem(self) -> str:
        return _stem(self.table.name, self.session.folded(self.table.name))

    def _of_stem(self, stem: str) -> str:
        return f"{stem}_deleted_{self._digits(self.table, self.table, self._columns)}"

    @staticmethod
    def _digits(target: SqlTable, typed: SqlTable, columns: Iterable[str]) -> str:
        """The digits of notes about ``target`` with these columns, of the types that they have in ``typed``."""
        kinds = [(name, found.kind if (found := typed.column_of(name)) else "") for name in columns]
        return _digest(json.dumps([target.name, *kinds]))

    @property
    def exist(self) -> bool:
        """Whether the table that the sink writes its notes into exists."""
        return self.session.exists(self.table.schema, self.name)

    def require_rights(self, *, deletes: bool) -> None:
        """Require that the notes survive a crash, and that the user sees them all and has the rights on them.

        ``deletes``: also the rights to add notes.

        Raises:
            Refused: The user lacks rights, row-level security may hide notes from it, or a crash could lose notes.
        """
        tables = list(self._tables())
        if passing := next((notes for notes in tables if not notes.lasts), None):
            raise self._passing(passing)
        if deletes:
            for notes in tables:
                if notes.name == self.name:
                    require_none_deferrable(notes, self.keys, notes.spelled)
        if hidden := next((notes for notes in tables if notes.hides), None):
            raise self._hidden(hidden)
        if lacks := self._lacks(tables, deletes):
            noting = f"notes the keys that it deletes in {self.table.schema}.{self.name}"
            does = noting if deletes else "looks for its keys in the notes of deletions by other sinks"
            raise Refused(
                f"The sink {does}, but the connection's user lacks {', '.join(lacks)}.",
                code=codes.SQL_TABLE_UNUSABLE,
                remedy="Grant the user these rights: "
                f"{', '.join(f'`GRANT {each} TO <the user>`' for each in lacks)}. Then clear the failed task.",
            )

    @staticmethod
    def _passing(notes: SqlTable) -> Refused:
        return Refused(
            f"{notes.spelled}, where deleted keys are noted, is UNLOGGED: a crash of the server would lose the notes, "
            f"and an older row could bring a deleted key back. `ALTER TABLE {notes.spelled} SET LOGGED` mends that.",
            code=codes.SQL_TABLE_UNUSABLE,
            remedy=f"Make it an ordinary table: `ALTER TABLE {notes.spelled} SET LOGGED`. Then clear the failed task.",
        )

    @staticmethod
    def _hidden(notes: SqlTable) -> Refused:
        return Refused(
            f"The row-level security of {notes.spelled}, where deleted keys are noted, applies to the connection's "
            "user. The sink does not see notes that a policy hides, so an older row could bring a deleted key back.",
            code=codes.SQL_TABLE_UNUSABLE,
            remedy=f"Let no policy apply: `ALTER TABLE {notes.spelled} DISABLE ROW LEVEL SECURITY`. Or give the "
            "connection a user with BYPASSRLS. Then clear the failed task.",
        )

    def _lacks(self, tables: Iterable[SqlTable], deletes: bool) -> list[str]:
        """The rights that the user lacks on these tables, as GRANT spells them."""
        makes = deletes and not self.exist
        creates = ["CREATE"] if makes and not self.session.may_create_in(self.table.schema) else []
        lacking = [f"{right} on schema {self.table.schema_spelled}" for right in creates]
        for notes in tables:
            needed = ("SELECT", "INSERT", "UPDATE") if deletes and notes.name == self.name else ("SELECT",)
            lacking += [f"{right} on table {notes.spelled}" for right in self.session.lacks(notes, *needed)]
        return lacking

    def apply(self, batch: str, deleted: str, forms: Forms) -> int:
        """Note the deletions among the rows of a table, and take away rows that are older than a note of their key.

        Transactions that do so for one target run one after the other.

        Args:
            batch: The table, quoted: one row per key.
            deleted: Its column that says whether a row deletes its key.
            forms: What the notes must be like, so that the database can compare them with the rows.

        Returns:
            How many rows it took away.

        Raises:
            Refused: Rights are missing, or earlier notes cannot be compared with the rows.
        """
        self._serialise()
        found = self.session.execute(f"SELECT 1 FROM {batch} WHERE {quoted(deleted)} LIMIT 1")
        self.require_rights(deletes=bool(found))  # another user's sink may have made notes since ``open``
        # Before the sink makes a table of its own: the remedy depends on whether there is one already.
        earlier = [self._as_today(notes) for notes in self._tables()]
        for notes in earlier:
            forms.require(notes, batch)
        if found:
            if not self.exist:
                self._create()
            self._note(batch, deleted)
        return sum(self._take_older(batch, notes) for notes in earlier)

    def _serialise(self) -> None:
        # Else another pipeline's older row could come after a deletion that is not committed yet, and not see its note.
        columns = json.dumps([sorted(self.keys), self.sequence])
        self.session.serialise(f"airflow_epochs:{self.table.schema}.{self.table.name} deletes by {columns}")
        # A worker that still has an earlier version of the provider waits only for this.
        older = self._of_stem(_older_stem(self.table.name))
        self.session.serialise(f"airflow_epochs:{self.table.schema}.{older}")

    def _note(self, batch: str, deleted: str) -> None:
        columns, keys = self._names.listed(self._columns), self._names.listed(self.keys)
        later = f"{self._names.ordered(self.sequence, 'excluded')} > {self._names.ordered(self.sequence, 'n')}"
        sequence = quoted(self.sequence)
        self.session.execute(
            f"INSERT INTO {self._notes} AS n ({columns}) SELECT {columns} FROM {batch} "
            f"WHERE {quoted(deleted)} ORDER BY {keys} ON CONFLICT ({keys}) "
            f"DO UPDATE SET {sequence} = excluded.{sequence} WHERE {later}"
        )

    def _take_older(self, batch: str, notes: str) -> int:
        older = f"{self._names.ordered(self.sequence, 'b')} < {self._names.ordered(self.sequence, 'n')}"
        return self.session.change(
            f"DELETE FROM {batch} AS b WHERE EXISTS (SELECT 1 FROM {notes} n "
            f"WHERE {self._names.same_keys('n', 'b')} AND {older})"
        )

    # -- all tables of notes -------------------------------------------------------------------------------------

    def _tables(self) -> Iterator[SqlTable]:
        """All tables of notes with these columns."""
        target = self.table.name
        stems = dict.fromkeys((self._stem, _stem(target, target), _older_stem(target)))
        for name in (each for stem in stems for each in self.session.names(self.table.schema, f"{stem}_deleted_")):
            found = self.session.table(self.table.schema, name, keyed=True)
            if found and (name == self.name or self._is_alike(found)):
                yield found

    def _is_alike(self, found: SqlTable) -> bool:
        """Whether a table has notes about this target, with the columns in another order or of other types."""
        fold = self.session.folded
        columns, keys = (sorted(map(fold, names)) for names in (self._columns, self.keys))
        if sorted(fold(column.name) for column in found.columns) != columns:
            return False
        if keys not in [sorted(map(fold, index)) for index in (*found.unique, *found.deferrable)]:
            return False
        named = _NOTES.fullmatch(found.name)
        if named is None:
            return False
        return self._is_own(found) if fold(named["stem"]) == fold(_older_stem(self.table.name)) else True

    def _is_own(self, found: SqlTable) -> bool:
        """Whether notes with a stem of version 0.1 are about this target, and not about another that begins alike."""
        if self._fits(self.table, found):
            return True
        others = self._namesakes()
        if self._stem == self.table.name:
            return not any(self._fits(other, found) for other in others)
        return not others

    def _fits(self, target: SqlTable, found: SqlTable) -> bool:
        columns = [column.name for column in found.columns]
        return any(found.name.endswith(self._digits(target, typed, columns)) for typed in (found, target))

    def _namesakes(self) -> list[SqlTable]:
        """Other targets whose notes had the same stem in version 0.1."""
        stem, schema = _older_stem(self.table.name), self.table.schema
        names = [name for name in self.session.names(schema, stem) if _older_stem(name) == stem]
        others = [name for name in names if name != self.table.name and not _NOTES.fullmatch(name)]
        return [found for name in others if (found := self.session.table(schema, name))]

    def _as_today(self, notes: SqlTable) -> str:
        """A SELECT of notes, in parentheses, with the types that the target has today."""
        values = (f"{self._value(notes, name)} AS {quoted(name)}" for name in self._columns)
        return f"(SELECT {', '.join(values)} FROM {notes.spelled})"

    def _value(self, notes: SqlTable, name: str) -> str:
        was, now = notes.column_of(name), self.table.column_of(name)
        assert was and now
        value = self.session.retyped(was, now)
        if value is None:
            raise self._unfit(notes, was, now)
        return value

    def _unfit(self, notes: SqlTable, was: SqlColumn, now: SqlColumn) -> Refused:
        column = quoted(was.name)
        alter = f"ALTER TABLE {notes.spelled} ALTER {column} TYPE {now.kind} USING CAST({column} AS {now.kind})"
        name = self._name_to_keep(notes)
        rename = f", and `ALTER TABLE {notes.spelled} RENAME TO {quoted(name)}`" if name != notes.name else ""
        return Refused(
            f"Column {now.name!r} of table {self.table.name!r} is {now.kind}. It was {was.kind} when earlier epochs "
            f"noted the keys that they deleted, in {notes.spelled}. The sink cannot compare such values, so an older "
            "row could bring a deleted key back.",
            code=codes.SQL_NOTES_UNFIT,
            remedy=f"Change the notes too: `{alter}`{rename}. Or drop the table of notes, if no row can come any more "
            "that is older than one of its deletions. Then clear the failed task.",
        )

    def _name_to_keep(self, notes: SqlTable) -> str:
        """A name by which sinks find the notes, whose columns no longer have the types that the digits stand for."""
        if not self.exist:
            return self.name
        return f"{self._stem}_deleted_{notes.name[-8:]}"

    def _create(self) -> None:
        columns = self._names.listed(self._columns)
        self.session.execute(f"CREATE TABLE {self._notes} AS SELECT {columns} FROM {self.table.spelled} WHERE 1 = 0")
        compared = ", ".join(map(self._names.compared, self.keys))
        self.session.make_unique(self.table.schema, self.name, compared)

    @property
    def _columns(self) -> list[str]:
        return [*self.keys, self.sequence]

    @property
    def _names(self) -> Names:
        return Names(self.session, self.table, self.keys)

    @property
    def _notes(self) -> str:
        return self.table.beside(self.name)
