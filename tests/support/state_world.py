"""Histories for stateful operators: epochs of disordered rows with their watermarks, and a table that keeps a state.

Times are whole seconds here, and microseconds since 1970 in Spark: no time zone can change them on their way.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from airflow_epochs.transforms import DELETED

Record = dict[str, Any]
S = timedelta(seconds=1)
ZERO = 1_767_225_600
"""The second from which histories count: 2026-01-01 UTC."""
END = 10**6
"""When everything is over."""


class Event(NamedTuple):
    """A row of a history. ``o`` tells all rows apart."""

    k: str | None
    v: int
    ts: int | None
    p: int
    o: int


EVENT = {"k": "string", "v": "long", "ts": "timestamp", "p": "int", "o": "long"}


@dataclass(frozen=True)
class Epoch:
    """One epoch's rows, W, and P of the epoch before. None: no watermark yet."""

    events: tuple[Event, ...]
    w: int | None
    p: int | None

    @property
    def watermark(self) -> datetime | None:
        return None if self.w is None else at(self.w)

    @property
    def previous_watermark(self) -> datetime | None:
        return None if self.p is None else at(self.p)

    def late(self, time: int) -> bool:
        """Whether this time is over by W."""
        return self.w is not None and time <= self.w

    def due(self, time: int) -> bool:
        """Whether this time lies in (P, W]."""
        return self.late(time) and (self.p is None or time > self.p)


def at(second: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=ZERO + second)


def arrivals(
    seed: int, count: int, *, disorder: Sequence[int] = (0, 3, 30, 60, 200), nulls: bool = True
) -> list[Event]:
    """Rows as they come: of a few keys, from two partitions, out of order, some without key or time."""
    r, clock, events = random.Random(seed), 0, []
    for number in range(count):
        clock += r.choice([0, 0, 1, 2, 7, 40])
        key = None if nulls and r.random() < 0.03 else r.choice("abcdef")
        time = None if nulls and r.random() < 0.03 else max(0, clock - r.choice(disorder))
        events.append(Event(key, r.randint(1, 3), time, r.randint(0, 1), number))
    return events


def cut(events: Sequence[Event], seed: int, *, pieces: int = 4, delay: int = 5) -> list[Epoch]:
    """The rows in epochs with random ends. W is the least newest time of the partitions in earlier epochs."""
    r = random.Random(seed)
    ends = sorted(r.sample(range(1, len(events)), pieces - 1))
    epochs: list[Epoch] = []
    w: int | None = None
    p: int | None = None
    seen: dict[int, int] = {}
    for begin, end in zip([0, *ends], [*ends, len(events)], strict=True):
        epochs.append(Epoch(tuple(events[begin:end]), w, p))
        for event in epochs[-1].events:
            if event.ts is not None:
                seen[event.p] = max(seen.get(event.p, 0), event.ts)
        p = w
        if len(seen) == 2:
            w = max(w if w is not None else 0, min(seen.values()) - delay)
    # a tick, and the end of everything
    return [*epochs, Epoch((), w, p), Epoch((), END, w)]


def history(seed: int, *, count: int = 150) -> list[Epoch]:
    """A random history, with late rows."""
    return cut(arrivals(seed, count), seed, delay=(0, 5, 20)[seed % 3])


def framed(session: Any, rows: Iterable[Sequence[Any]], columns: Mapping[str, str]) -> Any:
    """A DataFrame of rows, whose times are seconds of a history."""
    from pyspark.sql import functions as F

    schema = ", ".join(f"{name} {'long' if kind == 'timestamp' else kind}" for name, kind in columns.items())
    plain = session.createDataFrame([tuple(row) for row in rows], schema)
    return plain.select(
        *(
            F.timestamp_seconds(F.col(name) + ZERO).alias(name) if kind == "timestamp" else F.col(name)
            for name, kind in columns.items()
        )
    )


def events_of(session: Any, events: Iterable[Event]) -> Any:
    return framed(session, events, EVENT)


def collected(**frames: Any) -> dict[str, list[Record]]:
    """The rows of several DataFrames, by one job. Times are seconds of a history."""
    from pyspark.sql import functions as F

    told = None
    for name, frame in frames.items():
        columns = (
            (F.unix_seconds(field.name) - ZERO).alias(field.name)
            if field.dataType.simpleString() == "timestamp"
            else F.col(field.name)
            for field in frame.schema.fields
        )
        text = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
        one = frame.select(F.lit(name).alias("name"), text.alias("row"))
        told = one if told is None else told.unionAll(one)
    found: dict[str, list[Record]] = {name: [] for name in frames}
    for name, row in told.collect() if told is not None else []:
        found[name].append(json.loads(row))
    return found


class KeptState:
    """A state table: it keeps the newest row of a key, hides what has expired by P, and drops some of that."""

    def __init__(self, session: Any, keys: Sequence[str], columns: Mapping[str, str], expires: str | None) -> None:
        self.session, self.keys, self.columns, self.expires = session, keys, columns, expires
        self.rows: dict[tuple[Any, ...], Record] = {}
        self._until: dict[tuple[Any, ...], int] = {}
        self._random = random.Random(len(columns))

    def frame(self, epoch: Epoch) -> Any:
        """What the epoch reads."""
        for key, row in list(self.rows.items()):
            if self._expired(row, epoch.p) and self._random.random() < 0.5:
                del self.rows[key]
        shown = [row for row in self.rows.values() if not self._expired(row, epoch.p)]
        return framed(self.session, ([row[name] for name in self.columns] for row in shown), self.columns)

    def _expired(self, row: Record, previous: int | None) -> bool:
        return self.expires is not None and previous is not None and row[self.expires] <= previous

    def apply(self, changes: list[Record], epoch: Epoch) -> None:
        """Check the changes as the vote does, and that nothing begins that is over; keep them."""
        told = [tuple(row[name] for name in self.keys) for row in changes]
        assert len(set(told)) == len(told), "a key changed twice in an epoch"
        for key, row in zip(told, changes, strict=True):
            assert None not in key
            assert {*row} == {*self.columns, DELETED}
            self._require_not_falling(key, row)
            if row[DELETED]:
                del self.rows[key]
            else:
                assert self.expires is None or not epoch.late(row[self.expires]), "over when it began"
                assert self.rows.get(key) != {name: row[name] for name in self.columns}, "nothing changed"
                self.rows[key] = {name: row[name] for name in self.columns}

    def _require_not_falling(self, key: tuple[Any, ...], row: Record) -> None:
        if self.expires is not None:
            assert row[self.expires] >= self._until.get(key, row[self.expires]), "expires fell"
            self._until[key] = row[self.expires]

    def open(self, epoch: Epoch) -> list[Record]:
        """The rows that the next epoch will see."""
        assert self.expires is not None
        return [row for row in self.rows.values() if not epoch.late(row[self.expires])]


def without_nulls(epochs: Sequence[Epoch]) -> list[Epoch]:
    """The epochs with the rows that have key and time."""
    return [
        replace(epoch, events=tuple(event for event in epoch.events if event.k is not None and event.ts is not None))
        for epoch in epochs
    ]


def nulls_of(epochs: Sequence[Epoch]) -> list[int]:
    """The numbers of the rows without key or time: they are told among the late ones."""
    return [event.o for epoch in epochs for event in epoch.events if event.k is None or event.ts is None]
