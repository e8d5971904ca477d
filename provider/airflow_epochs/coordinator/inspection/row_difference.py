"""Which rows are only on one side: a difference of multisets, in a bounded part of the memory.

A private database on the disk, which vanishes when it is closed, counts each row by its digest: rows then are counted
down, rows now up. What is not zero in the end is on one side only.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from airflow_epochs.contracts import Row

TEXT_LENGTH_MAX = 1_000
"""How much is shown of a row."""
_TABLE = "CREATE TABLE counted (digest BLOB PRIMARY KEY, n INTEGER NOT NULL, shown TEXT NOT NULL) WITHOUT ROWID"
_COUNT = "INSERT INTO counted VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET n = n + excluded.n"
_TOTAL = "SELECT coalesce(sum(abs(n)), 0) FROM counted WHERE n * ? > 0"
_SAMPLE = "SELECT shown FROM counted WHERE n * ? > 0 ORDER BY shown LIMIT ?"


@dataclass
class Tally:
    """One side, counted while it is read."""

    rows: int = 0
    marked: dict[str, int] = field(default_factory=dict)
    """Column -> how many rows have True in it; of the columns that were asked for."""

    def counted(self, rows: Iterable[Row], marks: Iterable[str] = ()) -> Iterator[Row]:
        """``rows``, as they are."""
        self.marked |= dict.fromkeys(marks, 0)
        for row in rows:
            self.rows += 1
            for column in self.marked:
                self.marked[column] += row.get(column) is True
            yield row


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How many rows are only on one side, and some of them, as JSON."""

    only_then: int
    only_now: int
    sample_then: tuple[str, ...]
    sample_now: tuple[str, ...]


def difference(then: Iterable[Row], now: Iterable[Row], sample: int) -> Difference:
    """The difference of two multisets of rows; at most ``sample`` rows of each side. Raises what reading them raises.

    ``now`` is read first.
    """
    with closing(sqlite3.connect("")) as database:
        database.execute(_TABLE)
        for rows, step in ((now, 1), (then, -1)):
            database.executemany(_COUNT, ((_digest(row), step, shown(row)) for row in rows))
        (only_then, only_now) = (database.execute(_TOTAL, [sign]).fetchone()[0] for sign in (-1, 1))
        then_shown, now_shown = (
            tuple(text for (text,) in database.execute(_SAMPLE, [sign, sample])) for sign in (-1, 1)
        )
    return Difference(only_then=only_then, only_now=only_now, sample_then=then_shown, sample_now=now_shown)


def _digest(row: Row) -> bytes:
    return hashlib.blake2b(repr(_known(row)).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def shown(row: Row) -> str:
    """A row as JSON, cut off if it is long. Bytes are shown as text, with escapes where they are no text."""
    text = json.dumps(dict(_known(row)), default=_as_text, ensure_ascii=False)
    return text if len(text) <= TEXT_LENGTH_MAX else f"{text[: TEXT_LENGTH_MAX - 1]}…"


def _known(row: Row) -> list[tuple[str, object]]:
    return sorted((name, value) for name, value in row.items() if value is not None)


def _as_text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
