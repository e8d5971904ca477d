"""Named moments of a sink's work, at which its process dies or is held up: for the conformance suite."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from airflow_epochs.contracts import Connection, Environment, SparkRunner
from airflow_epochs.testing.environment import Crash

T = TypeVar("T")

MOMENTS_MAX = 100
"""A try dies at so many of the moments that a sink names, at most: at the first ones."""


@dataclass
class _Through:
    """An environment that is the subject's, but for the named moments."""

    env: Environment

    @property
    def spark(self) -> SparkRunner:
        return self.env.spark

    def connection(self, conn_id: str) -> Connection:
        return self.env.connection(conn_id)


@dataclass
class HeldUp(_Through, Generic[T]):
    """It holds the first named moment up until another commit ends, at most ``within_s`` seconds."""

    other: Callable[[], Future[T]]
    within_s: float
    by: Future[T] | None = None

    def reached(self, phase: str) -> None:
        if self.by is None:
            self.by = self.other()
            wait([self.by], self.within_s)


@dataclass
class Dying(_Through):
    """The process dies at the named moment of the number ``at``, from 0; None: it does not. ``named``: so many were."""

    at: int | None = None
    named: int = 0

    def reached(self, phase: str) -> None:
        self.named += 1
        if self.named - 1 == self.at:
            raise Crash(phase)


def dies_at(env: Environment, moment: int, work: Callable[[Environment], object]) -> str | None:
    """Work until the named moment of this number, and die there.

    Returns the moment's name; None if the work has named fewer moments, and is done.
    """
    dying = Dying(env, moment)
    try:
        work(dying)
    except Crash as crash:
        return str(crash)
    return None


def dies_ever_later(env: Environment, work: Callable[[Environment], object]) -> str:
    """Work again and again, and die each time one named moment later, until the work is done. Returns the moments."""
    died = []
    for moment in range(MOMENTS_MAX):
        if (at := dies_at(env, moment, work)) is None:
            break
        died.append(at)
    return ", ".join(died)
