"""How large an epoch is, by the speed of earlier ones; which records it takes of a number of bytes. No I/O, no clock.

The speed of an epoch is its offsets by the seconds that its own tasks worked: ``stage``, ``vote`` and the longest
``commit``, as they measured themselves. So the time between tasks does not count, however long, such as that before
somebody clears a task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

from airflow_epochs.model import CompleteRecord, JsonDict, Ranges, records_upper_bound
from airflow_epochs.sources.kafka.logs import ClusterLog, Partition
from airflow_epochs.sources.kafka.plan import fair_shares

LOOKED_AT_MAX = 10
"""How many of the newest epochs are looked at."""
TELLING_MAX = 5
"""The largest number of epochs whose median speed is taken, so one or two outliers change little."""
GROWTH_MAX = 2
SHRINKING_MAX = 4
SIZE_MIN = 1_000
"""Below, the time of an epoch hardly depends on its size: smaller epochs would only be slower per record."""
SIZE_FIRST = 1_000_000
"""The size without ``max_records``, as long as no epoch tells a speed."""
SECONDS_MIN, SECONDS_MAX = 0.001, 10**9
"""The shortest and the longest time that a task can have measured."""
KEY = "pace"
"""The field of ``source_state`` that says what was decided, and from which figures."""


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """An earlier epoch.

    Attributes:
        seconds: How long its tasks worked; None if that was not measured, as when another run completed the epoch.
        size: The largest number of offsets allowed to it, apart from ``max_records``; None without a target then.
    """

    epoch: int
    offsets: int
    seconds: float | None
    size: int | None

    @property
    def per_second(self) -> float:
        """Offsets per second of work."""
        return self.offsets / self.seconds if self.seconds else 0

    def tells_speed(self, target_s: float) -> bool:
        """Whether the epoch was large enough to tell how fast its records are read.

        A small epoch tells no speed: most of its time is what every epoch takes, however small.
        """
        if not self.offsets or self.seconds is None:
            return False
        return 2 * self.seconds >= target_s or (self.size is not None and 2 * self.offsets >= self.size)


@dataclass(frozen=True, kw_only=True)
class EpochSize:
    """How many offsets an epoch may have, and why: a text without its full stop."""

    offsets: int
    why: str


def next_size(past: Iterable[CompleteRecord], target_s: float, max_records: int | None, min_records: int) -> EpochSize:
    """The size with which the next epoch takes about ``target_s`` seconds, bounded by the size before.

    Args:
        past: Completion records, newest first. Reads ``LOOKED_AT_MAX`` at most.
        target_s: How many seconds ``stage``, ``vote`` and the longest ``commit`` shall take.
        max_records: The size as long as no epoch tells a speed; None: ``SIZE_FIRST``.
        min_records: The size is never smaller, nor smaller than ``SIZE_MIN``.
    """
    seen = _looked_at(past, target_s)
    telling = [each for each in seen if each.tells_speed(target_s)]
    before = next((each.size for each in seen if each.size), None)
    if not telling:
        size = max(before or max_records or SIZE_FIRST, min_records)
        return EpochSize(
            offsets=size, why=f"at most {size:,} offsets: no epoch of late was large enough to tell the speed"
        )
    per_second = median(each.per_second for each in telling)
    base = before or int(median(each.offsets for each in telling))
    wanted = int(per_second * target_s)
    floor = max(SIZE_MIN, min_records)
    size = max(min(max(wanted, base // SHRINKING_MAX), base * GROWTH_MAX), floor)
    return EpochSize(offsets=size, why=_why(size, wanted, base, floor, telling, per_second, target_s))


def _looked_at(past: Iterable[CompleteRecord], target_s: float) -> list[Earlier]:
    """The newest epochs, up to ``TELLING_MAX`` that tell a speed; then no more records are read."""
    seen: list[Earlier] = []
    for record in islice(past, LOOKED_AT_MAX):
        seen.append(_earlier(record))
        if sum(each.tells_speed(target_s) for each in seen) == TELLING_MAX:
            break
    return seen


def _why(
    size: int, wanted: int, base: int, floor: int, telling: Sequence[Earlier], per_second: float, target_s: float
) -> str:
    epochs = ", ".join(map(str, sorted(each.epoch for each in telling)))
    which = f"epoch {epochs} did" if len(telling) == 1 else f"the median of epochs {epochs} is"
    why = f"at most {size:,} offsets: {which} {per_second:,.1f} offsets a second, and the target is {target_s:g} s"
    if size == wanted:
        return why
    if size == floor:
        return f"{why}, but no epoch is made smaller than {floor:,}"
    bound = f"no more than {GROWTH_MAX} times" if size < wanted else f"no less than 1/{SHRINKING_MAX} of"
    return f"{why}, but {bound} the {base:,} before"


def _earlier(record: CompleteRecord) -> Earlier:
    pace = record.source_state.get(KEY)
    size = pace.get("size") if isinstance(pace, dict) else None
    return Earlier(
        epoch=record.txn_id.epoch,
        offsets=records_upper_bound(record.ranges),
        seconds=_seconds(record.metrics),
        size=size if isinstance(size, int) and size > 0 else None,
    )


def _seconds(metrics: JsonDict) -> float | None:
    """The seconds of work; None if they are not plausible: they come through XCom, so they may be anything."""
    told = metrics.get("seconds")
    measured = {step: s for step, s in told.items() if _is_time(s)} if isinstance(told, dict) else {}
    if "stage" not in measured:
        return None
    commits = [seconds for step, seconds in measured.items() if step.startswith("commit.")]
    worked = float(measured["stage"] + measured.get("vote", 0) + max(commits, default=0))
    return worked if worked >= SECONDS_MIN else None


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= SECONDS_MAX


def bytes_per_offset(sizes: Mapping[Partition, int], cluster: ClusterLog) -> dict[Partition, float]:
    """Per partition, the bytes of its log on a broker's disk by its offsets; without partitions that are empty."""
    logs = {(topic, p): log for topic, of in cluster.topics.items() for p, log in of.partitions.items()}
    return {at: size / (logs[at].end - logs[at].start) for at, size in sizes.items() if logs[at].end > logs[at].start}


