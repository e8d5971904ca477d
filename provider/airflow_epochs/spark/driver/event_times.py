"""Finds the newest event time of each partition, and lets Spark compute the rows that have one only once.

The rows are cached by one action, which finds the event times on the way. Everything that the transform derives from
them reads the cache. Metrics that Spark observes on the way to the sinks would not do: where a plan has the rows twice,
or can do without them, Spark loses what it has observed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.spark.driver.plans import EventTimePlan
from airflow_epochs.transforms.conditions import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WATCHED = "epoch_event_time"
"""The name of rows with event times in Spark's plans."""
_START = datetime(1970, 1, 1, tzinfo=timezone.utc)


def instant(micros: int) -> datetime:
    """The instant ``micros`` microseconds after the start of 1970, in UTC."""
    return _START + timedelta(microseconds=micros)


@dataclass
class SeenEventTimes:
    """Event times: topic -> partition -> the newest allowed one; and how many rows were further ahead."""

    newest: dict[str, dict[str, int]] = field(default_factory=dict)
    ahead: int = 0

    def add(self, topic: str, partition: int, newest: int | None, ahead: int) -> None:
        """Add what one group of rows shows."""
        self.ahead += ahead
        if newest is not None:
            known = self.newest.setdefault(topic, {})
            known[str(partition)] = max(newest, known.get(str(partition), newest))


class Clock:
    """The event times of one epoch's rows. Each call of ``watched`` adds rows."""

    def __init__(self, plan: EventTimePlan) -> None:
        self.depth = plan.depth
        self._newest_allowed = plan.newest_allowed
        self._topics = list(plan.partitions)
        self._watched: list[tuple[DataFrame, str]] = []

    def watched(self, rows: DataFrame, column: str) -> DataFrame:
        """``rows``, which move the watermark. Raises as ``EpochContext.event_time``."""
        _require_columns(rows, column, len(self._topics))
        named = rows.alias(WATCHED)
        self._watched.append((named, column))
        return named

    @property
    def count(self) -> int:
        """How often the transform has said which rows have an event time."""
        return len(self._watched)

    @contextmanager
    def cached(self) -> Iterator[SeenEventTimes]:
        """Cache the rows until the block ends. Yields what their event times are."""
        with ExitStack() as until_the_end:
            seen = SeenEventTimes()
            for rows, column in self._watched:
                rows.persist()
                until_the_end.callback(rows.unpersist)
                for found in self._measured(rows, column):
                    seen.add(*found)
            yield seen

    def _measured(self, rows: DataFrame, column: str) -> list[Any]:
        from pyspark.sql import functions as F

        micros = F.unix_micros(F.col(quoted(column)))
        allowed = micros <= F.lit(self._newest_allowed)
        topic = F.col("topic") if len(self._topics) > 1 else F.lit(self._topics[0]).alias("topic")
        found: list[Any] = (
            rows.groupBy(topic, "partition").agg(F.max(F.when(allowed, micros)), F.count(F.when(~allowed, 1))).collect()
        )
        return found


def _require_columns(rows: DataFrame, column: str, topics: int) -> None:
    kinds: dict[str, Any] = dict(rows.dtypes)
    missing = [name for name in (column, "partition", *(["topic"] if topics > 1 else [])) if name not in kinds]
    if missing:
        raise Refused(
            f"`event_time` got rows without the column {', '.join(map(repr, missing))}. Their columns are "
            f"{', '.join(kinds)}.",
            code=codes.EVENT_TIME_COLUMN,
        )
    if kinds[column] != "timestamp":
        raise Refused(
            f"`event_time` got the column {column!r} of type {kinds[column]}. It must be of type TIMESTAMP.",
            code=codes.EVENT_TIME_COLUMN,
        )
