"""The state as of an epoch, as the text of one SELECT over the log of a state table.

It says what ``spark.driver.delta.state`` does when the next epoch reads the state: rows that have expired are left out,
then the newest row of each key is taken, unless it is deleted. Three engines read it; their SQL differs in few words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_epochs.spark.driver.delta.plans import EPOCH
from airflow_epochs.spark.driver.delta.spelling import identifier
from airflow_epochs.transforms.changes import DELETED

_NEWEST = "__epochs_newest"


@dataclass(frozen=True)
class Dialect:
    """An engine's SQL: its quotation mark for names, and its way to make an instant of microseconds."""

    mark: str
    instant: str

    def name(self, text: str) -> str:
        """A quoted name."""
        return f"{self.mark}{text.replace(self.mark, 2 * self.mark)}{self.mark}"

    def names(self, texts: Sequence[str]) -> str:
        """Quoted names, separated by commas."""
        return ", ".join(map(self.name, texts))


DUCKDB = Dialect('"', "make_timestamptz({})")
SPARK = Dialect("`", "timestamp_micros({}L)")
DATAFUSION = Dialect('"', "to_timestamp_micros({})")
"""The SQL of DataFusion, which is part of deltalake."""


@dataclass(frozen=True, kw_only=True)
class StateQuery:
    """What a SELECT of the state needs to know; as in ``ReadableState``."""

    columns: tuple[str, ...]
    keys: tuple[str, ...]
    expires: str | None
    hidden_to: int | None
    floating: tuple[str, ...] = ()
    """The floating-point keys, if the engine takes -0.0 and 0.0 for two keys: an older table may have both."""

    def select(self, sql: Dialect, log: str) -> str:
        """The state. ``log``: the version of the state table, as a FROM clause names it."""
        keys = (f"{sql.name(key)}{' + 0.0' if key in self.floating else ''}" for key in self.keys)
        newest = (
            f"row_number() OVER (PARTITION BY {', '.join(keys)} ORDER BY {sql.name(EPOCH)} DESC) AS {sql.name(_NEWEST)}"
        )
        return (
            f"SELECT {sql.names(self.columns)}\n"
            f"FROM (\n  SELECT *, {newest}\n  FROM {log}{self._unexpired(sql)}\n) AS changes\n"
            f"WHERE {sql.name(_NEWEST)} = 1 AND NOT {sql.name(DELETED)}"
        )

    def _unexpired(self, sql: Dialect) -> str:
        if self.expires is None or self.hidden_to is None:
            return ""
        until = sql.name(self.expires)
        return f"\n  WHERE {until} IS NULL OR {until} > {sql.instant.format(self.hidden_to)}"


def duckdb_log(table: str, version: int) -> str:
    """A version of a state table for DuckDB's extension delta."""
    return f"delta_scan('{table.replace(chr(39), 2 * chr(39))}', version => {version})"


def spark_log(table: str, version: int) -> str:
    """A version of a state table for Spark with Delta."""
    return f"{identifier(table)} VERSION AS OF {version}"
