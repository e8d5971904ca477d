"""Plans the offset ranges of the next epoch from the last position and the brokers' logs. No I/O, no clock.

* A known partition goes on exactly where the last complete epoch ended. The records there must still exist.
* A new partition of a known topic starts at offset 0: the pipeline reads all of its records.
* A new topic in ``topics`` starts where ``starting`` says.
* A topic that the user removed from ``topics`` keeps its position as ranges with ``start == end``. So the user can add
  it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_epochs import codes
from airflow_epochs.contracts import TOPIC_IDS, PlannedEpoch, Position
from airflow_epochs.errors import Refused
from airflow_epochs.model import Backlog, JsonDict, OffsetRange, Ranges, empty_at_ends
from airflow_epochs.sources.kafka.logs import Batch, ClusterLog, Log, Partition, Tail, TopicLog, offsets_at_ends
from airflow_epochs.sources.kafka.loss import moved_beginnings, require_continuous, tails_json, tails_of
from airflow_epochs.sources.kafka.starting import AtOffsets, AtTime, Earliest, Latest, Starting

TimeIndex = Mapping[tuple[str, int], int | None]
"""Per topic and partition, the first readable offset at or after a time; None if there is no such record yet."""


def available(
    position: Position | None, topics: Sequence[str], cluster: ClusterLog, starting: Starting, index: TimeIndex
) -> Ranges:
    """The ranges of all records that can be read now. Known topics outside of ``topics`` get empty ranges.

    Raises:
        Corrupt: Records that this pipeline has not read yet are gone. The text names the ranges.
        Refused: A topic does not exist, or an explicit starting offset is outside of the log.
    """
    known = position.ranges if position else {}
    new = [topic for topic in topics if topic not in known]
    require_topics(new, cluster)
    going_on = offsets_at_ends({topic: known[topic] for topic in topics if topic in known})
    if position:
        require_continuous(going_on, position.state, cluster)
    ranges = empty_at_ends(known)
    ranges.update({topic: _continued(going_on[topic], cluster.topics[topic]) for topic in going_on})
    ranges.update({topic: started(topic, cluster.topics[topic], starting, index) for topic in new})
    return dict(sorted(ranges.items()))


def state_of(
    position: Position | None, cluster: ClusterLog, ranges: Ranges, batches: Mapping[Partition, Batch]
) -> JsonDict:
    """The facts by which a later epoch checks that offsets still stand for the same records.

    They are the ids of the cluster and its topics, and the logs' tails at the ends of ``ranges``. ``batches`` holds the
    batch before each end.
    """
    before = position.state.get(TOPIC_IDS, {}) if position else {}
    now = {topic: log.topic_id for topic, log in cluster.topics.items() if log.topic_id}
    tails = tails_of(position.state) if position else {}
    for topic, partition in new_ends(position, ranges):
        if topic in cluster.topics:
            batch = batches.get((topic, partition))
            epoch = cluster.topics[topic].partitions[partition].epoch
            tails[topic, partition] = Tail(epoch, batch.crc if batch else None)
    return {
        "cluster_id": cluster.cluster_id,
        TOPIC_IDS: dict(sorted({**before, **now}.items())),
        "tails": tails_json({at: tail for at, tail in tails.items() if tail != Tail(None, None)}),
    }


def left_unread(
    topics: Sequence[str], ranges: Ranges, cluster: ClusterLog, batches: Mapping[Partition, Batch], now_ms: int
) -> Backlog:
    """The backlog of ``topics`` behind ``ranges``: how much can be read, and from when it is.

    The first record that is left is not older than the batch before it, which ``batches`` has.
    """
    ends = {(topic, r.partition): r.end for topic in topics for r in ranges[topic]}
    left = {at: more for at, end in ends.items() if (more := cluster.topics[at[0]].partitions[at[1]].end - end) > 0}
    times = [batches[at].ms if at in batches else -1 for at in left]
    known = min(times, default=now_ms)
    return Backlog(offsets=sum(left.values()), seconds=max(0, now_ms - known) / 1000 if known >= 0 else None)


def begun_at_oldest(
    position: Position | None, topics: Sequence[str], ranges: Ranges, starting: Starting
) -> dict[str, list[int]]:
    """Per new topic, the partitions whose range begins at the oldest record."""
    new = [topic for topic in topics if not position or topic not in position.ranges]
    if isinstance(starting, AtOffsets):
        return {t: [r.partition for r in ranges[t] if r.partition not in starting.offsets.get(t, {})] for t in new}
    return {t: [r.partition for r in ranges[t]] for t in new} if isinstance(starting, Earliest) else {}


def begun_again(ranges: Ranges, state: JsonDict, cluster: ClusterLog) -> PlannedEpoch:
    """Plan the ranges of an aborted epoch again, since retention may have deleted its oldest records.

    A partition that began at its oldest record begins at the oldest record left. It ends as planned; if it now begins
    behind that end, its range is empty and the next epoch goes on from there. All other ranges stay.
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
    """The ends of ``ranges`` for which no tail is recorded yet."""
    known = tails_of(position.state) if position else {}
    return {
        (t, r.partition): r.end for t in ranges for r in ranges[t] if r.end > r.start or (t, r.partition) not in known
    }


