"""The request for a commit, or its answer, is lost: nobody knows what came of it until the next try looks."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from airflow_epochs import KafkaSource, codes
from airflow_epochs.contracts import Limits
from airflow_epochs.errors import EpochError, NotApplied, OutcomeUnknown
from airflow_epochs.model import StagedClaim
from airflow_epochs.sinks.kafka import publish as kafka_publish
from stack.broker import Broker
from stack.jars import Jars
from stack.ports import free_port
from tests.support.cells import fired
from tests.support.kafka_sink_world import Feed, a_feed, create, rows, seen_by_confluent, values, visible, world_at
from tests.support.tcp_proxy import ANSWERS, REQUESTS, Proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm


class Distant(Broker):
    """A broker with one listener more, which is reached through a proxy only."""

    def __init__(self, folder: Path, jars: Jars) -> None:
        super().__init__(folder, jars)
        self.behind, self.in_front = free_port(), free_port()
        self.settings = {
            "listeners": f"PLAINTEXT://{self.bootstrap},FAR://127.0.0.1:{self.behind},"
            f"CONTROLLER://127.0.0.1:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap},FAR://127.0.0.1:{self.in_front}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,FAR:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        }


@pytest.fixture(scope="module")
def distant(servers: Path, jars: Jars) -> Iterator[Distant]:
    with Distant(servers / "distant", jars) as broker:
        yield broker


@pytest.fixture
def proxy(distant: Distant) -> Iterator[Proxy]:
    with Proxy(distant.behind, distant.in_front) as proxy:
        yield proxy


@pytest.fixture
def feed(distant: Distant, proxy: Proxy, tmp_path: Path) -> Feed:
    name = uuid.uuid4().hex[:8]
    topic = create(AdminClient({"bootstrap.servers": distant.bootstrap}), f"out-{name}")
    return a_feed(proxy.address, topic, f"orders-{name}", tmp_path)


@pytest.mark.few(1)
@pytest.mark.parametrize("lost", [REQUESTS, ANSWERS])
def test_a_commit_whose_request_or_answer_is_lost_is_looked_up_by_the_next_try(
    feed: Feed, distant: Distant, proxy: Proxy, lost: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_publish, "COMMIT_S", 2)
    topic, patient = feed.sink.topic, feed.world
    feed.run(rows("a"))
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("b", "c"))
    feed.world = world_at(proxy.address, **{"socket.timeout.ms": 1_000})
    feed.world.at = {"kafka.commit.before": lambda: proxy.lose(lost)}
    with pytest.raises(OutcomeUnknown, match="does not know whether the brokers committed"):
        feed.commit(attempt, staged)
    landed = ["a"] if lost == REQUESTS else ["a", "b", "c"]
    wait_until(lambda: values(seen_by_confluent(distant.bootstrap, topic)) == landed)
    feed.world = patient
    proxy.heal()
    receipt = feed.commit(attempt, staged)
    assert (receipt.txn_id, receipt.rows) == (str(attempt.txn), 2)
    assert feed.commit(attempt, staged) == receipt
    assert visible(distant.bootstrap, topic) == ["a", "b", "c"]
    if lost == ANSWERS:
        fired("F6", 9, "C")


@pytest.mark.few(1)
@pytest.mark.parametrize("silent", [True, False], ids=["a port that never answers", "a closed port"])
def test_an_address_that_brokers_advertise_and_nobody_reaches_is_named_with_its_origin(
    distant: Distant, tmp_path: Path, silent: bool
) -> None:
    """The connection's own address answers: whoever checked that one alone would find nothing."""
    name = uuid.uuid4().hex[:8]
    topic = create(AdminClient({"bootstrap.servers": distant.bootstrap}), f"out-{name}")
    known, far = f"127.0.0.1:{distant.behind}", f"127.0.0.1:{distant.in_front}"
    feed = a_feed(distant.bootstrap, topic, f"orders-{name}", tmp_path)
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("a"))
    near, feed.world = feed.world, world_at(known, **{"socket.timeout.ms": 2_000})
    with socket.create_server(("127.0.0.1", distant.in_front)) if silent else nullcontext():
        with pytest.raises(NotApplied) as unplanned:
            KafkaSource([topic]).plan(None, Limits(), feed.world)
        with pytest.raises(NotApplied) as unready:
            feed.sink.require_ready(feed.pipeline, None, feed.world)
        with pytest.raises(EpochError) as unvoted:
            feed.sink.vote(attempt, StagedClaim(place=staged.place), feed.world)
        with pytest.raises(EpochError) as uncommitted:
            feed.commit(attempt, staged)
    assert (unplanned.value.code, unready.value.code) == (codes.KAFKA_UNREACHABLE,) * 2
    for error in (unplanned.value, unready.value, unvoted.value, uncommitted.value):
        assert f"The connection does not name {far}: brokers sent it (advertised.listeners)." in str(error)
        assert f"does not name {known}" not in str(error)
    feed.world = near
    feed.commit(attempt, staged)
    assert visible(distant.bootstrap, topic) == ["a"]
