"""``open`` waits for data in Airflow's triggerer: whatever becomes of events, each record is shown exactly once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psutil
import pytest

from stack.broker import Broker
from stack.processes import Process
from tests.support.deferred_world import Deferred, event_of, fail, submit
from tests.support.topic_world import TopicWorld
from tests.support.waiting import wait_until

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.jvm, pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]


@pytest.fixture
def world(topic_world: Callable[..., TopicWorld]) -> TopicWorld:
    """An empty topic of two partitions."""
    return topic_world()


@pytest.fixture
def lab(world: TopicWorld, monkeypatch: pytest.MonkeyPatch) -> Deferred:
    """A pipeline that waits for three records, for an hour."""
    return Deferred(world, monkeypatch)


def test_a_run_with_too_few_records_waits_in_the_triggerer_and_takes_all_when_enough_are_there(lab: Deferred) -> None:
    lab.world.produce("ab")

    def triggerer() -> None:
        lab.world.produce("c")
        event = event_of(lab.waiting())
        assert event.payload == {"why": "enough"}
        submit(lab.waiting(), event)

    assert lab.run("r1", triggerer) == "success, open success"
    assert lab.world.shown("lake") == "abc"


@pytest.mark.long
def test_doubled_and_late_events_change_nothing(lab: Deferred) -> None:
    fired: list[tuple[int, Any]] = []

    def twice() -> None:
        lab.world.produce("abc")
        fired.append((lab.waiting(), event_of(lab.waiting())))
        submit(*fired[0], times=2)

    assert lab.run("r1", twice) == "success, open success"
    letters = iter("def")

    def late() -> None:
        [(trigger, event)] = fired
        submit(trigger, event)  # to nobody: that wait is over
        submit(lab.waiting(), event)  # to another wait, for which there are too few records
        lab.world.produce(next(letters))

    assert lab.run("r2", late) == "success, open success"
    assert not list(letters), "woken in vain, it waited on, until it saw three"
    assert (lab.world.shown("lake"), lab.world.ledger.newest_complete()) == ("abcdef", 2)


def test_if_every_event_is_lost_a_run_looks_when_its_time_is_over_and_takes_what_is_there(lab: Deferred) -> None:
    def triggerer() -> None:
        lab.world.produce("abcd")
        event_of(lab.waiting())  # fired, and lost
        lab.time_out()

    assert lab.run("r1", triggerer) == "success, open success"
    assert lab.run("r2", lab.time_out) == "success, open skipped", "nothing new: the run ends as one without data"
    assert lab.world.shown("lake") == "abcd"


def test_if_triggers_fail_a_run_waits_in_its_worker_slot(world: TopicWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Deferred(world, monkeypatch, max_wait=3)

    def triggerer() -> None:
        lab.world.produce("ab")
        fail(lab.waiting())

    assert lab.run("r1", triggerer) == "success, open success"
    assert lab.world.shown("lake") == "ab", "after the rest of max_wait it takes what is there"


def test_at_the_end_of_max_wait_the_trigger_fires_and_a_run_without_data_is_skipped(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Deferred(world, monkeypatch, max_wait=1.5, max_delay="1h")

    def triggerer() -> None:
        event = event_of(lab.waiting())
        assert event.payload == {"why": "over"}
        submit(lab.waiting(), event)

    lab.world.produce("ab")
    assert lab.run("r1", triggerer) == "success, open skipped"
    assert lab.world.ledger.newest_complete() == 0


def test_the_trigger_fires_when_a_record_is_older_than_max_delay(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Deferred(world, monkeypatch, max_delay=40)
    lab.world.produce("a", at=datetime.now(timezone.utc) - timedelta(seconds=37))

    def triggerer() -> None:
        event = event_of(lab.waiting())
        assert event.payload == {"why": "old"}
        submit(lab.waiting(), event)

    assert lab.run("r1", triggerer) == "success, open success"
    assert lab.world.shown("lake") == "a"


class Triggerer(Process):
    """Airflow's own triggerer, over the tests' metadata database."""

    def __init__(self, folder: Path) -> None:
        command = [str(Path(sys.executable).with_name("airflow")), "triggerer", "--skip-serve-logs"]
        super().__init__("triggerer", command, log=folder / "log", env={"AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1"})

    def wait_polling(self, broker: Broker) -> None:
        """Wait until it runs a trigger, which asks the broker."""
        self.wait_ready(lambda: any(each.raddr and each.raddr.port == broker.port for each in self._connections()))

    def _connections(self) -> Iterator[Any]:
        for child in psutil.Process(self.pid).children(recursive=True):
            with suppress(psutil.Error):
                yield from child.net_connections("tcp")


@pytest.mark.long
def test_after_a_triggerer_is_killed_the_next_one_waits_on_and_records_are_shown_once(lab: Deferred) -> None:
    first, second = (Triggerer(lab.world.folder / name) for name in ("first", "second"))

    def triggerers() -> None:
        trigger_id = lab.waiting()
        first.start()
        first.wait_polling(lab.world.broker)
        first.stop(grace_s=0)
        second.start()
        second.wait_polling(lab.world.broker)
        assert lab.waiting() == trigger_id, "nothing has come yet"
        lab.world.produce("abc")
        wait_until(lambda: not lab.waits(), 30, "the event wakes the task")

    try:
        assert lab.run("r1", triggerers) == "success, open success"
    finally:
        first.stop()
        second.stop()
    assert lab.world.shown("lake") == "abc"
