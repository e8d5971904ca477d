"""The marker topic on a real broker: shared by all sinks, and none can hide or hold up the marker of another."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from kafka import KafkaAdminClient, TopicPartition

from airflow_epochs import codes
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import EpochError, NotApplied, OutcomeUnknown
from airflow_epochs.kafka.connection import read_connection
from airflow_epochs.model import Marker, Staged
from airflow_epochs.sinks.kafka import marker_partitions
from airflow_epochs.sinks.kafka.cluster import Cluster
from airflow_epochs.sinks.kafka.marker_partitions import DIRECTORY, Assignments
from airflow_epochs.sinks.kafka.rows import HEADER
from stack.broker import Broker
from stack.jars import Jars
from tests.support.kafka_sink_world import (
    MARKERS,
    Feed,
    a_feed,
    create,
    rows,
    seen_by_confluent,
    seen_by_kafka_python,
    values,
    visible,
    world_at,
)
from tests.support.kafka_world import SUDDEN
from tests.support.late_requests import Late, append_open_transaction, unverified

pytestmark = pytest.mark.jvm

IMPATIENT = {"socket.timeout.ms": 1500}


def cluster(broker: Broker) -> Cluster:
    return Cluster(read_connection(world_at(broker.bootstrap).connection("kafka_default")))


def assignments(broker: Broker, topic: str = MARKERS) -> Assignments:
    return Assignments(cluster=cluster(broker), topic=topic)


def partition_of(broker: Broker, feed: Feed) -> int:
    found = assignments(broker, feed.sink.marker_topic).find(f"{feed.pipeline}/events")
    assert found
    return found.partition


def shown(feed: Feed) -> Marker:
    assert feed.shown
    return Marker.of(feed.shown)


@contextmanager
def hanging(broker: Broker, partition: int) -> Iterator[None]:
    """Somebody's transaction is open in a partition of the marker topic."""
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": uuid.uuid4().hex})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(MARKERS, key=b"another", value=b"{}", partition=partition)
    assert producer.flush(10) == 0
    try:
        yield
    finally:
        producer.abort_transaction(10)


def test_pipelines_share_the_marker_topic_and_none_waits_for_anothers_transaction(
    feed: Feed, broker: Broker, admin: AdminClient, tmp_path: Path
) -> None:
    unread = create(admin, f"out-{uuid.uuid4().hex[:8]}")
    other = a_feed(broker.bootstrap, unread, f"other-{feed.pipeline}", tmp_path)
    for each in (feed, other):
        each.run(rows("a"))
    assert partition_of(broker, feed) != partition_of(broker, other)
    with hanging(broker, partition_of(broker, other)), hanging(broker, DIRECTORY):
        feed.world = world_at(broker.bootstrap, **IMPATIENT)
        feed.run(rows("b"))
        assert feed.marker() == shown(feed)
    assert other.marker() == shown(other)
    assert visible(broker.bootstrap, feed.sink.topic) == ["a", "b"]


def test_a_transaction_that_is_open_in_a_sinks_own_partition_is_waited_for(feed: Feed, broker: Broker) -> None:
    feed.run(rows("a"))
    feed.world = world_at(broker.bootstrap, **IMPATIENT)
    with hanging(broker, partition_of(broker, feed)):
        with pytest.raises(NotApplied, match=r"of producer '.+', id \d+, open since .+ is still open") as held:
            feed.marker()
    assert "transactions abort" not in held.value.remedy, "its coordinator ends it"
    assert feed.marker() == shown(feed)


def test_a_transaction_that_no_coordinator_knows_is_ended_by_the_command_of_the_error(
    feed: Feed, broker: Broker, admin: AdminClient
) -> None:
    feed.run(rows("a"))
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("b"))
    with unverified(admin):
        append_open_transaction(broker, MARKERS, partition_of(broker, feed))
    feed.world = world_at(broker.bootstrap, **IMPATIENT)
    with pytest.raises(OutcomeUnknown, match="the transaction of producer id 999999 is still open there") as held:
        feed.commit(attempt, staged)
    assert held.value.code is codes.SINK_UNANSWERED
    _, *command = held.value.remedy.split("End it then: `")[1].split("`")[0].split()
    subprocess.run([sys.executable, *command], check=True, capture_output=True, timeout=60)
    feed.commit(attempt, staged)
    assert feed.marker() == shown(feed)
    assert visible(broker.bootstrap, feed.sink.topic) == ["a", "b"]


