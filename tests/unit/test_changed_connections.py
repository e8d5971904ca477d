"""Triggers that wait for records when the Kafka connection changes meanwhile; brokers are played."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import BaseTrigger

from airflow_epochs import codes
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.kafka.connection import KafkaAccess
from airflow_epochs.sources.kafka import poller
from airflow_epochs.sources.kafka.logs import Partition
from airflow_epochs.triggers import lookout
from airflow_epochs.triggers.asset import RecordsWaitingTrigger
from airflow_epochs.triggers.records import RecordsTrigger

HOME = "home:9092"


class WithoutPackage:
    """Takes the place of ``Brokers`` in a process that lacks kafka-python."""

    def __init__(self, access: KafkaAccess) -> None:
        raise ModuleNotFoundError("No module named 'kafka'", name="kafka")


class Played:
    """Brokers at ``HOME``, which have three records of ``orders``, and a login. Elsewhere, nobody answers."""

    password = "correct horse"
    after_poll: Callable[[], None]

    def __init__(self, access: KafkaAccess) -> None:
        self._access = access

    def __enter__(self) -> Played:
        return self

    def __exit__(self, *_: object) -> None: ...

    def partitions(self, topics: Iterable[str]) -> list[Partition]:
        try:
            self._let_in()
        finally:
            type(self).after_poll()
        return [("orders", 0)]

    def stable_ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return {("orders", 0): 3}

    def _let_in(self) -> None:
        if self._access.servers != (HOME,):
            raise NotApplied("No broker answers.", code=codes.KAFKA_UNREACHABLE)
        if self._access.sasl and self._access.sasl.password != self.password:
            raise Refused("The brokers refuse the login.", code=codes.KAFKA_LOGIN)


def records() -> RecordsTrigger:
    until = datetime.now(timezone.utc) + timedelta(seconds=10)
    return RecordsTrigger("kafka", {"orders": {"0": 0}}, 1, None, until.isoformat())


def waiting() -> RecordsWaitingTrigger:
    return RecordsWaitingTrigger("orders", ["orders"], "kafka", "latest", 1, None, "epochs_default", 60.0)


Connect = Callable[..., None]


@pytest.fixture
def connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Says where the connection ``kafka`` leads. Each trigger reads it anew after each poll."""
    monkeypatch.setattr(poller, "Brokers", Played)
    monkeypatch.setattr(Played, "after_poll", lambda: None, raising=False)
    monkeypatch.setattr(lookout, "CONNECTION_S", 0.0)
    ledger = {"conn_type": "epochs", "extra": {"ledger_root": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(ledger))

    def connect(server: str, **extra: str) -> None:
        kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": server, **extra}}
        monkeypatch.setenv("AIRFLOW_CONN_KAFKA", json.dumps(kafka))

    return connect


def login(password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": password,
    }


def reasons(trigger: BaseTrigger, then: Callable[[], None] = lambda: None, count: int = 1) -> list[str]:
    """Why the trigger fires, so many times. ``then`` is called after the first one."""

    async def fired() -> list[str]:
        found: list[str] = []
        events: Any = trigger.run()
        async for event in events:
            found.append(event.payload["why"])
            then()
            if len(found) == count:
                await events.aclose()
        return found

    return asyncio.run(asyncio.wait_for(fired(), 20))


@pytest.mark.parametrize("trigger", [records, waiting])
def test_a_wait_for_brokers_that_have_moved_goes_on_where_the_connection_leads_by_now(
    trigger: Callable[[], BaseTrigger], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect("gone:9092")
    monkeypatch.setattr(Played, "after_poll", lambda: connect(HOME))
    assert reasons(trigger()) == ["enough"]


@pytest.mark.proof
def test_a_login_that_was_refused_and_then_corrected_is_used_without_another_event_of_trouble(connect: Connect) -> None:
    connect(HOME, **login("battery"))
    assert reasons(waiting(), lambda: connect(HOME, **login(Played.password)), 2) == ["trouble", "enough"]


@pytest.mark.parametrize("trigger", [records, waiting])
def test_a_connection_that_cannot_be_read_for_a_while_disturbs_no_wait_while_the_brokers_answer(
    trigger: Callable[[], BaseTrigger], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(HOME)
    monkeypatch.setattr(Played, "after_poll", lambda: monkeypatch.delenv("AIRFLOW_CONN_KAFKA", raising=False))
    assert reasons(trigger()) == ["enough"]


def test_a_connection_that_is_gone_is_told_of_if_its_brokers_do_not_answer(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect("gone:9092")
    monkeypatch.setattr(Played, "after_poll", lambda: monkeypatch.delenv("AIRFLOW_CONN_KAFKA", raising=False))
    assert reasons(records()) == ["trouble"]


@pytest.mark.parametrize("trigger", [records, waiting])
def test_a_triggerer_that_cannot_ask_the_brokers_leaves_it_to_a_task(
    trigger: Callable[[], BaseTrigger],
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    connect(HOME)
    monkeypatch.setattr(poller, "Brokers", WithoutPackage)
    assert reasons(trigger()) == ["trouble"]
    assert "this process cannot ask the brokers: No module named 'kafka'" in caplog.text
