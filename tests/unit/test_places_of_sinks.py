"""Whether a sink that is known by a marker points to another sink's place, without a broker or a database."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.coordinator.agreement import require_own_place
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import CompleteRecord, Receipt, Run
from airflow_epochs.sinks.kafka.sink import KafkaSink
from airflow_epochs.sinks.sql.sink import SqlSink
from tests.support.delta_world import transaction
from tests.support.environment import Environment

TXN = transaction(1)


def receipt(sink: str, **detail: Any) -> Receipt:
    return Receipt(
        txn_id=TXN,
        sink=sink,
        rows=0,
        files=0,
        bytes=0,
        version=None,
        committed_at="2026-01-01T00:00:00Z",
        detail=detail,
    )


def topic(sink: str, name: str) -> KafkaSink:
    return KafkaSink(sink, name, staging="/lake/staging")


def shown(**topics: str) -> CompleteRecord:
    """A complete epoch of sinks with these topics."""
    receipts = {sink: receipt(sink, topic=name, marker_topic_id="id") for sink, name in topics.items()}
    run = Run("dag", "run 1")
    return CompleteRecord(
        txn_id=TXN,
        ranges={},
        source_state={},
        receipts=receipts,
        markers=dict.fromkeys(topics, TXN),
        opened_by=run,
        completed_by=run,
        metrics={},
        completed_at="2026-01-01T00:00:00Z",
        writer="me",
    )


def test_kafka_sinks_that_swap_their_topics_are_refused() -> None:
    before, today = shown(live="out", shadow="out2"), [topic("live", "out2"), topic("shadow", "out")]
    for sink in today:
        with pytest.raises(Corrupt) as caught:
            require_own_place(sink, before, today, Environment())
        assert caught.value.code is codes.TABLE_ELSEWHERE


def test_a_kafka_sink_may_take_the_topic_of_a_sink_that_is_gone_from_the_dag() -> None:
    left = topic("live", "out2")
    require_own_place(left, shown(live="out", shadow="out2"), [left], Environment())


def test_receipts_without_ids_of_tables_are_compared_by_the_names_of_the_tables() -> None:
    sink = SqlSink("live", "db", "orders_v2", staging="/lake/staging")
    own = receipt("live", table="orders", table_id=None, database={"file": "/x"})
    other = receipt("shadow", table="orders_v2", table_id=None, database={"file": "/x"})
    assert sink.in_place_of(own, [other], Environment()) is other
    elsewhere = receipt("shadow", table="orders_v2", table_id=None, database={"file": "/y"})
    assert sink.in_place_of(own, [elsewhere], Environment()) is None


@pytest.mark.parametrize("spelling", ["Orders_V2", '"Orders_V2"', "main.orders_v2", ' "main"."ORDERS_v2" '])
@pytest.mark.parametrize("theirs", ["orders_v2", 'main."orders_V2"'])
def test_sqlite_sinks_that_swap_tables_are_seen_through_however_the_tables_are_spelled(
    spelling: str, theirs: str
) -> None:
    sink = SqlSink("live", "db", spelling, staging="/lake/staging")
    own = receipt("live", table="orders", table_id=None, database={"file": "/x"})
    other = receipt("shadow", table=theirs, table_id=None, database={"file": "/x"})
    assert sink.in_place_of(own, [other], Environment()) is other


@pytest.mark.parametrize("spelling", ["Orders", '"ORDERS"', "main.orders"])
def test_a_sqlite_sink_whose_own_table_is_spelled_anew_is_in_nobodys_place(spelling: str) -> None:
    sink = SqlSink("live", "db", spelling, staging="/lake/staging")
    own = receipt("live", table="orders", table_id=None, database={"file": "/x"})
    other = receipt("shadow", table="orders_v2", table_id=None, database={"file": "/x"})
    assert sink.in_place_of(own, [other], Environment()) is None


def test_tables_whose_names_differ_in_a_letter_that_sqlite_does_not_fold_are_two() -> None:
    sink = SqlSink("live", "db", '"Ärger"', staging="/lake/staging")
    own = receipt("live", table="orders", table_id=None, database={"file": "/x"})
    other = receipt("shadow", table='"ärger"', table_id=None, database={"file": "/x"})
    assert sink.in_place_of(own, [other], Environment()) is None


def test_a_sql_sink_that_was_a_delta_sink_is_in_nobodys_place() -> None:
    sink = SqlSink("live", "db", "orders", staging="/lake/staging")
    own = receipt("live", table="/lake/orders", committer="delta-rs", table_id="3f0c9d2e-6a34-4c0b-9a59-0a1f8f1d7c55")
    other = receipt("shadow", table="orders", schema="public", table_id="16385", database={"name": "shop"})
    assert sink.in_place_of(own, [other], Environment()) is None
