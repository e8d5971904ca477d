"""Asks sinks and checks their answers, so that the error names the mistake in a class of the user's own.

Unchecked, such an answer fails later, in other code, or stands in a record for good. A method that only asks has
changed nothing, whatever it answers. After a wrong answer of ``commit``, the sink may or may not show the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from reprlib import Repr

from airflow_epochs import codes
from airflow_epochs.contracts import Environment, Fencing, Joint, LastEpoch, Planning, Positioned, Sink, SinkAttempt
from airflow_epochs.errors import RAISED_BY_USERS, EpochError, NotApplied, OutcomeUnknown, Refused, first_line
from airflow_epochs.model import JsonDict, Marker, Receipt, Staged, StagedClaim, TransactionId, Vote
from airflow_epochs.sinks import is_own

_SHORT = Repr()
_SHORT.maxother = _SHORT.maxstring = 200


def place_of(sink: Sink, attempt: SinkAttempt, try_id: str, env: Environment) -> str:
    """The sink's ``place``. Raises Refused unless it is a text."""
    with asked(sink, "place"):
        place = sink.place(attempt, try_id, env)
    _require(sink, "place", place, str, "a text that contains the id of the try")
    return place


def plan_of(sink: Sink, attempt: SinkAttempt, try_id: str, place: str, env: Environment) -> JsonDict:
    """The sink's plan for Spark to fill the place of this try. Raises Refused unless it is a dict with that place."""
    at_place = isinstance(sink, Planning)
    method = "plan_stage_at" if at_place else "plan_stage"
    with asked(sink, method):
        plan = (
            sink.plan_stage_at(attempt, place, env)
            if isinstance(sink, Planning)
            else sink.plan_stage(attempt, try_id, env)
        )
    _require(sink, method, plan, dict, "a dict, which Spark gets as JSON")
    if not attempt.restore and plan.get("place") != place:
        raise faulty(sink, method, f"returned a plan whose `place` is {_SHORT.repr(plan.get('place'))}", repr(place))
    return plan


def vote_of(sink: Sink, attempt: SinkAttempt, claim: StagedClaim, env: Environment) -> Vote:
    """The sink's ``vote``. Raises Refused unless it is one, on the place that it was asked about."""
    with asked(sink, "vote"):
        vote = sink.vote(attempt, claim, env)
    return _vote(sink, "vote", vote, claim)


def votes_of(first: Joint, those: Sequence[tuple[Sink, SinkAttempt, StagedClaim]], env: Environment) -> dict[str, Vote]:
    """The votes of sinks that vote together, by their names. Raises as ``vote_of``."""
    method, sink = "vote_together", those[0][0]
    with asked(sink, method):
        votes = first.vote_together(those, env)
    _require(sink, method, votes, Mapping, "a dict of the sinks' names and votes")
    return {each.name: _vote(each, method, votes.get(each.name), claim) for each, _, claim in those}


