"""What the vote saw of both topics, kept in the decision: so the commit can tell a marker that was lost since.

A marker that is missing means "not sent" only where none can be gone: in the same marker topic, with every record
that came after the vote still there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from airflow_epochs.model import JsonDict, Staged
from airflow_epochs.sinks.kafka.cluster import TopicFacts
from airflow_epochs.sinks.kafka.marker import MarkerRecord, Markers


@dataclass(frozen=True, kw_only=True)
class Voted:
    """What the vote saw.

    Attributes:
        topic_id, partitions: Of the topic that the rows go to.
        marker_topic_id: Of the marker topic.
        marker_end: Where the sink's partition of it ended: the marker will be behind that.
    """

    topic_id: str
    partitions: int
    marker_topic_id: str
    marker_end: int

    @classmethod
    def now(cls, topic: TopicFacts, marker_topic: TopicFacts, markers: Markers) -> Voted:
        _, end = markers.log.bounds()
        return cls(topic_id=topic.id, partitions=topic.partitions, marker_topic_id=marker_topic.id, marker_end=end)

    @classmethod
    def of(cls, staged: Staged) -> Voted | None:
        """None: version 0.1 voted, which kept nothing of it."""
        known = {name: staged.detail[name] for name in cls.__dataclass_fields__ if name in staged.detail}
        return cls(**known) if known else None

    def detail(self) -> JsonDict:
        return asdict(self)

    def has_lost_markers(self, found: MarkerRecord | None, marker_topic: TopicFacts | None, beginning: int) -> bool:
        """Whether a marker may be gone that came after the vote, or after an operator's word.

        Args:
            found: The newest marker, read before the rest was looked at.
            marker_topic: As it is now.
            beginning: Of the sink's partition now.
        """
        seen = [(self.marker_topic_id, self.marker_end)]
        if found and found.marker_topic_id and found.vouched_end is not None:
            seen.append((found.marker_topic_id, found.vouched_end))
        return not any(marker_topic and marker_topic.id == topic and beginning <= end for topic, end in seen)
