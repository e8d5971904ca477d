"""Writes one epoch's rows into a table: appended in one load, or upserted through a temporary table.

It trusts the database's count of the rows, not its own: a trigger, a rule or a clause of the table may drop rows
without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.row_flaws import Check, require_sound, row_named
from airflow_epochs.sinks.sql.database import RowRefused, Session
from airflow_epochs.sinks.sql.table import SqlTable
from airflow_epochs.sinks.sql.values import row_at_line

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_epochs.sinks.sql.database import Batches

BATCH_TABLE = "airflow_epochs_rows"
"""The temporary table. Statements always name its schema: a user's table may have the same name and be found first."""
_NAMED_MAX = 5

Read = Callable[[], "Batches"]
"""Reads the staged rows. Each call begins with the first one."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Writes ``fields`` into ``columns``, which have the same order. Upserts if there are ``keys``."""

    session: Session
    table: SqlTable
    fields: Sequence[JsonDict]
    columns: Sequence[str]
    keys: Sequence[str]

    def run(self, read: Read, rows: int) -> None:
        """Write all rows.

        Raises:
            Refused: The database refuses or drops rows, keys are NULL or repeated, or the number of rows is not
                ``rows``. The transaction must be rolled back.
        """
        sent = _Counted(self._sound(read()))
        try:
            taken = self._upsert(sent) if self.keys else self._into(self.table, sent)
        except RowRefused as refused:
            if found := refused.row or (row_at_line(read(), self.fields, refused.line) if refused.line else None):
                refused.what += f" The refused row: {row_named(*found, self._key_fields())}."
            raise
        self._require_all(sent.rows, rows)
        self.require_taken(taken, rows)

    def look(self, read: Read, rows: int) -> None:
        """Check all rows as ``run`` does, and write none. Raises Refused."""
        seen = _Counted(self._sound(read()))
        for _ in seen:
            pass
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
        return [named[key] for key in self.keys]

    # -- statements ----------------------------------------------------------------------------------------------

    def _into(self, table: SqlTable, batches: Batches) -> int:
        return self.session.load(table, self.columns, self.fields, batches)

    def _upsert(self, batches: _Counted) -> int:
        columns, target, batch = self._list(self.columns), self._name(self.table), self._batch
        self.session.execute(f"CREATE TEMPORARY TABLE {BATCH_TABLE} AS SELECT {columns} FROM {target} WHERE 1 = 0")
        self._into(batch, batches)
        self._require_keys(self._name(batch))
        # Ordered by key: two sinks with overlapping keys then wait for each other and do not deadlock.
        taken = self.session.change(
            f"{self.table.insert} INTO {target} ({columns}) SELECT {columns} FROM {self._name(batch)} WHERE 1 = 1"
            f" ORDER BY {self._list(self.keys)} ON CONFLICT ({self._list(self.keys)}) DO {self._update()}"
        )
        if taken < batches.rows:  # the database may not count rows that existed already
            taken = self._found(target, self._name(batch))
        self.session.execute(f"DROP TABLE {self._name(batch)}")
        return taken

    @property
    def _batch(self) -> SqlTable:
        return replace(self.table, schema=self.session.temporary, name=BATCH_TABLE, insert="INSERT")

    @property
    def _others(self) -> list[str]:
        return [name for name in self.columns if name not in self.keys]

    def _update(self) -> str:
        names = [self.session.quoted(name) for name in self._others]
        return f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in names)}" if names else "NOTHING"

    def _found(self, target: str, batch: str) -> int:
        """How many of the batch's rows the table has, equal in all columns. A trigger may skip an equal row."""
        alike = [f"t.{key} = b.{key}" for key in map(self.session.quoted, self.keys)]
        for name in map(self.session.quoted, self._others):
            both = f"CAST(t.{name} AS text) = CAST(b.{name} AS text)"  # not every type can be compared
            alike.append(f"({both} OR t.{name} IS NULL AND b.{name} IS NULL)")
        same = " AND ".join(alike)
        counted = f"SELECT count(*) FROM {batch} b WHERE EXISTS (SELECT 1 FROM {target} t WHERE {same})"
        return int(self.session.execute(counted)[0][0])

    def _require_keys(self, batch: str) -> None:
        keys, compared = self._list(self.keys), ", ".join(map(self._compared, self.keys))
        missing = " OR ".join(f"{self.session.quoted(key)} IS NULL" for key in self.keys)
        no_key = self.session.execute(f"SELECT {keys} FROM {batch} WHERE {missing} LIMIT {_NAMED_MAX}")
        repeated = self.session.execute(
            f"SELECT {keys} FROM {batch} GROUP BY {compared} HAVING count(*) > 1 ORDER BY {compared} LIMIT {_NAMED_MAX}"
        )
        for found, what in ((no_key, "are NULL in some rows"), (repeated, "are not unique in the epoch's rows")):
            if found:
                named = "; ".join(", ".join(map(str, values)) for values in found)
                raise Refused(
                    f"The keys ({', '.join(self.keys)}) {what}, among them: {named}.",
                    code=codes.SQL_ROWS_UNFIT,
                    remedy="Correct the transform: let it return one row per key, without NULL in the key columns. "
                    "Then clear the stage task.",
                )

    def _compared(self, key: str) -> str:
        """The key, compared as the table's index does."""
        collation = self.table.collations.get(key)
        return f"{self.session.quoted(key)} COLLATE {collation}" if collation else self.session.quoted(key)

    def _name(self, table: SqlTable) -> str:
        return f"{self.session.quoted(table.schema)}.{self.session.quoted(table.name)}"

    def _list(self, names: Sequence[str]) -> str:
        return ", ".join(map(self.session.quoted, names))


class _Counted:
    """Batches, and how many of their rows have been read."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.rows += batch.num_rows
            yield batch