# --- transactions that hang ----------------------------------------------------------------------------------------


@pytest.fixture
def wide(broker: Broker, admin: AdminClient, pipeline: str, tmp_path: Path) -> Feed:
    """A sink that has sent an epoch to both partitions of its topic."""
    feed = a_feed(broker.bootstrap, create(admin, f"out-{uuid.uuid4().hex[:8]}", 2), pipeline, tmp_path)
    feed.run(rows("a", "A", partitions=[0, 1]))
    return feed


def in_doubt(feed: Feed) -> tuple[SinkAttempt, Staged]:
    """The second epoch, after its vote."""
    attempt = feed.attempt()
    return attempt, feed.staged(attempt, rows("b", "B", partitions=[0, 1]))


def of_sink(broker: Broker, topic: str, partition: int) -> Late:
    """The next request of the sink's producer, as if its transaction went on."""
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    at = TopicPartition(topic, partition)
    last = max(admin.describe_producers([at])[at].active_producers, key=lambda each: each.last_timestamp)
    admin.close()
    return Late(last.producer_id, last.producer_epoch, last.last_sequence + 1)


def hang(broker: Broker, admin: AdminClient, feed: Feed, *places: tuple[str, int]) -> None:
    """A transaction of the sink's own producer is open there, and its coordinator knows nothing of it."""
    headers = [(HEADER, f"{feed.pipeline}/events/2/0".encode())]
    with unverified(admin):
        for topic, partition in places:
            append_open_transaction(broker, topic, partition, of_sink(broker, topic, partition), headers)


def commands_of(error: EpochError) -> list[str]:
    return re.findall(r"`python (-m kafka\.admin [^`]+)`", error.remedy)


def typed(command: str) -> None:
    subprocess.run([sys.executable, *shlex.split(command)], check=True, capture_output=True, timeout=60)


def committed_values(broker: Broker, topic: str) -> list[list[str | None]]:
    return [values(seen_by_confluent(broker.bootstrap, topic, partition)) for partition in (0, 1)]


def test_a_transaction_of_the_sinks_own_is_ended_in_all_its_partitions_by_the_commands_of_the_error(
    wide: Feed, broker: Broker, admin: AdminClient
) -> None:
    """The partitions know the coordinator's epoch of the producer, by the epoch before."""
    attempt, staged = in_doubt(wide)
    hang(broker, admin, wide, (MARKERS, partition_of(broker, wide)), (wide.sink.topic, 0), (wide.sink.topic, 1))
    wide.world = world_at(broker.bootstrap, **IMPATIENT)
    with pytest.raises(OutcomeUnknown, match="is still open there") as held:
        wide.commit(attempt, staged)
    commands = commands_of(held.value)
    assert [re.findall(r"-t (\S+) -p (\d+)", each) for each in commands] == [
        [(MARKERS, str(partition_of(broker, wide)))],
        [(wide.sink.topic, "0")],
        [(wide.sink.topic, "1")],
    ]
    for command in commands:
        typed(command)
    wide.commit(attempt, staged)
    wide.run(rows("c", "C", partitions=[0, 1]))
    assert wide.marker() == shown(wide)
    assert committed_values(broker, wide.sink.topic) == [["a", "b", "c"], ["A", "B", "C"]]


def test_a_commit_is_refused_while_a_transaction_of_the_sinks_own_hides_its_rows(
    wide: Feed, broker: Broker, admin: AdminClient
) -> None:
    attempt, staged = in_doubt(wide)
    hang(broker, admin, wide, (wide.sink.topic, 1))
    with pytest.raises(OutcomeUnknown, match=rf"is still open in {wide.sink.topic}\[1\]") as held:
        wide.commit(attempt, staged)
    assert held.value.code is codes.SINK_UNANSWERED
    [command] = commands_of(held.value)
    typed(command)
    wide.commit(attempt, staged)
    assert committed_values(broker, wide.sink.topic) == [["a", "b"], ["A", "B"]]


