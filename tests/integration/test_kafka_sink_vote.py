"""What the vote of a Kafka sink finds out about topics, rights and time, and that its remedies work to the letter."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import NotApplied, OutcomeUnknown
from airflow_epochs.model import Staged, Vote, VoteKind
from airflow_epochs.sinks.kafka import participant as kafka_participant
from airflow_epochs.sinks.kafka.cluster import Cluster
from airflow_epochs.sinks.kafka.marker_partitions import DIRECTORY
from stack.broker import Broker
from stack.jars import Jars
from tests.support.kafka_sink_world import Feed, a_feed, rows, seen_by_confluent, set_config, values, visible
from tests.support.kafka_tools import in_text, run_as_pasted
from tests.support.kafka_tools import run as run_tool
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm

ABORT = VoteKind.VOTE_ABORT


class Second(Broker):
    """A broker that joins the cluster of another one."""

    def __init__(self, folder: Path, jars: Jars, first: Broker) -> None:
        self.first = first
        super().__init__(folder, jars)

    def _properties(self) -> dict[str, str]:
        mine = {
            "process.roles": "broker",
            "node.id": "2",
            "controller.quorum.voters": f"1@127.0.0.1:{self.first.controller_port}",
            "listeners": f"PLAINTEXT://{self.bootstrap}",
        }
        return {**super()._properties(), **mine}


@pytest.fixture(scope="module")
def pair(servers: Path, jars: Jars) -> Iterator[Broker]:
    """Two brokers, which end idle transactions quickly."""
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    with Broker(servers / "first", jars, settings=settings) as first, Second(servers / "second", jars, first):
        admin = AdminClient({"bootstrap.servers": first.bootstrap})
        wait_until(lambda: len(admin.list_topics(timeout=5).brokers) == 2)
        yield first


@pytest.fixture(scope="module")
def admin(pair: Broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": pair.bootstrap})


@dataclass
class Playground:
    pair: Broker
    admin: AdminClient
    jars: Jars
    folder: Path
    id: str = field(default_factory=lambda: uuid.uuid4().hex[:8])

    def topic(self, name: str, partitions: int = 1, replicas: int = 1, **config: str) -> str:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        named = f"{name}-{self.id}"
        self.admin.create_topics([NewTopic(named, partitions, replicas, config=settings)])[named].result()
        wait_until(lambda: self._known_at(named) == [True, True])
        return named

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result()
        wait_until(lambda: self._known_at(topic) == [False, False])

    def _known_at(self, topic: str) -> list[bool]:
        """Of each broker: one may hear of a topic later than the other."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        asked = [self.admin.describe_configs([resource], broker=broker, request_timeout=5) for broker in (1, 2)]
        errors = [answer[resource].exception() for answer in asked]
        assert all(error is None or error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART for error in errors)
        return [error is None for error in errors]

    def feed(self, topic: str, **options: object) -> Feed:
        given = {"marker_topic": f"m-{self.id}", **options}
        return a_feed(self.pair.bootstrap, topic, f"orders-{self.id}", self.folder, **given)

    def tool(self, *command: str) -> list[str]:
        return run_tool(self.jars, self.pair.bootstrap, command)

    def obey(self, vote: Vote, feed: Feed) -> None:
        """Do what the command does that a vote's reason tells to run, without a JVM of its own; and vote again."""
        _, *at, alter, of, topics, named, topic, add, settings = in_text(vote.reason or "", "kafka-configs.sh")
        assert at == ["--bootstrap-server", self.pair.bootstrap]
        assert [alter, of, topics, named, add] == "--alter --entity-type topics --entity-name --add-config".split()
        for setting in settings.split(","):
            set_config(self.admin, topic, *setting.split("="))
        # the other broker may not know yet
        wait_until(lambda: feed.vote(feed.attempt(), rows("a")).vote is VoteKind.VOTE_COMMIT)


@pytest.fixture
def cluster(pair: Broker, admin: AdminClient, jars: Jars, tmp_path: Path) -> Playground:
    return Playground(pair, admin, jars, tmp_path)


def vote(feed: Feed, data: pa.Table | None = None) -> Vote:
    return feed.vote(feed.attempt(), rows("a") if data is None else data)


