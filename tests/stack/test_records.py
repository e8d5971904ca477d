"""A new user's first records: written into the local stack, and read there. librdkafka plays the broker."""

from __future__ import annotations

import io
import sys
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

import records
from stack.broker import Broker


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    mock = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none", "log_level": 0})
    [broker] = mock.list_topics(timeout=10).brokers.values()
    monkeypatch.setenv("BOOTSTRAP", f"{broker.host}:{broker.port}")
    yield f"{broker.host}:{broker.port}"
    del mock


def typed(monkeypatch: pytest.MonkeyPatch, command: str, text: bytes = b"", topic: str = "first") -> int:
    monkeypatch.setattr(sys, "argv", ["records.py", command, topic])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    return records.main()


@pytest.mark.usefixtures("bootstrap")
def test_every_line_that_is_produced_is_a_record_that_is_consumed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert typed(monkeypatch, "produce", b'{"order_id": "o-1"}\nb\xc3\xa9\n') == 0
    assert capsys.readouterr().out == "2 records are in first\n"
    assert typed(monkeypatch, "consume") == 0
    values = [line.split(" ", 2)[2] for line in capsys.readouterr().out.splitlines()]
    assert sorted(values) == ["bé", '{"order_id": "o-1"}']


def test_a_shell_that_has_not_read_the_settings_is_told_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("BOOTSTRAP", raising=False)
    assert typed(monkeypatch, "consume") == 1
    assert "type `. .stack/env`" in capsys.readouterr().err


def test_a_broker_that_is_gone_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setattr(records, "WAIT_S", 1.0)
    for command in ("topic", "produce", "consume"):
        assert typed(monkeypatch, command, b"x\n") == 1
        assert "make stack-up" in capsys.readouterr().err


@pytest.mark.jvm
def test_a_topic_that_is_there_already_and_one_that_is_not_are_named_with_what_to_do(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BOOTSTRAP", broker.bootstrap)
    topic = f"first-{uuid.uuid4().hex[:8]}"
    for command in ("produce", "consume"):
        assert typed(monkeypatch, command, b"x\n", topic) == 1
        assert f"type `python docker/local/records.py topic {topic}`" in capsys.readouterr().err
    assert typed(monkeypatch, "topic", topic=topic) == 0
    assert typed(monkeypatch, "topic", topic=topic) == 1
    assert f"There is a topic {topic} already. What to do: produce into it" in capsys.readouterr().err
    assert typed(monkeypatch, "produce", b"x\n", topic) == 0
    assert typed(monkeypatch, "consume", topic=topic) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(" x")
