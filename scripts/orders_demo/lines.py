"""A line for each epoch of the demo while it runs: how far it is, its rows in and out, and what was killed in it.

In a terminal the lines move. Elsewhere, such as in a file, an epoch has a plain line for each attempt and for its end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import records_upper_bound
from airflow_epochs.protocol import State

LOOK_S = 0.3


@dataclass(frozen=True)
class Line:
    """How far an epoch is: ``done`` of ``steps``."""

    epoch: int
    attempt: int
    phase: str
    done: int
    steps: int
    rows_in: int
    rows_out: dict[str, int]

    @classmethod
    def of(cls, view: EpochView, *, staging: bool) -> Line:
        """The line of an epoch that was opened. ``staging``: whether a try of its newest attempt has begun."""
        record = view.complete or view.opened
        receipts = view.complete.receipts if view.complete else view.receipts
        sinks = receipts if view.complete else view.opened.sinks
        phase, done = _phase(view, staging=staging)
        return cls(
            epoch=view.number,
            attempt=record.txn_id.attempt,
            phase=phase,
            done=done + len(receipts),
            steps=len(sinks) + 4,
            rows_in=records_upper_bound(record.ranges),
            rows_out={sink: receipt.rows for sink, receipt in sorted(receipts.items())},
        )

    @property
    def rows(self) -> str:
        """The rows in and out, such as ``60,000 in, 58,800 + 1,200 out``."""
        out = " + ".join(f"{rows:,}" for rows in self.rows_out.values()) or "0"
        return f"{self.rows_in:,} in, {out} out"


def _phase(view: EpochView, *, staging: bool) -> tuple[str, int]:
    if view.state is State.OPEN:
        return ("stage", 2) if staging else ("open", 1)
    return {State.ABORTED: ("aborted", 0), State.IN_DOUBT: ("commit", 3), State.COMPLETE: ("complete", 4)}[view.state]


class Lines:
    """The lines of a pipeline's epochs on a console. ``look``: what there is now, oldest first."""

    def __init__(self, console: Console, look: Callable[[], Iterable[Line]]) -> None:
        self._console, self._look = console, look
        self._killed: dict[int, list[str]] = {}
        self._shown: dict[int, Line] = {}
        self._tasks: dict[int, TaskID] = {}
        self._bars = Progress(
            TextColumn("  epoch {task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[told]}"),
            console=console,
            disable=not console.is_terminal,
        )

    def killed(self, epoch: int, what: str) -> None:
        """Remember on the epoch's line what was killed in it."""
        self._killed.setdefault(epoch, []).append(what)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Look again and again, beside what the caller does; a last time at the end."""
        over = threading.Event()
        thread = threading.Thread(target=self._follow, args=(over,), name="lines", daemon=True)
        with self._bars:
            thread.start()
            try:
                yield
            finally:
                over.set()
                thread.join()

    def _follow(self, over: threading.Event) -> None:
        while not over.wait(LOOK_S):
            self.show()
        self.show()

    def show(self) -> None:
        """Look once."""
        for line in self._look():
            if self._console.is_terminal:
                self._move(line)
            elif _told(line) and _told(self._shown.get(line.epoch)) != _told(line):
                self._console.print(f"  epoch {line.epoch}: {self._text(line)}")
            self._shown[line.epoch] = line

    def _move(self, line: Line) -> None:
        if line.epoch not in self._tasks:
            self._tasks[line.epoch] = self._bars.add_task(f"{line.epoch:>2}", total=line.steps, told="")
        task = self._tasks[line.epoch]
        self._bars.update(task, completed=line.done, total=line.steps, told=self._text(line))

    def _text(self, line: Line) -> str:
        attempt = f", attempt {line.attempt}" if line.attempt > 1 else ""
        killed = "".join(f"; killed: {what}" for what in self._killed.get(line.epoch, ()))
        return f"{line.phase}{attempt}: {line.rows}{killed}"


def _told(line: Line | None) -> tuple[int, str] | None:
    """What a plain line is about; None for what passes by."""
    return (line.attempt, line.phase) if line and line.phase in ("open", "aborted", "complete") else None
