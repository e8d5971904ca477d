"""Which tasks of a run are a pipeline's own, as far as Airflow's database tells."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

ALL_IN_ONE = "EpochsOperator"
"""The operator of ``layout="single"``, as Airflow's database names it. Its run goes on with further epochs."""
_OPERATORS = (
    "OpenEpochOperator",
    "StageEpochOperator",
    "VoteEpochOperator",
    "CommitSinkOperator",
    "CompleteEpochOperator",
    "AbortEpochOperator",
    ALL_IN_ONE,
)


def own_tasks(pipeline: str, tasks: Collection[Any]) -> list[Any]:
    """Of the tasks of one run, rows with ``task_id`` and ``operator``, those of the pipeline.

    With ``prefix_group_id=False``, or without an EpochPipeline, no id tells the pipeline: then all tasks with an
    operator of this package.
    """
    named = [task for task in tasks if _inside(pipeline, task.task_id)]
    return named or [task for task in tasks if task.operator in _OPERATORS]


def name_inside(pipeline: str, task_id: str) -> str:
    """The id of a pipeline's task without its groups. An id that does not name the pipeline stays as it is."""
    return _inside(pipeline, task_id) or task_id


def _inside(pipeline: str, task_id: str) -> str:
    return f".{task_id}".partition(f".{pipeline}.")[2]
