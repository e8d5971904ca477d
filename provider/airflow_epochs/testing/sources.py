"""A source that reads topics of a ``MemoryWorld``."""

from __future__ import annotations

import json
from dataclasses import dataclass

from airflow_epochs.contracts import Environment, Limits, PlannedEpoch, Position, SparkRead
from airflow_epochs.model import Backlog, JsonDict, OffsetRange, Ranges, empty_at_ends
from airflow_epochs.testing.world import MemoryWorld


@dataclass(frozen=True, kw_only=True)
class MemorySource:
    """Topics of the world named ``world``. Takes all records, at most ``max_records`` per partition. Never waits."""

    world: str
    topics: tuple[str, ...]
    max_records: int | None = None

    def spec(self) -> JsonDict:
        """The source's fields, with ``kind``."""
        return {"kind": "memory", "world": self.world, "topics": list(self.topics), "max_records": self.max_records}

    def plan(self, position: Position | None, limits: Limits, env: Environment) -> PlannedEpoch | None:
        """Ranges up to the topics' ends."""
        world = MemoryWorld.named(self.world)
        at_most = limits.max_records or self.max_records
        starts = {(topic, r.partition): r.end for topic, rs in position.ranges.items() for r in rs} if position else {}
        ranges: Ranges = {}
        for topic in self.topics:
            ranges[topic] = tuple(
                _next_range(partition, starts.get((topic, partition), 0), end, at_most)
                for partition, end in sorted(world.ends(topic).items())
            )
        if not any(r.end > r.start for per_topic in ranges.values() for r in per_topic):
            return None
        self.check(ranges, {}, env)
        left = sum(world.ends(topic)[r.partition] - r.end for topic in ranges for r in ranges[topic])
        return PlannedEpoch(ranges=ranges, state={"topics": sorted(self.topics)}, backlog=Backlog(offsets=left))

    def before(self, base: Position | None, ranges: Ranges, state: JsonDict) -> Position:
        """The ends of ``base``: in a world, no epoch is the first to read a topic."""
        return Position(ranges=empty_at_ends(base.ranges) if base else {}, state=base.state if base else {})

    def check(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        """Read all records of the ranges. Raises Corrupt if some are gone."""
        world = MemoryWorld.named(self.world)
        for topic, per_topic in ranges.items():
            for each in per_topic:
                world.read(topic, each)

    def spark_read(self, ranges: Ranges, env: Environment) -> SparkRead:
        """World and ranges, as ``MemorySpark`` reads them."""
        return SparkRead(options={"world": self.world, "ranges": json.dumps(ranges)})

    def acknowledge(self, pipeline: str, ranges: Ranges, env: Environment) -> None:
        """Append the ranges to ``MemoryWorld.acknowledged``."""
        MemoryWorld.named(self.world).acknowledged.append(ranges)


def _next_range(partition: int, start: int, end: int, at_most: int | None) -> OffsetRange:
    return OffsetRange(partition, start, end if at_most is None else min(end, start + at_most))
