"""Columns of a table as statements name and compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_epochs.sinks.sql.database import Session
from airflow_epochs.sinks.sql.table import Comparison, SqlTable, quoted


@dataclass(frozen=True)
class Names:
    """The columns of ``table``, quoted for statements. ``keys``: the columns of one of its unique indexes."""

    session: Session
    table: SqlTable
    keys: Sequence[str]

    def listed(self, names: Sequence[str], of: str | None = None) -> str:
        """A list of columns, of the row that the statement calls ``of``."""
        return ", ".join(self._of(name, of) for name in names)

    def compared(self, key: str) -> str:
        """A key, compared as the table's index does."""
        collation = self._comparison(key).collation
        return f"{quoted(key)} COLLATE {collation}" if collation else quoted(key)

    def same_keys(self, one: str, other: str) -> str:
        """The condition that two rows have the same key, as the table's index compares keys."""
        return " AND ".join(self._same(key, one, other) for key in self.keys)

    def _same(self, key: str, one: str, other: str) -> str:
        equals, enum = self._comparison(key).equals, self._comparison(key).enum
        if enum:
            return f"CAST({self._of(key, one)} AS {enum}) {equals} CAST({self._of(key, other)} AS {enum})"
        return f"{one}.{self.compared(key)} {equals} {self._of(key, other)}"

    def _comparison(self, key: str) -> Comparison:
        return self.table.unique[frozenset(self.keys)][key]

    def ordered(self, sequence: str, of: str) -> str:
        """An expression for the column that tells which row is newer. It compares texts byte by byte, as Spark does."""
        column, value = self.table.column_of(sequence), self._of(sequence, of)
        return self.session.bytewise(value, column) if column else value

    def _of(self, name: str, row: str | None) -> str:
        return f"{row}.{quoted(name)}" if row else quoted(name)
