"""The Kafka source on a real broker: planning, checking, acknowledging."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import CoordinatorNotAvailableError
from kafka.structs import OffsetAndMetadata

from airflow_epochs.contracts import Limits, PlannedEpoch, Position
from airflow_epochs.errors import Corrupt, NotApplied, Refused
from airflow_epochs.model import Backlog, OffsetRange, Ranges, records_upper_bound
from airflow_epochs.sources.kafka.brokers import Brokers
from airflow_epochs.sources.kafka.source import KafkaSource
from stack.broker import CLUSTER_ID, Broker
from stack.jars import Jars
from tests.support.cells import fired
from tests.support.kafka_world import KafkaEnv, Topic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def env(broker: Broker) -> KafkaEnv:
    return KafkaEnv(**{"bootstrap.servers": broker.bootstrap})


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[KafkaAdminClient]:
    with KafkaAdminClient(bootstrap_servers=broker.bootstrap) as client:
        yield client


@pytest.fixture
def topic(admin: KafkaAdminClient, broker: Broker) -> Topic:
    return Topic(f"t-{uuid.uuid4().hex[:8]}", admin, broker.bootstrap)


@pytest.fixture
def other(admin: KafkaAdminClient, broker: Broker) -> Topic:
    return Topic(f"u-{uuid.uuid4().hex[:8]}", admin, broker.bootstrap)


def source(*topics: Topic, max_wait: float = 0, **options: Any) -> KafkaSource:
    return KafkaSource([topic.name for topic in topics], max_wait=max_wait, **options)


def plan(it: KafkaSource, env: KafkaEnv, after: PlannedEpoch | None = None, **limits: Any) -> PlannedEpoch | None:
    return it.plan(position_after(after) if after else None, Limits(**limits), env)


def position_after(epoch: PlannedEpoch) -> Position:
    return Position(ranges=epoch.ranges, state=epoch.state)


def planned(it: KafkaSource, env: KafkaEnv, after: PlannedEpoch | None = None, **limits: Any) -> PlannedEpoch:
    epoch = plan(it, env, after, **limits)
    assert epoch is not None
    return epoch


def ranges_of(topic: Topic, *ranges: tuple[int, int]) -> Ranges:
    return {topic.name: tuple(OffsetRange(partition, *r) for partition, r in enumerate(ranges))}


# --- epochs ---------------------------------------------------------------------------------------------------


def test_epochs_follow_each_other_without_gap_or_overlap(topic: Topic, env: KafkaEnv) -> None:
    topic.create(partitions=3).produce(5, 0, 2)
    first = planned(source(topic), env)
    assert first.ranges == ranges_of(topic, (0, 5), (0, 0), (0, 2))
    assert first.state["cluster_id"] == CLUSTER_ID
    assert uuid.UUID(first.state["topic_ids"][topic.name]).int
    assert plan(source(topic), env, first) is None
    topic.produce(1, 1, 0)
    second = planned(source(topic), env, first)
    assert second.ranges == ranges_of(topic, (5, 6), (0, 1), (2, 2))
    assert all(second.state[what] == first.state[what] for what in ("cluster_id", "topic_ids"))


def test_max_records_of_the_run_goes_over_that_of_the_source(topic: Topic, env: KafkaEnv) -> None:
    topic.create(partitions=3).produce(10, 1, 10)
    it = source(topic, max_records=100)
    assert planned(it, env, max_records=9).ranges == ranges_of(topic, (0, 4), (0, 1), (0, 4))


def test_what_an_epoch_leaves_is_told_in_offsets_and_in_seconds(topic: Topic, env: KafkaEnv) -> None:
    topic.create(partitions=2).produce(10, 1)
    began = time.time()
    first = planned(source(topic), env, max_records=4)
    assert first.backlog and first.backlog.offsets == 7 and first.backlog.seconds is not None
    assert 0 <= first.backlog.seconds < 60 + time.time() - began
    assert planned(source(topic), env, first).backlog == Backlog(offsets=0, seconds=0)


def test_several_topics_are_one_epoch(topic: Topic, other: Topic, env: KafkaEnv) -> None:
    topic.create().produce(3)
    other.create(partitions=2).produce(0, 4)
    epoch = planned(source(other, topic), env)
    assert epoch.ranges == {**ranges_of(topic, (0, 3)), **ranges_of(other, (0, 0), (0, 4))}
    assert epoch.state["topic_ids"].keys() == {topic.name, other.name}


def test_partitions_added_later_are_read_from_their_beginning(topic: Topic, env: KafkaEnv) -> None:
    topic.create().produce(3)
    it = source(topic, starting="latest")
    first = planned(it, env, starting="earliest")
    topic.add_partitions(3)
    topic.produce(0, 2, 0)
    assert planned(it, env, first).ranges == ranges_of(topic, (3, 3), (0, 2), (0, 0))


def test_the_specification_in_the_ledger_plans_the_same(topic: Topic, env: KafkaEnv) -> None:
    topic.create().produce(3)
    it = source(topic, max_records=2)
    assert planned(KafkaSource.from_spec(it.spec()), env) == planned(it, env)


# --- transactions ---------------------------------------------------------------------------------------------


def test_an_epoch_ends_before_the_first_open_transaction(topic: Topic, env: KafkaEnv) -> None:
    topic.create().produce(2)
    open_one = topic.begin_transaction(3)
    topic.produce(1)
    first = planned(source(topic), env)
    assert first.ranges == ranges_of(topic, (0, 2))
    assert plan(source(topic), env, first) is None
    told = source(topic).why_nothing(env)
    assert told and told.startswith(f"4 records wait for the transaction of producer '{topic.name}', id ")
    assert told.endswith(f"({topic.name}[0] from offset 2 on)")
    open_one.commit_transaction(20)
    wait_until(lambda: plan(source(topic), env, first) is not None)
    assert planned(source(topic), env, first).ranges == ranges_of(topic, (2, 7))  # 3 + 1 records and the marker
    assert source(topic).why_nothing(env) is None


def test_a_partition_that_stands_still_for_an_open_transaction_is_told_while_the_others_move(
    topic: Topic, env: KafkaEnv, caplog: pytest.LogCaptureFixture
) -> None:
    topic.create(partitions=2).produce(0, 2)
    open_one = topic.begin_transaction(1000)
    assert planned(source(topic), env).ranges == ranges_of(topic, (0, 0), (0, 2))
    assert f"not read in this epoch: 1,000 records wait for the transaction of producer '{topic.name}'" in caplog.text
    (shown,) = source(topic).waiting(env)
    assert "Brokers end it after its own timeout." in shown
    open_one.abort_transaction(20)


def test_what_is_written_between_two_questions_waits_for_no_transaction(
    topic: Topic, env: KafkaEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.create().produce(2)
    listed = KafkaAdminClient.list_partition_offsets

    def then_written(*asked: Any, **options: Any) -> Any:
        answer = listed(*asked, **options)
        topic.produce(1)
        return answer

    monkeypatch.setattr(KafkaAdminClient, "list_partition_offsets", then_written)
    assert source(topic).why_nothing(env) is None
    assert source(topic).waiting(env) == []


def test_the_command_that_is_named_for_a_transaction_without_a_producer_ends_it(topic: Topic, env: KafkaEnv) -> None:
    gone = topic.create().begin_transaction(5)
    topic.produce(3)
    (shown,) = source(topic).waiting(env)
    command = shown[shown.index("python -m kafka.admin") :].split()[1:]
    subprocess.run([sys.executable, *command], check=True, capture_output=True, timeout=60)
    wait_until(lambda: source(topic).why_nothing(env) is None)
    assert planned(source(topic), env).ranges == ranges_of(topic, (0, 9))
    del gone


def test_an_aborted_transaction_is_progress_once(topic: Topic, env: KafkaEnv) -> None:
    topic.create().produce(2)
    first = planned(source(topic), env)
    topic.begin_transaction(3).abort_transaction(20)
    wait_until(lambda: plan(source(topic), env, first) is not None)
    second = planned(source(topic), env, first)
    assert second.ranges == ranges_of(topic, (2, 6))
    assert plan(source(topic), env, second) is None


# --- starting -------------------------------------------------------------------------------------------------


def test_starting_at_explicit_offsets(topic: Topic, env: KafkaEnv) -> None:
    topic.create(partitions=2).produce(5, 5)
    starting = {topic.name: {"1": 3}}
    assert planned(source(topic, starting=starting), env).ranges == ranges_of(topic, (0, 5), (3, 5))
    with pytest.raises(Refused, match=r"offset 6 of .*\[1\], but the brokers have the offsets \[0, 5\)"):
        plan(source(topic, starting={topic.name: {"1": 6}}), env)


def test_starting_at_a_time(topic: Topic, env: KafkaEnv) -> None:
    topic.create(partitions=3)
    topic.produce(2, 2, 0, at_ms=1_000_000)
    topic.produce(3, 0, 0, at_ms=2_000_000)
    for starting in ({"timestamp": 1_500_000}, "1970-01-01T00:25:00Z"):
        epoch = planned(source(topic, starting=starting), env)
        assert epoch.ranges == ranges_of(topic, (2, 5), (2, 2), (0, 0))


def test_starting_at_a_time_does_not_begin_behind_an_open_transaction(topic: Topic, env: KafkaEnv) -> None:
    topic.create(partitions=2).produce(2, 1, at_ms=1_000_000)
    open_one = topic.begin_transaction(2, at_ms=1_000_000)
    topic.produce(1, 1, at_ms=2_000_000)
    first = planned(source(topic, starting={"timestamp": 1_500_000}), env)
    assert first.ranges == ranges_of(topic, (2, 2), (1, 2))
    assert plan(source(topic), env, first) is None
    open_one.commit_transaction(20)
    wait_until(lambda: plan(source(topic), env, first) is not None)
    assert planned(source(topic), env, first).ranges == ranges_of(topic, (2, 6), (2, 2))


def test_a_topic_added_to_the_source_starts_as_configured_and_one_taken_out_waits(
    topic: Topic, other: Topic, env: KafkaEnv, caplog: pytest.LogCaptureFixture
) -> None:
    topic.create().produce(3)
    other.create().produce(3)
    first = planned(source(topic, starting="latest"), env, starting="earliest")
    topic.produce(1)
    second = planned(source(topic, other, starting="latest"), env, first)
    assert second.ranges == {**ranges_of(topic, (3, 4)), **ranges_of(other, (3, 3))}
    other.produce(2)
    third = planned(source(other), env, second)
    assert f"are not read, and keep their position: {topic.name}" in caplog.text
    assert third.ranges == {**ranges_of(topic, (4, 4)), **ranges_of(other, (3, 5))}
    topic.produce(1)
    assert planned(source(topic, other), env, third).ranges == {**ranges_of(topic, (4, 5)), **ranges_of(other, (5, 5))}


def test_latest_is_pinned_by_an_empty_epoch_so_that_nothing_is_skipped_between_runs(
    topic: Topic, env: KafkaEnv
) -> None:
    topic.create().produce(3)
    it = source(topic, starting="latest")
    first = planned(it, env)
    assert first.ranges == ranges_of(topic, (3, 3))
    assert plan(it, env, first) is None
    topic.produce(2)
    assert planned(it, env, first).ranges == ranges_of(topic, (3, 5))


def test_a_topic_added_at_latest_is_pinned_too(topic: Topic, other: Topic, env: KafkaEnv) -> None:
    topic.create().produce(3)
    first = planned(source(topic), env)
    other.create().produce(3)
    second = planned(source(topic, other, starting="latest"), env, first)
    assert second.ranges == {**ranges_of(topic, (3, 3)), **ranges_of(other, (3, 3))}
    assert plan(source(topic, other, starting="latest"), env, second) is None


# --- waiting --------------------------------------------------------------------------------------------------


def test_an_idle_topic_is_waited_for_and_then_there_is_no_epoch(topic: Topic, env: KafkaEnv) -> None:
    topic.create()
    begin = time.monotonic()
    assert plan(source(topic, max_wait=1), env) is None
    assert 1 <= time.monotonic() - begin < 3


def test_too_little_data_is_taken_after_the_wait(topic: Topic, env: KafkaEnv) -> None:
    topic.create().produce(3)
    assert planned(source(topic, min_records=10, max_wait=0.6), env).ranges == ranges_of(topic, (0, 3))


def test_data_that_comes_while_waiting_ends_the_wait_also_from_latest(topic: Topic, env: KafkaEnv) -> None:
    topic.create().produce(3)
    found: list[PlannedEpoch | None] = []
    it = source(topic, starting="latest", min_records=2, max_wait=60)
    waiting = threading.Thread(target=lambda: found.append(plan(it, env)))
    begin = time.monotonic()
    waiting.start()
    while waiting.is_alive() and time.monotonic() - begin < 30:
        topic.produce(1)
        waiting.join(0.5)
    assert not waiting.is_alive()
    assert found[0] is not None
    (only,) = found[0].ranges[topic.name]
    assert only.start in (3, 4)  # the first look may have come after the first record
    assert only.end - only.start >= 2


# --- what stops the pipeline ----------------------------------------------------------------------------------


def test_offsets_deleted_by_retention_stop_the_pipeline_and_a_rerun(topic: Topic, env: KafkaEnv) -> None:
    topic.create(partitions=2).produce(10, 10)
    it = source(topic)
    first = planned(it, env, max_records=8)
    topic.delete_before(0, 4)
    it.check(ranges_of(topic, (4, 10), (0, 10)), first.state, env)
    assert records_upper_bound(planned(it, env, first).ranges) == 12
    topic.delete_before(1, 7)
    with pytest.raises(
        Corrupt, match=rf"{topic.name}\[1\] offsets \[4, 7\) \(retention or kafka-delete-records deleted"
    ):
        plan(it, env, first)
    with pytest.raises(Corrupt, match=rf"{topic.name}\[0\] offsets \[0, 4\), {topic.name}\[1\] offsets \[0, 4\)"):
        it.check(first.ranges, first.state, env)
    fired("F17", 18, "X")


def test_a_recreated_topic_stops_the_pipeline_and_a_rerun(topic: Topic, env: KafkaEnv) -> None:
    topic.create().produce(5)
    first = planned(source(topic), env)
    topic.delete()
    topic.create().produce(9)
    with pytest.raises(Corrupt, match=rf"{topic.name}\[0\] offset 5 and up \(the topic was deleted and created again"):
        plan(source(topic), env, first)
    with pytest.raises(Corrupt, match="created again"):
        source(topic).check(first.ranges, first.state, env)
    fired("F17", 18, "X")


def test_a_first_epoch_at_the_edge_of_retention_begins_with_what_is_left(topic: Topic, env: KafkaEnv) -> None:
    topic.create(partitions=3).produce(10, 10, 10)
    first = planned(source(topic), env, max_records=15)
    topic.delete_before(0, 3)
    topic.delete_before(1, 7)
    with pytest.raises(
        Corrupt, match=rf"begins at the oldest records.*: {topic.name}\[0\] offsets \[0, 3\), "
    ) as stopped:
        source(topic).check(first.ranges, first.state, env)
    assert "Type `airflow epochs retry " in stopped.value.remedy
    again = source(topic).again(first.ranges, first.state, env)
    assert again.ranges == ranges_of(topic, (3, 5), (7, 7), (0, 5))
    source(topic).check(again.ranges, again.state, env)
    assert planned(source(topic), env, again).ranges == ranges_of(topic, (5, 10), (7, 10), (5, 10))
    with pytest.raises(Corrupt, match="retention or kafka-delete-records deleted"):
        source(topic).again(ranges_of(topic, (0, 5), (5, 5), (0, 5)), {**first.state, "oldest": {}}, env)


class Restorable:
    """A broker of one's own, whose folder can be copied, and put back as a whole or for one topic alone."""

    def __init__(self, broker: Broker, copy: Path) -> None:
        self.broker, self.copy, self.log = broker, copy, broker.folder / "log"

    def restart(self) -> None:
        self.broker.stop()
        self.broker.start()
        self.broker.wait_ready()

    def back_up(self) -> None:
        self.broker.stop()
        shutil.copytree(self.log, self.copy)
        self.restart()

    def put_back(self, topic: str | None = None) -> None:
        self.broker.stop()
        if topic is None:
            shutil.rmtree(self.log)
            shutil.copytree(self.copy, self.log)
        else:
            shutil.rmtree(self.log / f"{topic}-0")
            shutil.copytree(self.copy / f"{topic}-0", self.log / f"{topic}-0")
        self.restart()

    def topic(self, name: str) -> Topic:
        with KafkaAdminClient(bootstrap_servers=self.broker.bootstrap) as admin:
            return Topic(name, admin, self.broker.bootstrap).create()