def test_a_vote_is_refused_while_a_transaction_of_the_sinks_own_would_hide_its_rows(
    wide: Feed, broker: Broker, admin: AdminClient
) -> None:
    hang(broker, admin, wide, (wide.sink.topic, 0), (wide.sink.topic, 1))
    with pytest.raises(NotApplied, match="do not see what the sink commits") as held:
        wide.vote(wide.attempt(), rows("b"))
    assert held.value.code is codes.TRANSACTION_OPEN
    commands = commands_of(held.value)
    assert len(commands) == 2
    for command in commands:
        typed(command)
    wide.run(rows("b", "B", partitions=[0, 1]))
    assert committed_values(broker, wide.sink.topic) == [["a", "b"], ["A", "B"]]


def test_a_transaction_of_another_program_in_the_topic_does_not_stop_the_sink(
    wide: Feed, broker: Broker, admin: AdminClient
) -> None:
    with unverified(admin):
        append_open_transaction(broker, wide.sink.topic, 1, Late(999_998))
    wide.run(rows("b", "B", partitions=[0, 1]))
    assert wide.marker() == shown(wide)
    assert committed_values(broker, wide.sink.topic) == [["a", "b"], ["A"]]


def test_rows_that_hang_though_their_marker_is_committed_are_committed_by_the_script_of_the_docs(
    wide: Feed, broker: Broker, admin: AdminClient
) -> None:
    """As where the brokers lose their record of the transaction when its commit has got half-way."""
    attempt, staged = in_doubt(wide)
    headers = [(HEADER, f"{wide.pipeline}/events/2/2".encode())]
    wide.world.at["kafka.rows.sent"] = lambda: append_open_transaction(
        broker, wide.sink.topic, 1, Late(999_997), headers
    )
    with unverified(admin):
        wide.commit(attempt, staged)
    wide.world.at.clear()
    with pytest.raises(NotApplied, match="do not see what the sink commits") as held:
        wide.vote(wide.attempt(), rows("c"))
    assert not commands_of(held.value), "an abort would lose rows that the marker promises"
    told = re.search(
        r"(\S+)\[(\d+)\], producer id (\d+), producer epoch (\d+), coordinator epoch (-?\d+)", held.value.remedy
    )
    assert told
    page = (Path(__file__).parents[2] / "docs" / "kafka-sink.md").read_text()
    script = re.search(r"python - <<'EOF'\n([^`]*class Commits.*?)\nEOF", page, re.DOTALL)
    assert script
    topic, *numbers = told.groups()
    names = ("producer_id=999999", "producer_epoch=5", "coordinator_epoch=2")
    filled = script[1].replace('"orders", 0', f'"{topic}", {numbers[0]}').replace("kafka-1:9092", broker.bootstrap)
    for name, number in zip(names, numbers[1:], strict=True):
        filled = filled.replace(name, f"{name.partition('=')[0]}={number}")
    subprocess.run([sys.executable, "-c", filled], check=True, capture_output=True, timeout=60)
    wide.run(rows("c", "C", partitions=[0, 1]))
    assert committed_values(broker, wide.sink.topic) == [["a", "b", "c"], ["A", "B", "{}", "C"]]


@pytest.mark.parametrize("row", ["2/1", "3/0"], ids=["a copy of a row", "a row of a later epoch"])
def test_a_late_row_among_those_of_the_newest_epoch_is_ended_and_readers_do_not_see_it(
    wide: Feed, broker: Broker, admin: AdminClient, row: str
) -> None:
    """A later epoch gets offsets of the range where a partition has lost records with an unclean leader."""
    attempt, staged = in_doubt(wide)
    late, headers = Late(999_000 + int(row[0])), [(HEADER, f"{wide.pipeline}/events/{row}".encode())]
    wide.world.at["kafka.rows.sent"] = partial(append_open_transaction, broker, wide.sink.topic, 1, late, headers)
    with unverified(admin):
        wide.commit(attempt, staged)
    wide.world.at.clear()
    with pytest.raises(NotApplied, match=f"do not see what the sink commits: .* rows of epoch {row[0]}") as held:
        wide.vote(wide.attempt(), rows("c"))
    [command] = commands_of(held.value)
    typed(command)
    wide.run(rows("c", "C", partitions=[0, 1]))
    assert committed_values(broker, wide.sink.topic) == [["a", "b", "c"], ["A", "B", "C"]]


