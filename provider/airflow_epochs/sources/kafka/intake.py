"""Asks the brokers when an epoch may begin, and how much it takes: ``min_records``, ``max_delay``, and the limits."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from airflow_epochs import codes
from airflow_epochs.contracts import Awaited, Past, Position
from airflow_epochs.errors import NoNewData
from airflow_epochs.event_time import micros
from airflow_epochs.model import JsonDict, Ranges, records_upper_bound
from airflow_epochs.sources.kafka import pace
from airflow_epochs.sources.kafka.brokers import Brokers
from airflow_epochs.sources.kafka.config import KafkaConfig
from airflow_epochs.sources.kafka.logs import ClusterLog, Partition
from airflow_epochs.sources.kafka.loss import epochs_of
from airflow_epochs.sources.kafka.plan import TimeIndex, available, limited, pinned
from airflow_epochs.sources.kafka.starting import AtTime, Starting

POLL_S = 0.5


@dataclass(frozen=True)
class Found:
    """What the logs have.

    Attributes:
        why: Why the epoch begins with too few records, or which interval it is for; else None.
        state: More of the epoch's ``source_state``.
    """

    ranges: Ranges
    cluster: ClusterLog
    ready: bool
    why: str | None = None
    state: JsonDict = field(default_factory=dict)

    @property
    def records(self) -> int:
        """The number of offsets that can be read. The number of records is at most this."""
        return records_upper_bound(self.ranges)


def wait_for_data(brokers: Brokers, config: KafkaConfig, position: Position | None, past: Past) -> Found:
    """Look at the logs until an epoch may begin or ``max_wait`` is over. Looks at least once.

    It may begin with ``min_records``, or when one has waited for ``max_delay``. Without ``max_delay``: in the end.
    """
    deadline = time.monotonic() + config.max_wait_s
    starting = config.starting
    while True:
        found = look_for_data(brokers, config, position, past, starting)
        left = deadline - time.monotonic()
        if found.ready:
            return found
        if left <= 0:
            return replace(found, ready=config.max_delay_s is None)
        starting = pinned(starting, found.cluster)
        time.sleep(min(POLL_S, left))


def look_for_data(
    brokers: Brokers, config: KafkaConfig, position: Position | None, past: Past, starting: Starting
) -> Found:
    """Look at the logs once. It is ready with ``min_records``, or when one has waited for ``max_delay``."""
    cluster = brokers.look(list(config.topics), epochs_of(position.state) if position else {})
    index = time_index(brokers, cluster, starting, position)
    ranges = available(position, list(config.topics), cluster, starting, index)
    if records_upper_bound(ranges) >= config.min_records:
        return Found(ranges, cluster, ready=True)
    why = config.max_delay_s is not None and _overdue(brokers, ranges, config, config.max_delay_s, past)
    return Found(ranges, cluster, ready=bool(why), why=why or None)


def awaited(found: Found, config: KafkaConfig) -> Awaited:
    """What the trigger must wait for before it resumes the deferred task."""
    return Awaited(
        conn_id=config.conn_id,
        begins={topic: {r.partition: r.start for r in found.ranges[topic]} for topic in config.topics},
        min_records=config.min_records,
        max_delay_s=config.max_delay_s,
        max_wait_s=config.max_wait_s,
    )


def _overdue(brokers: Brokers, ranges: Ranges, config: KafkaConfig, max_delay_s: float, past: Past) -> str | None:
    """Why the epoch begins with fewer records than ``min_records``; None if it need not begin yet.

    The first unread record of some partition is older than ``max_delay``, by its timestamp in Kafka. So a rerun, and
    another machine, decide alike. If producers write times that lie further ahead than that, the end of the last epoch
    that read something counts, as the ledger has it.
    """
    begins = {(topic, r.partition): r.start for topic in ranges for r in ranges[topic] if r.end > r.start}
    if not begins:
        return None
    delay, now = timedelta(seconds=max_delay_s), past.clock()
    few = f"{records_upper_bound(ranges):,} offsets, fewer than min_records ({config.min_records:,})"
    if old := older_than(brokers, begins, now - delay):
        topic, partition = old[0]
        return f"{few}: the first one of {topic}[{partition}] is older than max_delay ({max_delay_s:g} s)"
    believed = older_than(brokers, begins, now + delay)
    if len(believed) < len(begins) and _ended_before(past, now - delay):
        topic, partition = min(begins.keys() - set(believed))
        return f"{few}: the first one of {topic}[{partition}] has a time to come, and the last epoch ended long ago"
    return None


def older_than(brokers: Brokers, begins: dict[Partition, int], at: datetime) -> list[Partition]:
    """The partitions whose first unread record has a timestamp before ``at``."""
    ms = max(0, micros(at) // 1000)
    found = brokers.offsets_at(ms, begins)
    # The brokers search the whole log. Where they find a record that was read, they say nothing of the unread ones.
    read = {each: start for each, start in begins.items() if (first := found[each]) is not None and first < start}
    old = {each for each, time_of_first in brokers.times(read).items() if time_of_first < ms}
    return sorted(old | {each for each, start in begins.items() if (first := found[each]) is None or first > start})


def _ended_before(past: Past, at: datetime) -> bool:
    last = pace.newest_with_data(past.epochs())
    return last is None or datetime.fromisoformat(last.completed_at) <= at


def too_few(records: int, config: KafkaConfig) -> NoNewData:
    """The error for an epoch that waits for more records. The next run looks again."""
    return NoNewData(
        f"{records:,} offsets are there. The epoch waits for min_records ({config.min_records:,}), or until the first "
        f"one is older than max_delay ({config.max_delay_s:g} s).",
        code=codes.NO_NEW_DATA,
        remedy="Do nothing: the next run looks again. To take the records now, start a run with the param min_records "
        "= 1.",
    )


@dataclass(frozen=True)
class Intake:
    """What an epoch takes. ``told``: what was decided, a text for each decision, without its full stop."""

    ranges: Ranges
    size: int | None = None
    told: tuple[str, ...] = ()

    def state(self) -> JsonDict:
        """The decisions for ``source_state``; empty if there was nothing to decide."""
        size = {} if self.size is None else {"size": self.size}
        return {pace.KEY: {**size, "told": list(self.told)}} if self.told else {}


def intake(brokers: Brokers, found: Found, config: KafkaConfig, past: Past) -> Intake:
    """Cut what was found to the limits: to a number of offsets, and then to a number of bytes."""
    size = None
    if config.target_s is not None:
        size = pace.next_size(past.epochs(), config.target_s, config.max_records, config.min_records)
    at_most = [limit for limit in (config.max_records, size and size.offsets) if limit]
    ranges = limited(found.ranges, min(at_most, default=None))
    told = [why for why in (found.why, size and size.why) if why]
    if config.max_bytes is not None:
        ranges, cut = _cut_to_bytes(brokers, found.cluster, ranges, config.max_bytes)
        told.append(cut)
    return Intake(ranges, size.offsets if size else None, tuple(told))


def _cut_to_bytes(brokers: Brokers, cluster: ClusterLog, ranges: Ranges, max_bytes: int) -> tuple[Ranges, str]:
    full = [(topic, r.partition) for topic in ranges for r in ranges[topic] if r.end > r.start]
    per_offset = pace.bytes_per_offset(brokers.sizes(full), cluster) if full else {}
    cut = pace.limited_bytes(ranges, max_bytes, per_offset)
    about = f"about {pace.bytes_of(cut, per_offset):,} of {pace.bytes_of(ranges, per_offset):,} bytes"
    return cut, f"{about}, by the size of the partitions on the brokers' disks (max_bytes {max_bytes:,})"


def time_index(brokers: Brokers, cluster: ClusterLog, starting: Starting, position: Position | None) -> TimeIndex:
    """If ``starting`` is a time, the offsets of this time in topics without a position; otherwise empty."""
    if not isinstance(starting, AtTime):
        return {}
    known = position.ranges if position else {}
    new = [(topic, p) for topic, at in cluster.topics.items() if topic not in known for p in at.partitions]
    return brokers.offsets_at(starting.ms, new) if new else {}
