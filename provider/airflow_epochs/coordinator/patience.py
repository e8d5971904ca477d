"""Leaving another run's attempt alone for a while before it is aborted. This delays; it decides nothing.

Runs that abort each other's attempts as soon as they see them get nowhere: each attempt is gone before it is staged.
So one that was opened, or staged, a short while ago is waited for. Only a delay depends on clocks, on two machines'
even: if they are wrong, an attempt is aborted too soon or too late, which is safe either way.
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
"""How long after each other the ledger is asked, on average."""

JITTER = 0.5
"""By how much waiting varies, so that several runs that wait do not all go on at the same moment."""

DOUBLINGS_MAX = 4
"""An epoch whose attempts others abort again and again needs more time than it gets: up to 16 times as much."""


def leave_alone(task: TaskTry, view: EpochView, run: Run) -> bool:
    """Wait for an undecided attempt of another run, if it is young; whether it has ended, so that nobody need abort it.

    Once it is decided, its run is alive for certain, and gets the same time again to complete the epoch.
    """
    seconds = _patience(task, view.opened, run)
    if seconds <= 0:
        return False
    log.info(
        "epoch %s: %s is at work on attempt %s: waiting up to %.0f s for it before it is aborted",
        view.number,
        f"{view.opened.run}{process_of(view.opened.writer)}",
        view.opened.txn.attempt,
        seconds,
    )
    now = _changed(task, view, seconds)
    if now.state is State.IN_DOUBT:
        now = _changed(task, now, task.pipeline.wait_for_others)
    log.info("epoch %s: waited; it is %s now", view.number, now.state.value)
    return (now.state, now.epoch.txn) != (view.state, view.epoch.txn)


def _changed(task: TaskTry, view: EpochView, seconds: float) -> EpochView:
    """The epoch as soon as its state is another one, or when the time is up."""
    left, now = seconds * (1 + JITTER * task.jitter()), view
    while left > 0 and (now.state, now.epoch.txn) == (view.state, view.epoch.txn):
        pause = min(left, PAUSE_S * (1 - JITTER / 2 + JITTER * task.jitter()))
        task.sleep(pause)
        left -= pause
        now = task.ledger.view(view.number)
    return now


def _patience(task: TaskTry, opened: OpenRecord, run: Run) -> float:
    """How many seconds an undecided attempt has left; none if it is this run's own."""
    if opened.run == run or not task.pipeline.wait_for_others:
        return 0
    given = task.pipeline.wait_for_others * (1 << min(_aborted_by_others(task, opened), DOUBLINGS_MAX))
    signs = [
        opened.opened_at,
        *(t.started_at for t in task.ledger.tries(opened.txn.epoch) if t.txn_id == opened.txn_id),
    ]
    return min(given, given - min(_age(task, sign) for sign in signs))


def _age(task: TaskTry, at: str) -> float:
    try:
        return (task.clock() - datetime.fromisoformat(at)).total_seconds()
    except (ValueError, TypeError):  # not a time, or one without a zone: nothing to wait for
        return float("inf")


def _aborted_by_others(task: TaskTry, opened: OpenRecord) -> int:
    """How many attempts in a row before this one were aborted by a run that had not opened them."""
    number = opened.txn.attempt
    while number > 1:
        before = task.ledger.open_record(opened.txn.epoch, number - 1)
        decision = task.ledger.decision_record(opened.txn.epoch, number - 1)
        if not before or not decision or before.run == Run(decision.dag_id, decision.run_id):
            break
        number -= 1
    return opened.txn.attempt - number
