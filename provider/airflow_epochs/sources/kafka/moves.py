"""Where the next epoch begins after an operator's command: past a loss, at given offsets, or in another topic. No I/O.

A move changes nothing by itself. It becomes part of a ledger record, which the next epoch obeys.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from airflow_epochs import codes
from airflow_epochs.contracts import TOPIC_IDS, Move, Position
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict, OffsetRange, Ranges, empty_at_ends, ends_of
from airflow_epochs.sources.kafka import interval
from airflow_epochs.sources.kafka.logs import Batch, ClusterLog, Offsets, Partition, offsets_at_ends
from airflow_epochs.sources.kafka.loss import Gap, gaps_at, replaced, tails_json, tails_of, truncated
from airflow_epochs.sources.kafka.plan import TimeIndex, misplaced, require_topics, started
from airflow_epochs.sources.kafka.starting import AtOffsets, AtTime, Starting, time_of


def before(base: Position | None, ranges: Ranges, state: JsonDict) -> Position:
    """The position at which an aborted epoch began: ``base``, and the topics that the epoch was the first to read.

    ``ranges`` and ``state``: the epoch's, as they were planned.
    """
    known = base.ranges if base else {}
    new = {t: tuple(r._replace(end=r.start) for r in of) for t, of in ranges.items() if t not in known}
    recorded: JsonDict = base.state if base else {"cluster_id": state.get("cluster_id")}
    ids = {**state.get(TOPIC_IDS, {}), **recorded.get(TOPIC_IDS, {})}
    return Position(ranges={**empty_at_ends(known), **new}, state={**recorded, TOPIC_IDS: ids})


def past_losses(
    position: Position, topics: Sequence[str], cluster: ClusterLog, batches: Mapping[Partition, Batch]
) -> Move:
    """Go on after the records that Kafka has lost. No record that it still has is left out.

    Deleted records are left behind. A truncated log goes on where it was written anew, by its leader epochs; if they
    do not tell, at its oldest record. ``batches``: as ``plan.state_of``.

    Raises:
        Refused: The pipeline does not read a topic, or the topic is gone or was created again.
        Corrupt: The connection leads to another cluster.
    """
    known = _of(position, topics)
    gaps = gaps_at(offsets_at_ends(known), position.state, cluster)
    _require_same_logs(gaps)
    told = {(gap.topic, gap.partition) for gap in gaps}  # by leader epochs, which tell where; a checksum does not
    unknown = {at: end for at, end in ends_of(known).items() if at not in told}
    gaps += replaced(unknown, position.state, cluster, batches)
    starts: dict[str, dict[int, int]] = {}
    for gap in gaps:
        oldest = cluster.topics[gap.topic].partitions[gap.partition].start
        starts.setdefault(gap.topic, {})[gap.partition] = oldest if gap.diverged is None else gap.diverged
    written_anew = {(gap.topic, gap.partition) for gap in gaps if gap.diverged is not None}
    return _moved(position, starts, cluster, written_anew)


def cut_off(ranges: Ranges, state: JsonDict, cluster: ClusterLog, batches: Mapping[Partition, Batch]) -> Ranges:
    """The gaps of ``loss.truncated``, as ranges."""
    gaps = truncated(ranges, state, cluster, batches)
    return _as_ranges({(gap.topic, gap.partition): (gap.start, gap.end or gap.start) for gap in sorted(gaps)})


def to_offsets(position: Position, offsets: Offsets, cluster: ClusterLog, time: datetime | None = None) -> Move:
    """Go on at these offsets. A partition that they do not name stays where it is.

    ``time``: all records from then on lie at or behind the offsets that go back; None: that is not known.

    Raises:
        Refused: The pipeline does not read a topic, or the topic was created again or lacks an offset.
        Corrupt: The connection leads to another cluster.
    """
    gaps = gaps_at(offsets_at_ends(_of(position, list(offsets))), position.state, cluster)
    _require_same_logs(gaps)
    for topic, of in offsets.items():
        if wrong := misplaced(topic, of, cluster.topics[topic]):
            raise Refused(f"The command would go on at {wrong}. Nothing was changed.", code=codes.OFFSETS_UNUSABLE)
    return _moved(position, offsets, cluster, time=time)


def to_time(position: Position, ms: int, cluster: ClusterLog, index: TimeIndex) -> Move:
    """Go back to the first record at or after a time (ms since 1970) in each partition; never forward.

    A partition that the pipeline has not read yet stays as it is: the next epoch reads it from offset 0 on.

    Raises:
        Refused: A topic was created again.
        Corrupt: The connection leads to another cluster.
    """
    known = offsets_at_ends(_of(position, sorted(cluster.topics)))
    _require_same_logs(gaps_at(known, position.state, cluster))
    found = {t: started(t, cluster.topics[t], AtTime(ms), index) for t in known}
    back = {
        t: {r.partition: min(r.start, known[t][r.partition]) for r in of if r.partition in known[t]}
        for t, of in found.items()
    }
    return replace(to_offsets(position, back, cluster, time_of(ms)), back_to=time_of(ms).isoformat())


def to_another(
    position: Position, topics: Sequence[str], starting: Starting, cluster: ClusterLog, index: TimeIndex
) -> Move:
    """Go on in the topics that have these names now, at ``starting``: created again, or in another cluster.

    If the cluster is another one, the pipeline forgets the topics that are not in ``topics``: their offsets mean
    nothing there.

    Raises Refused: The pipeline does not read a topic, or the cluster has no such topic or offset.
    """
    require_topics(list(_of(position, topics)), cluster)
    if isinstance(starting, AtOffsets):
        _of(position, list(starting.offsets))
    elsewhere = position.state.get("cluster_id") not in (None, cluster.cluster_id)
    left = position.ranges if elsewhere else _of(position, topics)
    ranges = {t: started(t, cluster.topics[t], starting, index) for t in topics}
    starts = {(t, r.partition): r.start for t, of in ranges.items() for r in of}
    kept = {t: of for t, of in empty_at_ends(position.ranges).items() if t not in left}
    at = _as_ranges({at: (start, start) for at, start in starts.items()})
    return Move(
        position=Position(ranges=dict(sorted({**kept, **at}.items())), state=_identified(position, left, cluster)),
        left=empty_at_ends(left),
        ahead=_ahead(starts, cluster),
    )


def _identified(position: Position, left: Collection[str], cluster: ClusterLog) -> JsonDict:
    """The state of ``position`` with the cluster's id and its topics' ids of today, for all topics of ``left``."""
    moved = {(t, r.partition) for t in left for r in position.ranges[t]}
    recorded = interval.without_coverage(_without(position.state, moved))
    kept = {topic: of for topic, of in position.state.get(TOPIC_IDS, {}).items() if topic not in left}
    today = {topic: log.topic_id for topic, log in cluster.topics.items() if log.topic_id}
    return {**recorded, "cluster_id": cluster.cluster_id, TOPIC_IDS: dict(sorted({**kept, **today}.items()))}


def _of(position: Position, topics: Sequence[str]) -> Ranges:
    for topic in topics:
        if topic not in position.ranges:
            raise Refused(
                f"The pipeline does not read the topic {topic!r}. It reads: {', '.join(sorted(position.ranges))}.",
                code=codes.TOPIC_UNKNOWN,
            )
    return {topic: position.ranges[topic] for topic in topics}


def _require_same_logs(gaps: Sequence[Gap]) -> None:
    if another := [gap for gap in gaps if gap.is_of_another_log]:
        raise Refused(
            f"Nothing can be skipped in topic {another[0].topic}: {another[0].why}.",
            code=codes.TOPIC_REPLACED,
        )


def _moved(
    position: Position,
    starts: Offsets,
    cluster: ClusterLog,
    written_anew: Collection[Partition] = (),
    time: datetime | None = None,
) -> Move:
    """The move to ``starts``. ``time``: as in ``to_offsets``.

    ``written_anew``: where earlier offsets stand for records that the pipeline has not read.
    """
    old = ends_of(position.ranges)
    new = {(t, p): at for t, of in starts.items() for p, at in of.items()}
    steps = {at: (old.get(at, 0), to) for at, to in sorted(new.items()) if old.get(at, 0) != to}
    back = {at: (to, was) for at, (was, to) in steps.items() if to < was and at not in written_anew}
    state = _without(position.state, steps)
    return Move(
        position=Position(
            ranges=_as_ranges({at: (to, to) for at, to in sorted({**old, **new}.items())}),
            state=interval.back_at(state, time) if back else state,
        ),
        lost=_as_ranges({at: step for at, step in steps.items() if step[0] < step[1]}),
        again=_as_ranges(back),
        ahead=_ahead({at: to for at, (_, to) in steps.items()}, cluster),
    )


def _as_ranges(of: Mapping[Partition, tuple[int, int]]) -> Ranges:
    found: dict[str, tuple[OffsetRange, ...]] = {}
    for (topic, partition), (start, end) in of.items():
        found[topic] = (*found.get(topic, ()), OffsetRange(partition, start, end))
    return found


def _ahead(starts: Mapping[Partition, int], cluster: ClusterLog) -> Ranges:
    """The ranges that can be read now from ``starts`` on."""
    ends = cluster.ends()
    return _as_ranges({at: (start, max(start, ends[at])) for at, start in starts.items()})


def _without(state: JsonDict, moved: Collection[Partition]) -> JsonDict:
    """``state`` without the tails of ``moved``: the records before their new positions are not known."""
    return {**state, "tails": tails_json({at: tail for at, tail in tails_of(state).items() if at not in moved})}
