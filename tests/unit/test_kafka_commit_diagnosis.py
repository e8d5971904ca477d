"""What a commit to Kafka says of a marker that is not the previous epoch's, without a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import Staged, TransactionId
from airflow_epochs.sinks.kafka import publish
from airflow_epochs.sinks.kafka.cluster import Cluster, TopicFacts
from airflow_epochs.sinks.kafka.marker import MarkerRecord, Markers
from airflow_epochs.sinks.kafka.participant import KafkaParticipant
from airflow_epochs.sinks.kafka.sink import KafkaSink
from tests.support.delta_world import transaction
from tests.support.environment import Environment


class Shows:
    """Markers of which the newest is one transaction's."""

    topic, key = "epoch_markers", "orders/orders"

    def __init__(self, txn: TransactionId) -> None:
        self._txn = txn

    def newest(self) -> MarkerRecord:
        empty: Mapping[str, Any] = {"rows": 0, "files": 0, "size": 0, "place": "", "offsets": {}, "at": ""}
        return MarkerRecord(txn_id=str(self._txn), topic="orders", **empty)


def told(monkeypatch: pytest.MonkeyPatch, shown: int) -> Corrupt:
    """The error of the commit of epoch 3, whose topic shows another epoch than 2."""
    markers = Shows(transaction(shown))
    monkeypatch.setattr(publish, "_own_producer", lambda *_: (None, markers.newest()))
    monkeypatch.setattr(publish, "_require_kept", lambda *_: None)
    this = publish.TopicTransaction(
        cluster=cast("Cluster", None),
        markers=cast("Markers", markers),
        topic="orders",
        facts=(None, cast("TopicFacts", None)),
        options={},
        txn=transaction(3),
        previous=transaction(2),
        staged=cast("Staged", None),
        ends={},
        records=lambda _: iter(()),
    )
    with pytest.raises(Corrupt) as caught:
        publish.publish(this, Environment())
    return caught.value


def test_a_topic_behind_the_ledger_while_an_epoch_is_in_doubt_names_the_command_that_waives_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = told(monkeypatch, shown=1)
    assert error.code is codes.SINK_BEHIND
    assert "Epoch 3 is in doubt" in error.remedy
    assert f"`airflow epochs waive {transaction(3).pipeline} 3 orders --why …`" in error.remedy


def test_a_topic_ahead_of_the_ledger_waives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    error = told(monkeypatch, shown=4)
    assert error.code is codes.LEDGER_BEHIND
    assert "waive" not in error.remedy


@pytest.mark.parametrize(("topic", "there"), [("orders", None), ("returns", "topic orders")])
def test_a_marker_whose_rows_went_to_another_topic_says_so(
    monkeypatch: pytest.MonkeyPatch, topic: str, there: str | None
) -> None:
    """Another pipeline with the same names of pipeline and sink may share the marker topic."""
    monkeypatch.setattr(KafkaParticipant, "_markers", lambda *_: Shows(transaction(3)))
    found = KafkaSink("orders", topic, staging="/staging").last_epoch("orders", Environment())
    assert found
    assert (found.elsewhere.there if found.elsewhere else None) == there
