"""A connection that leads to another cluster after the vote, which has topics of the same names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt
from stack.broker import Broker
from stack.jars import Jars
from tests.support.kafka_sink_world import a_feed, create, rows, visible, world_at

pytestmark = pytest.mark.jvm


@pytest.mark.few(1)
@pytest.mark.parametrize("has_markers", [True, False], ids=["with a marker topic", "without one"])
def test_a_voted_epoch_is_not_sent_to_another_cluster_and_is_sent_once_the_connection_leads_back(
    servers: Path,
    jars: Jars,
    broker: Broker,
    admin: AdminClient,
    pipeline: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_markers: bool,
) -> None:
    topic, markers = create(admin, f"out-{pipeline}"), f"markers-{pipeline}"
    feed = a_feed(broker.bootstrap, topic, pipeline, tmp_path, marker_topic=markers)
    feed.run(rows("a"))
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("b"))
    monkeypatch.setattr("stack.broker.CLUSTER_ID", "BBBBBBBBBBBBBBBBBBBBBQ")
    with Broker(servers / pipeline, jars) as other:
        others = AdminClient({"bootstrap.servers": other.bootstrap})
        create(others, topic)
        if has_markers:
            create(others, markers, cleanup_policy="compact")
        elsewhere = replace(feed, world=world_at(other.bootstrap))
        with pytest.raises(Corrupt, match=r"leads to the Kafka cluster BBB.* voted on in the cluster AAA") as refused:
            elsewhere.commit(attempt, staged)
        assert refused.value.code is codes.CLUSTER_CHANGED
        assert refused.value.remedy.startswith("Point the connection back to that cluster, and clear the commit task.")
        assert visible(other.bootstrap, topic) == []
    assert feed.commit(attempt, staged).rows == 1
    assert visible(broker.bootstrap, topic) == ["a", "b"]
