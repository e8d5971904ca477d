"""What the Kafka sink does with answers that brokers give for a moment only. Real restarts: test_kafka_sink.py."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ListOffsetsResultInfo

from airflow_epochs import codes
from airflow_epochs.errors import Code, NotApplied, Refused
from airflow_epochs.kafka.client import KafkaClient
from airflow_epochs.kafka.connection import KafkaAccess
from airflow_epochs.sinks.kafka import marker_partitions
from airflow_epochs.sinks.kafka.cluster import Cluster
from airflow_epochs.sinks.kafka.marker_partitions import Assignments
from stack.ports import free_port


class Answers(AdminClient):  # type: ignore[misc]  # confluent-kafka has no types
    """Brokers that answer each question about offsets with the next of these errors, and then with 7."""

    def __init__(self, *codes: int) -> None:
        super().__init__({})
        self.left = list(codes)

    def list_offsets(self, question: Mapping[TopicPartition, Any], **options: Any) -> Any:
        answers: dict[TopicPartition, Future[ListOffsetsResultInfo]] = {at: Future() for at in question}
        for answer in answers.values():
            if self.left:
                answer.set_exception(KafkaException(KafkaError(self.left.pop(0))))
            else:
                answer.set_result(ListOffsetsResultInfo(7, -1, -1))
        return answers


def cluster(admin: Answers, timeout_s: float) -> Cluster:
    access = KafkaAccess(conn_id="kafka", servers=("127.0.0.1:1",), protocol="PLAINTEXT", timeout_s=timeout_s)
    return Cluster(access=access, _admin_client=admin)


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION])
def test_a_partition_that_has_just_got_a_leader_is_asked_again(code: int) -> None:
    assert cluster(Answers(code, code), timeout_s=30).ends("events", range(1)) == {0: 7}


def test_a_partition_that_gets_no_leader_in_time_is_told() -> None:
    admin = Answers(*[KafkaError.LEADER_NOT_AVAILABLE] * 100)
    with pytest.raises(NotApplied, match="The request to list offsets of topic events failed"):
        cluster(admin, timeout_s=0.2).ends("events", range(1))
    assert len(admin.left) < 99, "it was asked again"


def test_what_does_not_pass_by_itself_is_told_at_once() -> None:
    admin = Answers(*[KafkaError.INVALID_REQUEST] * 2)
    with pytest.raises(NotApplied, match="The request to list offsets of topic events failed"):
        cluster(admin, timeout_s=30).ends("events", range(1))
    assert len(admin.left) == 1


@pytest.mark.parametrize(
    "code", [KafkaError.POLICY_VIOLATION, KafkaError.INVALID_CONFIG, KafkaError.INVALID_REPLICATION_FACTOR]
)
def test_brokers_that_refuse_the_settings_of_a_new_topic_are_not_told_as_brokers_that_do_not_answer(code: int) -> None:
    refused = cluster(Answers(), timeout_s=1).failure("create topic m", KafkaError(code, "not permitted here"))
    assert isinstance(refused, Refused)
    assert "EPOCHS-MARKER-TOPIC-SETTINGS" in str(refused) and "not permitted here" in refused.what


@pytest.mark.proof
def test_an_address_of_the_connection_where_nobody_answers_was_not_sent_by_brokers() -> None:
    server = f"[::1]:{free_port()}"
    access = KafkaAccess(conn_id="kafka", servers=(server,), protocol="PLAINTEXT", timeout_s=0.3)
    asked = Cluster(access=access, _admin_client=Answers()).failure("list offsets", KafkaError(KafkaError._TIMED_OUT))
    with pytest.raises(NotApplied, match=re.escape(f"{server}: ")) as connecting, KafkaClient(access):
        pass
    for error in (asked, connecting.value):
        assert error.code is codes.KAFKA_UNREACHABLE and "brokers sent it" not in error.what
    assert f"; no connection to {server}." in asked.what


class Polled:
    """A consumer that gives these, one after the other, and then nothing."""

    def __init__(self, *messages: Any) -> None:
        self.messages, self.asked = iter(messages), list[Any]()

    def poll(self, seconds: float) -> Any:
        return next(self.messages, None)

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.asked += [(at.topic, at.partition, at.offset) for at in partitions]

    def pause(self, partitions: list[TopicPartition]) -> None:
        self.asked += [("done", at.partition) for at in partitions]

    def close(self) -> None:
        self.asked.append("closed")


def message(partition: int, offset: int | None, code: int | None = None, topic: str | None = "t") -> Any:
    told = {"topic": topic, "partition": partition, "offset": offset, "error": KafkaError(code) if code else None}
    return SimpleNamespace(**{name: partial(lambda it: it, value) for name, value in told.items()})


def test_records_of_open_transactions_are_read_though_the_client_tells_of_errors_that_are_no_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    no_group = message(0, None, KafkaError.GROUP_AUTHORIZATION_FAILED, topic=None)
    polled = Polled(no_group, message(0, 7), None, message(0, 9), message(1, None, KafkaError._PARTITION_EOF), no_group)
    monkeypatch.setattr(Cluster, "consumer", lambda _, isolation: {"read_uncommitted": polled}[isolation])
    found = cluster(Answers(), timeout_s=60).uncommitted("t", {0: (7, 10), 1: (3, 4)})
    assert [(each.partition(), each.offset()) for each in found] == [(0, 7), (0, 9)]
    assert polled.asked == [("t", 0, 7), ("t", 1, 3), ("done", 0), ("done", 1), "closed"]


def test_records_that_the_brokers_do_not_give_are_not_waited_for_longer_than_for_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Cluster, "consumer", lambda *_: Polled())
    assert [*cluster(Answers(), timeout_s=0.05).uncommitted("t", {0: (7, 8)})] == []


def test_a_transaction_that_the_brokers_are_ending_is_not_told_as_brokers_that_do_not_answer() -> None:
    doing = "begin transactions under the id orders/a"
    busy = cluster(Answers(), timeout_s=1).failure(doing, KafkaError(KafkaError.CONCURRENT_TRANSACTIONS))
    assert isinstance(busy, NotApplied)
    assert busy.code is codes.TRANSACTION_ENDING
    assert "cannot begin transactions under the id orders/a yet: " in busy.what
    assert (
        "describe --transactional-id …` with the id in the message" in busy.remedy and "brokers run" not in busy.remedy
    )


@pytest.mark.parametrize(
    ("first", "told", "code"),
    [
        ([], "The request to assign a partition of topic m failed. .*: Unknown broker error", codes.KAFKA_UNREACHABLE),
        (
            [KafkaError._FENCED],
            "Sink orders/a got no partition .* overtook it. The last answer: Unknown broker error",
            codes.TOPIC_NOT_READY,
        ),
    ],
    ids=["a disk of the broker is broken", "others were overtaking it before"],
)
def test_a_claim_that_the_brokers_never_take_is_told_with_their_answer(
    monkeypatch: pytest.MonkeyPatch, first: list[int], told: str, code: Code
) -> None:
    answers = chain(first, repeat(KafkaError.UNKNOWN))

    def answered(*_: object) -> None:
        raise KafkaException(KafkaError(next(answers)))

    monkeypatch.setattr(marker_partitions, "ASSIGNING_S", 0.05)
    monkeypatch.setattr(Assignments, "_assigned", answered)
    assignments = Assignments(cluster=cluster(Answers(), timeout_s=1), topic="m")
    with pytest.raises(NotApplied, match=told) as failed:
        assignments.assign("orders/a")
    assert failed.value.code is code
    assert isinstance(failed.value.__cause__, KafkaException)
