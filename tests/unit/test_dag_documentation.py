"""What Airflow shows of a DAG with pipelines: a text, which every parse makes alike, and a tag."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.models.serialized_dag import SerializedDagModel
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect


def add(name: str, **options: Any) -> None:
    EpochPipeline(
        name,
        source=KafkaSource(topics=[f"{name}_topic"]),
        transform=f"{name}.py:f",
        sinks=[DeltaSink(f"{name}_sink", f"/lake/{name}")],
        spark=SparkConnect("spark_one"),
        **options,
    )


def dag(*pipelines: str, **options: Any) -> DAG:
    with DAG("shop_dag", schedule=None, max_active_runs=1, **options) as made:
        for pipeline in pipelines:
            add(pipeline)
    return made


def text(of: DAG) -> str:
    assert of.doc_md
    return of.doc_md


def test_a_dag_says_what_each_of_its_pipelines_reads_writes_and_runs_on() -> None:
    said = text(dag("orders", "users"))
    assert said.count("# Exactly-once pipelines\n") == 1
    for name, section in zip(("orders", "users"), said.split("\n## ")[1:], strict=True):
        lines = section.splitlines()
        assert lines[0] == name
        assert f"- transform `{name}.py:f`" in lines
        for begin in (f"- `KafkaSource(topics=['{name}_topic']", f"- `DeltaSink('{name}_sink'", "- `SparkConnect("):
            assert any(line.startswith(begin) for line in lines), begin


def test_the_text_leads_to_the_page_of_each_pipeline_wherever_airflow_is_mounted() -> None:
    said = text(dag("orders", "users"))
    for name in ("orders", "users"):
        assert f"[Its epochs](epochs/pipelines/epochs_default/{name})" in said


def test_a_pipeline_whose_ledger_only_a_run_knows_leads_to_the_page_of_the_dag() -> None:
    with DAG("shop_dag", schedule=None, max_active_runs=1) as made:
        add("orders", ledger_conn_id="{{ var.value.ledger }}")
    assert "[Its epochs](epochs/dags/shop_dag)" in text(made)


def test_the_text_of_the_user_stays() -> None:
    assert text(dag("orders", "users", doc_md="ours")) == "ours"
    with DAG("d", schedule=None, max_active_runs=1) as made:
        add("orders")
        made.doc_md = "ours"
        add("users")
    assert text(made) == "ours"


def test_the_tag_is_added_to_the_tags_of_the_user() -> None:
    assert dag("orders").tags == {"epochs"}
    assert dag("orders", "users", tags=["shop"]).tags == {"epochs", "shop"}


@pytest.mark.proof
def test_two_parses_make_the_same_version_of_the_dag_also_with_a_sink_that_has_no_text_of_its_own() -> None:
    class Own(DeltaSink):
        __repr__ = object.__repr__

    def parsed() -> DAG:
        with DAG("d", schedule=None, max_active_runs=1) as made:
            EpochPipeline(
                "orders",
                source=KafkaSource(topics=["orders"]),
                transform="a.py:f",
                sinks=[Own("gold", "/lake/gold")],
                spark=SparkConnect(),
            )
        return made

    one, other = (SerializedDagModel.hash(DagSerialization.to_dict(each)) for each in (parsed(), parsed()))
    assert one == other
    assert "- `Own`" in text(parsed())
