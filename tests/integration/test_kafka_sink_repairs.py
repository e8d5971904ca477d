"""Each accident of a Kafka sink's topics has an error of its own, whose remedy ends in a pipeline that runs again."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from airflow_epochs import KafkaSink, codes
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run
from airflow_epochs.sinks.kafka import publish as kafka_publish
from airflow_epochs.sinks.kafka.cluster import Cluster
from airflow_epochs.sinks.kafka.marker import Markers
from airflow_epochs.sinks.kafka.producer import transactional
from airflow_epochs.sinks.kafka.repair import MarkerRepair
from airflow_epochs.testing import Crash
from stack.broker import Broker
from tests.support.environment import Action
from tests.support.faults_disk import PARTITIONS, TOPIC, StartingSource
from tests.support.faults_world import airflow_run, crash, on_disk
from tests.support.kafka_sink_world import create, seen_by_confluent, seen_by_kafka_python, values, world_at
from tests.support.rebuilt import typed_rebuild
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm


@dataclass(frozen=True, kw_only=True)
class World:
    """A pipeline from a file to a topic; ``pipeline``, ``sink`` and so on: as the DAG is today."""

    folder: Path
    broker: Broker
    id: str
    pipeline: str = "orders"
    sink: str = "events"
    starting: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    backfill: Mapping[str, int] = field(default_factory=dict)
    timeout: int = 600

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.bootstrap})

    @property
    def topic(self) -> str:
        return f"out-{self.id}"

    @property
    def markers(self) -> str:
        return f"m-{self.id}"

    @property
    def source(self) -> StartingSource:
        return StartingSource(folder=str(self.folder / "input"), starting=self.starting)

    @property
    def ledger(self) -> Ledger:
        return Ledger(LocalStore(self.folder / "ledger"), self.pipeline)

    def produce(self, count: int) -> None:
        self.source.produce(count)

    def coordinator(self, at: Mapping[str, Action] | None = None) -> Coordinator:
        sink = KafkaSink(
            self.sink,
            self.topic,
            staging=str(self.folder / "staging"),
            marker_topic=self.markers,
            transaction_timeout=self.timeout,
        )
        return Coordinator(
            TaskTry(
                pipeline=Pipeline(
                    name=self.pipeline,
                    dag_id="dag",
                    source=self.source,
                    sinks=(sink,),
                    transform=Transform(path="disk.py", function="keep_all"),
                    backfill=self.backfill,
                ),
                ledger=self.ledger,
                env=on_disk(at, world_at(self.broker.bootstrap).connections),
            )
        )

    def run(self, name: str, at: Mapping[str, Action] | None = None) -> Exception | None:
        return airflow_run(self.coordinator(at), Run("dag", name))

    def epoch(self, name: str, count: int = 4) -> None:
        self.produce(count)
        assert self.run(name) is None

    def crash(self, name: str, phase: str) -> None:
        with pytest.raises(Crash):
            self.run(name, {phase: crash})

    def stopped(self, name: str) -> Corrupt:
        error = self.run(name)
        assert isinstance(error, Corrupt), error
        return error

    @property
    def repair(self) -> MarkerRepair:
        """As the docs make it."""
        settings = {"bootstrap.servers": self.broker.bootstrap}
        return MarkerRepair(settings, self.pipeline, self.sink, self.topic, self.markers)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result()
        wait_until(lambda: topic not in self.admin.list_topics(timeout=5).topics)

    def require_once(self) -> None:
        """Two readers of committed records see every record of the input once."""
        wanted = sorted(text for _, _, text in self.source.all_rows())
        for reader in (seen_by_confluent, seen_by_kafka_python):
            seen = [text for p in PARTITIONS for text in values(reader(self.broker.bootstrap, self.topic, p))]
            assert sorted(json.loads(text or "")["payload"] for text in seen) == wanted


@pytest.fixture
def world(broker: Broker, tmp_path: Path, request: pytest.FixtureRequest) -> World:
    world = World(folder=tmp_path, broker=broker, id=f"{abs(hash(request.node.name)):x}")
    create(world.admin, world.topic, len(PARTITIONS))
    return world


def section(error: Exception) -> str:
    """The section of docs/kafka-sink.md that the remedy cites, which is there."""
    page = (Path(__file__).parents[2] / "docs" / "kafka-sink.md").read_text()
    found = re.search(r"docs/kafka-sink\.md,? (?:shows in )?'([^']+)'", str(error))
    assert found, error
    assert f"\n## {found[1]}\n" in page
    return found[1]


def transactions_in(error: Exception) -> list[str]:
    return re.findall(r"[\w-]+/\d+/\d+/[0-9a-f]{32}", str(error))


# --- the marker topic alone is lost ---------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("again", [False, True], ids=["deleted", "recreated"])
def test_a_marker_topic_that_is_lost_between_epochs_is_put_back(world: World, again: bool) -> None:
    world.epoch("1")
    world.epoch("2")
    world.delete(world.markers)
    if again:
        create(world.admin, world.markers, 2, cleanup_policy="compact")
    world.produce(2)
    error = world.stopped("3")
    assert section(error) == "The marker is lost"
    assert (f"topic {world.markers} was deleted and created again" if again else "is gone") in error.what
    assert world.repair.epochs() == {1: 4, 2: 4}
    world.repair.put(transactions_in(error)[0])
    assert world.run("3") is None
    world.require_once()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("phase", "sent", "first"),
    [("kafka.commit.after", True, True), ("kafka.commit.after", True, False), ("kafka.rows.sent", False, True)],
)
def test_a_marker_that_is_lost_while_its_epoch_is_in_doubt_is_put_back_as_the_topic_shows_it(
    world: World, phase: str, sent: bool, first: bool
) -> None:
    previous = None
    if not first:
        world.epoch("0")
        previous = world.ledger.complete_record(1)
    world.produce(4)
    world.crash("1", phase)
    world.delete(world.markers)
    error = world.stopped("2")
    assert section(error) == "The marker is lost"
    number = 1 if first else 2
    assert (number in world.repair.epochs()) is sent
    if sent:
        with pytest.raises(Refused, match="would be sent twice"):
            world.repair.put(previous.txn_id if previous else None)
        world.repair.put(transactions_in(error)[0])
    else:
        world.repair.put(previous.txn_id if previous else None)
    assert world.run("2") is None
    world.require_once()
    world.epoch("3")
    world.require_once()


def test_a_marker_that_was_deleted_by_a_tombstone_is_put_back(world: World) -> None:
    world.epoch("1")
    expected = world.ledger.complete_record(1)
    assert expected
    markers = Markers(cluster=world.repair._cluster, topic=world.markers, key="orders/events")
    producer = Producer({"bootstrap.servers": world.broker.bootstrap})
    producer.produce(world.markers, key="orders/events", value=None, partition=markers.assigned().partition)
    assert producer.flush(10) == 0
    world.produce(2)
    assert section(world.stopped("2")) == "The marker is lost"
    world.repair.put(expected.txn_id)
    assert world.run("2") is None
    world.require_once()


# --- restored to an older state -------------------------------------------------------------------------------


def older_marker(world: World) -> None:
    """The marker topic is as it was after the first epoch: what a mirror or a backup brings back."""
    markers = Markers(cluster=world.repair._cluster, topic=world.markers, key="orders/events")
    markers.assigned()
    _, first = next((m.key(), m.value()) for m in markers.log.messages() if m.key() == b"orders/events")
    world.delete(world.markers)
    create(world.admin, world.markers, 2, cleanup_policy="compact")
    again = Markers(cluster=world.repair._cluster, topic=world.markers, key="orders/events")
    producer = Producer({"bootstrap.servers": world.broker.bootstrap})
    producer.produce(world.markers, key="orders/events", value=first, partition=again.assigned().partition)
    assert producer.flush(10) == 0


def test_a_marker_topic_that_was_restored_to_an_older_state_gets_its_newest_marker_back(world: World) -> None:
    world.epoch("1")
    world.epoch("2")
    older_marker(world)
    world.produce(2)
    error = world.stopped("3")
    assert section(error) == "The marker is behind the ledger"
    assert world.repair.epochs() == {1: 4, 2: 4}
    world.repair.put(transactions_in(error)[1])
    assert world.run("3") is None
    world.require_once()


def test_a_marker_that_is_restored_while_its_epoch_is_in_doubt_lets_nothing_be_sent_twice(world: World) -> None:
    world.epoch("1")
    world.produce(4)
    world.crash("2", "kafka.commit.after")
    older_marker(world)
    error = world.stopped("3")
    assert section(error) == "The marker is lost"
    world.repair.put(transactions_in(error)[0])
    assert world.run("3") is None
    world.require_once()


@pytest.mark.long
def test_topics_that_were_both_restored_get_the_epochs_that_they_lack_under_a_new_sink_name(world: World) -> None:
    world.epoch("1")
    kept = [seen_by_confluent(world.broker.bootstrap, world.topic, p) for p in PARTITIONS]
    world.epoch("2")
    older_marker(world)
    world.delete(world.topic)
    create(world.admin, world.topic, len(PARTITIONS))
    producer = Producer({"bootstrap.servers": world.broker.bootstrap})
    for partition, seen in enumerate(kept):
        for key, value, header in seen:
            headers = [("airflow-epochs", header.encode())]
            producer.produce(world.topic, key=key, value=value, partition=partition, headers=headers)
    assert producer.flush(10) == 0
    world.produce(2)
    assert section(world.stopped("3")) == "The marker is behind the ledger"
    assert world.repair.epochs() == {1: 4}
    today = replace(world, sink="events-2", backfill={"events-2": 2})
    assert today.run("3") is None
    today.require_once()


def test_topics_that_are_both_lost_get_their_epochs_again_under_a_new_sink_name(world: World) -> None:
    world.epoch("1")
    world.epoch("2")
    world.delete(world.markers)
    world.delete(world.topic)
    create(world.admin, world.topic, len(PARTITIONS))
    world.produce(2)
    error = world.stopped("3")
    assert section(error) == "Topic and marker are lost"
    assert f"topic {world.topic} was deleted and created again" in error.what
    today = replace(world, sink="events-2", backfill={"events-2": 1})
    assert today.run("3") is None
    today.require_once()
    today.epoch("4")
    today.require_once()


def test_a_sink_under_a_new_name_does_not_send_again_what_its_topic_has(world: World) -> None:
    world.epoch("1")
    world.epoch("2")
    world.produce(2)
    today = replace(world, sink="events-2", backfill={"events-2": 1})
    error = today.run("3")
    assert isinstance(error, Refused) and error.code is codes.SINK_RENAMED
    assert "remove the sink from `backfill`" in error.remedy
    today = replace(today, backfill={})
    assert today.run("3") is None
    today.require_once()


# --- the ledger is lost ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "newest records"])
def test_a_pipeline_whose_ledger_is_lost_goes_on_where_the_marker_says(world: World, whole: bool) -> None:
    world.epoch("1")
    shutil.copytree(world.folder / "ledger", world.folder / "copy")
    world.epoch("2", 5)
    shutil.rmtree(world.folder / "ledger")
    if not whole:
        (world.folder / "copy").rename(world.folder / "ledger")
    world.produce(3)
    error = world.stopped("3")
    assert section(error) == "The ledger is behind the marker"
    screen = typed_rebuild(lambda: world.coordinator().task, error, ledger_root=world.folder / "ledger")
    assert f"  {TOPIC}[0]: 5" in screen and f"  {TOPIC}[1]: 4" in screen
    assert world.run("3") is None
    world.require_once()


def test_a_marker_of_another_ledger_is_told_and_the_other_pipeline_goes_on_under_a_new_name(world: World) -> None:
    world.epoch("1")
    stranger = f"orders/1/1/{'e' * 32}"
    world.repair.put(stranger)
    world.produce(2)
    error = world.stopped("2")
    assert section(error) == "The marker is of another ledger"
    assert stranger in error.what
    today = replace(world, pipeline="orders-2", starting={TOPIC: {"0": 2, "1": 2}})
    assert today.run("2") is None
    today.require_once()


# --- a timeout that is too short ------------------------------------------------------------------------------


@pytest.mark.parametrize(("then", "today", "taken"), [(60, 700, 700), (700, 60, 700)])
def test_an_epoch_in_doubt_is_rolled_forward_with_the_longer_timeout_of_the_ledger_and_of_todays_dag(
    world: World, monkeypatch: pytest.MonkeyPatch, then: int, today: int, taken: int
) -> None:
    world.produce(4)
    replace(world, timeout=then).crash("1", "kafka.begin")
    given: list[int] = []

    def noting(cluster: Cluster, options: Mapping[str, int], topic: str) -> Producer:
        given.append(options["transaction.timeout.ms"])
        return transactional(cluster, options, topic)

    monkeypatch.setattr(kafka_publish, "transactional", noting)
    assert replace(world, timeout=today).run("2") is None
    assert given == [1000 * taken]
    world.require_once()
