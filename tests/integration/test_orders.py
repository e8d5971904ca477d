"""Commands about the next epoch, typed as the errors name them, on a real broker; strangers count the rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_epochs.errors import Corrupt
from airflow_epochs.model import OffsetRange
from stack.broker import Broker
from tests.support.remedies import typed
from tests.support.sql_world import new_sqlite
from tests.support.topic_world import TABLE, TopicWorld

pytestmark = pytest.mark.jvm


@pytest.fixture
def world(
    tmp_path: Path, broker: Broker, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> TopicWorld:
    """A topic of two partitions; epoch 1 has read a, c of partition 0 and b, d of partition 1."""
    db = new_sqlite(tmp_path)
    db.run(TABLE)
    world = TopicWorld(folder=tmp_path, broker=broker, db=db, id=f"{abs(hash(request.node.name)):x}")
    kafka = {"conn_type": "kafka", "extra": world.kafka.extra}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA", json.dumps(kafka))
    world.create_topic()
    world.produce("abcd")
    assert world.run(1) is None
    return world


def stopped(world: TopicWorld, number: int) -> Corrupt:
    error = world.run(number)
    assert isinstance(error, Corrupt), error
    error.pipeline = world.name  # as the operator does
    return error


def test_after_retention_deleted_records_the_command_in_the_error_goes_on_behind_them(world: TopicWorld) -> None:
    world.produce("efghij")
    world.delete_before(0, 4)
    error = stopped(world, 2)
    assert "EPOCHS-RECORDS-GONE" in str(error)
    screen = typed(world.ledger_root, error, "skip")
    topic = world.topic()
    assert f"lost for good: 2 offsets, {topic}[0] [2, 4)" in screen
    assert f"there to be read now: 1 offsets, {topic}[0] [4, 5)" in screen
    assert world.run(3) is None
    assert world.shown("lake") == "abcdfhij", "e and g are lost"
    order = world.ledger.open_record(2, 1)
    assert order and order.command
    assert (order.command.name, order.command.lost) == ("skip", {topic: (OffsetRange(0, 2, 4),)})
    assert world.completed(2).moved == 2
