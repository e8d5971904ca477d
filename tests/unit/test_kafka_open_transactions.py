"""Which records are told to wait for open transactions, while producers write on; no broker is needed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.errors import (
    CoordinatorNotAvailableError,
    TransactionalIdAuthorizationFailedError,
    TransactionalIdNotFoundError,
)
from kafka.protocol.consumer import IsolationLevel

from airflow_epochs import codes
from airflow_epochs.contracts import Interval, Past, Position
from airflow_epochs.errors import NotApplied
from airflow_epochs.kafka.client import KafkaClient
from airflow_epochs.kafka.connection import KafkaAccess
from airflow_epochs.kafka.open_transactions import Coordinated, OpenTransaction, Producing, open_transactions
from airflow_epochs.model import OffsetRange
from airflow_epochs.sinks.kafka import cluster as cluster_module
from airflow_epochs.sinks.kafka import hanging
from airflow_epochs.sinks.kafka.cluster import Cluster as SinkCluster
from airflow_epochs.sinks.kafka.committed_records import PartitionLog
from airflow_epochs.sinks.kafka.rows import HEADER
from airflow_epochs.sources.kafka import brokers as brokers_module
from airflow_epochs.sources.kafka import reader
from airflow_epochs.sources.kafka.brokers import Brokers
from airflow_epochs.sources.kafka.config import read_config
from airflow_epochs.sources.kafka.logs import Batch, ClusterLog, Partition
from airflow_epochs.sources.kafka.reader import KafkaReader
from airflow_epochs.sources.kafka.waiting import Waiting
from tests.support.kafka_world import KafkaEnv

NINE = datetime(2026, 1, 31, 9, tzinfo=timezone.utc)
TOPIC = "plain"


@dataclass
class Log:
    end: int = 0
    open_at: int | None = None
    """The first offset of an open transaction."""

    @property
    def stable(self) -> int:
        return self.end if self.open_at is None else self.open_at


@dataclass
class Cluster:
    """Brokers of one topic, and in place of their clients' hurry: what happens after each answer about offsets."""

    logs: list[Log]
    then: Callable[[], object] = lambda: None
    asked: list[str] = field(default_factory=list)

    def ask(self, doing: str, question: Callable[[Cluster], Any]) -> Any:
        return question(self)

    def __enter__(self) -> Cluster:
        return self

    def close(self) -> None:
        pass

    def describe_topics(self, topics: Sequence[str]) -> list[dict[str, Any]]:
        partitions = [{"partition_index": number} for number in range(len(self.logs))]
        return [{"name": TOPIC, "error_code": 0, "topic_id": "id", "partitions": partitions}]

    def describe_cluster(self) -> dict[str, Any]:
        return {"cluster_id": "c"}

    def describe_producers(self, partitions: Sequence[object]) -> dict[Any, Any]:
        return {}  # as brokers that do not tell

    def find_hanging_transactions(self) -> list[dict[str, Any]]:
        return []

    def list_partition_offsets(self, specs: Mapping[Any, int], isolation_level: int) -> dict[Any, Any]:
        if not specs:
            return {}
        stable = isolation_level == IsolationLevel.READ_COMMITTED
        self.asked.append("first" if -2 in specs.values() else "stable" if stable else "end")
        ends = {tp: self.logs[tp.partition].stable if stable else self.logs[tp.partition].end for tp in specs}
        found = {tp: SimpleNamespace(offset=0 if specs[tp] == -2 else end, leader_epoch=0) for tp, end in ends.items()}
        self.then()
        return found


class Timeless(Brokers):
    """No record is as late as the end of the interval, and no batch is told."""

    def seen_offsets_at(self, ms: int, begins: Mapping[Partition, int]) -> dict[Partition, int | None]:
        return dict.fromkeys(begins)

    def batches(self, ends: Mapping[Partition, int], cluster: ClusterLog) -> dict[Partition, Batch]:
        return {}


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Callable[..., KafkaReader]:
    def over(cluster: Cluster, **options: object) -> KafkaReader:
        monkeypatch.setattr(brokers_module, "KafkaClient", lambda _: cluster)
        monkeypatch.setattr(reader, "Brokers", Timeless)
        config = read_config({"topics": [TOPIC], "conn_id": "kafka", "max_wait": 0, **options})
        return KafkaReader(config, KafkaEnv(**{"bootstrap.servers": "127.0.0.1:1"}))

    return over


Reading = Callable[..., KafkaReader]


