"""What the vote saw of both topics. The decision keeps it, so the commit can tell if a marker was lost since.

A missing marker means "not sent" only if no marker can be lost: the marker topic is the same, and still has every
record that came after the vote.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from airflow_epochs.model import JsonDict, Staged
from airflow_epochs.sinks.kafka.cluster import TopicFacts
from airflow_epochs.sinks.kafka.marker import MarkerRecord, Markers


@dataclass(frozen=True, kw_only=True)
class Voted:
    """The state of both topics at the vote.

    Attributes:
        topic_id, partitions: The topic of the rows.
        marker_topic_id: The marker topic.
        cluster_id: Their cluster; None if the brokers do not tell, or an earlier version voted.
        marker_end: The end of the sink's partition in the marker topic. The epoch's marker comes at or after it.
    """

    topic_id: str
    partitions: int
    marker_topic_id: str
    marker_end: int
    cluster_id: str | None = None

    @classmethod
    def now(cls, topic: TopicFacts, marker_topic: TopicFacts, markers: Markers, cluster_id: str | None) -> Voted:
        """The state now. Read it before the vote."""
        _, end = markers.log.bounds()
        return cls(
            topic_id=topic.id,
            partitions=topic.partitions,
            marker_topic_id=marker_topic.id,
            marker_end=end,
            cluster_id=cluster_id,
        )

    @classmethod
    def of(cls, staged: Staged) -> Voted | None:
        """The state that the vote recorded; None if version 0.1 voted, which recorded nothing."""
        known = {name: staged.detail[name] for name in cls.__dataclass_fields__ if name in staged.detail}
        return cls(**known) if known else None

    def detail(self) -> JsonDict:
        """The state as JSON, for ``Staged.detail``."""
        return asdict(self)

    def has_lost_markers(self, found: MarkerRecord | None, marker_topic: TopicFacts | None, beginning: int) -> bool:
        """Whether a marker may be lost that came after the vote, or after an operator put one back.

        Args:
            found: The newest marker. Read it before the other arguments.
            marker_topic: The marker topic now.
            beginning: The first offset that the sink's partition has now.
        """
        seen = [(self.marker_topic_id, self.marker_end)]
        if found and found.marker_topic_id and found.vouched_end is not None:
            seen.append((found.marker_topic_id, found.vouched_end))
        return not any(marker_topic and marker_topic.id == topic and beginning <= end for topic, end in seen)
