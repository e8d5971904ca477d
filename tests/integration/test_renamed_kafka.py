"""A pipeline from Kafka, or a sink of it, that gets another name in the DAG: no record comes twice without a word."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.kafka.sink import KafkaSink
from stack.broker import Broker
from tests.support.remedies import starting_in, typed
from tests.support.sql_world import new_sqlite
from tests.support.topic_world import TABLE, TopicWorld

pytestmark = pytest.mark.jvm

OLD, NEW = frozenset({"orders"}), frozenset({"orders_new"})


@pytest.fixture
def world(tmp_path: Path, broker: Broker, request: pytest.FixtureRequest) -> TopicWorld:
    """A topic that one epoch has read, into a table, a database and a topic."""
    db = new_sqlite(tmp_path)
    db.run(TABLE)
    unique = f"{abs(hash(request.node.name)):x}"
    sinks = ("lake", "rows", "out")
    world = TopicWorld(folder=tmp_path, broker=broker, db=db, id=unique, sinks=sinks, in_dag=OLD)
    for topic in ("in", "out"):
        world.create_topic(topic)
    world.produce("abcd")
    assert world.run(1) is None
    world.produce("ef")
    return world


def require_once(world: TopicWorld, expected: str) -> None:
    assert [world.shown(sink) for sink in ("lake", "rows", "out")] == [expected] * 3


@pytest.mark.parametrize("sink", ["lake", "rows", "out"])
def test_a_renamed_pipeline_goes_on_at_the_offsets_in_the_error(world: TopicWorld, sink: str) -> None:
    alone = world.but(name="orders_new", in_dag=NEW, sinks=(sink,))
    error = alone.run(2)
    assert isinstance(error, Refused) and error.code is codes.PIPELINE_RENAMED and error.sink == sink
    typed(world.ledger_root, error, "takeover")
    today = world.but(name="orders_new", in_dag=NEW, starting=starting_in(error))
    assert today.run(3) is None
    require_once(world, "abcdef")


def test_a_pipeline_whose_topic_was_created_again_may_begin_under_another_name(world: TopicWorld) -> None:
    world.delete_topic()
    world.create_topic()
    world.produce("xy")
    assert world.but(name="orders_new", in_dag=NEW).run(2) is None
    require_once(world, "abcdxy")


@pytest.mark.parametrize("sink", ["lake", "rows", "out"])
def test_a_renamed_sink_gets_no_row_a_second_time(world: TopicWorld, sink: str) -> None:
    again = f"{sink}_2" if sink != "out" else "sent"
    others = tuple(name for name in world.sinks if name != sink)
    today = world.but(sinks=(*others, again), tables={again: sink}, backfill={again: 1})
    error = today.run(2)
    assert isinstance(error, Refused) and error.code is codes.SINK_RENAMED and error.sink == again
    assert today.but(backfill={}).run(3) is None
    require_once(world, "abcdef")


def test_a_new_sink_does_not_send_again_to_the_topic_that_another_sink_of_the_dag_has_left(world: TopicWorld) -> None:
    world.create_topic("out_b")
    today = world.but(sinks=(*world.sinks, "sent"), tables={"out": "out_b", "sent": "out"}, backfill={"sent": 1})
    error = today.run(2)
    assert isinstance(error, Refused) and error.code is codes.SINK_RENAMED and "old name" not in error.remedy
    today = today.but(backfill={})
    assert today.run(3) is None
    require_once(world, "abcdef")
    assert today.shown("out") == "ef"


def test_a_topic_that_its_sink_left_for_another_one_gets_no_record_again_under_a_new_name(world: TopicWorld) -> None:
    world.create_topic("out_b")
    assert world.but(tables={"out": "out_b"}).run(2) is None
    world.produce("gh")
    today = world.but(sinks=("lake", "rows", "sent"), tables={"sent": "out"}, backfill={"sent": 1})
    error = today.run(3)
    assert isinstance(error, Refused) and error.code is codes.SINK_RENAMED
    assert "Let `backfill` name epoch 2" in error.remedy
    assert today.but(backfill={"sent": 2}).run(4) is None
    require_once(world, "abcdefgh")


def test_brokers_are_asked_once_for_all_epochs_that_a_topic_had_before_it_was_created_again(world: TopicWorld) -> None:
    assert world.run(2) is None
    world.produce("gh")
    world.delete_topic("out")
    world.create_topic("out")
    today = world.but(sinks=("sent",), tables={"sent": "out"}, backfill={"sent": 1})
    with patch.object(KafkaSink, "may_hold", autospec=True, side_effect=KafkaSink.may_hold) as asked:
        assert today.run(3) is None
    assert [call.args[1].sink for call in asked.call_args_list] == ["out"]
    assert today.shown("sent") == "abcdefgh"


def test_a_topic_that_was_created_again_is_filled_under_another_name(world: TopicWorld) -> None:
    world.delete_topic("out")
    world.create_topic("out")
    today = world.but(sinks=("lake", "rows", "sent"), tables={"sent": "out"}, backfill={"sent": 1})
    assert today.run(2) is None
    require_once(world, "abcdef")
