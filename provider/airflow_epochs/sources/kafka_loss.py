"""Records that a pipeline still has to read and that no longer exist: found, and named to people. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_epochs.errors import Corrupt
from airflow_epochs.model import JsonDict, Ranges
from airflow_epochs.sources.kafka_logs import ClusterLog, Offsets

SHOWN_MAX = 20

_DELETED = "deleted by retention or delete-records before they were read"
_TRUNCATED = "the log ends earlier than it did: truncated, e.g. by an unclean leader election or a restored broker"
_NO_TOPIC = "the topic no longer exists"
_OTHER_TOPIC = "the topic was deleted and created again: its offsets now stand for other records"
_NO_PARTITION = "the partition no longer exists"


@dataclass(frozen=True, order=True)
class Gap:
    """Offsets ``[start, end)`` that are gone; ``end`` None: everything from ``start`` on."""

    topic: str
    partition: int
    start: int
    end: int | None
    why: str

    def __str__(self) -> str:
        offsets = f"offsets [{self.start}, {self.end})" if self.end is not None else f"offset {self.start} and up"
        return f"{self.topic}[{self.partition}] {offsets}"


def require_continuous(position: Offsets, state: JsonDict, cluster: ClusterLog) -> None:
    """Raise Corrupt unless every record from ``position`` on still exists, or can still come.

    A partition that the position does not know is new in its topic: it has to be there from offset 0 on.
    """
    _require_same_cluster(state, cluster)
    gaps = _identity_gaps(position, state, cluster)
    for topic in position.keys() - {gap.topic for gap in gaps}:
        for partition, log in cluster.topics[topic].partitions.items():
            at = position[topic].get(partition, 0)
            if log.start > at:
                gaps.append(Gap(topic, partition, at, log.start, _DELETED))
            elif log.end < at:
                gaps.append(Gap(topic, partition, log.end, at, _TRUNCATED))
    _require_none(gaps, _resume_at(position, cluster))


def require_readable(ranges: Ranges, state: JsonDict, cluster: ClusterLog) -> None:
    """Raise Corrupt unless every offset of already planned ranges can be read (again)."""
    _require_same_cluster(state, cluster)
    starts = {topic: {r.partition: r.start for r in ranges[topic]} for topic in ranges}
    wanted = {topic: {r.partition: r.start for r in ranges[topic] if r.end > r.start} for topic in ranges}
    gaps = _identity_gaps(wanted, state, cluster)
    spoilt = {(gap.topic, gap.partition) for gap in gaps}
    for topic, (partition, start, end) in ((t, r) for t in ranges for r in ranges[t]):
        if start == end or (topic, partition) in spoilt:
            continue
        log = cluster.topics[topic].partitions[partition]
        if log.start > start:
            gaps.append(Gap(topic, partition, start, min(log.start, end), _DELETED))
        if log.end < end:
            gaps.append(Gap(topic, partition, max(log.end, start), end, _TRUNCATED))
    _require_none(gaps, _resume_at(starts, cluster))


def _require_same_cluster(state: JsonDict, cluster: ClusterLog) -> None:
    then = state.get("cluster_id")
    if then and cluster.cluster_id and then != cluster.cluster_id:
        raise Corrupt(
            f"The connection leads to the Kafka cluster {cluster.cluster_id}, but this pipeline has read from "
            f"{then}. Its offsets mean nothing in another cluster, even for topics of the same name.",
            remedy="Point the connection back to the cluster it led to. To move to the new cluster on purpose, "
            "give the pipeline a new name and say with starting= where to begin there.",
        )


def _identity_gaps(position: Offsets, state: JsonDict, cluster: ClusterLog) -> list[Gap]:
    """Topics and partitions that are gone, or are no longer those that were read."""
    gaps: list[Gap] = []
    ids: Mapping[str, str] = state.get("topic_ids", {})
    for topic, offsets in position.items():
        log, then = cluster.topics.get(topic), ids.get(topic)
        if log is None:
            why = _NO_TOPIC
        elif then and log.topic_id and then != log.topic_id:
            why = _OTHER_TOPIC
        else:
            why = _NO_PARTITION
            offsets = {p: at for p, at in offsets.items() if p not in log.partitions}
        gaps += [Gap(topic, partition, at, None, why) for partition, at in offsets.items()]
    return gaps


def _resume_at(position: Offsets, cluster: ClusterLog) -> dict[str, dict[str, int]]:
    """The position, moved to where the logs begin or end now: from here a new pipeline could go on."""
    resume: dict[str, dict[str, int]] = {}
    for topic in sorted(position.keys() & cluster.topics.keys()):
        logs = cluster.topics[topic].partitions
        at = {p: position[topic].get(p, 0) for p in sorted(logs)}
        resume[topic] = {str(p): min(max(at[p], logs[p].start), logs[p].end) for p in at}
    return resume


def _require_none(gaps: Sequence[Gap], resume: dict[str, dict[str, int]]) -> None:
    if not gaps:
        return
    shown = sorted(gaps, key=lambda gap: (gap.why, gap.topic, gap.partition))[:SHOWN_MAX]
    parts = []
    for why in dict.fromkeys(gap.why for gap in shown):
        parts.append(f"{', '.join(str(gap) for gap in shown if gap.why == why)} ({why})")
    more = f"; and in {len(gaps) - SHOWN_MAX} more partitions" if len(gaps) > SHOWN_MAX else ""
    raise Corrupt(
        f"Records that this pipeline has to read are gone from Kafka: {'; '.join(parts)}{more}.",
        remedy=_remedy(resume),
    )


def _remedy(resume: dict[str, dict[str, int]]) -> str:
    text = "Restore the records. If the loss is accepted, go on under a new pipeline name that appends to the same "
    text += "tables, with starting= at the offsets where this pipeline ended"
    if 0 < sum(map(len, resume.values())) <= SHOWN_MAX:
        text += f", moved to what is there now: {json.dumps(resume)}"
    return text + "."
