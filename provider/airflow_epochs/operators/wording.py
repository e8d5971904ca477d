"""What remedies say where tasks stand behind, where a pipeline is one task, and where no task has failed.

A remedy may stand in the ledger, as a part of a vote's reason, and be shown by the other layout. So it is written for
the layout with a task per step, and is put into other words where it is shown.
"""

from __future__ import annotations

import re

from airflow_epochs import codes
from airflow_epochs.errors import EpochError

_STEP = r"(?:failed|open|stage|vote|commit|complete)"
_OF = r"(?: of (?:the|its) run)?"
_DOWNSTREAM = " with its downstream tasks"
_CLEARED = re.compile(rf"\b([Cc]lear the) (?:{_STEP} tasks?|task `{_STEP}`|failed `{_STEP}`){_OF}(?:,?{_DOWNSTREAM})?")
_ALONE = re.compile(
    rf"\b([Cc]lear the (?:(?:{_STEP} )?task\b(?! `)|task `{_STEP}`|failed `{_STEP}`){_OF})(?:,?{_DOWNSTREAM})?"
)
_RETRIED = r"\btype `airflow epochs retry \S+ --why …`"
_AIRFLOW_RETRIES = r"\blet Airflow retry(?: the task)?"
_OR_NEXT = r"(?:, or (?:let|wait for) the next run\b[^.]*)?"
"""Whatever the next run would do: take the same offsets before the decision, finish the epoch after it."""


def with_downstream(remedy: str) -> str:
    """``remedy`` for a task with tasks behind it. Cleared alone, it leaves them ``upstream_failed``, and the run red.

    Airflow's UI clears them too unless told otherwise. Its API and its command line do so only if asked.
    """
    return _ALONE.sub(rf"\1{_DOWNSTREAM}", remedy)


def in_one_task(remedy: str) -> str:
    """``remedy`` for a run that has no task but one: every step is cleared by clearing that one."""
    cleared = re.sub(_RETRIED, "clear the task", _CLEARED.sub(r"\1 task", remedy))
    return cleared.replace("The error of `open` says", "Its error says")


def without_task(remedy: str, again: str = "run the command again") -> str:
    """``remedy`` for somebody who ran no task that has failed. ``again``: what there is to do in place of clearing."""
    told = re.sub(_RETRIED + _OR_NEXT, again, _CLEARED.sub(again, remedy))
    told = told.replace(f"{again}: it goes on where it stopped", again)
    told = re.sub(rf"{_AIRFLOW_RETRIES},? or (?={again})", "", told, flags=re.I)
    told = re.sub(_AIRFLOW_RETRIES, again, told, flags=re.I)
    return re.sub(rf"(^|\. ){again}", lambda found: f"{found[1]}{again[0].upper()}{again[1:]}", told)


def of_command(error: EpochError) -> EpochError:
    """The error as a command tells it. The remedies of the chapter for commands are for commands as they are."""
    if error.code not in codes.COMMANDS.codes:
        error.remedy = without_task(error.remedy)
    return error


def of_page(error: EpochError) -> EpochError:
    """As ``of_command``, for the Epochs page."""
    if error.code not in codes.COMMANDS.codes:
        error.remedy = without_task(error.remedy, "try again")
    return error