def committed(feed: Feed, attempt: SinkAttempt, staged: Staged) -> None:
    """Commit, once both brokers know of a new topic."""

    def done() -> bool:
        try:
            feed.commit(attempt, staged)
        except (NotApplied, OutcomeUnknown):
            return False
        return True

    wait_until(done)


# --- the marker topic -----------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_marker_topic_is_made_with_the_replicas_and_the_acknowledgements_of_the_topic(cluster: Playground) -> None:
    feed = cluster.feed(cluster.topic("out", replicas=2, min_insync_replicas="2"))
    feed.run(rows("a"))
    lines = "\n".join(cluster.tool("kafka-topics.sh", "--describe", "--topic", feed.sink.marker_topic))
    assert "PartitionCount: 16\tReplicationFactor: 2" in lines
    assert "min.insync.replicas=2" in lines and "unclean.leader.election.enable=false" in lines


@pytest.mark.long
def test_a_marker_topic_with_fewer_replicas_is_refused_until_it_was_reassigned(cluster: Playground) -> None:
    """With the script of docs/kafka-sink.md."""
    markers = cluster.topic("m", 3, cleanup_policy="compact")
    feed = cluster.feed(cluster.topic("small"))
    feed.run(rows("a"))
    large = cluster.feed(cluster.topic("large", replicas=2))
    large.pipeline = f"large-{cluster.id}"
    refused = vote(large)
    assert (refused.vote, f"{markers} has 1 replicas" in str(refused.reason)) == (ABORT, True)
    page = (Path(__file__).parents[2] / "docs" / "kafka-sink.md").read_text()
    script = page.partition("<<'EOF' > replicas.json\n")[2].partition("EOF\n")[0]
    script = script.replace("16, [1, 2, 3]", "3, [1, 2]").replace("airflow-epochs-markers", markers)
    plan = cluster.folder / "replicas.json"
    exec(script.replace("print(", "plan.write_text("), {"plan": plan})
    command = ["kafka-reassign-partitions.sh", "--reassignment-json-file", str(plan)]
    cluster.tool(*command, "--execute")
    wait_until(lambda: "is still in progress" not in "\n".join(cluster.tool(*command, "--verify")))
    large.run(rows("b"))
    feed.run(rows("c"))
    assert visible(cluster.pair.bootstrap, feed.sink.topic) == ["a", "c"]
    assert visible(cluster.pair.bootstrap, large.sink.topic) == ["b"]


@pytest.mark.long
def test_a_marker_topic_that_waits_for_fewer_replicas_is_refused_until_it_is_altered(
    cluster: Playground,
) -> None:
    config = {"cleanup_policy": "compact", "unclean_leader_election_enable": "true"}
    cluster.topic("m", 2, replicas=2, **config)
    feed = cluster.feed(cluster.topic("out", replicas=2, min_insync_replicas="2"))
    refused = vote(feed)
    assert refused.vote is ABORT
    assert "needs min.insync.replicas=2,unclean.leader.election.enable=false" in str(refused.reason)
    run_as_pasted(cluster.jars, in_text(refused.reason or "", "kafka-configs.sh"))
    feed.run(rows("a"))
    assert visible(cluster.pair.bootstrap, feed.sink.topic) == ["a"]


def test_a_marker_topic_whose_policy_was_changed_is_refused_until_it_is_put_right(cluster: Playground) -> None:
    cluster.topic("m", 2, cleanup_policy="compact,delete")
    feed = cluster.feed(cluster.topic("out"))
    refused = vote(feed)
    assert refused.vote is ABORT and "would delete epoch markers" in str(refused.reason)
    cluster.obey(refused, feed)
    feed.run(rows("a"))


@pytest.mark.parametrize("partition", [DIRECTORY, 1])
def test_a_topic_with_records_of_somebody_else_is_no_marker_topic_and_nothing_is_written_into_it(
    cluster: Playground, partition: int
) -> None:
    foreign = cluster.topic("theirs", 2, cleanup_policy="compact")
    producer = Producer({"bootstrap.servers": cluster.pair.bootstrap})
    producer.produce(foreign, key="k", value="v", partition=partition)
    assert producer.flush(10) == 0
    feed = cluster.feed(cluster.topic("out"), marker_topic=foreign)
    refused = vote(feed)
    assert refused.vote is ABORT and "does not assign them to a sink" in str(refused.reason)
    seen = [values(seen_by_confluent(cluster.pair.bootstrap, foreign, number)) for number in range(2)]
    assert sorted(seen) == [[], ["v"]]
    cluster.feed(feed.sink.topic, marker_topic=f"own-{cluster.id}").run(rows("a"))


