"""Every example in ``dags``: Airflow loads it, a test runs it, the README shows it, and the local stack can bear it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stack.whole import TOPIC

ROOT = Path(__file__).parents[2]
FILES = sorted(path.stem for path in (ROOT / "dags").glob("*.py"))
STACK = {"kafka_default", "spark_connect_default", "spark_default", "epochs_default"}
"""The connections that the local stack has; ``stack.whole`` makes them."""

pytestmark = pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")  # Airflow's own warnings
of_each_example = pytest.mark.parametrize("name", FILES)


@cache
def dags_of(name: str) -> list[Any]:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=str(ROOT / "dags" / f"{name}.py"))
    assert not bag.import_errors
    return list(bag.dags.values())


def pipelines(dags: list[Any]) -> list[Any]:
    """The first task of every pipeline: it knows the source, the sinks and the transform."""
    return [task for dag in dags for task in dag.tasks if getattr(task, "step", None) in ("open", "epochs")]


def needed(task: Any) -> set[str]:
    """The connections of a pipeline."""
    specs = [vars(task.source), *(sink.spec() for sink in task.sinks)]
    named = {value for spec in specs for field, value in spec.items() if field.endswith("conn_id") and value}
    return named | {task.spark.conn_id, task.ledger_conn_id}


@of_each_example
def test_airflow_loads_an_example_that_has_no_connections_yet(name: str) -> None:
    assert dags_of(name)


@of_each_example
def test_the_transform_of_an_example_is_a_function_that_there_is(name: str) -> None:
    for task in pipelines(dags_of(name)):
        path, _, function = task.transform.partition(":")
        tree = ast.parse((ROOT / path).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@of_each_example
def test_an_example_that_needs_more_than_the_local_stack_has_starts_paused(name: str) -> None:
    """The stack unpauses all others: it would run them in vain, beside the demo."""
    dags = dags_of(name)
    bare = all(needed(task) <= STACK and set(getattr(task.source, "topics", ())) <= {TOPIC} for task in pipelines(dags))
    writes = {sink.spec()["kind"] for task in pipelines(dags) for sink in task.sinks}
    if not bare or writes - {"delta"}:
        assert all(dag.is_paused_upon_creation for dag in dags)


@of_each_example
def test_an_example_is_run_by_a_test_and_shown_by_the_readme(name: str) -> None:
    """By its file, or, where a stack has them all, by its DAG."""
    places = ("integration/test_*example*.py", "e2e/*.py", "support/running_stack.py")
    tests = "".join(path.read_text() for place in places for path in (ROOT / "tests").glob(place))
    assert f'"{name}' in tests or f"dags/{name}/" in tests
    assert f"dags/{name}.py" in (ROOT / "README.md").read_text()
