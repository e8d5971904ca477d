"""The note of a run whose DAG has several pipelines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect
from airflow_epochs.operators import phases
from airflow_epochs.page.run_notes import merged
from airflow_epochs.testing import MemoryWorld, memory_coordinator, memory_pipeline
from tests.support.scenario import run


def said(*pipelines: str) -> str:
    """What the first pipeline of a DAG with these says of its epoch."""
    with DAG("d", schedule=None, max_active_runs=1) as dag:
        for name in pipelines:
            EpochPipeline(
                name,
                source=KafkaSource(topics=["orders"]),
                transform="a.py:f",
                sinks=[DeltaSink("gold", f"/lake/{name}")],
                spark=SparkConnect(),
            )
    world, asset, extra = MemoryWorld(), cast(Any, "asset"), dict[str, Any]()
    world.produce("orders", 0, ["a"])
    coordinator = memory_coordinator(world, memory_pipeline(world, ("gold",), name=pipelines[0]))
    now = run(1)
    coordinator.open_epoch(now)
    coordinator.vote(now, coordinator.stage(now).stage)
    coordinator.commit(now, "gold")
    context = cast(Any, {"dag": dag, "outlet_events": {asset: SimpleNamespace(extra=extra)}})
    phases.tell_of_newest(coordinator, {"gold": asset}, context, coordinator.complete(now))
    return str(extra["run_note"])


def test_the_line_names_the_pipeline_only_where_the_dag_has_several() -> None:
    assert said("orders") == "epoch 1: 1 rows, gold@0"
    assert said("orders", "users") == "orders: epoch 1: 1 rows, gold@0"


def test_each_pipeline_of_a_dag_replaces_its_own_line_alone() -> None:
    note = merged("users: epoch 3: 1 rows", "orders", "orders: epoch 1: 4 rows")
    assert note == "orders: epoch 1: 4 rows\nusers: epoch 3: 1 rows"
    assert merged(note, "orders", "orders: epoch 2: 5 rows") == "orders: epoch 2: 5 rows\nusers: epoch 3: 1 rows"


def test_the_line_of_the_only_pipeline_is_the_whole_note() -> None:
    assert merged("epoch 1: 4 rows", "orders", "epoch 2: 5 rows") == "epoch 2: 5 rows"
