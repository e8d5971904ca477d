"""When an epoch is due, how large it is, and how far it is behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Protocol, TypeGuard, runtime_checkable

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.contracts.position import Position
from airflow_epochs.contracts.source import Limits, PlannedEpoch
from airflow_epochs.model import CompleteRecord, JsonDict


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """What a source waits for, so that a trigger can look in place of the task.

    Attributes:
        conn_id: The connection of the Kafka cluster.
        begins: Topic -> partition -> the first offset that no epoch has read.
        min_records: This many unread records are enough.
        max_delay_s: A record of this age is enough; None: age does not count.
        max_wait_s: For how long the task may wait in all.
    """

    conn_id: str
    begins: Mapping[str, Mapping[int, int]]
    min_records: int
    max_delay_s: float | None
    max_wait_s: float


class NotYet(Exception):
    """It is too early for an epoch: data is missing, or it cannot be complete before a moment. Nothing was opened."""

    def __init__(self, awaited: Awaited | datetime) -> None:
        super().__init__(f"waits for {awaited}")
        self.awaited = awaited


@dataclass(frozen=True)
class Interval:
    """The data interval of a run: the times from ``start`` on, and before ``end``. Both have a zone."""

    start: datetime
    end: datetime

    def __str__(self) -> str:
        start, end = (time.astimezone(timezone.utc).isoformat() for time in (self.start, self.end))
        return f"[{start}, {end})"


@dataclass(frozen=True, kw_only=True)
class Past:
    """What the ledger knows of earlier epochs, and the times of the run.

    Attributes:
        epochs: The completion records, newest first. Each one is read from the ledger when it is asked for.
        clock: The time now, with its zone.
        interval: The run's data interval; None if it has none.
    """

    epochs: Callable[[], Iterator[CompleteRecord]]
    clock: Callable[[], datetime]
    interval: Interval | None = None


@runtime_checkable
class Pacing(Protocol):
    """A source that may size an epoch by earlier ones, or wait for more data. Then ``plan`` is not called."""

    def plan_paced(
        self, position: Position | None, limits: Limits, past: Past, env: Environment
    ) -> PlannedEpoch | None:
        """As ``plan``. ``PlannedEpoch.state`` says what was decided, and from which figures.

        Raises:
            NoNewData: There is new data, and the source waits for more.
            NotYet: It would wait now, and ``limits`` say that the task waits elsewhere.
        """
        ...


@runtime_checkable
class ByInterval(Protocol):
    """A source whose epochs may belong to the data intervals of their runs."""

    def by_interval(self) -> bool:
        """Whether they do. Needs no connection."""
        ...

    def planned_for(self, state: JsonDict) -> Interval | None:
        """The interval that an epoch with this ``PlannedEpoch.state`` was planned for; None: no interval."""
        ...

    def read_until(self, state: JsonDict) -> datetime | None:
        """The end of the interval that an epoch with this ``PlannedEpoch.state`` was planned for; None: no interval."""
        ...


def is_by_interval(source: object) -> TypeGuard[ByInterval]:
    """Whether the epochs of a source belong to the data intervals of their runs. Needs no connection."""
    return isinstance(source, ByInterval) and source.by_interval()


@dataclass(frozen=True, kw_only=True)
class Unread:
    """The records of a partition that no epoch has read yet: offsets ``[start, end)``.

    ``ms``: the time of the first one, or of one that came with it, in ms since 1970; None if there is none, or if the
    source does not tell.
    """

    topic: str
    partition: int
    start: int
    end: int
    ms: int | None


@runtime_checkable
class Lagging(Protocol):
    """A source that can tell how far a position is behind."""

    def unread(self, position: Position, env: Environment) -> list[Unread]:
        """What can be read behind the position, per partition. Reads only.

        Raises:
            Corrupt: Records are gone that no epoch has read.
        """
        ...
