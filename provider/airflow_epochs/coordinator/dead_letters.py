"""Which attempts have dead letters. The others have their rows aborted as without them, and their votes say why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import with_more
from airflow_epochs.model import OpenRecord, Vote, VoteKind


def sink_in(task: TaskTry, opened: OpenRecord) -> str | None:
    """The sink that gets the attempt's dead letters; None if there is none, so that such a row aborts the attempt."""
    name = task.pipeline.dead_letters
    return None if name is None or _why_none(opened, name) else name


def explained(task: TaskTry, opened: OpenRecord, votes: Mapping[str, Vote]) -> dict[str, Vote]:
    """The votes; each VOTE_ABORT of a sink whose rows could not become dead letters says why."""
    letters = task.pipeline.dead_letters
    whys = {name: _why_none_of(opened, name, letters) if letters else "" for name in votes}
    return {
        name: replace(vote, reason=with_more(vote.reason or "", whys[name]))
        if whys[name] and vote.vote is VoteKind.VOTE_ABORT
        else vote
        for name, vote in votes.items()
    }


def _why_none_of(opened: OpenRecord, name: str, letters: str) -> str:
    """Why no row of this sink becomes a dead letter; "" if one may, or if it never can."""
    if why := _why_none(opened, letters):
        return f"This attempt has no dead letters: {why}. The next attempt has them."
    if opened.sinks[name].ranges is not None:
        return "The sink begins with earlier epochs (`backfill`), and has no dead letters until it shows this one."
    return ""


def _why_none(opened: OpenRecord, letters: str) -> str:
    """Why the attempt has none; "" if it has. A sink that is backfilled is staged by a job of its own."""
    if letters not in opened.sinks:
        return f"it was opened before the DAG had the sink {letters!r}, which gets them"
    if opened.sinks[letters].ranges is not None:
        return f"it was opened with a backfill of the sink {letters!r}, which gets them"
    return ""
