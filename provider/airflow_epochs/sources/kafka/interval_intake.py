"""Asks the brokers for the records of a run's data interval: once it is over, and no transaction holds them back."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Interval, NotYet, Past, Position
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.model import Ranges, ends_of, records_upper_bound, starts_of
from airflow_epochs.sources.kafka import interval
from airflow_epochs.sources.kafka.brokers import Brokers
from airflow_epochs.sources.kafka.config import KafkaConfig
from airflow_epochs.sources.kafka.intake import POLL_S, Found, time_index
from airflow_epochs.sources.kafka.logs import ClusterLog, Partition, offsets_at_ends
from airflow_epochs.sources.kafka.loss import epochs_of
from airflow_epochs.sources.kafka.plan import TimeIndex, available
from airflow_epochs.sources.kafka.starting import AtTime, Starting, ms_of
from airflow_epochs.sources.kafka.waiting import told

log = secrecy.logger(__name__)

AHEAD = timedelta(hours=1)
"""A record with a time so far ahead is taken for a mistake: brokers of Kafka 4.0 and later refuse it by default."""


def find_interval(
    brokers: Brokers, config: KafkaConfig, position: Position | None, past: Past, *, defers: bool = False
) -> Found:
    """Look at the logs until all records of the interval can be read, or ``max_wait`` is over. Looks at least once.

    Raises:
        NoNewData: Epochs have read the interval.
        NotYet: With ``defers``, in place of waiting for the end of the interval and its grace.
        NotApplied: Records of the interval wait for an open transaction.
        Refused: The run has no interval; it is not over; the pipeline began later; or earlier ones were left out.
    """
    at = interval.require_interval(past.interval)
    try:
        return _find(brokers, config, position, at, past, defers=defers)
    except Refused as error:
        if error.code is codes.INTERVAL_BEFORE and position and _was_read(brokers, config, position, at, past):
            raise interval.read_already(at, past.epochs()) from None
        raise


def _find(
    brokers: Brokers, config: KafkaConfig, position: Position | None, at: Interval, past: Past, *, defers: bool
) -> Found:
    covered = interval.coverage_of(position.state) if position else _from(config.starting)
    interval.require_unread(at, covered, past.epochs())
    _wait_until_over(at, config, past, defers)
    deadline = time.monotonic() + config.max_wait_s
    while held := told(brokers.waiting(_uncut(brokers, config, position, at))):
        if (left := deadline - time.monotonic()) <= 0:
            raise NotApplied(f"Records of {at} may wait: {held}.", code=codes.INTERVAL_HELD)
        time.sleep(min(POLL_S, left))
    return _of_interval(brokers, config, position, at, covered, past)


def _was_read(brokers: Brokers, config: KafkaConfig, position: Position, at: Interval, past: Past) -> bool:
    """Whether complete epochs have read the interval, though it begins before what is known as read by times."""
    began = interval.began_of(position.state)
    if began is None or began <= at.start:
        return began is not None
    return interval.was_read(at, past.epochs()) or _is_within_a_row(brokers, config, at, past)


def _is_within_a_row(brokers: Brokers, config: KafkaConfig, at: Interval, past: Past) -> bool:
    """Whether all records of the interval are among those that epochs without a gap between them have read.

    The first of these epochs must have read all topics of today: what a later one began with has unread records. The
    log must still have a record that is older than the interval. Else records of the interval may have been deleted
    before an epoch read them.
    """
    cluster = brokers.look(list(config.topics))
    starts, log_ends = cluster.starts(), cluster.ends()
    topics = set(config.topics)
    if topics != {topic for topic, _ in starts}:
        return False
    since, until = (brokers.seen_offsets_at(instant, starts) for instant in interval.instants(at))

    def behind(found: int | None, partition: Partition) -> int:
        return log_ends[partition] if found is None else found

    def is_read(row: interval.ConsecutiveEpochs, partition: Partition) -> bool:
        begin, first = starts_of(row.first.ranges).get(partition, 0), behind(since[partition], partition)
        from_there = begin == 0 or (starts[partition] < first and begin <= first)
        end = ends_of(row.last.ranges).get(partition, 0)
        return from_there and (row.is_newest or behind(until[partition], partition) <= end)

    return any(
        topics <= row.first.ranges.keys() and all(is_read(row, partition) for partition in starts)
        for row in interval.rows(past.epochs())
    )


def _from(starting: Starting) -> interval.Coverage | None:
    if not isinstance(starting, AtTime):
        return None
    return interval.Coverage(starting.at, starting.at)


def _wait_until_over(at: Interval, config: KafkaConfig, past: Past, defers: bool) -> None:
    left = (at.end - past.clock()).total_seconds() + config.grace_s
    if left > config.max_wait_s + config.grace_s:
        raise Refused(
            f"The run's data interval {at} is not over: records may still come.",
            code=codes.INTERVAL_NOT_OVER,
        )
    if defers and left > 0:
        raise NotYet(at.end + timedelta(seconds=config.grace_s))
    time.sleep(max(0.0, left))


def _uncut(brokers: Brokers, config: KafkaConfig, position: Position | None, at: Interval) -> dict[Partition, int]:
    """The last stable offsets of the partitions that have no unread record at or after the interval's end yet."""
    cluster = brokers.look(list(config.topics))
    stable, read = cluster.ends(), offsets_at_ends(position.ranges if position else {})
    begins = {
        (topic, p): max(log.start, min(log.end, read.get(topic, {}).get(p, log.start)))
        for topic, of in cluster.topics.items()
        for p, log in of.partitions.items()
    }
    _, end = interval.instants(at)
    return {each: stable[each] for each, first in brokers.seen_offsets_at(end, begins).items() if first is None}


