"""One poller for all who watch topics of a cluster: its connections, and what it does while the brokers are down."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from airflow_epochs.contracts import Awaited, Connection
from airflow_epochs.sources.kafka import poller
from airflow_epochs.sources.kafka.brokers import Brokers
from airflow_epochs.triggers.records import RecordsTrigger
from stack.broker import Broker
from tests.support.kafka_sink_world import create
from tests.support.remedies import in_the_environment
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm


def connect(broker: Broker, monkeypatch: pytest.MonkeyPatch, *conn_ids: str) -> None:
    for conn_id in conn_ids:
        extra = {"bootstrap.servers": broker.bootstrap, "socket.timeout.ms": 1000}
        described = Connection(conn_id=conn_id, conn_type="kafka", extra=extra)
        for name, value in in_the_environment(described).items():
            monkeypatch.setenv(name, value)


def new_topic(broker: Broker) -> str:
    return create(AdminClient({"bootstrap.servers": broker.bootstrap}), f"polled-{uuid.uuid4().hex[:8]}", 2)


def produce(broker: Broker, topics: Iterable[str]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for topic in topics:
        producer.produce(topic, value=b"x", partition=1)
    assert producer.flush(20) == 0


def waiting_for(topic: str, conn_id: str = "kafka") -> RecordsTrigger:
    awaited = Awaited(conn_id=conn_id, begins={topic: {0: 0}}, min_records=1, max_delay_s=None, max_wait_s=60)
    return RecordsTrigger.of(awaited, datetime.now(timezone.utc) + timedelta(seconds=60), 0)


async def fired(trigger: RecordsTrigger) -> str:
    async for event in trigger.run():
        return str(event.payload["why"])
    raise AssertionError("the trigger ended without an event")


def connections_to(broker: Broker) -> int:
    """How many connections this process has to the broker."""
    ours = psutil.Process().net_connections("tcp")
    return sum(bool(each.raddr) and each.raddr.port == broker.port for each in ours if each.status == "ESTABLISHED")


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, condition)


def test_all_who_watch_a_cluster_share_its_connections_and_the_last_one_closes_them(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(broker, monkeypatch, "kafka", "kafka_too")
    topics = [new_topic(broker) for _ in range(3)]
    others = connections_to(broker)
    polls: list[frozenset[str]] = []
    ends = poller._Partitions.ends

    def counted(self: object, brokers: object, asked: frozenset[str]) -> dict[tuple[str, int], int] | None:
        polls.append(asked)
        return ends(self, brokers, asked)  # type: ignore[arg-type]

    monkeypatch.setattr(poller._Partitions, "ends", counted)

    async def scenario() -> None:
        first = asyncio.create_task(fired(waiting_for(topics[0])))
        await until(lambda: len(polls) > 1)
        one = connections_to(broker) - others
        more = [waiting_for(topic, conn_id) for topic in topics for conn_id in ("kafka", "kafka_too") * 10]
        tasks = [first, *(asyncio.create_task(fired(trigger)) for trigger in more)]
        await until(lambda: polls[-1] == set(topics))
        count = len(polls)
        await until(lambda: len(polls) > count + 2)
        assert one > 0 and connections_to(broker) - others == one, "as many for 61 triggers as for one"
        assert not any(task.done() for task in tasks)
        await asyncio.to_thread(produce, broker, topics)
        assert set(await asyncio.gather(*tasks)) == {"enough"}

    asyncio.run(scenario())
    wait_until(lambda: connections_to(broker) <= others, what="the last one has closed the connections")
    assert not poller._pollers


@pytest.mark.long
def test_while_the_brokers_are_down_a_trigger_waits_says_so_once_and_fires_when_data_comes(
    own_broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connect(own_broker, monkeypatch, "kafka")
    topic = new_topic(own_broker)
    seen: list[poller.PollOutcome] = []
    tell = poller.Watch.tell

    def noted(self: poller.Watch, each: poller.PollOutcome) -> None:
        seen.append(each)
        tell(self, each)

    monkeypatch.setattr(poller.Watch, "tell", noted)

    async def scenario() -> None:
        waiting = asyncio.create_task(fired(waiting_for(topic)))
        await until(lambda: len(seen) > 1)
        assert all(each.error is None for each in seen)
        await asyncio.to_thread(own_broker.stop)
        await until(lambda: sum(each.error is not None for each in seen) >= 2)
        assert not waiting.done()
        own_broker.start()
        await asyncio.to_thread(own_broker.wait_ready)
        await asyncio.to_thread(produce, own_broker, [topic])
        assert await waiting == "enough"

    with caplog.at_level(logging.INFO, "airflow_epochs"):
        asyncio.run(scenario())
    told = [record.getMessage() for record in caplog.records if "answer" in record.getMessage()]
    assert len(told) == 2, told
    assert "EPOCHS-KAFKA-UNREACHABLE" in told[0] and told[1] == "the brokers answer again"


def test_one_topic_that_is_deleted_wakes_its_own_waiters_and_no_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(broker, monkeypatch, "kafka")
    kept, deleted = new_topic(broker), new_topic(broker)

    async def scenario() -> None:
        stays, wakes = (asyncio.create_task(fired(waiting_for(topic))) for topic in (kept, deleted))
        [polling] = await until_polling()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        await asyncio.to_thread(admin.delete_topics([deleted])[deleted].result)
        assert await asyncio.wait_for(wakes, 20) == "trouble"
        assert not stays.done() and polling in poller._pollers.values()
        await asyncio.to_thread(produce, broker, [kept])
        assert await asyncio.wait_for(stays, 20) == "enough"

    asyncio.run(scenario())


def test_a_first_poll_that_meets_the_deletion_of_a_topic_wakes_no_waiter_of_another(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(broker, monkeypatch, "kafka")
    kept, calls = new_topic(broker), []
    ends = Brokers.stable_ends

    def deleted_meanwhile(self: object, partitions: object) -> dict[tuple[str, int], int] | None:
        calls.append(partitions)
        return None if len(calls) == 1 else ends(self, partitions)  # type: ignore[arg-type]

    monkeypatch.setattr(Brokers, "stable_ends", deleted_meanwhile)

    async def scenario() -> None:
        stays = asyncio.create_task(fired(waiting_for(kept)))
        await until(lambda: len(calls) >= 3)
        assert not stays.done()
        await asyncio.to_thread(produce, broker, [kept])
        assert await asyncio.wait_for(stays, 20) == "enough"

    asyncio.run(scenario())


async def until_polling() -> list[poller._Poller]:
    await until(lambda: len([each for it in poller._pollers.values() for each in it.watches]) == 2)
    return list(poller._pollers.values())


def test_who_comes_while_a_poll_is_under_way_waits_for_one_that_asks_for_its_topics(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(broker, monkeypatch, "kafka")
    early, late = new_topic(broker), new_topic(broker)
    gate, polls = threading.Event(), []
    ends = poller._Partitions.ends

    def gated(self: object, brokers: object, asked: frozenset[str]) -> dict[tuple[str, int], int] | None:
        polls.append(asked)
        assert gate.wait(20)
        return ends(self, brokers, asked)  # type: ignore[arg-type]

    monkeypatch.setattr(poller._Partitions, "ends", gated)

    async def scenario() -> None:
        first = asyncio.create_task(fired(waiting_for(early)))
        await until(lambda: polls)
        second = asyncio.create_task(fired(waiting_for(late)))
        await until_polling()
        gate.set()
        await until(lambda: polls[-1] == {early, late} and len(polls) > 3)
        assert not second.done(), "no news of the topic is not that it is gone"
        await asyncio.to_thread(produce, broker, [early, late])
        assert set(await asyncio.gather(first, second)) == {"enough"}

    asyncio.run(scenario())
