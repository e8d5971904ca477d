"""Refuses rows that a database would compare with values of another type than theirs, in the same column.

A column of SQLite takes any type. A decimal is stored as a text with its type's decimals, a time with or without its
zone: SQLite compares these texts, and puts every number before every text. So 1.10 would be another key than 1.1000.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.sql.database import Session
from airflow_epochs.sinks.sql.statements import Names
from airflow_epochs.sinks.sql.table import SqlTable, quoted
from airflow_epochs.sinks.sql.types import family, sqlite_meant
from airflow_epochs.spark.driver.delta.schema import type_name


class OtherForm(Refused):
    """The table, or its notes, has a value that rows of another type leave.

    Attributes:
        rewrite: What to do in the database, a clause.
    """

    rewrite = ""


@dataclass(frozen=True, kw_only=True)
class Forms:
    """The columns by which an upsert compares rows.

    Attributes:
        kinds: Each column of the rows -> its Delta type.
        all_keys: Whether to look for other forms of the keys, in the whole table: nothing is promised yet.
    """

    session: Session
    table: SqlTable
    keys: Sequence[str]
    sequence: str | None
    kinds: Mapping[str, Any]
    all_keys: bool

    def require(self, there: str, batch: str) -> None:
        """Raise Refused if rows that are there have another form than the batch's.

        Args:
            there: The target or its notes, as a statement needs it.
            batch: The table with the epoch's rows. Only rows with one of its keys are compared with it.
        """
        for key in self.keys if self.all_keys else ():
            keys = f"({self._meant('o')}) IN (SELECT {self._meant('b')} FROM {batch} b)"
            self._require_none(key, self.kinds[key], f"{there} o", keys)
        if self.sequence:
            same = Names(self.session, self.table, self.keys).same_keys("o", "b")
            self._require_none(
                self.sequence, _ordered(self.kinds[self.sequence]), f"{batch} b CROSS JOIN {there} o", same
            )

    def _meant(self, of: str) -> str:
        """The keys of a row as texts that are equal if the keys mean the same, in whatever form they are stored."""
        return ", ".join(sqlite_meant(f"{of}.{quoted(key)}", self.kinds[key]) for key in self.keys)

    def _require_none(self, name: str, kind: Any, rows: str, where: str) -> None:
        column = self.table.column_of(name)
        assert column
        value = f"o.{quoted(name)}"
        otherwise = self.session.stored_otherwise(value, column, kind)
        if otherwise is None:
            return
        if found := self.session.execute(f"SELECT {value} FROM {rows} WHERE ({otherwise}) AND {where} LIMIT 1"):
            raise self._refused(name, found[0][0])

    def _refused(self, name: str, value: Any) -> OtherForm:
        kind, table = type_name(self.kinds[name]), self.table.name
        rewrite = (
            f"UPDATE column {quoted(name)} of {self.table.spelled} and of each table named "
            f"{quoted(f'{table}_deleted_…')}, so that all values have the form of the new type: docs/sql.md, 'When a "
            "type changes in SQLite', shows how"
        )
        refused = OtherForm(
            f"Column {name!r} is {kind} in the rows. Table {table!r}, or its notes of deleted keys, has the value "
            f"{value!r} in this column, as rows of another type, or another program, leave it. SQLite compares values "
            "as they are stored, so the sink would not find equal keys, or would take newer rows as older.",
            code=codes.SQL_ROWS_UNFIT,
            remedy="Let the transform return the column with the type that it had before, by a cast of Spark. Then "
            f"clear the stage task. Or, while no task runs, {rewrite}. Then clear the failed task.",
        )
        refused.rewrite = rewrite
        return refused


def _ordered(kind: Any) -> Any:
    """The type by which to check the form of a sequence's values.

    Texts of times sort as the times do, with a zone or without. Texts with a T in place of the blank do not, and the
    sink never writes them.
    """
    return "string" if family(kind) in ("date", "timestamp", "timestamp_ntz") else kind
