"""The asset of waiting records: when its trigger fires, on a real broker and a real ledger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from airflow_epochs import KafkaSource, records_waiting
from airflow_epochs.errors import BadArgument
from airflow_epochs.triggers import asset, standing
from airflow_epochs.triggers.asset import RecordsWaitingTrigger
from tests.support.remedies import ordered
from tests.support.topic_world import TopicWorld

pytestmark = pytest.mark.jvm


@pytest.fixture
def world(topic_world: Callable[..., TopicWorld], monkeypatch: pytest.MonkeyPatch) -> TopicWorld:
    """An empty topic of two partitions, and Airflow's connections."""
    it = topic_world()
    it.ledger_root.mkdir()
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": it.broker.bootstrap}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA", json.dumps(kafka))
    ledger = {"conn_type": "epochs", "extra": {"ledger_root": str(it.ledger_root)}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(ledger))
    return it


def trigger_of(world: TopicWorld, **options: Any) -> RecordsWaitingTrigger:
    """The trigger of the pipeline's asset, as the triggerer makes it of what is in Airflow's database."""
    again = options.pop("again", 300)
    source = KafkaSource([world.topic()], conn_id="kafka", **{"min_records": 3, **options})
    [watcher] = records_waiting(world.name, source, again=again).watchers
    path, kwargs = watcher.trigger.serialize()
    assert path == "airflow_epochs.triggers.asset.RecordsWaitingTrigger"
    return RecordsWaitingTrigger(**json.loads(json.dumps(kwargs)))


class Fired:
    """What a trigger fires while a test does something meanwhile."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def collect(self, trigger: RecordsWaitingTrigger) -> None:
        """As the triggerer does."""
        async for event in trigger.run():
            self._events.put_nowait(event.payload)

    async def after(self, action: Callable[[], object]) -> dict[str, Any]:
        """The next event, of which there is none before the action."""
        await self.nothing()
        await asyncio.to_thread(action)
        return await self.next()

    async def next(self) -> dict[str, Any]:
        return await asyncio.wait_for(self._events.get(), 20)

    async def nothing(self, seconds: float = 1.5) -> None:
        """Meanwhile the trigger polls several times, asks the ledger again, and fires nothing."""
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(self._events.get(), seconds)


def with_events(trigger: RecordsWaitingTrigger, scenario: Callable[[Fired], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        fired = Fired()
        triggerer = asyncio.create_task(fired.collect(trigger))
        await scenario(fired)
        triggerer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await triggerer

    asyncio.run(run())


def event(records: int, past_epoch: int, why: str = "enough") -> dict[str, Any]:
    return {"pipeline": "orders", "why": why, "records": records, "past_epoch": past_epoch}


def test_it_fires_once_for_each_epoch_past_which_enough_records_wait(world: TopicWorld) -> None:
    async def scenario(fired: Fired) -> None:
        world.produce("ab")
        assert await fired.after(lambda: world.produce("c")) == event(3, 0)
        world.produce("de")
        await fired.nothing()
        assert await asyncio.to_thread(world.run, 1) is None  # it takes all five
        assert await fired.after(lambda: world.produce("fgh")) == event(3, 1)
        world.produce("ij")
        assert await asyncio.to_thread(world.run, 2) is None
        await fired.nothing()

    with_events(trigger_of(world), scenario)
    assert world.shown("lake") == "abcdefghij"


def test_an_event_that_leads_to_no_epoch_is_fired_again_since_it_may_have_been_lost(world: TopicWorld) -> None:
    async def scenario(fired: Fired) -> None:
        world.produce("abc")
        assert [await fired.next(), await fired.next()] == [event(3, 0), event(3, 0)]
        world.produce("d")
        assert await fired.next() == event(4, 0)

    with_events(trigger_of(world, again=1), scenario)


def test_a_pipeline_that_begins_at_the_end_is_started_at_once_to_record_where_that_is(world: TopicWorld) -> None:
    async def scenario(fired: Fired) -> None:
        assert await fired.next() == event(0, 0)
        assert await asyncio.to_thread(world.but(starting="latest").run, 1) is None
        assert await fired.after(lambda: world.produce("abc")) == event(3, 1)

    with_events(trigger_of(world, starting="latest"), scenario)


def test_a_command_that_goes_back_makes_records_wait_again(world: TopicWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing, "LEDGER_S", 0.5)
    for number, letters in enumerate(("ab", "cde"), 1):
        world.produce(letters)
        assert world.run(number) is None

    def back() -> None:
        ordered(world.ledger_root, "epochs", "rewind", world.name, "--to-epoch", "1", "--why", "the test says so")

    async def scenario(fired: Fired) -> None:
        assert await fired.after(back) == event(3, 2)
        assert await asyncio.to_thread(world.run, 3) is None
        await fired.nothing()

    with_events(trigger_of(world), scenario)
    assert world.shown("lake") == "abccddee"


def test_a_paused_pipeline_starts_no_run_and_the_end_of_the_pause_starts_one(world: TopicWorld) -> None:
    def order(name: str) -> None:
        ordered(world.ledger_root, "epochs", name, world.name, "--why", "the test says so")

    world.produce("a")
    assert world.run(1) is None

    async def scenario(fired: Fired) -> None:
        await asyncio.to_thread(order, "pause")
        await fired.nothing(asset.LOOK_S + 0.5)  # so old may be what the trigger knows of the ledger
        world.produce("bcd")
        await fired.nothing()
        assert await fired.after(lambda: order("unpause")) == event(3, 1)

    with_events(trigger_of(world), scenario)


def test_what_only_a_run_can_say_starts_one(world: TopicWorld) -> None:
    world.produce("abc")
    assert world.run(1) is None

    async def scenario(fired: Fired) -> None:
        assert (await fired.after(world.delete_topic))["why"] == "trouble"

    with_events(trigger_of(world), scenario)


@pytest.mark.parametrize(
    "connection",
    [{}, {"password": "k" * 40, "extra": {"require_signed": True}}],
    ids=["it has no root", "its records are not signed"],
)
def test_a_ledger_that_must_not_be_believed_starts_a_run_which_says_so(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any]
) -> None:
    world.produce("abc")
    assert world.run(1) is None
    if extra := connection.get("extra"):
        extra["ledger_root"] = str(world.ledger_root)
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps({"conn_type": "epochs", **connection}))

    async def scenario(fired: Fired) -> None:
        assert await fired.next() == {"pipeline": "orders", "why": "trouble"}

    with_events(trigger_of(world), scenario)


@pytest.mark.parametrize(
    ("source", "more", "says"),
    [
        ({"topics": "{{ params.topics }}"}, {}, "`topics` is a template"),
        ({"topics": "in", "min_records": "{{ 3 }}"}, {}, "`min_records` is a template"),
        ({"topics": "in"}, {"again": 0}, "`again` is 0"),
        ({"topics": "in"}, {"pipeline": "no name"}, "'no name' is not valid"),
    ],
)
def test_an_asset_that_nobody_could_watch_is_refused(source: Any, more: dict[str, Any], says: str) -> None:
    with pytest.raises(BadArgument, match=says):
        records_waiting(**{"pipeline": "orders", "source": KafkaSource(**source), **more})
