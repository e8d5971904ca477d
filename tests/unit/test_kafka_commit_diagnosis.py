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
from airflow_epochs.sinks.kafka.diagnosis import Case
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
        return MarkerRecord(txn_id=self._txn, topic="orders", **empty)


def told(monkeypatch: pytest.MonkeyPatch, shown: TransactionId) -> Corrupt:
    """The error of the commit of epoch 3, whose topic shows another epoch than 2."""
    markers = Shows(shown)
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
    error = told(monkeypatch, shown=transaction(1))
    assert error.code is codes.SINK_BEHIND
    assert "Epoch 3 is in doubt" in error.remedy
    assert f"`airflow epochs waive {transaction(3).pipeline} 3 orders --why …`" in error.remedy


WAIVED = (
    "complete epoch 3, which is in doubt, without this sink's rows: `airflow epochs waive orders 3 orders --why …`. "
    'Clear the failed task. Then give this sink another name, with EpochPipeline(…, backfill={"<the new name>": 3})'
)


def test_a_topic_ahead_of_the_ledger_names_the_waive_before_another_name_of_the_sink(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = told(monkeypatch, shown=transaction(4))
    assert error.code is codes.LEDGER_BEHIND
    assert f"the marker is another pipeline's: {WAIVED}. If it does" in error.remedy
    assert "`marker_topic`" not in error.remedy, "one of its own lacks the rows of the epoch in doubt"


def test_another_transaction_of_the_epoch_in_doubt_is_that_of_another_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    error = told(monkeypatch, shown=transaction(3).with_nonce("1" * 32))
    assert error.code is codes.TWO_LEDGERS
    assert "but the ledger has orders/3/" in error.what
    assert f"only the marker is the other pipeline's: {WAIVED}." in error.remedy


def test_before_the_decision_a_topic_ahead_of_the_ledger_waives_nothing() -> None:
    markers = cast("Markers", Shows(transaction(4)))
    error = Case(markers=markers, topic="orders", expected=transaction(2), recorded={}).diagnosed()
    assert error and error.code is codes.LEDGER_BEHIND
    assert "waive" not in error.remedy
    assert "give this sink another name, or a `marker_topic` of its own" in error.remedy


@pytest.mark.parametrize(("topic", "there"), [("orders", None), ("returns", "topic orders")])
def test_a_marker_whose_rows_went_to_another_topic_says_so(
    monkeypatch: pytest.MonkeyPatch, topic: str, there: str | None
) -> None:
    """Another pipeline with the same names of pipeline and sink may share the marker topic."""
    monkeypatch.setattr(KafkaParticipant, "_markers", lambda *_: Shows(transaction(3)))
    found = KafkaSink("orders", topic, staging="/staging").last_epoch("orders", Environment())
    assert found
    assert (found.elsewhere.there if found.elsewhere else None) == there
