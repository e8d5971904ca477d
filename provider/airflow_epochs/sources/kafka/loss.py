"""Finds the records that a pipeline has yet to read and that no longer exist, and names them in errors. No I/O."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_epochs import codes
from airflow_epochs.contracts import TOPIC_IDS
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import JsonDict, OffsetRange, Ranges
from airflow_epochs.sources.kafka.logs import Batch, ClusterLog, Offsets, Partition, Tail, TopicLog

SHOWN_MAX = 20

_DELETED = "retention or kafka-delete-records deleted them before the pipeline read them"
_TRUNCATED = "the log is shorter than before: truncated, e.g. by an unclean leader election or a restored broker"
_REPLACED = (
    "the log was truncated, e.g. by an unclean leader election or a restored broker, and these offsets have new records"
)
_NO_TOPIC = "the topic no longer exists"
_OTHER_TOPIC = "the topic was deleted and created again, so its offsets now stand for other records"
_NO_PARTITION = "the partition no longer exists"


@dataclass(frozen=True, order=True)
class Gap:
    """Offsets ``[start, end)`` whose records are gone. ``end`` None: all offsets from ``start`` on.

    ``diverged`` is the offset up to which the log is unchanged, by its leader epochs; None if they cannot tell.
    """

    topic: str
    partition: int
    start: int
    end: int | None
    why: str
    diverged: int | None = None

    @property
    def is_of_another_log(self) -> bool:
        """Whether the topic or the partition is gone, so that the offset stands for no record any more."""
        return self.why in (_NO_TOPIC, _OTHER_TOPIC, _NO_PARTITION)

    def __str__(self) -> str:
        offsets = f"offsets [{self.start}, {self.end})" if self.end is not None else f"offset {self.start} and up"
        return f"{self.topic}[{self.partition}] {offsets}"


def tails_of(state: JsonDict) -> dict[Partition, Tail]:
    """The tails that a plan recorded at the ends of its ranges. Plans of version 0.1 have no tails."""
    recorded: Mapping[str, Mapping[str, Sequence[int | None]]] = state.get("tails", {})
    return {(topic, int(p)): Tail(*tail[:2]) for topic in recorded for p, tail in recorded[topic].items()}


def tails_json(tails: Mapping[Partition, Tail]) -> JsonDict:
    """The inverse of ``tails_of``."""
    found: dict[str, dict[str, list[int | None]]] = {}
    for (topic, partition), tail in sorted(tails.items()):
        found.setdefault(topic, {})[str(partition)] = list(tail)
    return found


def epochs_of(state: JsonDict) -> dict[Partition, int]:
    """The recorded leader epoch per partition, where there is one."""
    return {partition: tail.epoch for partition, tail in tails_of(state).items() if tail.epoch is not None}


def require_continuous(position: Offsets, state: JsonDict, cluster: ClusterLog) -> None:
    """Raise Corrupt if a record from ``position`` on is gone, as ``gaps_at`` finds out."""
    _require_none(gaps_at(position, state, cluster), cluster)


def gaps_at(position: Offsets, state: JsonDict, cluster: ClusterLog) -> list[Gap]:
    """The records from ``position`` on that are gone. Raises Corrupt if ``cluster`` is another one than before.

    A partition that ``position`` does not name is new in its topic: its records must exist from offset 0 on.
    """
    _require_same_cluster(state, cluster)
    gaps, epochs = _identity_gaps(position, state, cluster), epochs_of(state)
    for topic in position.keys() - {gap.topic for gap in gaps}:
        for partition, log in cluster.topics[topic].partitions.items():
            at = position[topic].get(partition, 0)
            if log.start > at:
                gaps.append(Gap(topic, partition, at, log.start, _DELETED))
            elif cut := _cut((topic, partition), log.start, at, cluster, epochs):
                gaps.append(cut)
    return gaps


def moved_beginnings(ranges: Ranges, state: JsonDict, cluster: ClusterLog) -> list[Partition]:
    """Partitions whose range begins at the oldest record, if that record was deleted after the plan."""
    oldest: Mapping[str, Sequence[int]] = state.get("oldest", {})
    found = []
    for topic in ranges.keys() & oldest.keys() & cluster.topics.keys():
        log = cluster.topics[topic]
        if not _is_another(topic, log, state):
            from_oldest = log.partitions.keys() & set(oldest[topic])
            there = {r.partition: r for r in ranges[topic] if r.partition in from_oldest}
            found += [(topic, p) for p, r in there.items() if log.partitions[p].start > r.start]
    return sorted(found)


def require_readable(ranges: Ranges, state: JsonDict, cluster: ClusterLog) -> None:
    """Raise Corrupt unless every planned offset can still be read and still stands for the same record."""
    _require_ranges(ranges, state, cluster, deleted=True)


def require_was_readable(ranges: Ranges, state: JsonDict, cluster: ClusterLog) -> None:
    """Raise Corrupt if Spark may have read other records than the planned ones.

    Called after the read, so records that were deleted meanwhile are no loss.
    """
    _require_ranges(ranges, state, cluster, deleted=False)


def _require_ranges(ranges: Ranges, state: JsonDict, cluster: ClusterLog, *, deleted: bool) -> None:
    _require_same_cluster(state, cluster)
    not_empty = {topic: tuple(r for r in ranges[topic] if r.end > r.start) for topic in ranges}
    gaps = _gone(ranges, state, cluster)
    moved = moved_beginnings(not_empty, state, cluster) if deleted else []
    spans = _spans(ranges, _places(gaps) | set(moved))
    _require_none([*gaps, *(_deleted(spans, cluster) if deleted else []), *_cuts(spans, state, cluster)], cluster)
    if moved:
        _raise_moved(sorted(moved), ranges, cluster)


def _gone(ranges: Ranges, state: JsonDict, cluster: ClusterLog) -> list[Gap]:
    """The planned ranges, also empty ones, whose topic or partition is gone or another one."""
    return _identity_gaps({topic: {r.partition: r.start for r in ranges[topic]} for topic in ranges}, state, cluster)


def _places(gaps: Iterable[Gap]) -> set[Partition]:
    return {(gap.topic, gap.partition) for gap in gaps}


def _spans(ranges: Ranges, but: Container[Partition]) -> dict[Partition, OffsetRange]:
    """The ranges that are not empty, without the partitions in ``but``."""
    of = {(topic, r.partition): r for topic in ranges for r in ranges[topic]}
    return {at: r for at, r in of.items() if r.end > r.start and at not in but}


def _deleted(spans: Mapping[Partition, OffsetRange], cluster: ClusterLog) -> list[Gap]:
    starts = cluster.starts()
    return [Gap(*at, r.start, min(starts[at], r.end), _DELETED) for at, r in spans.items() if starts[at] > r.start]


def _cuts(spans: Mapping[Partition, OffsetRange], state: JsonDict, cluster: ClusterLog) -> list[Gap]:
    epochs = epochs_of(state)
    found = (_cut(at, r.start, r.end, cluster, epochs) for at, r in spans.items())
    return [gap for gap in found if gap]


def _raise_moved(moved: Sequence[Partition], ranges: Ranges, cluster: ClusterLog) -> None:
    planned = {(topic, r.partition): r for topic in ranges for r in ranges[topic]}
    oldest = {at: cluster.topics[at[0]].partitions[at[1]].start for at in moved}
    gaps = [Gap(*at, planned[at].start, min(oldest[at], planned[at].end), _DELETED) for at in moved[:SHOWN_MAX]]
    raise Corrupt(
        "This epoch begins at the oldest records of its topics, and retention deleted some of them before the epoch "
        f"read them: {', '.join(map(str, gaps))}{', …' if len(moved) > SHOWN_MAX else ''}.",
        code=codes.RECORDS_EXPIRED,
    )


def require_same_records(
    ends: Mapping[Partition, int], state: JsonDict, cluster: ClusterLog, batches: Mapping[Partition, Batch]
) -> None:
    """Raise Corrupt if the record before one of ``ends`` is not the recorded one, as ``replaced`` finds out."""
    _require_none(replaced(ends, state, cluster, batches), cluster)


def replaced(
    ends: Mapping[Partition, int], state: JsonDict, cluster: ClusterLog, batches: Mapping[Partition, Batch]
) -> list[Gap]:
    """The logs in which the record before one of ``ends`` is not the recorded one, by the checksum of its batch.

    Leader epochs cannot prove this: a cluster whose metadata was restored from a backup counts them a second time.
    A batch that compaction has changed proves nothing.
    """
    tails = tails_of(state)
    gaps = []
    for (topic, partition), end in ends.items():
        then, now = tails.get((topic, partition)), batches.get((topic, partition))
        if then and now and now.whole and then.crc not in (None, now.crc):
            gaps.append(Gap(topic, partition, cluster.topics[topic].partitions[partition].start, end, _REPLACED))
    return gaps


def truncated(ranges: Ranges, state: JsonDict, cluster: ClusterLog, batches: Mapping[Partition, Batch]) -> list[Gap]:
    """What truncations have removed of planned ranges, where topic and partition are still the same ones.

    Checks as ``require_readable`` and ``require_same_records`` do. ``batches``: the batches before the ranges' ends.
    """
    spans = _spans(ranges, _places(_gone(ranges, state, cluster)))
    cuts = _cuts(spans, state, cluster)
    others = replaced({at: spans[at].end for at in spans.keys() - _places(cuts)}, state, cluster, batches)
    return cuts + [replace(gap, start=max(gap.start, spans[gap.topic, gap.partition].start)) for gap in others]


def _cut(at: Partition, start: int, end: int, cluster: ClusterLog, epochs: Mapping[Partition, int]) -> Gap | None:
    """The part of ``[start, end)`` that a truncation has removed, even if the log has grown past it again."""
    log = cluster.topics[at[0]].partitions[at[1]]
    same = cluster.epoch_ends.get(at, log.end)
    if same is None:  # the log knows no epoch as late as the recorded one: nothing proves its records
        return Gap(*at, start, end, _REPLACED)
    same = max(min(same, log.end), log.start)
    if same >= end:
        return None
    # Only a new leader truncates a log. If the epoch is not newer, somebody has restored the metadata as well.
    known = at in cluster.epoch_ends and log.epoch is not None and log.epoch > epochs.get(at, log.epoch)
    why = _TRUNCATED if log.end < end else _REPLACED
    return Gap(*at, max(same, start), end, why, same if known else None)


def _require_same_cluster(state: JsonDict, cluster: ClusterLog) -> None:
    then = state.get("cluster_id")
    if then and cluster.cluster_id and then != cluster.cluster_id:
        raise Corrupt(
            f"The connection leads to the Kafka cluster {cluster.cluster_id}, but this pipeline has read from the "
            f"cluster {then}. Offsets of one cluster have no meaning in another, even for topics of the same name.",
            code=codes.CLUSTER_CHANGED,
        )


def _identity_gaps(position: Offsets, state: JsonDict, cluster: ClusterLog) -> list[Gap]:
    """Gaps for topics and partitions that are gone, and for topics that were deleted and created again."""
    gaps: list[Gap] = []
    for topic, offsets in position.items():
        log = cluster.topics.get(topic)
        if log is None:
            gaps += [Gap(topic, p, at, None, _NO_TOPIC) for p, at in offsets.items()]
        elif _is_another(topic, log, state):
            gaps += [Gap(topic, p, at, None, _OTHER_TOPIC) for p, at in offsets.items()]
        else:
            gone = {p: at for p, at in offsets.items() if p not in log.partitions}
            gaps += [Gap(topic, p, at, None, _NO_PARTITION) for p, at in gone.items()]
    return gaps


def _is_another(topic: str, log: TopicLog, state: JsonDict) -> bool:
    then = state.get(TOPIC_IDS, {}).get(topic)
    return bool(then and log.topic_id and then != log.topic_id)


def _require_none(gaps: Sequence[Gap], cluster: ClusterLog) -> None:
    if not gaps:
        return
    raise Corrupt(_told(gaps), code=codes.RECORDS_GONE, remedy=_remedy(gaps, cluster))


def _told(gaps: Sequence[Gap]) -> str:
    """A sentence for records that are known to be gone, and one for logs whose lost records cannot be named."""
    lost = [gap for gap in gaps if not gap.is_of_another_log]
    gone = [gap for gap in gaps if gap.is_of_another_log]
    sentences = []
    if lost:
        sentences.append(f"Kafka no longer has records that this pipeline must read: {_listed(lost)}.")
    if gone:
        sentences.append(
            f"This pipeline cannot go on where it is: {_listed(gone)}. If there were records that it had not read yet, "
            "they are gone too."
        )
    return " ".join(sentences)


def _listed(gaps: Sequence[Gap]) -> str:
    shown = sorted(gaps, key=lambda gap: (gap.why, gap.topic, gap.partition))[:SHOWN_MAX]
    parts = []
    for why in dict.fromkeys(gap.why for gap in shown):
        parts.append(f"{', '.join(str(gap) for gap in shown if gap.why == why)} ({why})")
    more = f"; and in {len(gaps) - SHOWN_MAX} more partitions" if len(gaps) > SHOWN_MAX else ""
    return f"{'; '.join(parts)}{more}"


def _remedy(gaps: Sequence[Gap], cluster: ClusterLog) -> str:
    """A command for each kind of loss, with a ``--topic`` for each topic."""
    text = "Restore the records, with the topics' ids and the offsets that they had, and clear the failed task."
    if topics := _topics(gap for gap in gaps if not gap.is_of_another_log):
        text += (
            f" To accept the loss instead, run `airflow epochs skip PIPELINE{topics} --to-available --why …`: it goes "
            "on with the oldest records that Kafka has after the loss. It prints what is lost and what is read twice, "
            "and asks. Then clear the failed task."
        )
    there = [gap for gap in gaps if gap.is_of_another_log and gap.topic in cluster.topics]
    if topics := _topics(there):
        text += (
            f" To go on with the topic that was created again, run `airflow epochs reset-source PIPELINE{topics} "
            "--starting earliest --why …`. Then clear the failed task."
        )
    if gone := sorted({gap.topic for gap in gaps} - cluster.topics.keys()):
        text += (
            f" To go on with a new topic of the same name, create {', '.join(gone)}, and run `airflow epochs "
            f"reset-source PIPELINE{''.join(f' --topic {topic}' for topic in gone)} --starting earliest --why …`. Then "
            "clear the failed task."
            f" To go on without {', '.join(gone)}, remove it from `topics` in the DAG. If an aborted epoch has records "
            "of it, also run `airflow epochs replan PIPELINE --why …`. Then clear the failed task."
        )
    return text


def _topics(gaps: Iterable[Gap]) -> str:
    return "".join(f" --topic {topic}" for topic in sorted({gap.topic for gap in gaps}))