class Unanswered:
    """A producer that commits, and gets no answer."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def commit_transaction(self, seconds: float) -> None:
        self._producer.commit_transaction(20)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def test_a_commit_without_an_answer_is_not_complete_while_some_of_its_rows_hang(
    wide: Feed, broker: Broker, admin: AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, staged = in_doubt(wide)
    headers = [(HEADER, f"{wide.pipeline}/events/2/2".encode())]
    late = partial(append_open_transaction, broker, wide.sink.topic, 1, Late(999_996), headers)
    wide.world.at["kafka.rows.sent"] = late
    started = Cluster.producer
    with unverified(admin), monkeypatch.context() as patched:
        patched.setattr(Cluster, "producer", lambda self, options: Unanswered(started(self, options)))
        with pytest.raises(OutcomeUnknown) as unknown:
            wide.commit(attempt, staged)
    assert unknown.value.code is codes.KAFKA_COMMIT_UNKNOWN
    with pytest.raises(OutcomeUnknown, match="do not see what the sink commits") as held:
        wide.commit(attempt, staged)
    assert "Commit it as docs/kafka-sink.md shows" in held.value.remedy
    assert not commands_of(held.value)


@pytest.fixture(scope="module")
def forgetful(servers: Path, jars: Jars) -> Iterator[Broker]:
    """A broker that is killed, and comes back without its records of transactions."""
    with Broker(servers / "forgetful", jars, settings=SUDDEN) as broker:
        yield broker


def forget_transactions(broker: Broker) -> None:
    broker.processes[-1].stop()
    for folder in (broker.folder / "log").glob("__transaction_state-*"):
        for file in folder.iterdir():
            if file.suffix in (".log", ".index", ".timeindex", ".snapshot", ".txnindex"):
                file.unlink()
    broker.start()
    broker.wait_ready()


@pytest.mark.long
@pytest.mark.parametrize("phase", ["kafka.rows.sent", "kafka.commit.before"])
def test_where_brokers_lost_their_records_of_transactions_the_commands_of_the_error_lead_on(
    forgetful: Broker, tmp_path: Path, phase: str
) -> None:
    admin = AdminClient({"bootstrap.servers": forgetful.bootstrap})
    name = uuid.uuid4().hex[:8]
    feed = a_feed(forgetful.bootstrap, create(admin, f"out-{name}", 2), f"orders-{name}", tmp_path)
    feed.run(rows("a", "A", partitions=[0, 1]))
    attempt, staged = in_doubt(feed)
    feed.world.at[phase] = partial(forget_transactions, forgetful)
    with pytest.raises(EpochError):
        feed.commit(attempt, staged)
    feed.world = world_at(forgetful.bootstrap, **IMPATIENT)
    with pytest.raises(OutcomeUnknown) as held:
        feed.commit(attempt, staged)
    for command in commands_of(held.value):
        typed(command)
    feed.commit(attempt, staged)
    feed.run(rows("c", "C", partitions=[0, 1]))
    assert committed_values(forgetful, feed.sink.topic) == [["a", "b", "c"], ["A", "B", "C"]]


def test_a_marker_is_found_behind_any_number_of_other_records(feed: Feed, broker: Broker) -> None:
    feed.run(rows("a"))
    crowd = Producer({"bootstrap.servers": broker.bootstrap})
    place = partition_of(broker, feed)
    for number in range(6_000):
        crowd.produce(MARKERS, key=b"%d" % number, value=b"{}", partition=place)
    assert crowd.flush(20) == 0
    assert feed.marker() == shown(feed)


def test_the_marker_topic_is_created_to_be_kept(feed: Feed, admin: AdminClient) -> None:
    feed.run(rows())
    resource = ConfigResource(ResourceType.TOPIC, MARKERS)
    assert admin.describe_configs([resource])[resource].result()["cleanup.policy"].value == "compact"


# --- assignments ---------------------------------------------------------------------------------------------------


def test_a_marker_topic_made_by_hand_gets_a_partition_more_for_every_sink(
    broker: Broker, admin: AdminClient, pipeline: str, tmp_path: Path
) -> None:
    made = create(admin, f"m-{pipeline}", cleanup_policy="compact")
    for number in range(1, 4):
        topic = create(admin, f"out-{number}-{pipeline}")
        feed = a_feed(broker.bootstrap, topic, f"{pipeline}-{number}", tmp_path, marker_topic=made)
        for _ in range(2):
            feed.run(rows("a"))
        assert partition_of(broker, feed) == number
    assert len(admin.list_topics(made, timeout=10).topics[made].partitions) == 4


def test_claims_that_are_made_at_once_are_for_different_partitions_and_last(
    broker: Broker, admin: AdminClient, pipeline: str
) -> None:
    made = create(admin, f"m-{pipeline}", 2, cleanup_policy="compact")
    keys = [f"{pipeline}/{name}" for name in ("a", "b", "c", "a")]
    with ThreadPoolExecutor(len(keys)) as pool:
        made_at_once = list(pool.map(lambda key: assignments(broker, made).assign(key), keys))
    assert made_at_once[0] == made_at_once[3]
    assert sorted({assigned.partition for assigned in made_at_once}) == [1, 2, 3]
    assert [assignments(broker, made).assign(key) for key in keys] == [
        assignments(broker, made).find(key) for key in keys
    ]
    assert made_at_once == [assignments(broker, made).find(key) for key in keys]


@pytest.mark.parametrize("sinks", [8, pytest.param(20, marks=pytest.mark.long)])
def test_sinks_that_vote_for_the_first_time_at_once_all_get_a_partition_of_a_new_marker_topic(
    broker: Broker, topic: str, pipeline: str, tmp_path: Path, sinks: int
) -> None:
    made = f"m-{pipeline}"
    feeds = [a_feed(broker.bootstrap, topic, f"{pipeline}-{n}", tmp_path, marker_topic=made) for n in range(sinks)]
    with ThreadPoolExecutor(sinks) as pool:
        list(pool.map(lambda feed: feed.run(rows(feed.pipeline)), feeds))
    assert sorted(value or "" for value in visible(broker.bootstrap, topic)) == sorted(feed.pipeline for feed in feeds)
    assigned = {
        str(key): json.loads(value or "")["partition"] for key, value, _ in seen_by_kafka_python(broker.bootstrap, made)
    }
    assert sorted(assigned) == sorted(f"{feed.pipeline}/events" for feed in feeds)
    assert sorted(assigned.values()) == list(range(1, sinks + 1))


@pytest.mark.long
def test_a_claim_that_others_overtake_all_the_time_ends_with_an_error_and_succeeds_when_it_is_tried_again(
    broker: Broker, admin: AdminClient, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create(admin, f"m-{pipeline}", 2, cleanup_policy="compact")

    def overtaken(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED))

    with monkeypatch.context() as others:
        others.setattr(marker_partitions, "ASSIGNING_S", 0)
        others.setattr(Assignments, "_assigned", overtaken)
        with pytest.raises(
            NotApplied, match=f"Sink {pipeline}/a got no partition of topic {made} in 0 s: other"
        ) as told:
            assignments(broker, made).assign(f"{pipeline}/a")
    assert told.value.code is codes.TOPIC_NOT_READY
    assert assignments(broker, made).assign(f"{pipeline}/a").partition == 1


@pytest.mark.long
def test_a_first_claim_is_not_taken_for_records_of_strangers_by_another_that_is_under_way(
    broker: Broker, admin: AdminClient, pipeline: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, require_empty = create(admin, f"m-{pipeline}", 2, cleanup_policy="compact"), Assignments._require_empty

    def after_another(self: Assignments) -> None:
        monkeypatch.setattr(Assignments, "_require_empty", require_empty)
        assert assignments(broker, made).assign(f"{pipeline}/a").partition == 1
        require_empty(self)

    monkeypatch.setattr(Assignments, "_require_empty", after_another)
    assert assignments(broker, made).assign(f"{pipeline}/b").partition == 2
    assert assignments(broker, made).find(f"{pipeline}/a") == assignments(broker, made).assign(f"{pipeline}/a")


def test_a_claim_that_was_left_half_made_ends_with_the_next_one(
    broker: Broker, admin: AdminClient, pipeline: str
) -> None:
    made = create(admin, f"m-{pipeline}", 3, cleanup_policy="compact")
    half = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": made})
    half.init_transactions(10)
    half.begin_transaction()
    half.produce(made, key=f"{pipeline}/a", value=b'{"partition": 1, "format": 1}', partition=DIRECTORY)
    assert half.flush(10) == 0
    assert assignments(broker, made).assign(f"{pipeline}/b").partition == 1
    assert assignments(broker, made).find(f"{pipeline}/a") is None
    assert assignments(broker, made).assign(f"{pipeline}/a").partition == 2