def committed(sink: Sink, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
    """The receipt of the sink's ``commit``. Raises OutcomeUnknown unless it is one, of this transaction and sink."""
    with _committing(sink, "commit"):
        receipt = sink.commit(attempt, staged, env)
    return _receipt(sink, "commit", receipt, attempt)


def committed_together(
    first: Joint, those: Sequence[tuple[Sink, SinkAttempt, Staged]], env: Environment
) -> dict[str, Receipt]:
    """The receipts of sinks that commit together, by their names. Raises as ``committed``."""
    method, sink = "commit_together", those[0][0]
    with _committing(sink, method):
        receipts = first.commit_together(those, env)
    found = receipts if isinstance(receipts, Mapping) else {}
    return {each.name: _receipt(each, method, found.get(each.name), attempt) for each, attempt, _ in those}


def marker_of(sink: Sink, pipeline: str, env: Environment) -> Marker | None:
    """The sink's ``last_committed``. Raises Refused unless it is a marker, or None."""
    with asked(sink, "last_committed"):
        found = sink.last_committed(pipeline, env)
    _require(sink, "last_committed", found, (Marker, type(None)), "a Marker, or None if it shows no epoch")
    return found


def last_epoch_of(sink: Positioned, pipeline: str, env: Environment) -> LastEpoch | None:
    """The sink's ``last_epoch``. Raises Refused unless it is a ``LastEpoch``, or None."""
    with asked(sink, "last_epoch"):
        found = sink.last_epoch(pipeline, env)
    _require(sink, "last_epoch", found, (LastEpoch, type(None)), "a LastEpoch, or None if it shows no epoch")
    return found


def fenced(
    sink: Fencing, pipeline: str, over: Sequence[TransactionId | None], by: TransactionId, env: Environment
) -> bool:
    """The sink's ``fence``. Raises Refused unless it answers True or False."""
    with asked(sink, "fence"):
        shown = sink.fence(pipeline, over, by, env)
    _require(sink, "fence", shown, bool, "True if the sink shows the fence, else False")
    return shown


@contextmanager
def asked(sink: object, method: str) -> Iterator[None]:
    """For a method that changes nothing that readers see: an error that says nothing of the effect becomes NotApplied.

    Only for a sink of the user's own. The cause may pass, as with an OSError, so Airflow may try again.
    """
    try:
        yield
    except RAISED_BY_USERS as error:
        if not _is_mistake(sink, error):
            raise
        raise NotApplied(_raised(sink, method, error), code=codes.SINK_FAULTY, sink=_name(sink)) from error


@contextmanager
def _committing(sink: Sink, method: str) -> Iterator[None]:
    """As ``asked``, for a method that may have shown the epoch before it failed."""
    try:
        yield
    except RAISED_BY_USERS as error:
        if not _is_mistake(sink, error):
            raise
        raise OutcomeUnknown(_raised(sink, method, error), code=codes.SINK_COMMIT_FAULTY, sink=sink.name) from error


def _is_mistake(sink: object, error: BaseException) -> bool:
    """Whether a class of the user's own raised it unawares. With Airflow's errors a sink ends its task on purpose."""
    is_of_airflow = type(error).__module__.partition(".")[0] == "airflow"
    return is_own(sink) and not isinstance(error, EpochError) and not is_of_airflow


def faulty(sink: object, method: str, does: str, must: str) -> Refused:
    """The error for a method that only asks. ``does``: what it did. ``must``: what it must return."""
    return Refused(
        f"The method `{method}` of {_described(sink)} {does}. It must return {must}.",
        code=codes.SINK_FAULTY,
        sink=_name(sink),
    )


def _require(sink: object, method: str, answer: object, kind: type | tuple[type, ...], must: str) -> None:
    if not isinstance(answer, kind):
        raise faulty(sink, method, f"returned {_SHORT.repr(answer)}", must)


def _vote(sink: Sink, method: str, vote: object, claim: StagedClaim) -> Vote:
    if not isinstance(vote, Vote):
        raise faulty(sink, method, f"returned {_SHORT.repr(vote)}", "a Vote")
    if vote.staged and vote.staged.place != claim.place:
        does = f"returned a Vote whose `staged.place` is {vote.staged.place!r}"
        raise faulty(sink, method, does, f"the place that it was asked about, {claim.place!r}")
    return vote


def _receipt(sink: Sink, method: str, receipt: object, attempt: SinkAttempt) -> Receipt:
    if isinstance(receipt, Receipt) and (receipt.txn_id, receipt.sink) == (attempt.txn, sink.name):
        return replace(receipt, txn_id=attempt.txn)  # a class of a user's own may have given the text alone
    raise OutcomeUnknown(
        f"The method `{method}` of {_described(sink)} returned {_SHORT.repr(receipt)}. It must return a Receipt with "
        f"txn_id={attempt.txn!r} and sink={sink.name!r}.",
        code=codes.SINK_COMMIT_FAULTY,
        sink=sink.name,
    )


def _raised(sink: object, method: str, error: BaseException) -> str:
    return f"The method `{method}` of {_described(sink)} raised {type(error).__name__}: {first_line(error)}"


def _described(sink: object) -> str:
    return f"sink {_name(sink)} (class {type(sink).__qualname__})"


def _name(sink: object) -> str:
    return str(getattr(sink, "name", "without a name"))