def test_a_marker_that_the_marker_topic_does_not_take_is_found_by_the_vote(cluster: Playground) -> None:
    cluster.topic("m", 2, cleanup_policy="compact", max_message_bytes="2000")
    feed = cluster.feed(cluster.topic("out", 50))
    refused = vote(feed)
    assert refused.vote is ABORT and "takes at most 2000 bytes" in str(refused.reason)
    cluster.obey(refused, feed)
    feed.run(rows("a"))


# --- the topic ------------------------------------------------------------------------------------------------


def test_more_insync_replicas_than_there_are_is_no_reason_to_abort_where_brokers_accept_it(
    cluster: Playground,
) -> None:
    feed = cluster.feed(cluster.topic("out", min_insync_replicas="3"))
    feed.run(rows("a"))
    feed.run(rows("b"))
    assert visible(cluster.pair.bootstrap, feed.sink.topic) == ["a", "b"]


@pytest.mark.long
def test_for_brokers_that_take_nothing_then_it_is_a_vote_to_abort_until_the_topic_asks_for_fewer(
    cluster: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cluster, "waits_for_its_replicas_only", lambda _: False)  # as before Kafka 3.7
    feed = cluster.feed(cluster.topic("out", min_insync_replicas="3"))
    refused = vote(feed)
    assert refused.vote is ABORT and "has 1 replicas and min.insync.replicas=3" in str(refused.reason)
    cluster.obey(refused, feed)
    feed.run(rows("a"))


def test_a_topic_that_refuses_records_that_are_a_moment_old_is_refused_until_it_is_altered(cluster: Playground) -> None:
    feed = cluster.feed(cluster.topic("out", message_timestamp_before_max_ms="1"))
    refused = vote(feed)
    assert refused.vote is ABORT and "message.timestamp.before.max.ms=1" in str(refused.reason)
    cluster.obey(refused, feed)
    feed.run(rows("a"))
    assert visible(cluster.pair.bootstrap, feed.sink.topic) == ["a"]


def test_a_topic_that_was_created_again_with_other_partitions_since_the_vote_is_noticed(
    cluster: Playground, admin: AdminClient
) -> None:
    topic = cluster.topic("out", 3)
    feed = cluster.feed(topic)
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("a"))

    def refused_for(words: str) -> bool:
        """What a try of the commit comes to, once both brokers know what the topic is like."""
        with pytest.raises((NotApplied, OutcomeUnknown)) as caught:
            feed.commit(attempt, staged)
        return words in caught.value.what

    def again(partitions: int) -> None:
        cluster.delete(topic)
        cluster.topic("out", partitions)

    again(4)
    wait_until(lambda: refused_for("with 4 partitions instead of 3"))
    again(1)
    wait_until(lambda: refused_for("with 1 partitions instead of 3"))
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result()  # kafka-topics.sh --alter
    committed(feed, attempt, staged)
    seen = [text for p in range(3) for text in values(seen_by_confluent(cluster.pair.bootstrap, topic, p))]
    assert seen == ["a"]


def test_a_topic_that_is_deleted_and_created_again_while_an_epoch_is_sent_gets_all_of_it(
    cluster: Playground,
) -> None:
    feed = cluster.feed(cluster.topic("out"))
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("a", "b"))

    def again() -> None:
        cluster.delete(feed.sink.topic)
        cluster.topic("out")

    feed.world.at = {"kafka.rows.sent": again}
    with pytest.raises(NotApplied, match="was deleted while the sink sent"):
        feed.sink.commit(attempt, staged, feed.world)
    feed.world.at = {}
    committed(feed, attempt, staged)
    assert visible(cluster.pair.bootstrap, feed.sink.topic) == ["a", "b"]