def _of_interval(
    brokers: Brokers,
    config: KafkaConfig,
    position: Position | None,
    at: Interval,
    covered: interval.Coverage | None,
    past: Past,
) -> Found:
    cluster = brokers.look(list(config.topics), epochs_of(position.state) if position else {})
    begin = config.starting if isinstance(config.starting, AtTime) else AtTime(ms_of(at.start))
    index = time_index(brokers, cluster, begin, position)
    full = available(position, list(config.topics), cluster, begin, index)
    start, end = interval.instants(at)
    # ``ends`` is newer than the logs: so a range that it does not cut has no record that is too new
    # a topic that is no longer read has no end there: its empty range stays where it is
    read = {(topic, r.partition): r.start for topic in config.topics for r in full[topic]}
    ends = brokers.seen_offsets_at(end, read)
    by_offsets = covered is None and not records_upper_bound(interval.cut(full, ends))
    starts = _starts(brokers, cluster, start, exact=by_offsets)
    ranges, why = interval.plan(at, covered, full, starts, ends, refuse_missed=config.refuses_missed)
    new = [topic for topic in config.topics if not position or topic not in position.ranges]
    if gone := interval.cut_off(ranges, cluster, new):
        why += f"; retention may have deleted older ones of {', '.join(gone)}"
    if stuck := _stuck(brokers, full, ranges, past.clock()):
        log.warning("some partitions cannot be read on: %s", stuck)
        why += f"; {stuck}"
    began = interval.began_of(position.state) if position else None
    state = {interval.KEY: interval.recorded(at, covered, began)}
    return Found(ranges, cluster, ready=True, why=why, state=state)


def _stuck(brokers: Brokers, full: Ranges, ranges: Ranges, now: datetime) -> str | None:
    """The partitions that cannot be read on since a record's time lies far ahead, and what to do; None: all can."""
    ends = interval.cut_ends(full, ranges)
    ahead = sorted(brokers.as_late(ms_of(now + AHEAD), ends)) if ends else []
    return interval.stuck({at: ends[at] for at in ahead}) if ahead else None


def _starts(brokers: Brokers, cluster: ClusterLog, ms: int, *, exact: bool) -> TimeIndex:
    """Per partition, the first offset of the time.

    ``exact``: only what readers see counts, since a record before the position refuses the run. The end of a
    transaction does not: it has a later time than the records around it.
    """
    return brokers.seen_offsets_at(ms, cluster.starts()) if exact else brokers.offsets_at(ms, cluster.ends())
