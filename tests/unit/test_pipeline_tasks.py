"""What a user gives to all tasks of a pipeline leaves the rules between its steps, and his own values, as they are."""

from __future__ import annotations

from typing import Any, cast

import pytest
from airflow.sdk import DAG, Asset

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect, SqlSink
from airflow_epochs.contracts import Limits, Sink
from airflow_epochs.operators.base import EpochOperator
from airflow_epochs.operators.phases import asked_limits, asked_savepoint

RULES = {
    "stage": "all_success",
    "vote": "all_success",
    "commit.one": "all_success",
    "abort": "one_failed",
    "complete": "none_failed_min_one_success",
}


def pipeline(
    name: str,
    *,
    default_args: dict[str, Any] | None = None,
    group_args: dict[str, Any] | None = None,
    **options: Any,
) -> DAG:
    with DAG("tasks", schedule=None, max_active_runs=1, default_args=default_args or {}) as dag:
        EpochPipeline(
            name,
            source=KafkaSource(topics=["orders"]),
            transform="orders.py:orders",
            sinks=[DeltaSink("one", f"/lake/{name}")],
            spark=SparkConnect(),
            **options,
            **(group_args or {}),
        )
    return dag


def attribute(dag: DAG, name: str) -> dict[str, Any]:
    """An attribute of all tasks of the DAG's pipeline ``orders``, by their steps."""
    return {task_id.removeprefix("orders."): getattr(dag.get_task(task_id), name) for task_id in dag.task_ids}


@pytest.mark.parametrize("blank", ["", "  "])
def test_a_text_that_is_left_empty_in_the_form_of_a_run_asks_for_nothing(blank: str) -> None:
    params = pipeline("orders", layout="single").params
    texts = {name for name in params if "string" in params.get_param(name).schema["type"]}
    assert all("Empty: " in str(params.get_param(name).description) for name in texts)
    for name in texts:
        params[name] = blank
    assert asked_limits(params) == Limits()
    assert asked_savepoint(params) is None
    assert KafkaSource(topics=["orders"])._config(asked_limits(params)) == KafkaSource(topics=["orders"])._config()


@pytest.mark.parametrize("rule", ["none_failed", "all_success", "all_done"])
@pytest.mark.parametrize("where", ["default_args", "operator_args"])
def test_a_trigger_rule_for_all_tasks_changes_only_when_the_pipeline_begins(rule: str, where: str) -> None:
    dag = pipeline("orders", **cast(Any, {where: {"trigger_rule": rule}}))
    assert attribute(dag, "trigger_rule") == {"open": rule, **RULES}


def test_sinks_of_one_transaction_commit_one_after_the_other_and_all_others_beside_them() -> None:
    """Two at once would wait for each other's locks, and give up or end each other's load."""

    def table(name: str, conn_id: str) -> SqlSink:
        return SqlSink(name, conn_id, name, staging="/staging")

    sinks: list[Sink] = [
        table("a", "one"),
        table("b", "two"),
        DeltaSink("lake", "/lake/x"),
        table("c", "one"),
        table("d", "one"),
    ]
    with DAG("tasks", schedule=None, max_active_runs=1) as dag:
        EpochPipeline(
            "orders", source=KafkaSource(topics=["orders"]), transform="o.py:f", sinks=sinks, spark=SparkConnect()
        )
    before = {name: ids for name, ids in attribute(dag, "upstream_task_ids").items() if name.startswith("commit.")}
    assert before == {
        **{f"commit.{name}": {"orders.vote"} for name in ("a", "b", "lake")},
        "commit.c": {"orders.vote", "orders.commit.a"},
        "commit.d": {"orders.vote", "orders.commit.c"},
    }
    assert attribute(dag, "trigger_rule")["commit.d"] == "all_success"
    assert {f"orders.commit.{sink.name}" for sink in sinks} <= dag.get_task("orders.complete").upstream_task_ids


@pytest.mark.parametrize("other", ["{{ var.value.other }}", "{{ var.value.orders }}", "orders_db"])
def test_sinks_whose_connection_is_a_template_commit_one_after_the_other_since_it_may_be_the_same(other: str) -> None:
    """A run renders both to one connection perhaps, and then they share a transaction."""
    sinks: list[Sink] = [
        SqlSink("a", "{{ var.value.orders }}", "a", staging="/staging"),
        SqlSink("b", other, "b", staging="/staging"),
        DeltaSink("lake", "/lake/x"),
    ]
    with DAG("tasks", schedule=None, max_active_runs=1) as dag:
        EpochPipeline(
            "orders", source=KafkaSource(topics=["orders"]), transform="o.py:f", sinks=sinks, spark=SparkConnect()
        )
    before = attribute(dag, "upstream_task_ids")
    assert before["commit.b"] == {"orders.vote", "orders.commit.a"}
    assert before["commit.a"] == before["commit.lake"] == {"orders.vote"}


@pytest.mark.parametrize("where", ["default_args", "operator_args"])
def test_one_task_takes_the_trigger_rule_for_all_tasks(where: str) -> None:
    dag = pipeline("orders", layout="single", **cast(Any, {where: {"trigger_rule": "all_done"}}))
    assert attribute(dag, "trigger_rule") == {"epochs": "all_done"}


@pytest.mark.parametrize("where", ["default_args", "operator_args", "default_args of the group"])
@pytest.mark.parametrize("layout", ["tasks", "single"])
def test_outlets_for_all_tasks_do_not_take_the_tables_of_another_pipeline(layout: str, where: str) -> None:
    mine = Asset("mine")
    shared = {"outlets": [mine]}
    for_group = where == "default_args of the group"
    options: dict[str, Any] = {"group_args": {"default_args": shared}} if for_group else {where: shared}
    options["layout"] = layout
    pipeline("others", **options)
    outlets = attribute(pipeline("orders", **options), "outlets")
    assert shared == {"outlets": [mine]}
    last = "epochs" if layout == "single" else "complete"
    assert [asset.name for asset in outlets.pop(last)] == ["mine", "file:///lake/orders"]
    assert all(others == [mine] for others in outlets.values())


@pytest.mark.parametrize("layout", ["tasks", "single"])
def test_a_task_that_is_prepared_more_than_once_still_announces_its_assets(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EpochOperator, "_told", lambda *_: {})
    last = "epochs" if layout == "single" else "complete"
    task = pipeline("orders", layout=layout).get_task(f"orders.{last}")
    task.inlets = [Asset("mine")]
    prepared: Any = task.prepare_for_execution().prepare_for_execution()
    assert (prepared.inlets, prepared.outlets) == ([], [])
    prepared._told({})
    assert [asset.name for asset in prepared.outlets] == ["file:///lake/orders"]
    assert [asset.name for asset in prepared.inlets] == ["mine"]
