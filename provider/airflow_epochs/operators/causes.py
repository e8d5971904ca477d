"""Carries the cause of a failed ``stage`` or ``vote`` to the task ``abort``, which puts it on record in the ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_epochs import secrecy
from airflow_epochs.errors import EpochError, NoNewData, tolerated

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context

    from airflow_epochs.model import Run

KEY = "epoch_failure"
"""The XCom's key. Airflow deletes the XComs of a task when it is tried again."""
LENGTH_MAX = 500


@contextmanager
def noted(context: Context, task: BaseOperator | None = None) -> Iterator[None]:
    """Store the cause of an error that the block raises in an XCom of this task. ``task``: see ``cause_of``."""
    try:
        yield
    except NoNewData:
        raise
    except (Exception, AirflowTaskTimeout) as error:  # the timeout is no Exception
        with tolerated("noting the cause of the failure"):
            if task_instance := context.get("ti"):
                task_instance.xcom_push(key=KEY, value=cause_of(error, task))
        raise


def cause_of(error: BaseException, task: BaseOperator | None = None) -> str:
    """What went wrong, in one line without secrets, cut if it is long. ``task``: the one that failed."""
    text = error.cause if isinstance(error, EpochError) else f"{type(error).__name__}: {error}"
    if isinstance(error, AirflowTaskTimeout) and task and task.execution_timeout:
        limit_s = task.execution_timeout.total_seconds()
        text = (
            f"The task {task.task_id} was ended by its execution_timeout ({limit_s:g} s). Give it more time in the "
            "DAG, or let an epoch have fewer records."
        )
    line = " ".join(secrecy.scrubbed(text).split())
    return line if len(line) <= LENGTH_MAX else f"{line[:LENGTH_MAX]} …"


def reason(run: Run, causes: Collection[str]) -> str:
    """Why an attempt was aborted, as the decision's record says it. ``causes``: those that are known."""
    return " ".join([f"{run} failed before a decision{'.' if causes else ''}", *causes])


def noted_by(context: Context, tasks: Collection[str]) -> list[str]:
    """The causes that these tasks of the run have left."""
    found: list[str] = []
    with tolerated("reading the cause of the failure"):
        if task_instance := context.get("ti"):
            left = (task_instance.xcom_pull(task_ids=task, key=KEY) for task in sorted(tasks))
            found = [cause for cause in left if isinstance(cause, str)]
    return found