def pinned(starting: Starting, cluster: ClusterLog) -> Starting:
    """Turn ``latest`` into the offsets that it means now: it must not move on while the source waits for data."""
    if not isinstance(starting, Latest):
        return starting
    return AtOffsets({t: {p: log.end for p, log in cluster.topics[t].partitions.items()} for t in cluster.topics})


def limited(ranges: Ranges, max_records: int | None) -> Ranges:
    """Cut the ranges to at most ``max_records`` offsets in all (None: no limit), in fair shares for the partitions."""
    if max_records is None:
        return ranges
    flat = [r for topic in ranges.values() for r in topic]
    shares = iter(fair_shares([r.end - r.start for r in flat], max_records, [r.start for r in flat]))
    return {topic: tuple(r._replace(end=r.start + next(shares)) for r in ranges[topic]) for topic in ranges}


def fair_shares(sizes: Sequence[int], total: int, consumed: Sequence[int]) -> list[int]:
    """Split ``total`` over ``sizes``, max-min fair: small sizes are covered in full, the others get equal shares, ±1.

    The remainder goes round by ``consumed`` (the offsets read so far): partitions that have more than their share take
    turns. If ``total`` is less than their number, each epoch goes on where the one before has stopped, since together
    they have consumed just so much more. So no partition starves, whatever comes into the others meanwhile.
    """
    shares = list(sizes)
    by_size = sorted(range(len(sizes)), key=lambda i: sizes[i])
    left = total
    for done, i in enumerate(by_size):
        level, odd = divmod(left, len(by_size) - done)
        if sizes[i] > level:
            turn = sum(consumed)
            for rank, j in enumerate(sorted(by_size[done:], key=lambda j: (j - turn) % len(sizes))):
                shares[j] = level + (rank < odd)
            break
        left -= sizes[i]
    return shares


def require_topics(topics: Sequence[str], cluster: ClusterLog) -> None:
    """Raise Refused if the cluster lacks one of the topics."""
    missing = sorted(topic for topic in topics if topic not in cluster.topics)
    if missing:
        raise Refused(
            f"The Kafka cluster does not have the topic {', '.join(missing)}.",
            code=codes.TOPIC_MISSING,
        )


def _continued(position: Mapping[int, int], log: TopicLog) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange(p, position.get(p, 0), log.partitions[p].end) for p in sorted(log.partitions))


def started(topic: str, log: TopicLog, starting: Starting, index: TimeIndex) -> tuple[OffsetRange, ...]:
    """The ranges of a topic that begins at ``starting``. Raises Refused for an offset that the topic does not have."""
    if isinstance(starting, AtOffsets) and (wrong := misplaced(topic, starting.offsets.get(topic, {}), log)):
        raise Refused(
            f"`starting` names {wrong}.",
            code=codes.STARTING_UNUSABLE,
            remedy="Correct the offset in `starting`. Or leave the partition out: the pipeline then begins at its "
            "oldest record. Then clear the failed task.",
        )
    starts = {p: _start(topic, p, log.partitions[p], starting, index) for p in sorted(log.partitions)}
    return tuple(OffsetRange(p, start, max(start, log.partitions[p].end)) for p, start in starts.items())


def _start(topic: str, partition: int, log: Log, starting: Starting, index: TimeIndex) -> int:
    if isinstance(starting, Latest):
        return log.end
    if isinstance(starting, AtOffsets):
        return starting.offsets.get(topic, {}).get(partition, log.start)
    if isinstance(starting, AtTime):
        # The index is newer than the log. No match: every record before the log's end is older than the time, so
        # beginning at that end skips nothing. A match behind the end: the next epoch begins there.
        found = index.get((topic, partition))
        return log.end if found is None else max(found, log.start)
    return log.start


def misplaced(topic: str, offsets: Mapping[int, int], log: TopicLog) -> str | None:
    """The first partition or offset that the topic does not have, as the end of a sentence; None if it has them all."""
    for partition, offset in sorted(offsets.items()):
        there = log.partitions.get(partition)
        if there is None:
            return f"{topic}[{partition}], but the topic has {len(log.partitions)} partition(s), which count from 0"
        if not there.start <= offset <= there.end:
            return (
                f"offset {offset} of {topic}[{partition}], but the brokers have the offsets [{there.start}, "
                f"{there.end})"
            )
    return None