def writing(*logs: Log) -> Cluster:
    """A plain producer writes a record to the last partition after each answer about the end of its log."""
    cluster = Cluster(list(logs))

    def write() -> None:
        logs[-1].end += cluster.asked[-1] != "first"

    cluster.then = write
    return cluster


def past() -> Past:
    interval = Interval(NINE, NINE + timedelta(hours=1))
    return Past(epochs=lambda: iter(()), clock=lambda: NINE + timedelta(days=1), interval=interval)


def at_end(cluster: Cluster) -> Position:
    ranges = tuple(OffsetRange(number, 0, 0) for number in range(len(cluster.logs)))
    return Position(ranges={TOPIC: ranges}, state={"cluster_id": "c", "topic_ids": {TOPIC: "id"}})


def test_records_that_come_between_two_questions_are_not_told_to_wait_for_a_transaction(reading: Reading) -> None:
    reads = reading(writing(Log(5)))
    assert [reads.why_nothing() for _ in range(3)] == [None] * 3
    assert [reads.waiting() for _ in range(3)] == [[]] * 3


def test_an_epoch_says_of_records_that_come_while_it_is_planned_that_they_wait_for_nothing(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = writing(Log(5), Log())
    with caplog.at_level(logging.WARNING):
        planned = reading(cluster).plan(None, past())
    assert planned and planned.ranges[TOPIC][0] == OffsetRange(0, 0, 5)
    assert "not read in this epoch" not in caplog.text


def test_an_interval_is_not_held_by_records_that_come_while_it_is_read(reading: Reading) -> None:
    cluster = writing(Log(5))
    planned = reading(cluster, bounds="data_interval").plan(at_end(cluster), past())
    assert planned and planned.ranges[TOPIC][0].end >= 5


def test_records_behind_an_open_transaction_are_told_though_others_come_behind_them(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = writing(Log(2), Log(9, open_at=0))
    with caplog.at_level(logging.WARNING):
        planned = reading(cluster).plan(None, past())
    assert planned and planned.ranges[TOPIC] == (OffsetRange(0, 0, 2), OffsetRange(1, 0, 0))
    assert "not read in this epoch: 10 records wait for an open transaction (plain[1] from offset 0 on)" in caplog.text
    [told] = reading(cluster).waiting()
    assert "wait for an open transaction (plain[1] from offset 0 on)" in told


def test_what_is_told_begins_where_the_open_transaction_holds_the_readers_now(reading: Reading) -> None:
    log = Log(5)
    cluster = Cluster([log])

    def begin_behind_three_more() -> None:
        if cluster.asked[-1] == "stable":
            log.end, log.open_at = 10, 8

    cluster.then = begin_behind_three_more
    assert reading(cluster).why_nothing() == "2 records wait for an open transaction (plain[0] from offset 8 on)"


def test_an_interval_waits_for_a_transaction_that_was_open_when_its_log_was_looked_at(reading: Reading) -> None:
    cluster = writing(Log(5, open_at=3))
    with pytest.raises(NotApplied) as held:
        reading(cluster, bounds="data_interval").plan(at_end(cluster), past())
    assert held.value.code is codes.INTERVAL_HELD


@pytest.mark.parametrize(
    ("listed", "under_way", "name"),
    [
        ({}, False, None),
        ({7: Coordinated("billing", 1, frozenset({(TOPIC, 1)}))}, False, "billing"),
        ({7: Coordinated("billing", 1, frozenset({(TOPIC, 0)}))}, True, "billing"),
    ],
    ids=["a producer that is not listed", "a transaction that has ended there", "one that is under way"],
)
def test_a_transaction_is_known_if_its_coordinator_has_the_partition_in_it(
    listed: dict[int, Coordinated], under_way: bool, name: str | None
) -> None:
    [(found, _)] = open_transactions({(TOPIC, 0): [Producing(5, 8, 0), Producing(3, 7, 2)]}, listed).values()
    assert (found.producer_id, found.producer_epoch, found.transactional_id, found.known) == (7, 2, name, under_way)
    assert not found.hangs


@dataclass
class SilentLists:
    """Brokers that list no transactions, as where the coordinator's partition has no leader (no error says so).

    ``owner``: what the coordinator of the sink's transactional id answers.
    """

    owner: SimpleNamespace | Exception
    servers: tuple[str, ...] = ("k1:9092", "k2:9092")

    def describe_producers(self, partitions: Sequence[Any]) -> dict[Any, Any]:
        first = SimpleNamespace(
            current_transaction_start_offset=7, producer_id=41, producer_epoch=5, coordinator_epoch=-1
        )
        return {partitions[0]: SimpleNamespace(active_producers=[first])}

    def list_transactions(self, producer_id_filters: Sequence[int]) -> dict[int, list[Any]]:
        return {1: [], 2: []}

    def describe_transactions(self, ids: set[str]) -> dict[str, Any]:
        if not ids:
            return {}
        assert ids == {"mine"}
        if isinstance(self.owner, Exception):
            raise self.owner
        return {"mine": self.owner}

    def held_back(self, monkeypatch: pytest.MonkeyPatch, owner: str | None = "mine") -> NotApplied:
        """The error of a sink that cannot read its partition."""
        monkeypatch.setattr(KafkaClient, "_connect", lambda _: self)
        access = KafkaAccess(conn_id="kafka", servers=self.servers, protocol="PLAINTEXT", timeout_s=0.2)
        log = PartitionLog(cluster=SinkCluster(access), topic="markers", partition=3, owner=owner)
        with pytest.raises(NotApplied) as held:
            log._require_time(time.monotonic() - 1, 7, 9)
        return held.value


def of_producer(number: int, *partitions: tuple[str, int]) -> SimpleNamespace:
    return SimpleNamespace(
        producer_id=number, transaction_start_time_ms=1, topic_partitions={TopicPartition(*at) for at in partitions}
    )


@pytest.mark.parametrize(
    "owner",
    [
        of_producer(41, ("markers", 3)),
        CoordinatorNotAvailableError(),
        TransactionalIdNotFoundError(),
        TransactionalIdAuthorizationFailedError(),
        ValueError("'PrepareSomething' is not a valid TransactionState"),
    ],
    ids=["the sink's own is under way", "no leader", "unknown id", "hidden", "a state of a later Kafka"],
)
def test_no_error_tells_to_end_a_transaction_that_may_be_the_sinks_own_and_under_way(
    owner: SimpleNamespace | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = SilentLists(owner).held_back(monkeypatch)
    assert "id 41" in held.what and "is still open there" in held.what
    assert held.remedy == codes.TRANSACTION_OPEN.remedy


def test_no_error_tells_to_end_a_transaction_where_the_sink_does_not_know_whose_it_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "abort" not in SilentLists(of_producer(40)).held_back(monkeypatch, owner=None).remedy


def test_no_error_tells_to_end_a_transaction_that_ended_while_its_coordinator_was_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = [SilentLists.describe_producers, lambda *_: {}]
    monkeypatch.setattr(SilentLists, "describe_producers", lambda self, at: told.pop(0)(self, at))
    held = SilentLists(of_producer(40)).held_back(monkeypatch)
    assert not told and held.remedy == codes.TRANSACTION_OPEN.remedy


@pytest.mark.parametrize(
    "owner", [of_producer(40, ("markers", 3)), of_producer(41, ("rows", 0))], ids=["another's", "ended there"]
)
def test_a_transaction_of_which_the_sinks_own_coordinator_does_not_tell_is_ended_by_a_command_to_all_servers(
    owner: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (
        "`python -m kafka.admin -b k1:9092 -b k2:9092 transactions abort -t markers -p 3 "
        "--producer-id 41 --producer-epoch 5`"
    )
    assert command in SilentLists(owner).held_back(monkeypatch).remedy


def test_a_state_of_a_transaction_that_the_client_does_not_know_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: object, producer_id_filters: object) -> dict[int, list[Any]]:
        raise ValueError("'PrepareSomething' is not a valid TransactionState")

    monkeypatch.setattr(SilentLists, "list_transactions", unknown)
    held = SilentLists(of_producer(40)).held_back(monkeypatch)
    assert "a transaction is still open there, or the brokers do not answer" in held.what


def test_an_error_waits_only_once_for_brokers_that_do_not_tell_which_transaction_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first question takes nearly all of the time; what is left is too short for another try of the next."""
    asked: list[int] = []

    def unavailable(_: object, producer_id_filters: object) -> dict[int, list[Any]]:
        asked.append(1)
        raise CoordinatorNotAvailableError

    monkeypatch.setattr(cluster_module, "OPEN_TRANSACTION_S", 0.0)
    monkeypatch.setattr(SilentLists, "list_transactions", unavailable)
    SilentLists(of_producer(40)).held_back(monkeypatch)
    assert len(asked) == 1


def test_the_source_says_of_a_transaction_that_is_not_listed_that_it_may_be_hidden() -> None:
    by = OpenTransaction(producer_id=41, producer_epoch=5, coordinator_epoch=2)
    told = reader._how_to_end(Waiting(topic="t", partition=0, start=0, records=1, transaction=by), (), ("a:1", "b:1"))
    assert told.startswith("It is unknown to the coordinators, or hidden from this user. If its producer is gone for")
    assert "-b a:1 -b b:1 " in told and told.endswith(" --coordinator-epoch 2")


def test_of_logs_that_have_not_grown_the_stable_ends_are_not_asked_for_again(reading: Reading) -> None:
    cluster = Cluster([Log(5), Log(7)])
    assert reading(cluster).why_nothing() is None
    assert cluster.asked == ["first", "stable", "end"]


# -- in the topic of a sink's rows -------------------------------------------------------------------------------------


@dataclass
class Rows:
    """The brokers of a topic whose partitions in ``held`` have an open transaction each, if they tell of it."""

    held: list[int]
    by: OpenTransaction | None = None
    header: bytes = b"orders/events/2/0"
    asked: list[str] = field(default_factory=list)
    facts: Any = field(default_factory=lambda: SimpleNamespace(name="rows", partitions=2, servers=("k1:9092",)))

    def topic(self, name: str) -> Any:
        return self.facts

    def held_back(self, facts: Any) -> list[int]:
        return self.held

    def open_transactions(self, topic: str, partitions: Sequence[int], owner: str | None) -> Any:
        self.asked.append(topic)
        return {(topic, partition): [self.by] for partition in partitions if self.by}

    def uncommitted(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Any:
        self.asked.append(f"{topic} {sorted(ranges)}")
        headers = [(HEADER, self.header)]
        return [SimpleNamespace(partition=partial(int, each), headers=lambda: headers) for each in ranges]

    def require_none(self) -> None:
        hanging.require_none(self, self.facts, hanging.Own("orders/events", "mine", 0, {}))  # type: ignore[arg-type]


HANGS = OpenTransaction(producer_id=41, producer_epoch=5, hangs=True, begin=3, coordinator_epoch=2)


def test_a_topic_without_an_open_transaction_needs_no_question_about_producers() -> None:
    brokers = Rows([])
    brokers.require_none()
    assert brokers.asked == []


@pytest.mark.parametrize(
    "brokers",
    [
        Rows([0]),
        Rows([0], OpenTransaction(producer_id=41, producer_epoch=5, known=True)),
        Rows([0], HANGS, header=b"orders/events2/2/0"),
    ],
    ids=["not told", "its coordinator knows it", "another sink's"],
)
def test_a_transaction_that_may_not_be_the_sinks_own_and_hang_does_not_stop_it(brokers: Rows) -> None:
    brokers.require_none()
    assert brokers.asked[0] == "rows"


def test_whose_the_transactions_in_many_partitions_are_is_found_out_at_once() -> None:
    """Of other programs, whose transactional ids the sink's user may not describe: they seem to hang."""
    brokers = Rows([0, 1, 2], HANGS, header=b"")
    brokers.require_none()
    assert brokers.asked == ["rows", "rows [0, 1, 2]"]


def test_a_transaction_of_the_sinks_own_that_hangs_is_told_with_a_command_for_each_partition() -> None:
    with pytest.raises(NotApplied, match=r"open in rows\[0\], with rows of epoch 2; .* open in rows\[1\]") as held:
        Rows([0, 1], HANGS).require_none()
    numbers = "--producer-id 41 --producer-epoch 5 --coordinator-epoch 2"
    for partition in (0, 1):
        command = f"`python -m kafka.admin -b k1:9092 transactions abort -t rows -p {partition} {numbers}`"
        assert command in held.value.remedy


def test_an_error_says_if_the_brokers_do_not_tell_where_else_a_transaction_hangs() -> None:
    brokers: Any = Rows([0])
    log = PartitionLog(cluster=brokers, topic="markers", partition=3, owner="mine", rows="rows")
    brokers.access = SimpleNamespace(servers=("k1:9092",))
    assert "do not tell whether it is open in topic rows, too" in log._how_to_end(HANGS)
    brokers.by = HANGS
    remedy = log._how_to_end(HANGS)
    assert "do not tell" not in remedy and "-t markers -p 3 " in remedy and "-t rows -p 0 " in remedy
