"""A pipeline from Kafka, or a sink of it, that gets another name in the DAG: no record comes twice without a word."""

from __future__ import annotations

import re
from dataclasses import fields as dataclass_fields
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Interval, Sink
from airflow_epochs.errors import Fenced, NotApplied, Refused
from airflow_epochs.model import WaivedRecord, starting_at_ends
from airflow_epochs.sinks.kafka.sink import KafkaSink
from airflow_epochs.testing import Crash
from stack.broker import Broker
from tests.support.faults_disk import PARTITIONS
from tests.support.faults_world import crash
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
@pytest.mark.few(1)
def test_a_renamed_pipeline_goes_on_at_the_offsets_in_the_error(world: TopicWorld, sink: str) -> None:
    alone = world.but(name="orders_new", in_dag=NEW, sinks=(sink,))
    error = alone.run(2)
    assert isinstance(error, Refused) and error.code is codes.PIPELINE_RENAMED and error.sink == sink
    typed(world.ledger_root, error, "takeover")
    today = world.but(name="orders_new", in_dag=NEW, starting=starting_in(error))
    assert today.run(3) is None
    require_once(world, "abcdef")


# -- what `starting` in the remedy names ------------------------------------------------------------------------------


def renamed(world: TopicWorld, **changes: Any) -> TopicWorld:
    return world.but(name="orders_new", in_dag=NEW, **changes)


def refused(world: TopicWorld) -> Refused:
    """A run is red, since the pipeline has another name."""
    error = world.run(50)
    assert isinstance(error, Refused) and error.code is codes.PIPELINE_RENAMED, error
    return error


@pytest.fixture
def two_topics(world: TopicWorld) -> TopicWorld:
    """The pipeline reads a second topic, too: one epoch."""
    world.create_topic("more")
    world.produce("ghij", name="more")
    world = world.but(topics=("in", "more"))
    assert world.run(2) is None
    return world


@pytest.mark.long
def test_a_topic_that_was_created_again_begins_at_its_oldest_record_beside_one_that_goes_on(
    two_topics: TopicWorld,
) -> None:
    two_topics.delete_topic("more")
    two_topics.create_topic("more")
    two_topics.produce("klmnop", name="more")
    two_topics.produce("q")
    error = refused(renamed(two_topics))
    more = two_topics.topic("more")
    assert [*starting_in(error)] == [two_topics.topic()]
    assert f"It has not read the topic {more} that is there now, which begins at its oldest record." in error.remedy
    typed(two_topics.ledger_root, error, "takeover")
    assert renamed(two_topics, starting=starting_in(error)).run(3) is None
    require_once(two_topics, "abcdefghijklmnopq")


@pytest.mark.long
def test_a_topic_that_left_the_dag_before_the_pipeline_was_renamed_is_not_named(two_topics: TopicWorld) -> None:
    two_topics.produce("k")
    world = two_topics.but(topics=("in",))
    assert world.run(3) is None
    world.produce("l")
    error = refused(renamed(world))
    typed(world.ledger_root, error, "takeover")
    assert renamed(world, starting=starting_in(error)).run(4) is None
    require_once(world, "abcdefghijkl")


# -- what nobody would read -------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_renamed_pipeline_that_begins_at_the_latest_record_leaves_none_out_without_a_word(world: TopicWorld) -> None:
    error = refused(renamed(world, starting="latest"))
    assert "No pipeline would read the offsets in between, 2 in all." in error.what
    typed(world.ledger_root, error, "takeover")
    assert renamed(world, starting=starting_in(error)).run(3) is None
    require_once(world, "abcdef")


@pytest.mark.long
def test_a_renamed_pipeline_leaves_out_on_purpose_what_is_older_than_the_latest_record(world: TopicWorld) -> None:
    typed(world.ledger_root, refused(renamed(world, starting="latest")), "takeover")
    assert renamed(world, starting="latest").run(3) is None
    world.produce("gh")
    assert renamed(world, starting="latest").run(4) is None
    require_once(world, "abcdgh")


