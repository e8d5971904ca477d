"""What operators have done to a pipeline: who, why and when. These records are never pruned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import commands_of, newest_epochs, waivers
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import (
    ACKNOWLEDGE_CODE,
    SHORT_CODE,
    AcknowledgedRecord,
    Command,
    DisposedRecord,
    PauseRecord,
    RebuiltRecord,
    RetriedRecord,
    SavepointRecord,
    SigningRecord,
    TakeoverRecord,
    WaivedRecord,
)

_OfPipeline = TakeoverRecord | SigningRecord | RebuiltRecord | AcknowledgedRecord | PauseRecord
Accounted = _OfPipeline | RetriedRecord | SavepointRecord | DisposedRecord | WaivedRecord | Command
"""Records that name an operator."""


@dataclass(frozen=True, kw_only=True)
class Deed:
    """One command of an operator.

    Attributes:
        what: The command, as typed after ``airflow epochs``, and what it was about.
        epoch: The epoch that it was about, or that obeyed it; None if there is none.
        who, host, login: As in ``TakeoverRecord``.
    """

    what: str
    epoch: int | None
    who: str
    why: str
    at: str
    host: str = ""
    login: str = ""


def deeds(ledger: Ledger, epochs: int) -> list[Deed]:
    """All deeds about the pipeline, and those about its newest ``epochs`` epochs, newest first."""
    found = [*_of_pipeline(ledger)]
    for view in newest_epochs(ledger, epochs):
        found += _of_epoch(ledger, view)
    return sorted(found, key=lambda deed: deed.at, reverse=True)


def _of_pipeline(ledger: Ledger) -> Iterator[Deed]:
    for takeover in ledger.takeovers():
        yield _deed(f"takeover by DAG {takeover.dag_id}", None, takeover)
    if (signing := ledger.signing.newest()) and signing.who:
        yield _deed("sign", signing.epoch, signing)
    for rebuilt in ledger.rebuildings_in_force():
        yield _deed("rebuild", rebuilt.epoch, rebuilt)
    for acknowledged in ledger.acknowledgements():
        yield _deed(f"{ACKNOWLEDGE_CODE} {acknowledged.code[:SHORT_CODE]}", None, acknowledged)
    for pause in ledger.pauses():
        yield _deed("pause" if pause.paused else "unpause", None, pause)
    for retried in ledger.retries():
        how = "tasks cleared" if retried.cleared else "started"
        yield _deed(f"retry: run {retried.run_id} {how}", retried.epoch or None, retried)
    for savepoint in ledger.savepoints(also_disposed=True):
        yield _deed(f"savepoint {savepoint.name}", savepoint.epoch, savepoint)
        if disposed := ledger.disposed(savepoint.name):
            yield _deed(f"dispose-savepoint {savepoint.name}", savepoint.epoch, disposed)


def _of_epoch(ledger: Ledger, view: EpochView) -> Iterator[Deed]:
    for sink, waived in waivers(ledger, view).items():
        yield _deed(f"waive {sink}", view.number, waived)
    for command in commands_of(ledger, view):
        if command.name != ACKNOWLEDGE_CODE:  # that one has a record of its own
            yield _deed(command.name, view.number, command)


def _deed(what: str, epoch: int | None, by: Accounted) -> Deed:
    return Deed(what=what, epoch=epoch, who=by.who, why=by.why, at=by.at, host=by.host, login=by.login)