def test_a_topic_that_was_created_again_between_epochs_takes_the_next_one_and_the_log_warns(
    cluster: Playground, caplog: pytest.LogCaptureFixture
) -> None:
    feed = cluster.feed(cluster.topic("out"))
    feed.run(rows("a"))
    cluster.delete(feed.sink.topic)
    cluster.topic("out")
    wait_until(lambda: vote(feed).vote is VoteKind.VOTE_COMMIT)  # both brokers know of it
    with caplog.at_level(logging.WARNING):
        feed.run(rows("b"))
    assert "was deleted and created again since" in caplog.text
    assert visible(cluster.pair.bootstrap, feed.sink.topic) == ["b"]


# --- transactional ids ----------------------------------------------------------------------------------------


def open_transaction(cluster: Playground, transactional_id: str, topic: str) -> Producer:
    producer = Producer({"bootstrap.servers": cluster.pair.bootstrap, "transactional.id": transactional_id})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"in a transaction")
    assert producer.flush(10) == 0
    return producer


def test_a_users_producer_that_has_the_names_of_pipeline_and_sink_is_not_fenced_by_a_vote(cluster: Playground) -> None:
    feed, theirs = cluster.feed(cluster.topic("out")), cluster.topic("theirs")
    producer = open_transaction(cluster, f"{feed.pipeline}.events", theirs)
    feed.run(rows("a"))
    producer.commit_transaction(10)
    assert visible(cluster.pair.bootstrap, theirs) == ["in a transaction"]


@pytest.mark.long
def test_a_sink_that_version_0_1_ran_first_fences_a_process_of_that_version(
    cluster: Playground,
) -> None:
    markers = cluster.topic("m", 2, cleanup_policy="compact")
    feed = cluster.feed(cluster.topic("out"))
    old = Producer({"bootstrap.servers": cluster.pair.bootstrap})
    old.produce(markers, key=f"{feed.pipeline}/events", value='{"partition": 1, "format": 1}', partition=DIRECTORY)
    assert old.flush(10) == 0
    zombie = open_transaction(cluster, f"{feed.pipeline}.events", feed.sink.topic)
    feed.run(rows("a"))
    with pytest.raises(Exception, match="fenced"):
        zombie.commit_transaction(10)
    attempt = feed.attempt()
    feed.commit(attempt, replace(feed.staged(attempt, rows("b")), detail={}))  # as that version voted
    assert visible(cluster.pair.bootstrap, feed.sink.topic) == ["a", "b"]


# --- time -----------------------------------------------------------------------------------------------------


class Slow:
    """A clock on which ten seconds pass from one look to the next."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 10
        return self.now


def test_a_timeout_that_reading_the_rows_alone_exceeds_is_a_vote_to_abort(
    cluster: Playground, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = cluster.feed(cluster.topic("out"), transaction_timeout=10)
    monkeypatch.setattr(kafka_participant, "time", Slow())
    refused = vote(feed)
    assert refused.vote is ABORT
    assert "transaction_timeout=10 s: it took 10 s to make the records" in str(refused.reason)
    feed.sink.transaction_timeout = 11
    assert vote(feed).vote is VoteKind.VOTE_COMMIT


@pytest.mark.few(1)
@pytest.mark.parametrize("phase", ["kafka.rows.sent", "kafka.commit.before"])
def test_an_epoch_that_outlasts_its_timeout_names_it_and_gets_through_with_that_of_today(
    cluster: Playground, phase: str
) -> None:
    feed = cluster.feed(cluster.topic("out"), transaction_timeout=1)
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("a", "b"))
    plain = Producer({"bootstrap.servers": cluster.pair.bootstrap})

    def slow() -> None:
        """Until the brokers have ended the transaction: a record behind it can be read then."""
        plain.produce(feed.sink.topic, b"plain")
        assert plain.flush(10) == 0
        wait_until(lambda: "plain" in values(seen_by_confluent(cluster.pair.bootstrap, feed.sink.topic)))

    feed.world.at = {phase: slow}
    with pytest.raises((NotApplied, OutcomeUnknown), match="and transaction_timeout is 1 s") as caught:
        feed.sink.commit(attempt, staged, feed.world)
    assert "fenced" in caught.value.what and "raise `transaction_timeout` of the sink in the DAG" in caught.value.remedy
    feed.sink = feed.sink.with_todays(cluster.feed(feed.sink.topic, transaction_timeout=60).sink)
    feed.world.at = {}
    feed.commit(attempt, staged)
    assert visible(cluster.pair.bootstrap, feed.sink.topic) == ["plain", "a", "b"]
