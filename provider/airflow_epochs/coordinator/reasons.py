"""The causes and remedies of an abort, out of the votes in its decision record."""

from __future__ import annotations

import re

from airflow_epochs.ballot import FUNCTION
from airflow_epochs.errors import cause_and_remedy
from airflow_epochs.model import DecisionRecord, Vote, VoteKind

_CLEAR = re.compile(r"( Then|, and|,? then)? [Cc]lear the stage task\.$")
"""What a vote asks for after its correction. After an abort, ``stage`` is one of several tasks to clear."""


def reason_and_remedy(decision: DecisionRecord) -> tuple[str, str]:
    """Sentences: every sink's reason, and each remedy once, however many sinks ask for it; empty if none names one."""
    against = {f"Sink {sink}": vote.reason or "" for sink, vote in _against(decision)}
    if decision.reason.startswith(FUNCTION):
        against["The function of `vote=`"] = decision.reason.removeprefix(FUNCTION).lstrip(": ")
    whats, remedies = [], dict[str, None]()
    for voter, reason in against.items():
        what, remedy = cause_and_remedy(reason)
        whats.append(f"{voter} voted against it: {_sentence(what)}")
        if remedy := _CLEAR.sub("", remedy):
            remedies[_sentence(remedy)] = None
    return " ".join(whats) or f"The reason: {_sentence(decision.reason)}", " ".join(remedies)


def _against(decision: DecisionRecord) -> list[tuple[str, Vote]]:
    return [(sink, vote) for sink, vote in decision.votes.items() if vote.vote is VoteKind.VOTE_ABORT]


def _sentence(text: str) -> str:
    return f"{text.rstrip('.')}."
