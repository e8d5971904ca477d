"""What stands around vote and commit of every sink, so that each only says what it checks and what it writes.

A vote is asked before anything is promised: what is refused then is a VOTE_ABORT with its reason. A commit is asked
after the decision: where a sink does not answer, an earlier try may have landed, so nobody can say that it did not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt, NotApplied, OutcomeUnknown, Refused, RowsGone
from airflow_epochs.model import Staged, StagedClaim, Vote, VoteKind


def vote_on(claim: StagedClaim, checked: Callable[[], Staged]) -> Vote:
    """VOTE_COMMIT on what ``checked`` returns; a problem of the rows, or a check that fails, is a VOTE_ABORT."""
    if against := vote_against_rows(claim):
        return against
    try:
        return Vote(vote=VoteKind.VOTE_COMMIT, staged=checked())
    except (Refused, RowsGone) as no:
        return vote_against(no)


def vote_against(no: Refused | Corrupt) -> Vote:
    """A VOTE_ABORT with cause and remedy."""
    return Vote(vote=VoteKind.VOTE_ABORT, reason=no.reason)


def vote_against_rows(claim: StagedClaim) -> Vote | None:
    """A VOTE_ABORT for rows that Spark could not stage, or that do not meet the expectations; else None."""
    if claim.problem:
        return vote_against(Refused(claim.problem, code=codes.ROWS_UNFIT))
    return vote_against(Refused(claim.unmet, code=codes.EXPECTATION_UNMET)) if claim.unmet else None


@contextmanager
def unknown_without_answer(sink: str) -> Iterator[None]:
    """For a commit: an earlier try may have landed, so a sink that does not answer leaves that open.

    Raises:
        OutcomeUnknown: It does not answer now. What it refuses stays refused.
    """
    try:
        yield
    except Refused:
        raise
    except NotApplied as error:
        raise OutcomeUnknown(
            f"The provider cannot find out whether the sink shows the epoch. {error.what}",
            code=codes.SINK_UNANSWERED,
            remedy=error.remedy,
            sink=sink,
        ) from error
