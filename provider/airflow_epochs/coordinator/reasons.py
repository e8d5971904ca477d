"""The causes and remedies of an abort, out of the votes in its decision record."""

from __future__ import annotations

import re

from airflow_epochs.ballot import FUNCTION
from airflow_epochs.errors import cause_and_remedy, filled
from airflow_epochs.model import DecisionRecord, reasons_against

_CLEAR = re.compile(
    r"(?:(?:^|(?<=[.)])\s+)(?:Then )?clear the (?:stage task|failed tasks?)\b.*?\.(?=\s|$))"  # a sentence
    r"|(?:(?:^|\s+)(?:Then )?type `airflow epochs retry \S+ --why …`, or let the next run take the same offsets\.)"
    r"|(?:,? (?:and|then) clear the (?:stage task|failed tasks?)\b.*?(?=\.(?:\s|$)))",  # the end of one
    re.IGNORECASE,
)
"""What a vote asks for after its correction. After an abort, ``stage`` is one of several tasks to clear."""
_OPEN = re.compile(r"[Cc]lear the (?:open task|task `open`)")
"""Clears all that failed as well."""
_AGAIN = "ype `airflow epochs retry PIPELINE --why …`, or let the next run take the same offsets."


def reason_and_remedy(decision: DecisionRecord) -> tuple[str, str]:
    """Sentences: every sink's reason, and what to do about all of them; empty if no reason has a remedy."""
    by_sink = reasons_against(decision.votes)
    against = {f"Sink {sink}": filled(reason, SINK=sink) for sink, reason in by_sink.items()}
    if decision.reason.startswith(FUNCTION):
        against["The function of `vote=`"] = decision.reason.removeprefix(FUNCTION).lstrip(": ")
    told = {voter: cause_and_remedy(reason) for voter, reason in against.items()}
    whats = [f"{voter} voted against it: {_sentence(what)}" for voter, (what, _) in told.items()]
    reason = " ".join(whats) or f"The reason: {_sentence(decision.reason)}"
    return reason, _remedy([remedy for _, remedy in told.values() if remedy])


def _remedy(remedies: list[str]) -> str:
    """Each remedy once, however many sinks ask for it, and at the end how the tasks run again."""
    corrections = dict.fromkeys(_sentence(rest) for each in remedies if (rest := _CLEAR.sub("", each).strip()))
    ordered = sorted(corrections, key=lambda each: bool(_OPEN.search(each)))
    if not remedies or (ordered and _OPEN.search(ordered[-1])):
        return " ".join(ordered)
    return " ".join([*ordered, f"Then t{_AGAIN}" if ordered else f"T{_AGAIN}"])


def _sentence(text: str) -> str:
    return f"{text.rstrip('.')}."
