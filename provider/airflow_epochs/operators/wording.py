"""What remedies say in a DAG whose pipeline is one task, and at a command that does what a task does.

A remedy may stand in the ledger, as a part of a vote's reason, and be shown by the other layout. So it is written for
the layout with a task per step, and is put into other words where it is shown.
"""

from __future__ import annotations

import re

_STEP = r"(?:failed|open|stage|vote|commit|complete)"
_CLEARED = re.compile(
    rf"\b([Cc]lear the) (?:{_STEP} tasks?|task `{_STEP}`|failed `{_STEP}`)"
    r"(?: of (?:the|its) run| of each sink that the message names)?(?:,? with its downstream tasks)?"
)
_RETRIED = r"\btype `airflow epochs retry \S+ --why …`"
_OR_NEXT = "(?:, or let the next run take the same offsets)?"


def in_one_task(remedy: str) -> str:
    """``remedy`` for a run that has no task but one: every step is cleared by clearing that one."""
    cleared = re.sub(_RETRIED, "clear the task", _CLEARED.sub(r"\1 task", remedy))
    return cleared.replace("The error of `open` says", "Its error says")


def in_dry_run(remedy: str) -> str:
    """``remedy`` for a dry run, or for a misspelled command: no task has failed, so the command is run again."""
    again = re.sub(_RETRIED + _OR_NEXT, "run the command again", _CLEARED.sub("run the command again", remedy))
    again = again.replace("run the command again: it goes on where it stopped", "run the command again")
    alone = re.sub(r"let Airflow retry,? or (?=run the command)", "", again, flags=re.I)
    return re.sub(r"(^|\. )run the command", r"\1Run the command", alone)
