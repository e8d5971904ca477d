"""Slows down an ``@continuous`` DAG whose runs fail at once: Airflow begins the next run as soon as one has ended."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow_epochs import secrecy
from airflow_epochs.errors import tolerated

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.types import RuntimeTaskInstanceProtocol

log = secrecy.logger(__name__)

FIRST_S, MOST_S = 5, 300
_RUNS_MAX = 8
"""How many runs are looked at. After so many failures, the pause does not grow any more."""

_PART = 0.1
"""No wait takes more of a run's time than this part: the rest is for the work."""


def pause_after(failed: int) -> int:
    """Seconds that a run waits after so many failed runs in a row: 5, 10, 20, …, at most 300."""
    return min(MOST_S, FIRST_S * 2 ** (failed - 1)) if failed else 0


def pause_of(context: Context) -> int:
    """Seconds that this run is to wait before it begins, told in the log; 0 if it need not.

    Only runs of an ``@continuous`` schedule wait, and only before their first try: who triggers a run or clears a task
    wants to see at once whether the cause is cured. If Airflow cannot be asked, the run does not wait. A pause never
    takes more than a tenth of the time that ``dagrun_timeout`` leaves: Airflow would end the run before its work.
    """
    if not _is_first_try_of_continuous(context):
        return 0
    failed = 0
    with tolerated("counting the runs that failed before this one"):
        failed = _failed_in_a_row(context["ti"], context["logical_date"])
    wanted = pause_after(failed)
    if pause := int(within_run(context, wanted)):
        log.warning(
            "%s. This run waits %s s before it begins%s. To begin at once, clear this task.",
            _in_words(failed),
            pause,
            ", a tenth of what is left of the DAG's dagrun_timeout" if pause < wanted else "",
        )
    return pause


def within_run(context: Context, wait_s: float) -> float:
    """``wait_s``, or a part of the time that is left until the DAG's ``dagrun_timeout`` ends the run, if that is less.

    The runs that Airflow ends are failed ones. If one could end in its pause, the pauses of the next ones would not get
    shorter, and the DAG would stay red after the cause is cured.
    """
    run, timeout = context.get("dag_run"), context["dag"].dagrun_timeout
    if timeout is None or run is None or run.start_date is None:
        return wait_s
    left = run.start_date + timeout - datetime.now(timezone.utc)
    return max(0.0, min(wait_s, left.total_seconds() * _PART))


def _in_words(failed: int) -> str:
    if failed == 1:
        return "the last run of this DAG failed"
    return f"{'at least ' if failed == _RUNS_MAX else ''}{failed} runs of this DAG failed one after another"


def _is_first_try_of_continuous(context: Context) -> bool:
    run, task_instance = context.get("dag_run"), context.get("ti")
    if run is None or task_instance is None or not is_continuous(context):
        return False
    return run.logical_date is not None and task_instance.try_number <= 1


def is_continuous(context: Context) -> bool:
    """Whether Airflow has begun the run because the run before it had ended."""
    run = context.get("dag_run")
    if run is None or type(context["dag"].timetable).__name__ != "ContinuousTimetable":
        return False
    return run.run_type == "scheduled"


def _failed_in_a_row(task_instance: RuntimeTaskInstanceProtocol, before: datetime) -> int:
    """How many runs before the logical date ``before`` failed, back to the newest one that did not."""
    failed = 0
    while failed < _RUNS_MAX:
        previous = task_instance.get_previous_ti(logical_date=before)
        if previous is None or previous.logical_date is None or previous.logical_date >= before:
            break
        if task_instance.get_dagrun_state(previous.dag_id, previous.run_id) != "failed":
            break
        failed, before = failed + 1, previous.logical_date
    return failed
