"""Commands about the next epoch, typed as the errors name them, on a real broker; strangers count the rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_epochs.errors import Corrupt
from airflow_epochs.model import OffsetRange, Run, records_upper_bound
from stack.broker import Broker
from tests.support.remedies import ordered, typed
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


def typing(world: TopicWorld, name: str, *words: str) -> str:
    """A command that no error names; what it shows."""
    return ordered(world.ledger_root, "epochs", name, world.name, *words, "--why", "the test says so")


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
    assert world.completed(2).moved_in == 2


def test_a_run_whose_records_were_deleted_before_it_read_them_goes_on_when_its_tasks_are_cleared(
    world: TopicWorld,
) -> None:
    world.produce("efghij")
    error = world.run(2, {"open.landed": lambda: world.delete_before(0, 4)})
    assert isinstance(error, Corrupt) and "EPOCHS-RECORDS-GONE" in str(error)
    error.pipeline = world.name
    typed(world.ledger_root, error, "skip")
    again, run = world.task(), Run("dag", "run 2")
    again.vote(run, again.stage(run).stage)
    again.commit(run, "lake")
    assert again.complete(run).state == "complete"
    assert world.shown("lake") == "abcdfhij"
    assert [command.name for command in world.completed(2).commands] == ["skip"]


def test_after_a_topic_was_created_again_the_command_in_the_error_takes_every_new_record(world: TopicWorld) -> None:
    world.delete_topic()
    world.create_topic(partitions=1)
    world.produce("vwxyz", partitions=[0])
    error = stopped(world, 2)
    assert "`airflow epochs skip" not in str(error)
    screen = typed(world.ledger_root, error, "reset-source")
    assert f"left for good: the old topics, from these offsets on: {world.topic()}[0] 2, {world.topic()}[1] 2" in screen
    assert f"there to be read now: 5 offsets, {world.topic()}[0] [0, 5)" in screen
    assert world.run(3) is None
    world.produce("!", partitions=[0])
    assert world.run(4) is None
    assert world.shown("lake") == "!abcdvwxyz"


def test_without_a_topic_that_is_gone_an_aborted_epoch_is_planned_anew(world: TopicWorld) -> None:
    world = world.but(topics=("in", "more"))
    world.create_topic("more", 1)
    world.produce("ef")
    world.produce("xy", "more", [0])
    assert isinstance(world.run(2, {"open.landed": lambda: world.delete_topic("more")}), Corrupt)
    error = stopped(world, 3)
    world = world.but(topics=("in",))
    assert isinstance(world.run(4), Corrupt), "the epoch still has records of it"
    screen = typed(world.ledger_root, error, "replan")
    assert "no record is left out, and none is read twice" in screen
    assert world.run(5) is None
    assert world.shown("lake") == "abcdef"


def test_an_aborted_epoch_is_planned_anew_with_fewer_records_until_the_poison_is_found(world: TopicWorld) -> None:
    world.produce("efghij")
    big = world.opened(2)
    world.task().abort(Run("dag", "run 2"), "out of memory")
    assert world.opened(3, max_records=2).ranges == big.ranges, "as always: the same offsets again"
    world.task().abort(Run("dag", "run 3"), "out of memory")
    typing(world, "replan")
    small = world.opened(4, max_records=2)
    assert records_upper_bound(small.ranges) == 2
    assert (small.now, small.seed) != (big.now, 0)
    assert world.run(4) is None  # it goes on with its own attempt
    assert [world.run(number) for number in (5, 6)] == [None, None]
    assert world.shown("lake") == "abcdefghij"
