"""What the brokers have: the view that planning works on. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Partition = tuple[str, int]


class Log(NamedTuple):
    """What can be read of a partition: ``[start, end)``; ``end`` is the last stable offset.

    ``epoch``: the leader's.
    """

    start: int
    end: int
    epoch: int | None = None


class Tail(NamedTuple):
    """What tells the record before an offset from another one that takes its place later.

    ``epoch``: the leader epoch when it was seen. Every log that was truncated since has a later one, unless the
    cluster's metadata was put back too. ``crc``: the checksum of the batch that the record is in; None: not known.
    """

    epoch: int | None
    crc: int | None = None


class Batch(NamedTuple):
    """The batch of a log that holds a certain offset. Not ``whole``: compaction has been there, and changed ``crc``."""

    crc: int
    whole: bool


@dataclass(frozen=True)
class TopicLog:
    """One topic. ``topic_id`` is None before Kafka 2.8."""

    topic_id: str | None
    partitions: Mapping[int, Log]


@dataclass(frozen=True)
class ClusterLog:
    """The topics asked for, as far as they exist.

    ``epoch_ends``: where the records up to a leader epoch that was asked for end; None: that epoch is unknown there.
    """

    cluster_id: str | None
    topics: Mapping[str, TopicLog]
    epoch_ends: Mapping[Partition, int | None] = field(default_factory=dict)

    def ends(self) -> dict[Partition, int]:
        """The last stable offset of every partition."""
        return {(topic, p): log.end for topic, of in self.topics.items() for p, log in of.partitions.items()}


Offsets = Mapping[str, Mapping[int, int]]
"""Per topic and partition one offset."""

Tails = Mapping[Partition, Tail]
