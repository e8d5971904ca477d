"""Whether a receipt is of a Kafka sink's topic: it may come from another cluster, or from version 0.1, without ids."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import patch

import pytest

from airflow_epochs.model import JsonDict, Receipt, TransactionId
from airflow_epochs.sinks.kafka.marker import Markers
from airflow_epochs.sinks.kafka.participant import KafkaParticipant
from airflow_epochs.sinks.kafka.sink import KafkaSink
from tests.support.environment import Environment


def held(detail: JsonDict, marked: bool = False) -> bool:
    """The topic has the id T. ``marked``: a marker of the receipt's sink is where those of this sink are."""
    sink = KafkaSink("sent", "out", conn_id="kafka", staging="/staging")
    participant = KafkaParticipant(sink, Environment())
    participant.__dict__["_cluster"] = SimpleNamespace(topic=lambda name: SimpleNamespace(id="T"))
    receipt = Receipt(
        txn_id=TransactionId("orders", 1, 1, "a" * 32),
        sink="out",
        rows=1,
        files=1,
        bytes=1,
        version=None,
        committed_at="now",
        detail=detail,
    )
    asked: list[str] = []

    def newest(markers: Markers) -> object:
        asked.append(markers.key)
        return object() if marked else None

    with patch.object(Markers, "newest", newest):
        found = participant.may_hold(receipt)
    assert set(asked) <= {"orders/out"}
    return found


@pytest.mark.parametrize(("topic_id", "is_held"), [("T", True), ("U", False)])
def test_the_id_of_a_topic_tells_whether_it_holds_the_rows_of_a_receipt(topic_id: str, is_held: bool) -> None:
    assert held({"topic": "out", "topic_id": topic_id}) is is_held
    assert not held({"topic": "other", "topic_id": topic_id})


@pytest.mark.parametrize("marked", [True, False])
def test_a_receipt_without_an_id_counts_only_beside_a_marker_of_its_sink(marked: bool) -> None:
    assert held({"topic": "out"}, marked) is marked
