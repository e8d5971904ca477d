"""What the brokers have: the view that planning works on. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Log(NamedTuple):
    """What can be read of a partition: ``[start, end)``; ``end`` is the last stable offset."""

    start: int
    end: int


@dataclass(frozen=True)
class TopicLog:
    """One topic. ``topic_id`` is None before Kafka 2.8."""

    topic_id: str | None
    partitions: Mapping[int, Log]


@dataclass(frozen=True)
class ClusterLog:
    """The topics asked for, as far as they exist."""

    cluster_id: str | None
    topics: Mapping[str, TopicLog]


Offsets = Mapping[str, Mapping[int, int]]
"""Per topic and partition one offset."""
