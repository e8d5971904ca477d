"""Which tasks of a run are a pipeline's own, as far as Airflow's database tells."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
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


def own_tasks(pipeline: str, dag_id: str, tasks: Collection[Any], ledger_conn_id: str = "") -> list[Any]:
    """The pipeline's tasks among ``tasks``, which are rows of one run with ``task_id`` and ``operator``.

    The newest version of the DAG says whose they are; the id says it of a task that this version lacks. With
    ``prefix_group_id=False``, or without an EpochPipeline, no id names the pipeline: then all tasks with an operator of
    this package count, unless the DAG says whose they are. ``ledger_conn_id`` tells two pipelines of one name apart.
    """
    told = _told(dag_id)
    by_id = {task.task_id: (pipeline, ledger_conn_id) for task in tasks if _inside(pipeline, task.task_id)}
    known = {**by_id, **told}
    named = [task for task in tasks if known.get(task.task_id, ("", ""))[0] == pipeline]
    here = [task for task in named if known[task.task_id] == (pipeline, ledger_conn_id)]
    return here or named or [task for task in tasks if task.operator in _OPERATORS and task.task_id not in told]


def stored_tasks(dag_id: str) -> Iterator[Mapping[str, Any]]:
    """The tasks of the DAG's newest version, as Airflow's database has them."""
    from airflow.models.serialized_dag import SerializedDagModel

    stored = SerializedDagModel.get(dag_id)
    for task in (stored.data or {})["dag"]["tasks"] if stored else []:
        yield task.get("__var", task)


def stored_own_tasks(pipeline: str, dag_id: str, ledger_conn_id: str) -> list[Mapping[str, Any]]:
    """The pipeline's tasks in the newest version of the DAG. The connection tells two pipelines of one name apart."""
    named = [task for task in stored_tasks(dag_id) if task.get("pipeline") == pipeline]
    return [task for task in named if task.get("ledger_conn_id", "") == ledger_conn_id] or named


def _told(dag_id: str) -> dict[str, tuple[str, str]]:
    """Task -> its pipeline and the connection of its ledger, of the tasks that tell it."""
    told = (task for task in stored_tasks(dag_id) if "pipeline" in task)
    return {task["task_id"]: (task["pipeline"], task.get("ledger_conn_id", "")) for task in told}


def name_inside(pipeline: str, task_id: str) -> str:
    """The id of a pipeline's task without its groups. An id that does not name the pipeline stays as it is."""
    return _inside(pipeline, task_id) or task_id


def _inside(pipeline: str, task_id: str) -> str:
    return f".{task_id}".partition(f".{pipeline}.")[2]
