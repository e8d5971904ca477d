"""What ``bank_windows`` should show: plain Python over the topic, and over the offsets and watermarks on record.

It shares no code with the pipeline. Instants are microseconds since 1970.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, TypeVar

from airflow_epochs.testing.history import Origin
from airflow_epochs.testing.ledger_facts import LedgerFacts

SIZE_US, DELAY_US = 60_000_000, 10_000_000
IDLE = timedelta(seconds=45)
"""As the DAG and its transform have them."""
EXAMPLES = 3

K = TypeVar("K")
V = TypeVar("V")


class Transfer(NamedTuple):
    """A record of the topic. ``crc``: of its value."""

    payer: str
    amount: int
    at: int
    crc: int

    @classmethod
    def of(cls, value: bytes) -> Transfer:
        record = json.loads(value)
        return cls(record["payer"], record["amount"], record["at"], zlib.crc32(value))

    @property
    def window(self) -> Window:
        return Window(self.payer, self.at // SIZE_US * SIZE_US)


class Window(NamedTuple):
    payer: str
    start: int

    @property
    def end(self) -> int:
        return self.start + SIZE_US


class Total(NamedTuple):
    """Of some transfers: how many, what their amounts and what their CRCs add up to."""

    transfers: int = 0
    amount: int = 0
    crc: int = 0

    def plus(self, other: Total) -> Total:
        return Total(self.transfers + other.transfers, self.amount + other.amount, self.crc + other.crc)


class Closed(NamedTuple):
    """What is known of a window that is over: the epoch that shows it, and its transfers."""

    epoch: int
    total: Total


class Late(NamedTuple):
    epoch: int
    crc: int


@dataclass(frozen=True, kw_only=True)
class Taken:
    """A complete epoch as its records have it."""

    number: int
    now: datetime
    watermark: int | None
    ranges: Mapping[tuple[str, int], range]

    def origins(self, topic: Mapping[Origin, Transfer]) -> Iterator[Origin]:
        """The records of the epoch. Offsets of markers and of aborted transactions have none."""
        places = (Origin(*where, offset) for where, offsets in self.ranges.items() for offset in offsets)
        return (origin for origin in places if origin in topic)

    def is_over(self, window: Window) -> bool:
        return self.watermark is not None and window.end <= self.watermark


def taken(facts: LedgerFacts) -> list[Taken]:
    """All complete epochs, in their order."""
    return [
        Taken(
            number=number,
            now=datetime.fromisoformat(facts.opens[number, record.txn_id.attempt].now),
            watermark=record.watermarks[0],
            ranges={
                (topic, r.partition): range(r.start, r.end) for topic in record.ranges for r in record.ranges[topic]
            },
        )
        for number, record in sorted(facts.complete.items())
    ]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the tables should show. ``totals``: of all transfers up to each epoch."""

    closed: dict[Window, Closed] = field(default_factory=dict)
    late: dict[Origin, Late] = field(default_factory=dict)
    open: dict[Window, Total] = field(default_factory=dict)
    totals: dict[int, Total] = field(default_factory=dict)

    @classmethod
    def of(cls, epochs: Iterable[Taken], topic: Mapping[Origin, Transfer]) -> Wanted:
        wanted, total = cls(), Total()
        for epoch in epochs:
            wanted._close(epoch)
            for origin in epoch.origins(topic):
                total = total.plus(_total_of(topic[origin]))
                wanted._add(epoch, origin, topic[origin])
            wanted.totals[epoch.number] = total
        return wanted

    def _close(self, epoch: Taken) -> None:
        for window in [each for each in self.open if epoch.is_over(each)]:
            self.closed[window] = Closed(epoch.number, self.open.pop(window))

    def _add(self, epoch: Taken, origin: Origin, transfer: Transfer) -> None:
        if epoch.is_over(transfer.window):
            self.late[origin] = Late(epoch.number, transfer.crc)
        else:
            self.open[transfer.window] = self.open.get(transfer.window, Total()).plus(_total_of(transfer))


