"""One try of an Airflow task: what it works with, and whose epoch it finds."""

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
from typing import TypedDict

from airflow_epochs import codes, secrecy
from airflow_epochs.config import Pipeline
from airflow_epochs.contracts import Environment, Sink
from airflow_epochs.coordinator.recorded_sinks import sink_of
from airflow_epochs.errors import Corrupt, Fenced, Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import CompleteRecord, OpenRecord, Run, TransactionId, process_of

log = secrecy.logger(__name__)


def _utc_now() -> datetime:
    return datetime.now(timezone.utc)


def new_writer() -> str:
    """Unlike any other, and where it is, for whoever finds its records."""
    return f"{uuid.uuid4().hex}@{socket.gethostname()}:{os.getpid()}"


@dataclass(kw_only=True)
class TaskTry:
    """Knows its pipeline, the ledger and the world around it.

    ``writer`` tells its records from everybody else's: ``<32 hex digits>@<host>:<process id>``.
    """

    pipeline: Pipeline
    ledger: Ledger
    env: Environment
    clock: Callable[[], datetime] = _utc_now
    draw_nonce: Callable[[], str] = lambda: uuid.uuid4().hex
    writer: str = field(default_factory=new_writer)
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random

    def now(self) -> str:
        """For the records' ``*_at`` fields alone: no clock decides anything."""
        return self.clock().isoformat()

    def sink_of(self, opened: OpenRecord, name: str) -> Sink:
        """The sink of an attempt, as the ledger describes it. Raises as ``recorded_sinks.sink_of`` does."""
        return sink_of(opened, name, self.pipeline.sinks)

    def sinks_of(self, opened: OpenRecord, names: Collection[str]) -> dict[str, Sink]:
        """Those sinks of an attempt, in the order of the DAG that it was opened by."""
        return {name: self.sink_of(opened, name) for name in opened.sinks if name in names}

    def view_of(self, run: Run) -> EpochView:
        """The epoch that the run opened; the one after the newest complete one if it opened none."""
        number = self.ledger.epoch_of(run)
        return self.ledger.view(number) if number else self.ledger.view_of_next()

    def mine(self, run: Run, of: Collection[str] | None = None) -> EpochView:
        """The epoch whose newest attempt this run opened, or that it had before others completed it.

        Raises Fenced naming the run in charge if there is none. ``of``: as ``Ledger.view``.
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
        if view.open.run != run:
            raise self.fenced(view.open)
        return view

    def passing(self, view: EpochView) -> EpochView:
        """A complete epoch, of which a task has nothing to do but let the next one go on."""
        assert view.complete
        by = f"{view.complete.completed_by}{process_of(view.complete.writer)}"
        log.info("epoch %s is complete already, by %s: passing through", view.number, by)
        return view

    def fenced(self, by: OpenRecord | CompleteRecord) -> Fenced:
        if isinstance(by, CompleteRecord):
            return Fenced(
                f"The epoch is already complete. Opened by: {by.opened_by}. Completed by: "
                f"{by.completed_by}{process_of(by.writer)}.",
                code=codes.EPOCH_COMPLETED_BY_OTHER,
                **attempt_fields(by.txn),
            )
        return Fenced(
            f"The epoch now belongs to {by.run}{process_of(by.writer)}.",
            code=codes.EPOCH_HELD_BY_OTHER,
            **attempt_fields(by.txn),
        )

    @contextmanager
    def unless_overtaken(self, view: EpochView) -> Iterator[None]:
        """What looks Corrupt may be another run's progress since ``view`` was read: then this try is merely late."""
        try:
            yield
        except Corrupt as error:
            now = self.ledger.view(view.number)
            if (now.state, now.epoch.txn) == (view.state, view.epoch.txn):
                self.ledger.require_no_gap(view.number, thoroughly=True)  # ahead of a hole, sinks only look ahead
                raise
            raise self.fenced(now.complete or now.opened) from error


class AttemptFields(TypedDict):
    pipeline: str
    epoch: int
    attempt: int


def attempt_fields(txn: TransactionId) -> AttemptFields:
    return {"pipeline": txn.pipeline, "epoch": txn.epoch, "attempt": txn.attempt}
