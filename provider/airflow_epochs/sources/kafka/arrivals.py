"""What has arrived behind a position: a hint for tasks, which decide by themselves. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_epochs.sources.kafka.logs import Offsets, Partition

PartitionEnds = Mapping[Partition, int]
"""Per partition, the first offset that cannot be read yet."""


def unread(begins: Offsets, ends: PartitionEnds) -> dict[Partition, int]:
    """The first unread offset of each partition with unread offsets. A partition without a position begins at 0."""
    starts = {(topic, p): begins[topic].get(p, 0) for topic, p in ends if topic in begins}
    return {at: start for at, start in starts.items() if ends[at] > start}


def count(begins: Offsets, ends: PartitionEnds) -> int:
    """The number of unread offsets: at most so many records are unread."""
    return sum(ends[at] - start for at, start in unread(begins, ends).items())


def amiss(begins: Offsets, ends: PartitionEnds) -> bool:
    """Whether a topic or partition is gone, or a log has become shorter: a task has to say what that means."""
    topics = {topic for topic, _ in ends}
    positions = ((topic, p, start) for topic, of in begins.items() for p, start in of.items())
    return not begins.keys() <= topics or any(ends.get((topic, p), -1) < start for topic, p, start in positions)
