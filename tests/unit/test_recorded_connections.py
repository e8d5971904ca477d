"""An unsigned record leads to no connection that today's DAG does not name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_epochs.coordinator.recorded_sinks import sink_of, source_of
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.keys import key_of
from airflow_epochs.model import JsonDict, OpenRecord, SinkPlan
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.sql.sink import SqlSink
from airflow_epochs.sources.kafka.source import KafkaSource
from tests.support.records import open_record

OURS = DeltaSink("a", "/table")
OTHER = SqlSink("a", "somebodys_database", "orders", staging="/nowhere").spec()


def recorded(spec: JsonDict) -> OpenRecord:
    return replace(open_record(), sinks={"a": SinkPlan(spec=spec, previous=None)})


def test_a_connection_that_no_sink_of_the_dag_uses_is_refused_and_the_record_is_named() -> None:
    record = recorded(OTHER)
    with pytest.raises(Refused, match="the sink uses connection 'somebodys_database'") as refused:
        sink_of(record, "a", [OURS])
    assert f"p/{key_of(record)}, which is not signed" in refused.value.what
    assert (refused.value.pipeline, refused.value.epoch, refused.value.sink) == ("p", 1, "a")


def test_one_that_a_sink_of_the_dag_uses_may_be_used() -> None:
    named = SqlSink("another", "somebodys_database", "others", staging="/nowhere")
    assert sink_of(recorded(OTHER), "a", [named]).name == "a"


def test_a_signed_record_may_use_any() -> None:
    assert sink_of(replace(recorded(OTHER), format=2), "a", []).name == "a"


@pytest.mark.parametrize(
    "hidden", [{"storage_conn_id": "x"}, {"later": [{"their_conn_id": "x"}]}, {"more": {"conn_id": ["x", "y"]}}]
)
def test_connections_are_found_wherever_a_specification_has_them(hidden: JsonDict) -> None:
    with pytest.raises(Refused, match="uses connection 'x'"):
        sink_of(recorded({**OURS.spec(), **hidden}), "a", [OURS])


@pytest.mark.parametrize("connection", ["conn_id", "registry_conn_id"])
@pytest.mark.parametrize("signed", [True, False])
def test_a_source_with_a_connection_that_the_dag_does_not_name_is_taken_from_a_signed_record_alone(
    signed: bool, connection: str
) -> None:
    ours = KafkaSource(topics=["t"])
    named: JsonDict = {connection: "somebodys"}
    theirs = replace(ours, **named)
    record = replace(open_record(), source=theirs.spec(), format=2 if signed else 1)
    assert source_of(record, ours) == (theirs if signed else ours)


def test_a_source_is_as_the_record_says_or_the_dags_if_only_the_dag_knows_its_kind() -> None:
    ours = KafkaSource(topics=["t"])
    before = replace(ours, topics=["t", "u"])
    assert source_of(replace(open_record(), source=before.spec()), ours) == before
    assert source_of(replace(open_record(), source={"kind": "own"}), ours) == ours
