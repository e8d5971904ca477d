"""A paused pipeline takes no new epoch. What a run has begun goes on, and what a run left in doubt is finished."""

from __future__ import annotations

from airflow_epochs import codes
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.task import TaskTry, new_writer
from airflow_epochs.errors import NoNewData, Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import PauseRecord, Run
from airflow_epochs.protocol import State

_NOT_BEGUN = (State.NEW, State.ABORTED)


def require_taken(task: TaskTry, view: EpochView, run: Run) -> None:
    """Raise NoNewData if the run would have to open an attempt of an epoch that it has not begun, during a pause.

    An aborted epoch of another run counts as not begun: nothing of it shows, and its next attempt is work anew. An
    attempt that is undecided or in doubt is ended first, as without a pause.
    """
    if view.state not in _NOT_BEGUN or (view.open and view.open.run == run):
        return
    if pause := task.ledger.pause_in_force():
        raise NoNewData(
            f"{in_words(pause)} No attempt was opened.",
            code=codes.PIPELINE_PAUSED,
            pipeline=task.pipeline.name,
            epoch=view.number,
        )


def in_words(pause: PauseRecord) -> str:
    """A sentence about a pause, for people."""
    return f"{pause.who} has paused the pipeline at {pause.at}, because: {pause.why}."


def put(ledger: Ledger, pipeline: str, number: int, *, paused: bool, by: Account) -> PauseRecord:
    """Record a pause or its end as the n-th such record. A repeat returns the record that stands, if it says the same.

    Raises:
        Refused: An operator has recorded the opposite since. Nothing was changed.
    """
    record = PauseRecord(pipeline=pipeline, number=number, paused=paused, writer=new_writer(), **by.fields)
    standing = ledger.put(record)
    if standing.writer == record.writer:
        return standing
    newest = ledger.newest_pause() or standing
    if newest.paused != paused:
        raise Refused(
            f"{newest.who} has {'paused' if newest.paused else 'unpaused'} the pipeline before this "
            "was confirmed. Nothing was changed.",
            code=codes.COMMAND_RACE,
            pipeline=pipeline,
        )
    return newest