def limited_bytes(ranges: Ranges, max_bytes: int, per_offset: Mapping[Partition, float]) -> Ranges:
    """Cut the ranges to about ``max_bytes`` in all, in fair shares; no range that has records is left without one."""
    flat = [(topic, r) for topic in ranges for r in ranges[topic]]
    sizes = [(r.end - r.start) * per_offset.get((topic, r.partition), 0) for topic, r in flat]
    needs = [math.ceil(size) for size in sizes]
    shares = iter(zip(needs, fair_shares(needs, max_bytes, [r.start for _, r in flat]), strict=True))
    return {
        topic: tuple(
            r._replace(end=r.start + _within(r.end - r.start, *next(shares), per_offset.get((topic, r.partition), 0)))
            for r in ranges[topic]
        )
        for topic in ranges
    }


def _within(count: int, need: int, share: int, per_offset: float) -> int:
    """How many of ``count`` offsets have room in ``share`` bytes; all of them need ``need``."""
    return count if share >= need else max(1, min(count, int(share / per_offset)))


def bytes_of(ranges: Ranges, per_offset: Mapping[Partition, float]) -> int:
    """About how many bytes the ranges have."""
    found = sum((r.end - r.start) * per_offset.get((topic, r.partition), 0) for topic in ranges for r in ranges[topic])
    return round(found)


def newest_with_data(past: Iterator[CompleteRecord]) -> CompleteRecord | None:
    """The newest completion record of an epoch that has read something, of the newest ``LOOKED_AT_MAX``."""
    return next((each for each in islice(past, LOOKED_AT_MAX) if records_upper_bound(each.ranges)), None)
