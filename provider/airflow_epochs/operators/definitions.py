"""Finds a pipeline in today's DAGs, for commands that need its sinks outside of a task."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import StrictUndefined, UndefinedError

from airflow_epochs import codes
from airflow_epochs.config import Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.hooks.epochs import EpochsHook
from airflow_epochs.operators.mapped import of_pipelines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from airflow.dag_processing.dagbag import BundleDagBag
    from airflow.sdk import DAG
    from jinja2 import Environment

    from airflow_epochs.config import Pipeline
    from airflow_epochs.operators.base import EpochOperator


@dataclass(frozen=True, kw_only=True)
class RenderedPipeline:
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
) -> RenderedPipeline:
    """The pipeline in the DAGs that this installation has now. Runs every DAG file.

    Args:
        pipeline: The pipeline's name.
        dag_id: The DAG; needed only if several DAGs have a pipeline of this name.
        ledger_conn_id: The connection of the ledger, instead of the one that the DAG names. It also chooses among
            pipelines of this name in one DAG; without it, the default connection does.
        step: The step whose view of the pipeline is wanted: ``open`` knows the transform's file, ``complete`` does not.

    Raises:
        Refused: No DAG has the pipeline, or several have it, or one has it with several ledgers, none of them this
            one; or a template in it needs a run.
    """
    found = {dag.dag_id: operators for dag in _all_dags() if (operators := list(_operators(dag, pipeline)))}
    chosen = {each: found[each] for each in found if dag_id in (None, each)}
    if len(chosen) != 1:
        raise _not_one(pipeline, dag_id, sorted(found))
    [[chosen_dag, operators]] = chosen.items()
    operators = _of_one_ledger(chosen_dag, operators, ledger_conn_id)
    return _rendered(next((each for each in operators if each.step == step), operators[0]), ledger_conn_id)


def in_dag(dag_id: str) -> list[EpochOperator]:
    """An operator of each pipeline in a DAG; one that knows the transform's file, if any does.

    Runs every DAG file.

    Raises:
        Refused: There is no such DAG, or it has no pipeline, or it may be in a file with an import error.
    """
    bags = list(_bags())
    every = {dag.dag_id: _one_of_each(dag) for bag in bags for dag in bag.dags.values()}
    if found := every.get(dag_id):
        return found
    broken = {str(Path(bag.dag_folder, path)): text for bag in bags for path, text in bag.import_errors.items()}
    if dag_id not in every and (named := {path: text for path, text in broken.items() if _names(path, dag_id)}):
        raise _not_imported(dag_id, named)
    raise _no_pipeline(dag_id, [each for each, operators in every.items() if operators], known=dag_id in every)


def _one_of_each(dag: DAG) -> list[EpochOperator]:
    found: dict[tuple[str, str], EpochOperator] = {}
    for task in of_pipelines(dag):
        pipeline = task.pipeline, task.ledger_conn_id
        if pipeline not in found or task.step == "open":
            found[pipeline] = task
    return list(found.values())


def _names(path: str, dag_id: str) -> bool:
    """Whether a file that cannot be imported may have the DAG. True if it cannot be read, as in an archive."""
    try:
        return dag_id in Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True


def _not_imported(dag_id: str, broken: Mapping[str, str]) -> Refused:
    texts = "\n".join(f"{path}: {text.strip()}" for path, text in sorted(broken.items()))
    return Refused(
        f"DAG {dag_id!r} is in a file that cannot be imported. {texts}",
        code=codes.DAG_NOT_IMPORTED,
    )


def _no_pipeline(dag_id: str, others: Iterable[str], *, known: bool) -> Refused:
    what = f"DAG {dag_id!r} has no epoch pipeline" if known else f"This installation has no DAG {dag_id!r}"
    names = ", ".join(sorted(others))
    return Refused(
        f"{what}; {f'these DAGs have a pipeline: {names}' if names else 'no DAG has a pipeline'}.",
        code=codes.DAG_UNKNOWN,
    )


def _all_dags() -> Iterator[DAG]:
    for bag in _bags():
        yield from bag.dags.values()


def _bags() -> Iterator[BundleDagBag]:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag

    for bundle in DagBundlesManager().get_all_dag_bundles():
        bundle.initialize()
        yield BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)


def _operators(dag: DAG, pipeline: str) -> Iterable[EpochOperator]:
    return (task for task in of_pipelines(dag) if task.pipeline == pipeline)


def _not_one(pipeline: str, dag_id: str | None, found: list[str]) -> Refused:
    where = f"DAG {dag_id!r} of this installation" if dag_id else "No DAG of this installation"
    which = f"These DAGs have one: {', '.join(found)}." if found else "It may be in a file with an import error."
    has = "has no pipeline" if dag_id else "has a pipeline"
    what = (
        f"Several DAGs have a pipeline {pipeline!r}" if len(found) > 1 and not dag_id else f"{where} {has} {pipeline!r}"
    )
    return Refused(f"{what}. {which} Nothing was changed.", code=codes.PIPELINE_NOT_IN_DAGS, pipeline=pipeline)


def _of_one_ledger(dag_id: str, operators: list[EpochOperator], wanted: str | None) -> list[EpochOperator]:
    """The operators of one pipeline, where the DAG has several of one name, each with a ledger of its own."""
    if len({each.ledger_conn_id for each in operators}) == 1:
        return operators
    by_ledger: dict[str, list[EpochOperator]] = {}
    for each in operators:
        by_ledger.setdefault(_rendered_ledger(each), []).append(each)
    found = by_ledger.get(wanted or EpochsHook.default_conn_name)
    if found or len(by_ledger) == 1:
        return found or operators
    name = operators[0].pipeline
    raise Refused(
        f"DAG {dag_id!r} has several pipelines {name!r}, with the ledgers {', '.join(sorted(by_ledger))}. Nothing was "
        "changed.",
        code=codes.PIPELINE_NOT_IN_DAGS,
        remedy="Name the ledger of one of them with --ledger-conn-id.",
        pipeline=name,
    )


def _rendered(operator: EpochOperator, ledger_conn_id: str | None) -> RenderedPipeline:
    dag = _with_values(operator)
    return RenderedPipeline(
        pipeline=operator.definition(dag),
        operator=operator,
        ledger_conn_id=ledger_conn_id or operator.ledger_conn_id,
    )


def without_file(operator: EpochOperator) -> tuple[RenderedPipeline, Callable[[], Transform]]:
    """As ``find``, of a pipeline whose transform need not exist; and what looks for its file."""
    dag = _with_values(operator)
    pipeline = operator.definition(dag, Transform.parse(operator.transform))
    found = RenderedPipeline(pipeline=pipeline, operator=operator, ledger_conn_id=operator.ledger_conn_id)
    return found, lambda: operator.transform_in(dag)


def _with_values(operator: EpochOperator) -> DAG:
    """Render the operator's templates; its DAG. Raises Refused if one of them needs a run."""
    operator.checkpoint = None  # an XCom, which only a run has
    with _needing_no_run(operator):
        operator.render_template_fields(_context(), _jinja(operator))
    dag = operator.get_dag()
    assert dag is not None
    return dag


def _rendered_ledger(operator: EpochOperator) -> str:
    with _needing_no_run(operator):
        return str(operator.render_template(operator.ledger_conn_id, _context(), _jinja(operator)))


def _jinja(operator: EpochOperator) -> Environment:
    jinja = operator.get_template_env()
    jinja.undefined = StrictUndefined
    return jinja


@contextmanager
def _needing_no_run(operator: EpochOperator) -> Iterator[None]:
    try:
        yield
    except (UndefinedError, KeyError) as error:
        raise Refused(
            f"A template in the definition of the pipeline cannot be rendered outside of a run: {error}. Nothing was "
            "changed.",
            code=codes.TEMPLATE_NEEDS_RUN,
            pipeline=operator.pipeline,
        ) from error


def _context() -> Any:
    """What templates may use without a run: Airflow's variables and connections."""
    from airflow.sdk.execution_time.context import ConnectionAccessor, VariableAccessor

    return {
        "var": {"json": VariableAccessor(deserialize_json=True), "value": VariableAccessor(deserialize_json=False)},
        "conn": ConnectionAccessor(),
    }
