"""Finds a pipeline in today's DAGs, for commands that need its sinks outside of a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jinja2 import StrictUndefined, UndefinedError

from airflow_epochs import codes
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.hooks.epochs import EpochsHook
from airflow_epochs.operators.epoch import EpochOperator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from airflow.sdk import DAG

    from airflow_epochs.config import Pipeline


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A pipeline as its DAG defines it today, with its templates rendered."""

    pipeline: Pipeline
    operator: EpochOperator
    ledger_conn_id: str

    def task(self) -> TaskTry:
        """A new task of the pipeline, which has read nothing yet."""
        ledger = EpochsHook(self.ledger_conn_id).ledger(self.pipeline.name)
        return TaskTry(pipeline=self.pipeline, ledger=ledger, env=self.operator.environment)


def find(
    pipeline: str, dag_id: str | None = None, ledger_conn_id: str | None = None, *, step: str = "complete"
) -> Definition:
    """The pipeline in the DAGs that this installation has now. Runs every DAG file.

    Args:
        pipeline: The pipeline's name.
        dag_id: The DAG; needed only if several DAGs have a pipeline of this name.
        ledger_conn_id: The connection of the ledger, instead of the one that the DAG names.
        step: The step whose view of the pipeline is wanted: ``open`` knows the transform's file, ``complete`` does not.

    Raises:
        Refused: No DAG has the pipeline, or several have it; or a template in it needs a run.
    """
    found = {dag.dag_id: operators for dag in _all_dags() if (operators := list(_operators(dag, pipeline)))}
    chosen = {each: found[each] for each in found if dag_id in (None, each)}
    if len(chosen) != 1:
        raise _not_one(pipeline, dag_id, sorted(found))
    [operators] = chosen.values()
    return _rendered(next((each for each in operators if each.step == step), operators[0]), ledger_conn_id)


def _all_dags() -> Iterator[DAG]:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag

    for bundle in DagBundlesManager().get_all_dag_bundles():
        bundle.initialize()
        bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
        yield from bag.dags.values()


def _operators(dag: DAG, pipeline: str) -> Iterable[EpochOperator]:
    return (task for task in dag.tasks if isinstance(task, EpochOperator) and task.pipeline == pipeline)


def _not_one(pipeline: str, dag_id: str | None, found: list[str]) -> Refused:
    where = f"DAG {dag_id!r} of this installation" if dag_id else "No DAG of this installation"
    which = f"These DAGs have one: {', '.join(found)}." if found else "It may be in a file with an import error."
    has = "has no pipeline" if dag_id else "has a pipeline"
    what = (
        f"Several DAGs have a pipeline {pipeline!r}" if len(found) > 1 and not dag_id else f"{where} {has} {pipeline!r}"
    )
    return Refused(f"{what}. {which} Nothing was changed.", code=codes.PIPELINE_NOT_IN_DAGS, pipeline=pipeline)


def _rendered(operator: EpochOperator, ledger_conn_id: str | None) -> Definition:
    operator.checkpoint = None  # an XCom, which only a run has
    jinja = operator.get_template_env()
    jinja.undefined = StrictUndefined
    try:
        operator.render_template_fields(_context(), jinja)
    except (UndefinedError, KeyError) as error:
        raise Refused(
            f"A template in the definition of the pipeline cannot be rendered outside of a run: {error}. Nothing was "
            "changed.",
            code=codes.TEMPLATE_NEEDS_RUN,
            pipeline=operator.pipeline,
        ) from error
    dag = operator.get_dag()
    assert dag is not None
    return Definition(
        pipeline=operator.definition(dag),
        operator=operator,
        ledger_conn_id=ledger_conn_id or operator.ledger_conn_id,
    )


def _context() -> Any:
    """What templates may use without a run: Airflow's variables and connections."""
    from airflow.sdk.execution_time.context import ConnectionAccessor, VariableAccessor

    return {
        "var": {"json": VariableAccessor(deserialize_json=True), "value": VariableAccessor(deserialize_json=False)},
        "conn": ConnectionAccessor(),
    }
