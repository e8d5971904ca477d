"""The rights that the Kafka sink needs on a broker with an authorizer: each that is missing is a vote to abort."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from airflow_epochs import KafkaSink
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import EpochError, NotApplied, Refused
from airflow_epochs.model import Staged, VoteKind
from airflow_epochs.sinks.kafka.rows import HEADER
from stack.broker import Broker
from stack.jars import Jars
from stack.ports import free_port
from tests.support.environment import Environment
from tests.support.kafka_sink_world import Feed, rows, seen_by_confluent, values, world_at
from tests.support.late_requests import append_open_transaction, unverified
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm

PASSWORD = "s3cret"
TOPIC, MARKERS = ResourceType.TOPIC, "airflow-epochs-markers"


class Guarded:
    """A broker whose plain listener has all rights, and where user ``writer``, by SASL, has those that are granted."""

    def __init__(self, folder: Path, jars: Jars) -> None:
        self.sasl = f"127.0.0.1:{free_port()}"
        self.broker = broker = Broker(folder, jars)
        module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        listeners = f"PLAINTEXT://{broker.bootstrap},SASL://{self.sasl}"
        broker.settings = {
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{broker.controller_port}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f'{module} user_writer="{PASSWORD}";',
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.broker.bootstrap})

    def grant(self, kind: ResourceType, name: str, *operations: AclOperation) -> None:
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        acls = [AclBinding(kind, name, literal, "User:writer", "*", operation, allow) for operation in operations]
        for done in self.admin.create_acls(acls).values():
            done.result()

    def revoke(self, kind: ResourceType, name: str, operation: AclOperation) -> None:
        """Take a right away, and wait until that is in force: one that the broker lists no more is refused."""
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        acl = AclBindingFilter(kind, name, literal, "User:writer", "*", operation, allow)
        self.admin.delete_acls([acl])[acl].result()
        wait_until(lambda: not self.admin.describe_acls(acl).result())

    def world(self, password: str = PASSWORD, timeout_ms: int = 4000) -> Environment:
        sasl = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "writer"}
        return world_at(self.sasl, **sasl, **{"sasl.password": password, "socket.timeout.ms": timeout_ms})


@pytest.fixture(scope="module")
def guarded(servers: Path, jars: Jars) -> Iterator[Guarded]:
    guarded = Guarded(servers / "guarded", jars)
    with guarded.broker:
        yield guarded


@pytest.fixture
def feed(guarded: Guarded, tmp_path: Path) -> Feed:
    topic = f"out-{uuid.uuid4().hex[:8]}"
    guarded.admin.create_topics([NewTopic(topic, 1, 1)])[topic].result()
    return Feed(KafkaSink("events", topic, staging=str(tmp_path / "staging")), guarded.world(), f"p-{topic}")


def reason(feed: Feed) -> str:
    vote = feed.vote(feed.attempt(), rows("a"))
    assert vote.vote is not VoteKind.VOTE_COMMIT
    return vote.reason or ""


def unready(feed: Feed) -> str:
    """What ``open`` says of the sink; empty if it is ready."""
    try:
        feed.sink.require_ready(feed.pipeline, feed.shown, feed.world)
    except Refused as refused:
        return str(refused)
    return ""


def committed(feed: Feed, attempt: SinkAttempt, staged: Staged) -> bool:
    """Clear the commit task."""
    try:
        feed.commit(attempt, staged)
    except EpochError:
        return False
    return True


@pytest.mark.long
def test_each_right_that_is_missing_is_named_and_those_in_the_docs_suffice(guarded: Guarded, feed: Feed) -> None:
    def comes_to(words: str) -> bool:
        return words in reason(feed)  # rights take a moment until every part of the broker knows of them

    def are_missed_at_once(words: str) -> bool:
        return words in unready(feed) and comes_to(words)

    topic, describe = feed.sink.topic, (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    assert are_missed_at_once("does not permit the connection's user to describe topic out-")
    guarded.grant(TOPIC, topic, *describe)
    wait_until(lambda: are_missed_at_once(f"lacks these rights on topic {topic}: WRITE."))
    guarded.grant(TOPIC, topic, AclOperation.WRITE)
    wait_until(lambda: are_missed_at_once("describe topic airflow-epochs-markers"))
    guarded.grant(TOPIC, MARKERS, *describe)
    wait_until(lambda: are_missed_at_once("create topic airflow-epochs-markers"))
    assert MARKERS not in guarded.admin.list_topics(timeout=5).topics, "to ask is not to create"
    guarded.grant(TOPIC, MARKERS, AclOperation.CREATE)
    wait_until(lambda: unready(feed) == "")
    wait_until(lambda: comes_to(f"lacks these rights on topic {MARKERS}: READ, WRITE."))
    wait_until(lambda: are_missed_at_once(f"lacks these rights on topic {MARKERS}: READ, WRITE."))
    guarded.grant(TOPIC, MARKERS, AclOperation.READ, AclOperation.WRITE)
    for transactional_id in (MARKERS, f"airflow-epochs.{feed.pipeline}.events"):
        refusal = f"does not permit the connection's user to begin transactions under the id {transactional_id}:"
        wait_until(partial(comes_to, refusal))
        rights = (AclOperation.DESCRIBE, AclOperation.WRITE)
        guarded.grant(ResourceType.TRANSACTIONAL_ID, transactional_id, *rights)
    wait_until(lambda: feed.vote(feed.attempt(), rows("a")).vote is VoteKind.VOTE_COMMIT)
    feed.run(rows("a"))
    feed.run(rows("b"))
    assert [value for _, value, _ in seen_by_confluent(guarded.broker.bootstrap, topic)] == ["a", "b"]


@pytest.mark.long
def test_a_right_that_is_revoked_while_an_epoch_is_sent_is_what_the_error_tells_and_clearing_it_sends_the_epoch(
    guarded: Guarded, feed: Feed
) -> None:
    topic, markers, at = feed.sink.topic, f"m-{feed.sink.topic}", feed.world.at
    feed.sink.marker_topic, own_id = markers, f"airflow-epochs.{feed.pipeline}.events"
    asked = (AclOperation.DESCRIBE_CONFIGS, AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE)
    guarded.grant(TOPIC, topic, *asked)
    guarded.grant(TOPIC, markers, *asked)
    for transactional_id in (own_id, markers):
        guarded.grant(ResourceType.TRANSACTIONAL_ID, transactional_id, AclOperation.WRITE)
    wait_until(lambda: feed.vote(feed.attempt(), rows("a")).vote is VoteKind.VOTE_COMMIT)
    feed.run(rows("a"))
    sent = ["a"]
    for kind, name, what, because in [
        (TOPIC, markers, f"the marker of this epoch for {markers}[", "Topic authorization failed"),
        (ResourceType.TRANSACTIONAL_ID, own_id, "", "Transactional Id authorization failed"),
    ]:
        attempt, data = feed.attempt(), [name]
        staged = feed.staged(attempt, rows(*data))
        at["kafka.begin"] = partial(guarded.revoke, kind, name, AclOperation.WRITE)
        with pytest.raises(NotApplied) as refused:
            feed.commit(attempt, staged)
        assert what in refused.value.what and because in refused.value.what
        assert "rights" in refused.value.remedy
        del at["kafka.begin"]
        guarded.grant(kind, name, AclOperation.WRITE)
        wait_until(partial(committed, feed, attempt, staged))
        sent += data
    assert values(seen_by_confluent(guarded.broker.bootstrap, topic)) == sent


@pytest.mark.long
def test_a_transaction_that_hangs_in_the_topic_is_noticed_with_the_rights_in_the_docs_and_read_on_the_topic(
    guarded: Guarded, feed: Feed
) -> None:
    """The client says that it may not look for the coordinator of its group, and mostly before it gives the record."""
    topic, markers = feed.sink.topic, f"m-{feed.sink.topic}"
    feed.sink.marker_topic = markers
    for name in (topic, markers):
        needed = (AclOperation.DESCRIBE_CONFIGS, AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE)
        guarded.grant(TOPIC, name, *needed)
    for transactional_id in (f"airflow-epochs.{feed.pipeline}.events", markers):
        guarded.grant(ResourceType.TRANSACTIONAL_ID, transactional_id, AclOperation.WRITE)
    wait_until(lambda: feed.vote(feed.attempt(), rows("a")).vote is VoteKind.VOTE_COMMIT)
    feed.run(rows("a"))
    with unverified(guarded.admin):
        headers = [(HEADER, f"{feed.pipeline}/events/2/0".encode())]
        append_open_transaction(guarded.broker, topic, 0, headers=headers)
    for _ in range(5):
        with pytest.raises(NotApplied, match=rf"is still open in {topic}\[0\], with rows of epoch 2"):
            feed.vote(feed.attempt(), rows("b"))


@pytest.mark.long
def test_a_wrong_password_is_said_to_be_one_and_not_told(guarded: Guarded, feed: Feed) -> None:
    feed.world = guarded.world(password="wr0ng", timeout_ms=2000)
    said = reason(feed)
    assert "rejected the login of the connection's user" in said
    assert "wr0ng" not in said
