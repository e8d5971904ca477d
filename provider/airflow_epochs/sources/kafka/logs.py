"""The values that describe the brokers' logs for planning. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_epochs.model import Ranges

Partition = tuple[str, int]


class Log(NamedTuple):
    """A partition's readable offsets ``[start, end)``.

    ``end`` is the last stable offset, ``epoch`` the leader epoch.
    """

    start: int
    end: int
    epoch: int | None = None


class Tail(NamedTuple):
    """Tells the record before an offset from another record that takes its place later.

    Attributes:
        epoch: The leader epoch when the record was seen. A log that was truncated since then has a later one, unless
            the cluster's metadata was restored from a backup too.
        crc: The checksum of the record's batch; None if it is not known.
    """

    epoch: int | None
    crc: int | None = None


class Batch(NamedTuple):
    """The batch of a log that holds a certain offset. Compaction makes ``whole`` False and changes ``crc``.

    ``ms``: the time of its first record, in ms since 1970; with LogAppendTime, when the broker got it.
    """

    crc: int
    whole: bool
    ms: int = -1


@dataclass(frozen=True)
class TopicLog:
    """One topic. ``topic_id`` is None before Kafka 2.8."""

    topic_id: str | None
    partitions: Mapping[int, Log]


@dataclass(frozen=True)
class ClusterLog:
    """The topics that exist, out of the requested ones.

    ``epoch_ends`` says where the records up to a requested leader epoch end; None: the log does not know the epoch.
    """

    cluster_id: str | None
    topics: Mapping[str, TopicLog]
    epoch_ends: Mapping[Partition, int | None] = field(default_factory=dict)

    def starts(self) -> dict[Partition, int]:
        """The first offset of every partition."""
        return {(topic, p): log.start for topic, of in self.topics.items() for p, log in of.partitions.items()}

    def ends(self) -> dict[Partition, int]:
        """The last stable offset of every partition."""
        return {(topic, p): log.end for topic, of in self.topics.items() for p, log in of.partitions.items()}


Offsets = Mapping[str, Mapping[int, int]]
"""One offset per topic and partition."""


def offsets_at_ends(ranges: Ranges) -> dict[str, dict[int, int]]:
    """The position after the ranges, per topic and partition."""
    return {topic: {r.partition: r.end for r in of} for topic, of in ranges.items()}
