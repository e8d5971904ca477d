"""Which attempts have dead letters. In others, a row that its sink cannot take aborts the epoch; the vote says why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_epochs import codes
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import with_more
from airflow_epochs.expectations import QUARANTINE
from airflow_epochs.model import OpenRecord, Vote

_OF_ROWS = tuple(
    f"{code.name}:"
    for code in (
        *(codes.ROWS_UNFIT, codes.DELTA_ROWS_UNFIT, codes.TOPIC_ROWS_UNFIT),
        *(codes.SQL_ROWS_UNFIT, codes.SQL_ROW_REFUSED, codes.BAD_RECORD),
    )
)
"""How the reason of a VOTE_ABORT begins that may be about a row which ``Fit`` judges."""


def sink_in(task: TaskTry, opened: OpenRecord) -> str | None:
    """The sink that gets the attempt's dead letters; None if no sink does, so that such a row aborts the attempt."""
    name = task.pipeline.dead_letters
    return None if name is None or _why_none(opened, name) else name


def explained(task: TaskTry, opened: OpenRecord, votes: Mapping[str, Vote]) -> dict[str, Vote]:
    """The votes; each VOTE_ABORT because of a row that could not become a dead letter says why."""
    return {name: _explained(task, opened, name, vote) for name, vote in votes.items()}


def _explained(task: TaskTry, opened: OpenRecord, name: str, vote: Vote) -> Vote:
    letters, reason = task.pipeline.dead_letters, vote.reason or ""
    if letters in (None, name) or not _is_about_a_row(task, name, reason):
        return vote
    why = _why_none_of(opened, name, letters)
    return replace(vote, reason=with_more(reason, why)) if why else vote


def _is_about_a_row(task: TaskTry, name: str, reason: str) -> bool:
    """Whether the sink votes against a row that might have become a dead letter. A VOTE_COMMIT has no reason."""
    if reason.startswith(f"{codes.EXPECTATION_UNMET.name}:"):
        return any(each.otherwise == QUARANTINE for each in task.pipeline.expectations.get(name, ()))
    return reason.startswith(_OF_ROWS)


def _why_none_of(opened: OpenRecord, name: str, letters: str) -> str:
    """Why no row of this sink becomes a dead letter; "" if one may, or if it never can."""
    if why := _why_none(opened, letters):
        return f"This attempt has no dead letters: {why}. The next attempt has them."
    if opened.sinks[name].ranges is not None:
        return "The sink begins with earlier epochs (`backfill`), and has no dead letters until it shows this one."
    return ""


def _why_none(opened: OpenRecord, letters: str) -> str:
    """Why no sink gets the attempt's dead letters; "" if one does. A backfilled sink is staged by its own job."""
    if letters not in opened.sinks:
        return f"it was opened before the DAG had the sink {letters!r}, which gets them"
    if opened.sinks[letters].ranges is not None:
        return f"it was opened with a backfill of the sink {letters!r}, which gets them"
    return ""
