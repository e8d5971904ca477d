"""Which offsets the next epoch reads: from the last position and the brokers' logs to ranges. No I/O, no clock.

* A known partition goes on exactly where its last complete epoch ended; what lies there must still exist.
* A partition that is new in a known topic starts at offset 0: all of its records are this pipeline's.
* A topic that is new in ``topics`` starts where ``starting`` says.
* A topic that was taken out of ``topics`` keeps its position, as ranges with ``start == end``, so that it can
  come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_epochs.contracts import PlannedEpoch, Position
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict, OffsetRange, Ranges
from airflow_epochs.sources.kafka.logs import Batch, ClusterLog, Log, Partition, Tail, TopicLog
from airflow_epochs.sources.kafka.loss import moved_beginnings, require_continuous, tails_json, tails_of
from airflow_epochs.sources.kafka.starting import AtOffsets, AtTime, Earliest, Latest, Starting

TimeIndex = Mapping[tuple[str, int], int | None]
"""Per topic and partition the first readable offset at or after a time; None: there is no such record yet."""


def available(
    position: Position | None, topics: Sequence[str], cluster: ClusterLog, starting: Starting, index: TimeIndex
) -> Ranges:
    """All that can be read now: a range for every known partition of every known topic.

    Raises:
        Corrupt: Records that this pipeline has not read yet are gone; names each range.
        Refused: A topic does not exist, or an explicit starting offset is outside of the log.
    """
    known = position.ranges if position else {}
    new = [topic for topic in topics if topic not in known]
    _require_topics(new, cluster)
    going_on = {topic: {r.partition: r.end for r in known[topic]} for topic in topics if topic in known}
    if position:
        require_continuous(going_on, position.state, cluster)
    ranges = {topic: tuple(r._replace(start=r.end) for r in known[topic]) for topic in known}
    ranges.update({topic: _continued(going_on[topic], cluster.topics[topic]) for topic in going_on})
    ranges.update({topic: _started(topic, cluster.topics[topic], starting, index) for topic in new})
    return dict(sorted(ranges.items()))


def state_of(
    position: Position | None, cluster: ClusterLog, ranges: Ranges, batches: Mapping[Partition, Batch]
) -> JsonDict:
    """What tells a later epoch that offsets still mean the same: ids of cluster and topics, and the logs' tails.

    Those are at the ends of ``ranges``; ``batches`` hold the records before them.
    """
    before = position.state.get("topic_ids", {}) if position else {}
    now = {topic: log.topic_id for topic, log in cluster.topics.items() if log.topic_id}
    tails = tails_of(position.state) if position else {}
    for topic, partition in new_ends(position, ranges):
        if topic in cluster.topics:
            batch = batches.get((topic, partition))
            epoch = cluster.topics[topic].partitions[partition].epoch
            tails[topic, partition] = Tail(epoch, batch.crc if batch else None)
    return {
        "cluster_id": cluster.cluster_id,
        "topic_ids": dict(sorted({**before, **now}.items())),
        "tails": tails_json({at: tail for at, tail in tails.items() if tail != Tail(None, None)}),
    }


def begun_at_oldest(
    position: Position | None, topics: Sequence[str], ranges: Ranges, starting: Starting
) -> dict[str, list[int]]:
    """The partitions that this epoch begins at whatever record was the oldest when it was planned."""
    new = [topic for topic in topics if not position or topic not in position.ranges]
    if isinstance(starting, AtOffsets):
        return {t: [r.partition for r in ranges[t] if r.partition not in starting.offsets.get(t, {})] for t in new}
    return {t: [r.partition for r in ranges[t]] for t in new} if isinstance(starting, Earliest) else {}


def begun_again(ranges: Ranges, state: JsonDict, cluster: ClusterLog) -> PlannedEpoch:
    """The same, where partitions that begin at the oldest record begin at the oldest one that is left.

    They end as planned, or where they begin now if that lies behind: the next epoch goes on from there.
    """
    moved = {at: cluster.topics[at[0]].partitions[at[1]] for at in moved_beginnings(ranges, state, cluster)}
    again = {
        topic: tuple(
            _begun_later(r, moved[topic, r.partition].start) if (topic, r.partition) in moved else r for r in of
        )
        for topic, of in ranges.items()
    }
    tails = tails_of(state)
    for topic, r in ((topic, r) for topic, of in again.items() for r in of):
        if (topic, r.partition) in moved and r.start == r.end:
            tails[topic, r.partition] = Tail(moved[topic, r.partition].epoch, None)
    return PlannedEpoch(ranges=again, state={**state, "tails": tails_json(tails)})


def _begun_later(r: OffsetRange, start: int) -> OffsetRange:
    return r._replace(start=start, end=max(start, r.end))


def new_ends(position: Position | None, ranges: Ranges) -> dict[Partition, int]:
    """Where ``ranges`` end, as far as nothing is recorded yet of the logs there."""
    known = tails_of(position.state) if position else {}
    return {
        (t, r.partition): r.end for t in ranges for r in ranges[t] if r.end > r.start or (t, r.partition) not in known
    }


def pinned(starting: Starting, cluster: ClusterLog) -> Starting:
    """``latest`` as the offsets it means now, so that waiting for data does not move it past that data."""
    if not isinstance(starting, Latest):
        return starting
    return AtOffsets({t: {p: log.end for p, log in cluster.topics[t].partitions.items()} for t in cluster.topics})


def limited(ranges: Ranges, max_records: int | None) -> Ranges:
    """The same ranges, cut to at most ``max_records`` offsets in all, split fairly over the partitions."""
    if max_records is None:
        return ranges
    flat = [r for topic in ranges.values() for r in topic]
    shares = iter(fair_shares([r.end - r.start for r in flat], max_records, [r.start for r in flat]))
    return {topic: tuple(r._replace(end=r.start + next(shares)) for r in ranges[topic]) for topic in ranges}


def fair_shares(sizes: Sequence[int], total: int, consumed: Sequence[int]) -> list[int]:
    """Split ``total`` over ``sizes``, max-min fair: small ones get all they have, the others the same, ±1.

    Who gets the odd ones rotates with ``consumed`` (the offsets read so far): partitions that always have more
    than their share take turns, also where ``total`` is less than their number. Nobody starves.
    """
    shares = list(sizes)
    by_size = sorted(range(len(sizes)), key=lambda i: sizes[i])
    left = total
    for done, i in enumerate(by_size):
        level, odd = divmod(left, len(by_size) - done)
        if sizes[i] > level:
            big = sorted(by_size[done:])
            turn = sum(consumed[j] for j in big)
            for rank, j in enumerate(big):
                shares[j] = level + ((rank - turn) % len(big) < odd)
            break
        left -= sizes[i]
    return shares


def _require_topics(topics: Sequence[str], cluster: ClusterLog) -> None:
    missing = sorted(topic for topic in topics if topic not in cluster.topics)
    if missing:
        raise Refused(
            f"No such topic in the Kafka cluster: {', '.join(missing)}.",
            remedy="Create the topic, or correct topics= of the KafkaSource.",
        )


def _continued(position: Mapping[int, int], log: TopicLog) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(p, position.get(p, 0), log.partitions[p].end) for p in sorted(log.partitions))


def _started(topic: str, log: TopicLog, starting: Starting, index: TimeIndex) -> tuple[OffsetRange, ...]:
    if isinstance(starting, AtOffsets):
        _require_inside(topic, starting.offsets.get(topic, {}), log)
    starts = {p: _start(topic, p, log.partitions[p], starting, index) for p in sorted(log.partitions)}
    return tuple(OffsetRange(p, start, max(start, log.partitions[p].end)) for p, start in starts.items())


def _start(topic: str, partition: int, log: Log, starting: Starting, index: TimeIndex) -> int:
    if isinstance(starting, Latest):
        return log.end
    if isinstance(starting, AtOffsets):
        return starting.offsets.get(topic, {}).get(partition, log.start)
    if isinstance(starting, AtTime):
        # The index was asked after the log. No match: whatever has come since is newer than the time, so
        # nothing is skipped by beginning at the log's end. A match beyond the end: begin there, next time.
        found = index.get((topic, partition))
        return log.end if found is None else max(found, log.start)
    return log.start


def _require_inside(topic: str, offsets: Mapping[int, int], log: TopicLog) -> None:
    for partition, offset in sorted(offsets.items()):
        there = log.partitions.get(partition)
        if there is None:
            raise Refused(
                f"starting names {topic}[{partition}], but the topic has {len(log.partitions)} partition(s).",
                remedy="Correct starting= of the KafkaSource; partitions count from 0.",
            )
        if not there.start <= offset <= there.end:
            raise Refused(
                f"starting names offset {offset} of {topic}[{partition}], but the brokers have "
                f"[{there.start}, {there.end}).",
                remedy=f"Name an offset from {there.start} to {there.end}, or leave the partition out to start at "
                "its oldest record.",
            )