def test_a_param_of_the_run_that_begins_at_the_latest_record_leaves_none_out_without_a_word(world: TopicWorld) -> None:
    with pytest.raises(Refused) as error:
        renamed(world).opened(3, starting="latest")
    assert error.value.code is codes.PIPELINE_RENAMED


@pytest.mark.long
def test_a_renamed_pipeline_is_told_what_retention_has_deleted_and_begins_at_the_oldest_record_that_is_left(
    world: TopicWorld,
) -> None:
    world.produce("gh")
    for partition in PARTITIONS:
        world.delete_before(partition, 3)
    error = refused(renamed(world))
    assert f"{world.topic()}[0] [2, 3), {world.topic()}[1] [2, 3). But nobody has ended" in error.what
    typed(world.ledger_root, error, "takeover")
    assert renamed(world).run(4) is None
    require_once(world, "abcdgh")


# -- by data intervals ------------------------------------------------------------------------------------------------

MIDNIGHT = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)


def at(hour: float) -> datetime:
    return MIDNIGHT + timedelta(hours=hour)


def of_hour(world: TopicWorld, hour: int) -> TopicWorld:
    return world.but(interval=Interval(at(hour), at(hour + 1)))


@pytest.fixture
def hourly(world: TopicWorld) -> TopicWorld:
    """A topic of its own, with a record in each of four hours; an epoch has read the first one."""
    world.create_topic("timed")
    for hour, payload in enumerate("ABCD", start=9):
        world.produce(payload, name="timed", at=at(hour + 0.5), partitions=[0])
    world = world.but(topics=("timed",), name="hourly", in_dag={"hourly"}, options={"bounds": "data_interval"})
    assert of_hour(world, 9).run(20) is None
    return world


def test_a_renamed_pipeline_of_data_intervals_goes_on_at_the_time_in_the_error(hourly: TopicWorld) -> None:
    error = refused(of_hour(renamed(hourly), 9))
    typed(hourly.ledger_root, error, "takeover")
    today = renamed(hourly, starting=time_in(error))
    for hour in (10, 11, 12):
        assert of_hour(today, hour).run(20 + hour) is None
    require_once(hourly, "ABCDabcd")


def time_in(error: Refused) -> str:
    named = re.search(r'set `starting` of the source to "([^"]+)"', error.remedy)
    assert named, error.remedy
    return named[1]


@pytest.mark.long
def test_intervals_that_a_renamed_pipeline_would_leave_out_are_read_by_the_remedy(hourly: TopicWorld) -> None:
    error = refused(of_hour(renamed(hourly), 12))
    assert "No pipeline would read the offsets in between, 2 in all." in error.what
    typed(hourly.ledger_root, error, "takeover")
    assert of_hour(renamed(hourly, starting=time_in(error)), 12).run(21) is None
    require_once(hourly, "ABCDabcd")


@pytest.mark.long
def test_a_pipeline_of_data_intervals_that_was_none_before_is_told_the_offsets_to_look_at(world: TopicWorld) -> None:
    today = renamed(world, options={"bounds": "data_interval"}, interval=Interval(at(0), at(1)))
    world.produce("g", at=at(0.5))
    remedy = refused(today).remedy
    assert "the time of the first records behind these offsets" in remedy and f"'{world.topic()}': {{'0': 2" in remedy


# -- as ever ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_pipeline_whose_topic_was_created_again_may_begin_under_another_name(world: TopicWorld) -> None:
    world.delete_topic()
    world.create_topic()
    world.produce("xy")
    assert world.but(name="orders_new", in_dag=NEW).run(2) is None
    require_once(world, "abcdxy")


@pytest.mark.parametrize("sink", ["lake", "rows", "out"])
@pytest.mark.few(1)
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


class MarkersOfItsOwn(TopicWorld):
    """The renamed sink has another topic of markers."""

    def sink(self, name: str) -> Sink:
        topic, markers = self.topic(self.table(name)), self.topic("own-markers")
        return KafkaSink(name, topic, staging=str(self.folder / "staging"), conn_id="kafka", marker_topic=markers)


