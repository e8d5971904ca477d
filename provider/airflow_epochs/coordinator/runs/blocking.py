"""``on_failed_epoch="block"``: an unfinished epoch belongs to the run that opened it, not to the next one."""

from __future__ import annotations

from airflow_epochs import codes
from airflow_epochs.config import BLOCK
from airflow_epochs.contracts import ByInterval, is_by_interval
from airflow_epochs.coordinator.runs.patience import leave_alone
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.run_ids import airflow_run
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import Run, attempt_fields
from airflow_epochs.protocol import State

UNFINISHED = (State.OPEN, State.ABORTED, State.IN_DOUBT)


def left_to_its_run(task: TaskTry, view: EpochView, run: Run) -> bool:
    """Whether another run has moved the epoch on meanwhile, so that the caller must look again.

    Waits for that run as long as ``wait_for_others`` says. False: this run may go on.

    Raises Refused: The pipeline blocks, and the epoch belongs to another run. The epoch was not changed.
    """
    if view.state not in UNFINISHED or not _blocks(task) or _may_have(task, view, run):
        return False
    if view.state is not State.ABORTED and leave_alone(task, view, run):
        return True
    # The other run may have died before it put its index: without it, a clear may not find the epoch.
    task.ledger.put_run(view.opened.run, view.number)
    owner = airflow_run(task.ledger, view.opened.run)
    raise Refused(
        f"The epoch is {view.state.value}, and belongs to {owner}.",
        code=codes.EPOCH_BLOCKED,
        remedy=f"Type `airflow epochs retry {task.pipeline.name} --why …`: it clears the tasks of {owner}, or, if the "
        "backfill of that run was cancelled, names the backfill that goes on. When the epoch is complete, clear the "
        "failed task with its downstream tasks. If Airflow no longer has that run, see "
        "docs/intervals.md#when-a-run-fails.",
        **attempt_fields(view.opened.txn_id),
    )


def _blocks(task: TaskTry) -> bool:
    source, chosen = task.pipeline.source, task.pipeline.on_failed_epoch
    return chosen == BLOCK if chosen else is_by_interval(source)


def _may_have(task: TaskTry, view: EpochView, run: Run) -> bool:
    """Whether the epoch is this run's, or of its interval, or an operator's command, which any run obeys.

    Or the epoch is of another DAG. An operator has handed the pipeline over since: ``open`` has asked for the owner.
    The runs of that DAG cannot open the epoch any more.
    """
    if view.opened.run == run or view.opened.command or view.opened.dag_id != task.pipeline.dag_id:
        return True
    source, interval = task.pipeline.source, task.interval()
    if isinstance(source, ByInterval) and interval and source.planned_for(view.opened.source_state) == interval:
        return True
    return _is_lost_to_its_run(task, view)


def _is_lost_to_its_run(task: TaskTry, view: EpochView) -> bool:
    """Whether the index of the run that opened the epoch names another one, so that no task of the run finds it.

    A late try of a task for many epochs has ended the run between the open record and the index. Without an index, the
    run may have died there, and the epoch is still its own.
    """
    return task.ledger.epoch_of(view.opened.run) not in (None, view.number)