@pytest.mark.long
def test_a_log_that_is_put_back_from_a_copy_and_filled_again_past_the_position_stops_the_pipeline_and_a_rerun(
    servers: Path, jars: Jars, tmp_path: Path
) -> None:
    with Broker(servers / "put-back", jars) as own:
        there = Restorable(own, tmp_path / "copy")
        one, other = there.topic("one"), there.topic("other")
        for topic in (one, other):
            topic.produce(500)
        there.back_up()
        env = KafkaEnv(**{"bootstrap.servers": own.bootstrap})
        before = {}
        for topic in (one, other):
            topic.produce(500)
            before[topic] = planned(source(topic), env)
            assert before[topic].ranges == ranges_of(topic, (0, 1000))

        there.put_back("one")
        one.produce(700)
        with pytest.raises(Corrupt, match=r"one\[0\] offsets \[500, 1000\) \(the log was truncated"):
            plan(source(one), env, before[one])
        move = source(one).past_losses(position_after(before[one]), [], env)
        assert (move.ahead, move.lost, move.again) == (ranges_of(one, (500, 1200)), {}, {}), "it repeats no row"
        for look in (source(one).check, source(one).confirm):
            with pytest.raises(Corrupt, match=r"one\[0\] offsets \[500, 1000\)"):
                look(before[one].ranges, before[one].state, env)
        assert plan(source(other), env, before[other]) is None, "it has lost nothing by the restart"
        source(other).check(before[other].ranges, before[other].state, env)

        there.put_back()  # the cluster's metadata too: the leader epochs are counted again
        other.produce(700)
        with pytest.raises(Corrupt, match=r"other\[0\] offsets \[0, 1000\) \(the log was truncated"):
            plan(source(other), env, before[other])
        move = source(other).past_losses(position_after(before[other]), [], env)
        assert (move.ahead, move.again) == (ranges_of(other, (0, 1200)), ranges_of(other, (0, 1000)))
        for look in (source(other).check, source(other).confirm):
            with pytest.raises(Corrupt, match=r"other\[0\] offsets \[0, 1000\)"):
                look(before[other].ranges, before[other].state, env)


