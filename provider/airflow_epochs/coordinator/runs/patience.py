"""Waits for another run's attempt before it is aborted. A wait decides nothing.

If runs abort each other's attempts at once, no attempt lives long enough to be staged. So a run waits for an attempt
that was opened, or staged, a short while ago. The length of the wait compares clocks of two machines. If they differ,
an attempt is aborted too soon or too late; both are safe.
"""

from __future__ import annotations

from datetime import datetime

from airflow_epochs import secrecy
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import OpenRecord, Run, process_of
from airflow_epochs.protocol import State

log = secrecy.logger(__name__)

PAUSE_S = 1.0
"""Seconds between two looks at the ledger, on average."""

JITTER = 0.5
"""By which fraction waits vary, so that several waiting runs do not all go on at the same moment."""

DOUBLINGS_MAX = 4
"""How often the wait doubles at most: up to 16 times as long.

It doubles for each attempt in a row that other runs have aborted, because the epoch needs more time than it gets.
"""


def leave_alone(task: TaskTry, view: EpochView, run: Run) -> bool:
    """Wait for an undecided attempt of another run, if it is young.

    Once the attempt is decided, its run must be alive. It then gets ``wait_for_others`` again to complete the epoch.

    Returns:
        Whether the epoch has changed, so that the caller must look again instead of aborting the attempt.
    """
    seconds = _patience(task, view.opened, run)
    if seconds <= 0:
        return False
    log.info(
        "epoch %s: %s works on attempt %s: waiting up to %.0f s for it before it is aborted",
        view.number,
        f"{view.opened.run}{process_of(view.opened.writer)}",
        view.opened.txn_id.attempt,
        seconds,
    )
    now = _changed(task, view, seconds)
    if now.state is State.IN_DOUBT:
        now = _changed(task, now, task.pipeline.wait_for_others)
    log.info("epoch %s: the wait is over; the epoch is %s", view.number, now.state.value)
    return (now.state, now.epoch.txn) != (view.state, view.epoch.txn)


def _changed(task: TaskTry, view: EpochView, seconds: float) -> EpochView:
    """The epoch, as soon as its state or its attempt has changed, or when the time is up."""
    left, now = seconds * (1 + JITTER * task.jitter()), view
    while left > 0 and (now.state, now.epoch.txn) == (view.state, view.epoch.txn):
        pause = min(left, PAUSE_S * (1 - JITTER / 2 + JITTER * task.jitter()))
        task.sleep(pause)
        left -= pause
        now = task.ledger.view(view.number)
    return now


def _patience(task: TaskTry, opened: OpenRecord, run: Run) -> float:
    """The seconds that an undecided attempt has left, perhaps below 0; 0 if it is this run's own."""
    if opened.run == run or not task.pipeline.wait_for_others:
        return 0
    given = task.pipeline.wait_for_others * (1 << min(_aborted_by_others(task, opened), DOUBLINGS_MAX))
    signs = [opened.opened_at, *(each.started_at for each in task.ledger.tries_of(opened))]
    return min(given, given - min(_age(task, sign) for sign in signs))


def _age(task: TaskTry, at: str) -> float:
    try:
        return (task.clock() - datetime.fromisoformat(at)).total_seconds()
    except (ValueError, TypeError):  # not a time, or one without a zone: nothing to wait for
        return float("inf")


def _aborted_by_others(task: TaskTry, opened: OpenRecord) -> int:
    """How many attempts in a row, just before this one, were aborted by a run that had not opened them."""
    number = opened.txn_id.attempt
    while number > 1:
        before = task.ledger.open_record(opened.txn_id.epoch, number - 1)
        decision = task.ledger.decision_record(opened.txn_id.epoch, number - 1)
        if not before or not decision or before.run == Run(decision.dag_id, decision.run_id):
            break
        number -= 1
    return opened.txn_id.attempt - number