def _total_of(transfer: Transfer) -> Total:
    return Total(1, transfer.amount, transfer.crc)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What strangers have read.

    Attributes:
        closed, late, open: All rows of the tables at rest, in any order; of the state, those that are still state.
        totals: What a reader beside the running system found in the three tables together, up to each epoch: transfers
            in rows, transfers in different rows, and the sum of the amounts.
    """

    closed: Sequence[tuple[Window, Closed]]
    late: Sequence[tuple[Origin, Late]]
    open: Sequence[tuple[Window, Total]]
    totals: Mapping[int, tuple[int, int, int]]


@dataclass(frozen=True)
class Judgement:
    """``wrong``: in sentences; ``judged``: how much of what there was; ``upkeep``: what the state went through."""

    wrong: list[str]
    judged: dict[str, int]
    upkeep: dict[str, int]

    @property
    def unclear(self) -> list[str]:
        """What there was none of: then it says nothing that nothing is wrong."""
        return [f"bank_windows: {what}: none" for what, count in self.judged.items() if not count]


def judged_by_oracle(epochs: Sequence[Taken], topic: Mapping[Origin, Transfer], shown: Shown) -> list[str]:
    """Everything that is wrong, in sentences."""
    wanted = Wanted.of(epochs, topic)
    return [
        *_wrong_watermarks(epochs, topic),
        *_differences("a closed window", shown.closed, wanted.closed),
        *_differences("a late transfer", shown.late, wanted.late),
        *_differences("an open window", shown.open, wanted.open),
        *_unbalanced(shown, wanted),
        *_seen_otherwise(shown, wanted),
    ]


def _differences(what: str, shown: Sequence[tuple[K, V]], wanted: Mapping[K, V]) -> Iterator[str]:
    found = dict(shown)
    times = Counter(key for key, _ in shown)
    other = [key for key in found if key in wanted and found[key] != wanted[key]]
    yield from _some(f"{what} is shown more than once", [key for key, count in times.items() if count > 1])
    yield from _some(f"{what} is missing", [key for key in wanted if key not in found])
    yield from _some(f"{what} is shown that should not be", [key for key in found if key not in wanted])
    yield from _some(f"{what} is shown wrong", [(key, found[key], wanted[key]) for key in other])


def _some(what: str, those: Sequence[object]) -> Iterator[str]:
    if those:
        yield f"{what}, {len(those)} times: {', '.join(map(str, those[:EXAMPLES]))}"


def _unbalanced(shown: Shown, wanted: Wanted) -> Iterator[str]:
    """Rows in: those of the ranges, whatever the watermarks say of them."""
    counts = [total.transfers for _, (_, total) in shown.closed] + [total.transfers for _, total in shown.open]
    rows_out, rows_in = (
        sum(counts) + len(shown.late),
        list(wanted.totals.values())[-1].transfers if wanted.totals else 0,
    )
    if rows_out != rows_in:
        yield f"{rows_in} transfers went in, and {rows_out} are in closed windows, late or in open windows"


def _seen_otherwise(shown: Shown, wanted: Wanted) -> Iterator[str]:
    for epoch, (rows, transfers, amount) in shown.totals.items():
        total = wanted.totals[epoch]
        if not rows == transfers == total.transfers or amount != total.amount:
            yield (
                f"up to epoch {epoch} {total.transfers} transfers of {total.amount} went in, and a reader saw {rows}, "
                f"{transfers} of them different, of {amount}"
            )


def _wrong_watermarks(epochs: Sequence[Taken], topic: Mapping[Origin, Transfer]) -> Iterator[str]:
    """That of an epoch follows from the records of the epochs before it."""
    newest: dict[tuple[str, int], tuple[int, datetime]] = {}
    mark: int | None = None
    for epoch in epochs:
        mark = _reached(mark, list(newest.values()), epoch.now)
        if epoch.watermark != mark:
            yield f"the watermark of epoch {epoch.number} is {epoch.watermark}, and follows as {mark}"
        mark = epoch.watermark
        for origin in epoch.origins(topic):
            at, _ = newest.get(origin[:2], (topic[origin].at, None))
            newest[origin[:2]] = (max(at, topic[origin].at), epoch.now)


def _reached(before: int | None, newest: Sequence[tuple[int, datetime]], now: datetime) -> int | None:
    if not newest:
        return before
    live = _live(newest, now) or _live(newest, max(seen for _, seen in newest))
    reached = min(live) - DELAY_US - 1
    return reached if before is None else max(before, reached)


def _live(newest: Sequence[tuple[int, datetime]], now: datetime) -> list[int]:
    return [at for at, seen in newest if now - seen <= IDLE]
