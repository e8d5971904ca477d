"""One try of an Airflow task: the things that it works with, and the epoch that belongs to its run."""

from __future__ import annotations

import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone

from airflow_epochs import codes, secrecy
from airflow_epochs.config import Pipeline
from airflow_epochs.contracts import Environment, Interval, Sink
from airflow_epochs.coordinator.recorded_sinks import sink_of
from airflow_epochs.errors import Corrupt, Fenced, Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import CompleteRecord, OpenRecord, Run, attempt_fields, process_of

log = secrecy.logger(__name__)


def _utc_now() -> datetime:
    return datetime.now(timezone.utc)


def history(view: EpochView) -> Fenced:
    """The error for a task of an epoch that was unfinished in this ledger, and is over: the ledger was rebuilt."""
    return Fenced(
        f"The ledger was rebuilt, and its sinks show later epochs: epoch {view.number} is over.",
        code=codes.EPOCH_BEFORE_REBUILDING,
        **attempt_fields(view.opened.txn_id),
    )


def new_writer() -> str:
    """A new id for the ``writer`` of records: random, with host and process for people who read the records."""
    return f"{uuid.uuid4().hex}@{socket.gethostname()}:{os.getpid()}"


@dataclass(kw_only=True)
class TaskTry:
    """One try of a task, with its pipeline, its ledger and its environment.

    Attributes:
        writer: Tells its records from the records of all other tries: ``<32 hex digits>@<host>:<process id>``.
        interval: The data interval of the run; None if it has none.
        clock, draw_id, sleep, jitter: The only sources of time and chance, so that tests can choose them.
    """

    pipeline: Pipeline
    ledger: Ledger
    env: Environment
    interval: Callable[[], Interval | None] = lambda: None
    clock: Callable[[], datetime] = _utc_now
    draw_id: Callable[[], str] = lambda: uuid.uuid4().hex
    writer: str = field(default_factory=new_writer)
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random

    def now(self) -> str:
        """The time now, as ISO 8601. Only for the records' ``*_at`` fields: no clock decides anything."""
        return self.clock().isoformat()

    def sink_of(self, opened: OpenRecord, name: str) -> Sink:
        """A sink of an attempt, as the ledger describes it. Raises as ``recorded_sinks.sink_of``."""
        return sink_of(opened, name, self.pipeline.sinks)

    def sinks_of(self, opened: OpenRecord, names: Collection[str]) -> dict[str, Sink]:
        """The sinks ``names`` of an attempt, in the order of the DAG that opened it. Raises as ``sink_of``."""
        return {name: self.sink_of(opened, name) for name in opened.sinks if name in names}

    def view_of(self, run: Run) -> EpochView:
        """The epoch that the run opened; the one after the newest complete one if it has opened no epoch."""
        number = self.ledger.epoch_of(run)
        return self.ledger.view(number) if number else self.ledger.view_of_next()

    def mine(self, run: Run, of: Collection[str] | None = None) -> EpochView:
        """The epoch whose newest attempt this run opened, or that it had before others completed it.

        An attempt that holds a command belongs to every run of its epoch: the first one that opens the next attempt
        obeys it. Raises Fenced naming the run in charge if there is no such epoch. ``of``: as ``Ledger.view``.
        """
        number = self.ledger.epoch_of(run)
        view = self.ledger.view(number, of) if number else self.ledger.view_of_next()
        if view.complete:
            if number or view.complete.opened_by == run:
                return self.passing(view)
            raise self.fenced(view.complete)
        if view.open is None:
            raise Refused(
                "This run has not opened an epoch.",
                code=codes.EPOCH_NOT_OPENED,
                pipeline=self.pipeline.name,
            )
        if view.open.run != run and not (view.open.command and number):
            raise self.fenced(view.open)
        return view

    def passing(self, view: EpochView) -> EpochView:
        """``view`` of a complete epoch, in which the task has nothing to do: only the tasks behind it go on."""
        assert view.complete
        by = f"{view.complete.completed_by}{process_of(view.complete.writer)}"
        log.info("epoch %s is complete already, by %s: nothing to do", view.number, by)
        return view

    def fenced(self, by: OpenRecord | CompleteRecord, run: Run | None = None) -> Fenced:
        """The error for a task whose epoch another task has opened or completed. ``by``: the record of that task.

        ``run``: the run of the task that fails; None if it has none.
        """
        if isinstance(by, CompleteRecord):
            return Fenced(
                f"The epoch is already complete. Opened by: {by.opened_by}. Completed by: "
                f"{by.completed_by}{process_of(by.writer)}.",
                code=codes.EPOCH_COMPLETED_BY_OTHER,
                **attempt_fields(by.txn_id),
            )
        if by.command:
            return Fenced(
                f"A command, `{by.command.name}` by {by.command.who}, now waits for this epoch.",
                code=codes.EPOCH_HELD_BY_OTHER,
                remedy="Clear the run with all its tasks, or let the next one start: it obeys the command.",
                **attempt_fields(by.txn_id),
            )
        if by.run == run:
            return Fenced(
                f"Another task of this run, or another try{process_of(by.writer)}, went on with the epoch while this "
                "task ran, as `open` does if somebody clears it.",
                code=codes.EPOCH_HELD_BY_OTHER,
                remedy="Clear the open task with its downstream tasks.",
                **attempt_fields(by.txn_id),
            )
        return Fenced(
            f"The epoch now belongs to {by.run}{process_of(by.writer)}.",
            code=codes.EPOCH_HELD_BY_OTHER,
            **attempt_fields(by.txn_id),
        )

    @contextmanager
    def unless_overtaken(self, view: EpochView, run: Run | None = None) -> Iterator[None]:
        """Turn Corrupt into Fenced if the epoch has changed since ``view`` was read. ``run``: as in ``fenced``.

        Then another task has moved the epoch on, so sinks rightly show more than ``view`` says, and this try is late.
        """
        try:
            yield
        except Corrupt as error:
            now = self.ledger.view(view.number)
            if not now.complete and view.number <= self.ledger.rebuilt_to:
                raise history(view) from error
            if (now.state, now.epoch.txn) == (view.state, view.epoch.txn):
                self.ledger.require_no_gap(view.number, thoroughly=True)  # if the ledger lost an epoch, name that cause
                raise
            raise self.fenced(now.complete or now.opened, run) from error