def test_a_deleted_topic_stops_the_pipeline_and_a_rerun(topic: Topic, env: KafkaEnv) -> None:
    topic.create().produce(5)
    first = planned(source(topic), env)
    topic.delete()
    with pytest.raises(Corrupt, match="the topic no longer exists"):
        plan(source(topic), env, first)
    with pytest.raises(Corrupt, match="the topic no longer exists"):
        source(topic).check(first.ranges, first.state, env)
    fired("F17", 18, "X")


def test_a_topic_that_does_not_exist_is_refused_by_name(topic: Topic, env: KafkaEnv) -> None:
    with pytest.raises(Refused, match=f"does not have the topic {topic.name}"):
        plan(source(topic), env)


def test_a_topic_that_is_created_only_now_is_found(topic: Topic, env: KafkaEnv) -> None:
    found: list[PlannedEpoch | None] = []
    waiting = threading.Thread(target=lambda: found.append(plan(source(topic, max_wait=20), env)))
    waiting.start()
    topic.create().produce(1)
    waiting.join(20)
    assert found[0] is not None


# --- brokers that do not answer -------------------------------------------------------------------------------


def test_nobody_at_the_address_is_an_error_in_bounded_time_that_names_it(topic: Topic) -> None:
    with closing(socket.socket()) as reserved:
        reserved.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{reserved.getsockname()[1]}"
        unreachable = KafkaEnv(**{"bootstrap.servers": address, "socket.timeout.ms": 1000})
        begin = time.monotonic()
        with pytest.raises(NotApplied, match=rf"Kafka at {address} \(connection 'kafka_default'\).*ECONNREFUSED"):
            plan(source(topic), unreachable)
    assert time.monotonic() - begin < 3


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_somebody_who_never_answers_is_an_error_in_bounded_time(topic: Topic, protocol: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        extra = {"bootstrap.servers": address, "socket.timeout.ms": 1000, "security.protocol": protocol}
        begin = time.monotonic()
        with pytest.raises(NotApplied, match=f"Kafka at {address}"):
            plan(source(topic), KafkaEnv(**extra))
    assert time.monotonic() - begin < 4


def test_a_name_that_cannot_be_resolved_is_named(topic: Topic) -> None:
    unknown = KafkaEnv(**{"bootstrap.servers": "no-such-host.invalid:9092", "socket.timeout.ms": 1000})
    with pytest.raises(NotApplied, match=r"no-such-host\.invalid:9092: .*DNS"):
        plan(source(topic), unknown)


@pytest.mark.long
def test_a_broker_that_restarts_while_data_is_waited_for_is_asked_again(
    topic: Topic, own_broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, look = [], Brokers.look

    def counted(*asked: Any) -> Any:
        looks.append(asked)
        return look(*asked)

    monkeypatch.setattr(Brokers, "look", counted)
    env = KafkaEnv(**{"bootstrap.servers": own_broker.bootstrap, "socket.timeout.ms": 60_000})
    with KafkaAdminClient(bootstrap_servers=own_broker.bootstrap) as admin:
        there = Topic(topic.name, admin, own_broker.bootstrap).create()
    found: list[PlannedEpoch | None] = []
    waiting = threading.Thread(target=lambda: found.append(plan(source(there, max_wait=60), env)))
    waiting.start()
    wait_until(lambda: len(looks) > 1, what="it has looked in vain")
    own_broker.stop()
    own_broker.start()
    own_broker.wait_ready()
    there.produce(2)
    waiting.join(60)
    assert found[0] is not None
    assert found[0].ranges == ranges_of(there, (0, 2))


# --- consumer group -------------------------------------------------------------------------------------------


def committed(admin: KafkaAdminClient, group: str) -> dict[tuple[str, int], int]:
    offsets = admin.list_group_offsets(group)[group]
    return {(tp.topic, tp.partition): at.offset for tp, at in offsets.items()}


def test_the_consumer_group_follows_the_pipeline_and_is_never_read(
    topic: Topic, other: Topic, env: KafkaEnv, admin: KafkaAdminClient
) -> None:
    topic.create(partitions=2).produce(5, 0)
    other.create()
    it = source(topic)
    first = planned(it, env)
    it.acknowledge(f"p-{topic.name}", {**first.ranges, **ranges_of(other, (0, 0))}, env)
    group = f"airflow-epochs.p-{topic.name}"
    assert committed(admin, group) == {(topic.name, 0): 5, (topic.name, 1): 0}
    it.acknowledge(f"p-{topic.name}", ranges_of(topic, (0, 3), (0, 0)), env)
    assert committed(admin, group)[topic.name, 0] == 3
    assert plan(it, env, first) is None


def test_the_consumer_group_can_be_named(topic: Topic, env: KafkaEnv, admin: KafkaAdminClient) -> None:
    topic.create().produce(5)
    source(topic, group_id=f"g-{topic.name}").acknowledge("p", ranges_of(topic, (0, 5)), env)
    assert committed(admin, f"g-{topic.name}") == {(topic.name, 0): 5}


def prepare(it: KafkaSource, env: KafkaEnv, after: PlannedEpoch | None = None) -> None:
    it.prepare("p", set(), Position(ranges=after.ranges, state=after.state) if after else None, env)


def test_a_group_with_offsets_of_others_is_refused_by_open_and_one_of_a_pipeline_goes_on(
    topic: Topic, env: KafkaEnv, admin: KafkaAdminClient
) -> None:
    topic.create(partitions=2).produce(5, 3)
    group = f"g-{topic.name}"
    it = source(topic, group_id=group)
    prepare(it, env)
    first = planned(it, env)
    it.acknowledge("p", first.ranges, env)
    prepare(it, env, first)
    prepare(source(topic, group_id=group), env)  # of a pipeline that took its place under another name
    admin.alter_group_offsets(group, {TopicPartition(topic.name, 1): OffsetAndMetadata(2, "", -1)})
    with pytest.raises(
        Refused, match=rf"group {group} has offsets that no pipeline has committed: {topic.name}\[1\]\."
    ):
        prepare(it, env, first)
    assert planned(source(topic), env)
    admin.delete_groups([group])
    prepare(it, env, first)


def test_a_group_of_version_0_1_which_has_no_metadata_goes_on(
    topic: Topic, env: KafkaEnv, admin: KafkaAdminClient
) -> None:
    topic.create(partitions=2).produce(5, 3)
    it = source(topic, group_id=f"g-{topic.name}")
    first = planned(it, env)
    ends = {TopicPartition(topic.name, p): OffsetAndMetadata(at, "", -1) for p, at in ((0, 5), (1, 3))}

    def committed() -> bool:
        """A broker that has just started makes the topic of all groups for the first one."""
        with suppress(CoordinatorNotAvailableError):
            return not any(error.errno for error in admin.alter_group_offsets(f"g-{topic.name}", ends).values())
        return False

    wait_until(committed)
    prepare(it, env, first)
    with pytest.raises(Refused, match="no pipeline has committed"):
        prepare(it, env)


def test_a_group_with_real_consumers_is_left_alone_with_an_error(topic: Topic, env: KafkaEnv, broker: Broker) -> None:
    topic.create().produce(5)
    group = f"g-{topic.name}"
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap, group_id=group)) as consumer:
        # One that joins before it is told of the new topic gets no partition, and asks again only after minutes.
        wait_until(lambda: consumer.partitions_for_topic(topic.name))
        consumer.subscribe([topic.name])
        wait_until(lambda: consumer.poll(timeout_ms=200) is not None and bool(consumer.assignment()))
        with pytest.raises(NotApplied, match=rf"rejected offsets of the consumer group {group}: {topic.name}\[0\]"):
            source(topic, group_id=group).acknowledge("p", ranges_of(topic, (0, 5)), env)
