"""One epoch's rows into a table: appended by one load, or upserted by way of a temporary table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.sql_database import Session
from airflow_epochs.sinks.sql_table import SqlTable

if TYPE_CHECKING:
    from airflow_epochs.sinks.sql_database import Batches

BATCH_TABLE = "airflow_epochs_rows"
"""The temporary table. In no schema: a temporary one is found first."""
_NAMED_MAX = 5


@dataclass(frozen=True, kw_only=True)
class Load:
    """Where the rows go: ``fields`` to ``columns``, one by one; upserted if there are ``keys``."""

    session: Session
    table: SqlTable
    fields: Sequence[JsonDict]
    columns: Sequence[str]
    keys: Sequence[str]

    def run(self, batches: Batches, rows: int) -> None:
        """Write all rows.

        Raises:
            Refused: The database does not take them, keys are NULL or repeated, or there are not as many as promised.
        """
        if self.keys:
            loaded = self._upsert(batches)
        else:
            loaded = self.session.load(self.table.schema, self.table.name, self.columns, self.fields, batches)
        if loaded != rows:
            raise Refused(
                f"{loaded} rows were read for table {self.table.name}, staged are {rows}.",
                remedy="Clear the stage task: it stages into a fresh place.",
            )

    def _upsert(self, batches: Batches) -> int:
        columns = self._list(self.columns)
        target = f"{self.session.quoted(self.table.schema)}.{self.session.quoted(self.table.name)}"
        self.session.execute(f"CREATE TEMPORARY TABLE {BATCH_TABLE} AS SELECT {columns} FROM {target} WHERE 1 = 0")
        loaded = self.session.load(None, BATCH_TABLE, self.columns, self.fields, batches)
        self._require_keys()
        # In the order of the keys: two sinks on overlapping keys then wait for each other, and do not deadlock.
        self.session.execute(
            f"INSERT INTO {target} ({columns}) SELECT {columns} FROM {BATCH_TABLE} WHERE 1 = 1"
            f" ORDER BY {self._list(self.keys)} ON CONFLICT ({self._list(self.keys)}) DO {self._update()}"
        )
        self.session.execute(f"DROP TABLE {BATCH_TABLE}")
        return loaded

    def _update(self) -> str:
        names = [self.session.quoted(name) for name in self.columns if name not in self.keys]
        return f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in names)}" if names else "NOTHING"

    def _require_keys(self) -> None:
        keys = self._list(self.keys)
        missing = " OR ".join(f"{self.session.quoted(key)} IS NULL" for key in self.keys)
        no_key = self.session.execute(f"SELECT {keys} FROM {BATCH_TABLE} WHERE {missing} LIMIT {_NAMED_MAX}")
        repeated = self.session.execute(
            f"SELECT {keys} FROM {BATCH_TABLE} GROUP BY {keys} HAVING count(*) > 1 ORDER BY {keys} LIMIT {_NAMED_MAX}"
        )
        for found, what in ((no_key, "are NULL in some rows"), (repeated, "are not unique in the epoch's rows")):
            if found:
                named = "; ".join(", ".join(map(str, values)) for values in found)
                raise Refused(
                    f"The keys ({', '.join(self.keys)}) {what}, among them: {named}.",
                    remedy="Let the transform return one row per key, with all key columns, and clear the stage task.",
                )

    def _list(self, names: Sequence[str]) -> str:
        return ", ".join(map(self.session.quoted, names))
