"""A source of data intervals in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from airflow_epochs.contracts import Environment, Interval, Limits, Move, Past, PlannedEpoch, Position
from airflow_epochs.model import JsonDict, OffsetRange, Ranges, ends_of
from airflow_epochs.sources.kafka import interval as by_interval
from airflow_epochs.testing import MemorySource

MIDNIGHT, HOUR = datetime(2026, 1, 31, tzinfo=timezone.utc), timedelta(hours=1)


class ByTheHour:
    """What a source says of its epochs, as KafkaSource does. The n-th record of a partition is of hour n."""

    def by_interval(self) -> bool:
        return True

    def planned_for(self, state: JsonDict) -> Interval | None:
        return by_interval.planned_for(state)

    def read_until(self, state: JsonDict) -> datetime | None:
        covered = by_interval.coverage_of(state)
        return covered.end if covered and not covered.went_back else None

    @staticmethod
    def hour_of(time: datetime) -> int:
        return int((time - MIDNIGHT).total_seconds()) // 3600


@dataclass(frozen=True, kw_only=True)
class Hourly(ByTheHour, MemorySource):
    """One partition. Plans as KafkaSource does."""

    missed: str = "read"

    def plan_paced(self, position: Position | None, limits: Limits, past: Past, env: Environment) -> PlannedEpoch:
        at = by_interval.require_interval(past.interval)
        covered = by_interval.coverage_of(position.state) if position else None
        by_interval.require_unread(at, covered, past.epochs())
        start = ends_of(position.ranges)["orders", 0] if position else self.hour_of(at.start)
        ranges: Ranges = {"orders": (OffsetRange(0, start, self.hour_of(at.end)),)}
        first = {("orders", 0): self.hour_of(at.start)}
        by_interval.plan(at, covered, ranges, first, {}, refuse_missed=self.missed == "refuse")
        return PlannedEpoch(ranges=ranges, state={by_interval.KEY: by_interval.recorded(at, covered)})

    def to_offsets(self, position: Position, offsets: Mapping[str, Mapping[int, int]], env: Environment) -> Move:
        return moved_back(position, offsets)


def moved_back(position: Position, offsets: Mapping[str, Mapping[int, int]]) -> Move:
    """What a source says of a command that goes back to these offsets, as KafkaSource does."""
    was = ends_of(position.ranges)
    there: Ranges = {topic: tuple(OffsetRange(p, to, to) for p, to in of.items()) for topic, of in offsets.items()}
    again: Ranges = {
        topic: tuple(OffsetRange(p, to, was[topic, p]) for p, to in of.items()) for topic, of in offsets.items()
    }
    state = by_interval.back_at(position.state, None)
    return Move(position=Position(ranges=there, state=state), again=again, ahead=again)