def own_markers(world: TopicWorld, **changes: Any) -> MarkersOfItsOwn:
    fields = {each.name: getattr(world, each.name) for each in dataclass_fields(world)}
    return MarkersOfItsOwn(**{**fields, "tables": {"sent": "out"}, "sinks": ("sent",), **changes})


@pytest.mark.long
def test_a_topic_gets_no_record_again_from_a_renamed_sink_with_markers_of_its_own(world: TopicWorld) -> None:
    today = own_markers(world, backfill={"sent": 1})
    error = today.run(2)
    assert isinstance(error, Refused) and error.code is codes.SINK_RENAMED and "up to epoch 1" in error.what
    assert own_markers(world).run(3) is None
    assert today.shown("sent") == "abcdef"


@pytest.mark.long
def test_a_topic_gets_no_waived_epoch_again_that_landed(world: TopicWorld) -> None:
    world = world.but(sinks=("out",))
    with pytest.raises(Crash):
        world.run(2, {"kafka.commit.after": crash})
    waived = world.ledger.view(2).opened.txn_id
    world.ledger.put(WaivedRecord(txn_id=waived, sink="out", who="me", why="nobody looked", at="now"))
    assert world.run(3) is None
    world.produce("gh")
    for today in (own_markers(world), world.but(sinks=("sent",), tables={"sent": "out"})):
        error = today.but(backfill={"sent": 2}).run(4)
        assert isinstance(error, Refused) and error.code is codes.SINK_RENAMED and "Epoch 2 was waived" in error.what
    assert world.run(5) is None
    assert world.shown("out") == "abcdefgh"


def require_fence_after_first(world: TopicWorld) -> None:
    """It tells where the first epoch ended."""
    task, sink, first = world.task().task, world.sink("out"), world.ledger.complete_record(1)
    assert isinstance(sink, KafkaSink) and first
    last = sink.last_epoch(task.pipeline.name, task.env)
    assert last and last.marker.is_fence and last.ends == starting_at_ends(first.ranges)


@pytest.mark.few(1)
@pytest.mark.parametrize("phase", ["kafka.init", "kafka.rows.sent"])
def test_a_topic_gets_no_waived_epoch_again_whose_commit_hangs(world: TopicWorld, phase: str) -> None:
    """It goes on after the commit under another name, which has fenced it."""
    world = world.but(sinks=("out",))

    def meanwhile() -> None:
        waived = world.ledger.view(2).opened.txn_id
        world.ledger.put(WaivedRecord(txn_id=waived, sink="out", who="me", why="it hangs", at="now"))
        assert world.run(2) is None
        world.produce("gh")
        assert world.but(sinks=("sent",), tables={"sent": "out"}, backfill={"sent": 2}).run(3) is None
        require_fence_after_first(world)

    with patch.object(KafkaSink, "discard"):  # what is staged stays, so that the late commit finds it
        error = world.run(2, {phase: meanwhile})
    assert isinstance(error, (Fenced, NotApplied))
    assert world.shown("out") == "abcdefgh"
    world.produce("i")
    assert world.run(4) is None, "the old name is back"
    assert world.shown("out") == "abcdefghi"


@pytest.mark.long
def test_brokers_are_asked_once_for_all_epochs_that_a_topic_had_before_it_was_created_again(world: TopicWorld) -> None:
    assert world.run(2) is None
    world.produce("gh")
    world.delete_topic("out")
    world.create_topic("out")
    today = world.but(sinks=("sent",), tables={"sent": "out"}, backfill={"sent": 1})
    with patch.object(KafkaSink, "may_hold", autospec=True, side_effect=KafkaSink.may_hold) as asked:
        assert today.run(3) is None
    assert sorted(call.args[1].sink for call in asked.call_args_list) == ["out"]
    assert today.shown("sent") == "abcdefgh"


@pytest.mark.long
def test_a_topic_that_was_created_again_is_filled_under_another_name(world: TopicWorld) -> None:
    world.delete_topic("out")
    world.create_topic("out")
    today = world.but(sinks=("lake", "rows", "sent"), tables={"sent": "out"}, backfill={"sent": 1})
    assert today.run(2) is None
    require_once(world, "abcdef")
