"""Asks the user's own function about an epoch whose sinks all voted VOTE_COMMIT."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_epochs import codes, secrecy
from airflow_epochs.ballot import FUNCTION, TEXT_LENGTH_MAX, Ballot, VoteFunction
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import RAISED_BY_USERS, Refused
from airflow_epochs.model import OpenRecord, StageReport, Vote, reasons_against
from airflow_epochs.sinks.participant import vote_against

log = secrecy.logger(__name__)


def against(task: TaskTry, opened: OpenRecord, votes: Mapping[str, Vote], report: StageReport) -> dict[str, Vote]:
    """The function's VOTE_ABORT, under ``FUNCTION``; empty if it is for the epoch, or is not asked.

    It is not asked if a sink is against the epoch, nor about an epoch that only brings tables back.
    """
    function = task.pipeline.vote
    if function is None or opened.restored_to or reasons_against(votes):
        return {}
    no = _against(function, _ballot(task, opened, votes, report))
    return {FUNCTION: vote_against(no)} if no else {}


def _against(function: VoteFunction, ballot: Ballot) -> Refused | None:
    name = getattr(function, "__name__", repr(function))
    try:
        said = function(ballot)
    except RAISED_BY_USERS as error:
        log.exception("the function %s of `vote=` raised", name)
        what = f"The function {name} raised {type(error).__name__}: {error}"
        return Refused(_short(what), code=codes.VOTE_FUNCTION_FAILED)
    if said is None:
        return None
    if not isinstance(said, str):
        what = f"The function {name} returned {said!r}: not None, not a text."
        return Refused(_short(what), code=codes.VOTE_FUNCTION_FAILED)
    return Refused(_short(said.strip()) or f"The function {name} is against the epoch.", code=codes.VOTED_AGAINST)


def _ballot(task: TaskTry, opened: OpenRecord, votes: Mapping[str, Vote], report: StageReport) -> Ballot:
    before = task.ledger.complete_record(opened.txn_id.epoch - 1)
    staged = {sink: vote.staged for sink, vote in votes.items() if vote.staged}
    return Ballot(
        pipeline=task.pipeline.name,
        epoch=opened.txn_id.epoch,
        attempt=opened.txn_id.attempt,
        ranges=opened.ranges,
        rows={sink: each.rows for sink, each in staged.items()},
        rows_before={sink: receipt.rows for sink, receipt in before.receipts.items()} if before else {},
        places={sink: each.place for sink, each in staged.items()},
        metrics=report.metrics,
    )


def _short(text: str) -> str:
    return text if len(text) <= TEXT_LENGTH_MAX else f"{text[: TEXT_LENGTH_MAX - 1]}…"
