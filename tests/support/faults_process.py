"""Task processes that are killed, stopped and woken. Each is a real process with a coordinator of its own.

They are forked from a server that has everything imported and nothing started: deltalake's runtime does not
survive a fork once it runs.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from airflow_epochs.errors import NotApplied
from tests.support.environment import Action
from tests.support.faults_world import DiskWorld, airflow_run
from tests.support.waiting import wait_until

DEADLINE_S = 60.0
_PRELOADED = [
    "airflow_epochs.coordinator.coordinator",
    "airflow_epochs.sinks.delta.participant",
    "airflow_epochs.testing",
    "deltalake",
    "pyarrow.dataset",
    "pyarrow.compute",
    "obstore",
]


@dataclass(frozen=True)
class Ended:
    """How a process ended on its own: the error that made its run red, if any, and the phases it went through."""

    error: str | None
    message: str
    phases: tuple[str, ...]


def kill() -> None:
    """SIGKILL: nothing more happens in this process."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """SIGSTOP: what follows happens when somebody wakes it."""
    os.kill(os.getpid(), signal.SIGSTOP)


def refuse() -> None:
    """Spark fails."""
    raise NotApplied("Spark failed.", remedy="clear the task.")


def fail() -> None:
    """An answer that does not arrive; it says nothing about the effect."""
    raise OSError("connection reset by peer")


class TaskProcess:
    """One Airflow run in a process of its own, with things that happen at phases. A context manager."""

    def __init__(
        self,
        world: DiskWorld,
        number: int,
        at: Mapping[str, Action] | None = None,
        before: Action | None = None,
    ) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self._answer, theirs = context.Pipe(duplex=False)
        self._process = context.Process(target=_run, args=(theirs, world, number, dict(at or {}), before))
        self._process.start()
        theirs.close()

    def __enter__(self) -> TaskProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.join()

    def wait_killed(self) -> None:
        """Wait for SIGKILL to have come. Raises AssertionError if the process ended in any other way."""
        self._process.join(DEADLINE_S)
        assert self._process.exitcode == -signal.SIGKILL, self._end_of()

    def kill_after(self, seconds: float) -> bool:
        """SIGKILL at no particular step; whether it came before the end."""
        self._process.join(seconds)
        self._process.kill()
        self._process.join()
        return self._process.exitcode == -signal.SIGKILL

    def wait_stopped(self) -> None:
        """Wait until the process has stopped itself."""
        wait_until(lambda: self._state() in "TZX", DEADLINE_S, "the process stops")
        assert self._state() == "T", self._end_of()

    def go_on(self) -> None:
        """SIGCONT."""
        assert self._process.pid
        os.kill(self._process.pid, signal.SIGCONT)

    def wake(self) -> Ended:
        """SIGCONT, and how it ends then."""
        self.go_on()
        return self.wait()

    def wait(self) -> Ended:
        """How it ends on its own."""
        if not self._answer.poll(DEADLINE_S):
            raise AssertionError(f"no end after {DEADLINE_S} s")
        ended: Ended = self._answer.recv()
        self._process.join(DEADLINE_S)
        return ended

    def _state(self) -> str:
        """As in ``ps``: T is stopped, Z a zombie in the sense of the kernel."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except FileNotFoundError:
            return "X"
        return stat.rpartition(")")[2].split()[0]

    def _end_of(self) -> str:
        ended: Any = self._answer.recv() if self._answer.poll(0) else None
        return f"not reached; exit code {self._process.exitcode}, {ended}"


def _run(answer: Connection, world: DiskWorld, number: int, at: dict[str, Action], before: Action | None) -> None:
    if before:
        before()
    coordinator = world.coordinator(at)
    error = airflow_run(coordinator, world.run_of(number))
    phases = tuple(getattr(coordinator.task.env, "phases", ()))
    answer.send(Ended(type(error).__name__ if error else None, str(error or ""), phases))
