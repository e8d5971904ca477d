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
"""The largest number of moments at which a try dies: the first ones that a sink names."""


@dataclass
class _Through:
    """The subject's environment with another ``reached``."""

    env: Environment

    @property
    def spark(self) -> SparkRunner:
        return self.env.spark

    def connection(self, conn_id: str) -> Connection:
        return self.env.connection(conn_id)


@dataclass
class HeldUp(_Through, Generic[T]):
    """An environment that holds a commit up at its first named moment until another ends: at most ``within_s`` s."""

    other: Callable[[], Future[T]]
    within_s: float
    by: Future[T] | None = None

    def reached(self, phase: str) -> None:
        if self.by is None:
            self.by = self.other()
            wait([self.by], self.within_s)


@dataclass
class Dying(_Through):
    """An environment in which the process dies at the named moment ``at``, from 0; None: it does not die.

    ``named``: how many moments were named so far.
    """

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
