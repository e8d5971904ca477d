"""Clicks, and what a pipeline of windows should make of them: plain Python over the ranges that epochs have read."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from airflow_epochs.model import Ranges

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
EPOCH = int(START.timestamp())
SIZE, DELAY = 100, 30
"""Seconds: of a window, and how late a click may be."""
Window = tuple[str, int]
"""Page, and the second at which it begins."""
Counts = tuple[int, int]
"""Clicks, and the sum of their n."""
Sent = tuple[int, str, int, int]
"""Partition, page, n, second."""


Partition = tuple[str, int]
"""Of a topic."""


@dataclass(frozen=True)
class Click:
    topic: str
    partition: int
    offset: int
    page: str
    n: int
    second: int
    """Since START."""

    @property
    def at(self) -> datetime:
        return START + timedelta(seconds=self.second)

    @property
    def came_from(self) -> Partition:
        return self.topic, self.partition


def read_in(ranges: Ranges, sent: Iterable[Click]) -> list[Click]:
    """The clicks that an epoch has read."""
    read = {(topic, r.partition): range(r.start, r.end) for topic, per_topic in ranges.items() for r in per_topic}
    return [click for click in sent if click.offset in read.get(click.came_from, ())]


def relative(mark: int | None) -> int | None:
    """A watermark in microseconds since START."""
    return None if mark is None else mark - EPOCH * 1_000_000


def over(second: int, mark: int | None) -> bool:
    """Whether what ends at this second is final at a watermark."""
    return mark is not None and second * 1_000_000 <= mark


def some_clicks(dice: random.Random, epoch: int, pace: int = 60) -> list[Sent]:
    """Clicks of an epoch, ``pace`` seconds after those of the epoch before; some are late."""
    return [
        (
            dice.choice([0, 0, 1, 1, 2]) if epoch % 5 else dice.randint(0, 1),
            dice.choice("abcdef"),
            dice.randint(1, 9),
            max(0, epoch * pace + dice.randint(0, 60) - dice.choice([0, 0, 0, 20, 45, 400])),
        )
        for _ in range(dice.choice([5, 15, 40]))
    ]


@dataclass
class Oracle:
    """Windows and late clicks, epoch by epoch.

    ``ahead``: clicks too far in the future to move the watermark. ``idle_at_once``: a partition without clicks in the
    newest epoch that had any does not hold it back (``idle_after`` of 0 s).
    """

    sent: Sequence[Click]
    ahead: Collection[Click] = ()
    idle_at_once: bool = False
    mark: int | None = None
    counts: dict[Window, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    late: set[tuple[int, int]] = field(default_factory=set)
    _newest: dict[Partition, int] = field(default_factory=dict)
    _live: set[Partition] = field(default_factory=set)

    def epoch(self, topics: Collection[str], ranges: Ranges) -> None:
        """One more epoch of a source with these topics: first the watermark moves, then the clicks count."""
        self._move(topics)
        clicks = read_in(ranges, self.sent)
        for click in clicks:
            self._count(click)
        moving = [click for click in clicks if click not in self.ahead]
        for click in moving:
            self._newest[click.came_from] = max(click.second, self._newest.get(click.came_from, click.second))
        self._live = {click.came_from for click in moving} or self._live

    def _move(self, topics: Collection[str]) -> None:
        known = self._live if self.idle_at_once else {*self._newest}
        live = [(topic, number) for topic, number in known if topic in topics]
        if live:
            reached = (min(self._newest[partition] for partition in live) - DELAY) * 1_000_000 - 1
            self.mark = reached if self.mark is None else max(self.mark, reached)

    def _count(self, click: Click) -> None:
        start = click.second // SIZE * SIZE
        if over(start + SIZE, self.mark):
            self.late.add((click.partition, click.offset))
        else:
            window = self.counts[click.page, start]
            window[0], window[1] = window[0] + 1, window[1] + click.n

    def final(self) -> dict[Window, Counts]:
        """The windows that must have been shown."""
        return {window: values for window, values in self._windows() if over(window[1] + SIZE, self.mark)}

    def open(self) -> dict[Window, Counts]:
        """The windows that must be in the state."""
        return {window: values for window, values in self._windows() if not over(window[1] + SIZE, self.mark)}

    def _windows(self) -> Iterable[tuple[Window, Counts]]:
        return ((window, (clicks, total)) for window, (clicks, total) in self.counts.items())
