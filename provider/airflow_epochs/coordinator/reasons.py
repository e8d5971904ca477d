"""The causes and remedies of an abort, out of the votes in its decision record."""

from __future__ import annotations

from airflow_epochs.errors import REMEDY
from airflow_epochs.model import DecisionRecord, VoteKind


def reason_and_remedy(decision: DecisionRecord) -> tuple[str, str]:
    """The reasons of all sinks that voted VOTE_ABORT, and their remedies, each only once; "" if there is no remedy."""
    against = {sink: vote.reason or "" for sink, vote in decision.votes.items() if vote.vote is VoteKind.VOTE_ABORT}
    whats, remedies = [], dict[str, None]()
    for sink, reason in against.items():
        what, _, remedy = reason.partition(REMEDY)
        whats.append(f"{sink}: {what.rstrip('.')}")
        if remedy:
            remedies[remedy.rstrip(".")] = None
    return "; ".join(whats) or decision.reason.rstrip("."), "; ".join(remedies)
