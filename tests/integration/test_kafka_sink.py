"""The Kafka sink on a real broker: whatever happens between vote and commit, readers see every row once."""

from __future__ import annotations

import json
import os
import re
import secrets
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from kafka.partitioner import murmur2

from airflow_epochs import KafkaSink, KafkaSource, codes
from airflow_epochs.contracts import Limits, SinkAttempt
from airflow_epochs.errors import Corrupt, EpochError, NotApplied, OutcomeUnknown, Refused, RowsGone
from airflow_epochs.model import Marker, TransactionId, VoteKind
from airflow_epochs.sinks.kafka.compression import compresses, growth
from airflow_epochs.sinks.kafka.rows import HEADER, size_of
from stack.broker import Broker
from stack.jars import Jars
from tests.support.cells import fired
from tests.support.counted import log_entries_read
from tests.support.kafka_sink_world import (
    COMMITTED,
    FAILED,
    MARKERS,
    Feed,
    a_feed,
    committing,
    consumed,
    create,
    memory_to_commit,
    receipt_at,
    rows,
    seen_by_confluent,
    seen_by_kafka_python,
    set_config,
    settled_end,
    values,
    visible,
    world_at,
)
from tests.support.kafka_tools import run
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm

BEFORE_COMMIT = ["kafka.init", "kafka.begin", "kafka.rows.queued", "kafka.rows.sent", "kafka.commit.before"]


def reason(feed: Feed, data: pa.Table) -> str:
    vote = feed.vote(feed.attempt(), data)
    assert vote.vote is VoteKind.VOTE_ABORT
    return vote.reason or ""


def incompressible(size: int, pipeline: str) -> pa.Table:
    """A row whose record has this size, in the first epoch."""
    beside = size_of((None, b"", None, [(HEADER, f"{pipeline}/events/1/0".encode())]))
    return pa.table({"value": pa.array([os.urandom(size - beside)], pa.binary())})


# --- epochs ---------------------------------------------------------------------------------------------------


def test_readers_of_committed_records_see_every_row_once_in_staged_order(
    feed: Feed, broker: Broker, topic: str, pipeline: str
) -> None:
    assert feed.marker() is None
    first, second = [str(number) for number in range(30_000)], ["x", "y"]
    receipt = feed.run(rows(*first))
    feed.run(rows(*second))
    seen = seen_by_confluent(broker.bootstrap, topic)
    assert values(seen) == first + second
    assert seen == seen_by_kafka_python(broker.bootstrap, topic)
    assert [header for _, _, header in seen[29_999:]] == [
        f"{pipeline}/events/{number}" for number in ("1/29999", "2/0", "2/1")
    ]
    assert (receipt.rows, receipt.detail["topic"], receipt.detail["offsets"]) == (30_000, topic, {"0": [0, 30_000]})
    assert feed.shown
    assert feed.marker() == Marker.of(feed.shown)


def test_rows_go_to_the_partition_they_name_and_otherwise_by_key_as_with_javas_clients(
    broker: Broker, admin: AdminClient, pipeline: str, tmp_path: Path
) -> None:
    topic = create(admin, f"wide-{pipeline}", 3)
    data = pa.table(
        {
            "key": pa.array(["a", "b", "c", None]),
            "value": ["1", "2", "3", "4"],
            "partition": pa.array([None, None, None, 2], pa.int32()),
        }
    )
    receipt = a_feed(broker.bootstrap, topic, pipeline, tmp_path).run(data)
    by_partition = [values(seen_by_confluent(broker.bootstrap, topic, number)) for number in range(3)]
    places = [(murmur2(key) & 0x7FFFFFFF) % 3 for key in (b"a", b"b", b"c")]  # kafka-python's, as Java's
    wanted = [[value for value, place in zip("1234", [*places, 2], strict=True) if place == at] for at in range(3)]
    assert by_partition == wanted
    assert receipt.detail["offsets"] == {str(at): [0, len(sent)] for at, sent in enumerate(wanted) if sent}


def test_rows_in_partitions_that_somebody_adds_while_they_are_sent_are_among_the_offsets_of_the_epoch(
    feed: Feed, broker: Broker, admin: AdminClient, topic: str, pipeline: str
) -> None:
    def widened() -> None:
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result()
        wait_until(lambda: len(admin.list_topics(topic, timeout=5).topics[topic].partitions) == 4)

    feed.world.at["kafka.begin"] = widened
    receipt = feed.run(pa.table({"key": [f"k{number}" for number in range(40)], "value": ["v"] * 40}))
    sent = [len(seen_by_confluent(broker.bootstrap, topic, number)) for number in range(4)]
    assert (sum(sent), all(sent)) == (40, True)
    assert receipt.detail["offsets"] == {str(at): [0, count] for at, count in enumerate(sent)}
    assert len(list(feed.sink.rows_of(receipt, pipeline, feed.world))) == 40


def test_rows_without_a_value_are_sent_as_json(feed: Feed, broker: Broker, topic: str) -> None:
    feed.run(pa.table({"key": ["k"], "id": [7], "name": ["ü"]}))
    ((key, value, _),) = seen_by_confluent(broker.bootstrap, topic)
    assert (key, json.loads(value or "")) == ("k", {"id": 7, "name": "ü"})


def test_an_empty_epoch_moves_the_marker_and_nothing_else(feed: Feed, broker: Broker, topic: str) -> None:
    feed.run(rows("a"))
    receipt = feed.run(rows())
    assert (receipt.rows, receipt.detail["offsets"]) == (0, {})
    assert feed.shown
    assert feed.marker() == Marker.of(feed.shown)
    feed.run(rows("b"))
    assert visible(broker.bootstrap, topic) == ["a", "b"]


def test_a_commit_reads_the_log_of_the_staged_rows_once(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("a", "b"))
    read = log_entries_read(monkeypatch)
    assert (feed.commit(attempt, staged).rows, len(read)) == (2, staged.version + 1)


def test_a_repeat_sends_nothing_and_returns_the_same_receipt_also_when_staging_is_gone(
    feed: Feed, broker: Broker, topic: str
) -> None:
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("a", "b"))
    receipt = feed.commit(attempt, staged)
    feed.sink.discard(attempt, staged.place, feed.world, published=True)
    again = KafkaSink.from_spec(feed.sink.spec())
    assert again.commit(attempt, staged, world_at(broker.bootstrap)) == receipt
    assert visible(broker.bootstrap, topic) == ["a", "b"]


def test_an_aborted_attempt_leaves_nothing(feed: Feed, broker: Broker, topic: str) -> None:
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("never"))
    feed.sink.discard(attempt, staged.place, feed.world, published=False)
    assert not Path(staged.place).exists()
    assert (feed.marker(), visible(broker.bootstrap, topic)) == (None, [])
    feed.run(rows("a"))
    assert visible(broker.bootstrap, topic) == ["a"]


def test_a_pipeline_that_reads_the_topic_plans_whole_epochs_of_the_one_that_writes_it(feed: Feed, topic: str) -> None:
    """The end of a downstream epoch is the last stable offset: never inside an epoch that is being sent."""
    feed.run(rows("a", "b"))
    ends = []
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("c"))
    source = KafkaSource([topic], max_wait=0)

    def plan() -> None:
        planned = source.plan(None, Limits(), feed.world)
        assert planned
        ends.append(planned.ranges[topic][0].end)

    def planned_more() -> bool:
        plan()
        return ends[-1] > ends[0]

    feed.world.at = {"kafka.commit.before": plan}
    feed.commit(attempt, staged)
    wait_until(planned_more)
    assert (ends[0], ends[-1]) == (3, 5)  # rows, and the control record of each transaction


# --- crashes --------------------------------------------------------------------------------------------------


@pytest.mark.few(3)
@pytest.mark.parametrize("phase", [*BEFORE_COMMIT, "kafka.commit.after"])
def test_a_committer_that_is_killed_is_followed_by_one_that_sends_the_rest_or_nothing(
    feed: Feed, broker: Broker, topic: str, phase: str
) -> None:
    feed.run(rows("a"))
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("b", "c"))
    killed = committing(feed, broker.bootstrap, attempt, staged, phase, signal.SIGKILL)
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    assert values(seen_by_confluent(broker.bootstrap, topic)) == ["a", *(["b", "c"] if "after" in phase else [])]
    receipt = feed.commit(attempt, staged)
    assert feed.commit(attempt, staged) == receipt
    assert visible(broker.bootstrap, topic) == ["a", "b", "c"]
    fired("F1", 9 if "after" in phase else 8, "C")


@pytest.mark.few(2)
@pytest.mark.parametrize("phase", BEFORE_COMMIT)
def test_a_committer_that_wakes_up_after_another_has_sent_the_epoch_is_fenced(
    feed: Feed, broker: Broker, topic: str, phase: str
) -> None:
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("a", "b"))
    zombie = committing(feed, broker.bootstrap, attempt, staged, phase, signal.SIGSTOP)
    assert zombie.pid
    try:
        wait_until(lambda: psutil.Process(zombie.pid).status() == psutil.STATUS_STOPPED, 60)
        receipt = feed.commit(attempt, staged)
    finally:
        os.kill(zombie.pid, signal.SIGCONT)
    zombie.join(60)
    if phase in ("kafka.init", "kafka.commit.before"):
        # Only now it looks at the marker; or asks for its commit, is fenced, and looks: the other has sent the epoch.
        assert zombie.exitcode == COMMITTED
        assert json.loads(receipt_at(staged.place).read_text()) == asdict(receipt)
    else:
        assert zombie.exitcode == FAILED
    assert feed.commit(attempt, staged) == receipt
    assert visible(broker.bootstrap, topic) == ["a", "b"]
    fired("F4", 8, "C" if zombie.exitcode == COMMITTED else "X")


def test_a_reader_of_uncommitted_records_can_tell_by_the_header_which_were_sent_twice(
    feed: Feed, broker: Broker, topic: str, pipeline: str
) -> None:
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("a", "b"))
    killed = committing(feed, broker.bootstrap, attempt, staged, "kafka.rows.sent", signal.SIGKILL)
    killed.join(60)
    feed.commit(attempt, staged)
    seen = seen_by_confluent(broker.bootstrap, topic, isolation="read_uncommitted")
    assert values(seen) == ["a", "b", "a", "b"]
    once = {header: value for _, value, header in seen}
    assert once == {f"{pipeline}/events/1/0": "a", f"{pipeline}/events/1/1": "b"}


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(lambda: pa.table({"value": [f"{number:0200}" for number in range(300_000)]}), id="many"),
        pytest.param(lambda: pa.table({"value": ["x" * 100_000] * 3_000}), id="large"),
    ],
)
def test_an_epoch_is_sent_in_little_memory_whether_its_rows_are_many_or_large(
    feed: Feed, broker: Broker, data: Callable[[], pa.Table]
) -> None:
    attempt = feed.attempt()
    assert memory_to_commit(feed, broker.bootstrap, attempt, feed.staged(attempt, data())) <= 200
    assert feed.shown
    assert feed.marker() == Marker.of(feed.shown)


def test_of_two_committers_at_once_one_sends_the_epoch(feed: Feed, broker: Broker, topic: str) -> None:
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows(*map(str, range(5_000))))
    processes = [committing(feed, broker.bootstrap, attempt, staged, "never", signal.SIGKILL) for _ in range(2)]
    for process in processes:
        process.join(60)
    assert {process.exitcode for process in processes} <= {COMMITTED, FAILED}
    feed.commit(attempt, staged)
    assert visible(broker.bootstrap, topic) == [str(number) for number in range(5_000)]
    fired("F13", 8, "C")


def test_a_task_that_is_stopped_while_it_sends_leaves_no_reader_waiting(feed: Feed, broker: Broker, topic: str) -> None:
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("a"))

    def stop() -> None:
        raise KeyboardInterrupt

    feed.world.at = {"kafka.rows.sent": stop}
    with pytest.raises(KeyboardInterrupt):
        feed.commit(attempt, staged)
    plain = Producer({"bootstrap.servers": broker.bootstrap})
    plain.produce(topic, b"of somebody else")
    assert plain.flush(10) == 0
    wait_until(lambda: visible(broker.bootstrap, topic) == ["of somebody else"], 10)


@pytest.fixture
def own_feed(own_broker: Broker, pipeline: str, tmp_path: Path) -> Feed:
    topic = create(AdminClient({"bootstrap.servers": own_broker.bootstrap}), f"out-{pipeline}")
    return a_feed(own_broker.bootstrap, topic, pipeline, tmp_path, transaction_timeout=2)


@pytest.mark.long
def test_brokers_may_restart_after_the_vote_and_again_while_the_commit_is_on_its_way(
    own_broker: Broker, own_feed: Feed
) -> None:
    feed, patient = own_feed, world_at(own_broker.bootstrap, **{"socket.timeout.ms": 60_000})
    feed.sink.transaction_timeout = 600
    feed.run(rows("a"))
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("b"))
    own_broker.stop()
    feed.world = world_at(own_broker.bootstrap, **{"socket.timeout.ms": 1000})
    with pytest.raises(OutcomeUnknown, match="cannot find out whether the sink shows the epoch"):
        feed.commit(attempt, staged)
    own_broker.start()
    own_broker.wait_ready()

    def restart() -> None:
        own_broker.stop()
        own_broker.start()

    feed.world = patient
    feed.world.at = {"kafka.commit.before": restart}
    assert feed.commit(attempt, staged).txn_id == str(attempt.txn)
    assert visible(own_broker.bootstrap, feed.sink.topic) == ["a", "b"]


def test_an_epoch_whose_transaction_the_brokers_end_for_being_idle_is_sent_again(
    own_broker: Broker, own_feed: Feed
) -> None:
    feed = own_feed
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("a"))
    plain = Producer({"bootstrap.servers": own_broker.bootstrap})

    def idle() -> None:
        plain.produce(feed.sink.topic, b"of somebody else")
        assert plain.flush(10) == 0
        wait_until(
            lambda: values(seen_by_confluent(own_broker.bootstrap, feed.sink.topic)) == ["of somebody else"]
        )  # nothing holds it back any more

    feed.world.at = {"kafka.rows.sent": idle}
    with pytest.raises(NotApplied, match=r"has sent this epoch for \d+ s, and transaction_timeout is 2 s"):
        feed.commit(attempt, staged)
    feed.world.at = {}
    feed.commit(attempt, staged)
    assert visible(own_broker.bootstrap, feed.sink.topic) == ["of somebody else", "a"]
    fired("F18", 10, "C")


@pytest.mark.long
@pytest.mark.parametrize("remedy", ["quota", "timeout"])
def test_an_epoch_that_a_quota_holds_back_for_too_long_is_sent_after_each_remedy_of_its_error(
    broker: Broker, topic: str, pipeline: str, tmp_path: Path, jars: Jars, remedy: str
) -> None:
    feed = a_feed(broker.bootstrap, topic, pipeline, tmp_path, transaction_timeout=4)
    feed.world = world_at(broker.bootstrap, **{"client.id": pipeline})
    quota = ["kafka-configs.sh", "--alter", "--entity-type", "clients", "--entity-name", pipeline]
    run(jars, broker.bootstrap, [*quota, "--add-config", "producer_byte_rate=100000"])
    attempt = feed.attempt()
    given = [secrets.token_hex(50_000) for _ in range(20)]
    staged = feed.staged(attempt, rows(*given))
    with pytest.raises(NotApplied, match=r"transaction_timeout is 4 s .*A quota of the brokers has held the") as told:
        feed.commit(attempt, staged)
    assert told.value.code is codes.KAFKA_SEND_TIMEOUT
    assert told.value.remedy.startswith("Raise the quota `producer_byte_rate`")
    assert visible(broker.bootstrap, topic) == []
    if remedy == "quota":
        run(jars, broker.bootstrap, [*quota, "--delete-config", "producer_byte_rate"])
    else:
        feed.sink.transaction_timeout = 120
    feed.commit(attempt, staged)
    assert visible(broker.bootstrap, topic) == given


# --- markers --------------------------------------------------------------------------------------------------


def test_a_marker_that_is_not_the_previous_one_stops_everything(feed: Feed, broker: Broker, topic: str) -> None:
    feed.run(rows("a"))
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("b"))
    gap = SinkAttempt(
        txn=attempt.txn, ledger_id=attempt.ledger_id, previous=TransactionId(feed.pipeline, 7, 1, "0" * 32)
    )
    unfed = SinkAttempt(txn=attempt.txn, ledger_id=attempt.ledger_id, previous=None)
    for wrong, words in ((gap, "expects the later"), (unfed, "the ledger expects no epoch")):
        with pytest.raises(Corrupt, match=words):
            feed.sink.commit(wrong, staged, feed.world)
    foreign = SinkAttempt(
        txn=TransactionId(feed.pipeline, 1, 1, "f" * 32), ledger_id=attempt.ledger_id, previous=attempt.previous
    )
    feed.shown = foreign.txn
    assert "the last epoch of this sink in the ledger is" in reason(feed, rows("b"))
    assert visible(broker.bootstrap, topic) == ["a"]


@pytest.mark.parametrize(
    ("size", "setting", "before", "now"),
    [
        (3_000, "max.message.bytes", 5_000, 1_000),
        (2_000_000, "max.message.bytes", 5_000_000, 1_048_588),
        (2_000_000, "segment.bytes", 5_000_000, 1_048_576),
    ],
)
def test_rows_that_the_topic_refuses_after_the_vote_are_all_sent_once_it_takes_them(
    broker: Broker, admin: AdminClient, pipeline: str, tmp_path: Path, size: int, setting: str, before: int, now: int
) -> None:
    topic = create(admin, f"shrinking-{pipeline}", 1, **{"max_message_bytes": "5000000", setting: str(before)})
    feed = a_feed(broker.bootstrap, topic, pipeline, tmp_path)
    attempt, data = feed.attempt(), ["a", "y" * size, "b"]
    staged = feed.staged(attempt, rows(*data))
    set_config(admin, topic, setting, str(now))
    with pytest.raises(NotApplied, match="A record of this epoch is larger than topic shrinking-") as refused:
        feed.commit(attempt, staged)
    assert refused.value.code is codes.KAFKA_SEND_FAILED
    assert f"Raise `{setting}` of topic {topic}, at least to what it was at the vote. Then" in refused.value.remedy
    assert visible(broker.bootstrap, topic) == []
    set_config(admin, topic, setting, str(before))
    assert feed.commit(attempt, staged).rows == 3
    assert visible(broker.bootstrap, topic) == data


def test_a_row_that_grows_by_a_codec_set_after_the_vote_is_sent_once_the_topic_takes_it(
    broker: Broker, admin: AdminClient, pipeline: str, tmp_path: Path
) -> None:
    topic, limit = create(admin, f"packed-{pipeline}", max_message_bytes="200000"), 200_000
    feed = a_feed(broker.bootstrap, topic, pipeline, tmp_path)
    attempt, data = feed.attempt(), incompressible(limit, pipeline)
    staged = feed.staged(attempt, data)
    set_config(admin, topic, "compression.type", "gzip")
    with pytest.raises(NotApplied, match=f"larger than topic {topic} takes now, by its max") as refused:
        feed.commit(attempt, staged)
    told = f"Raise `max.message.bytes` of topic {topic}, at least to what it was at the vote and a tenth more: "
    assert told in refused.value.remedy
    set_config(admin, topic, "max.message.bytes", str(limit + limit // 10))
    feed.commit(attempt, staged)
    assert [message.value() for message in consumed(broker.bootstrap, topic)] == data["value"].to_pylist()


@pytest.mark.parametrize(
    ("setting", "now", "told"),
    [
        ("cleanup.policy", "compact", "takes no record without a key"),
        ("message.timestamp.before.max.ms", "1", "by their time"),
    ],
)
def test_rows_that_the_topic_refuses_for_what_they_are_are_all_sent_once_the_command_of_the_error_was_run(
    broker: Broker, admin: AdminClient, pipeline: str, tmp_path: Path, setting: str, now: str, told: str
) -> None:
    topic, data = create(admin, f"choosy-{pipeline}", 1), ["a", "b", "c"]
    feed = a_feed(broker.bootstrap, topic, pipeline, tmp_path)
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows(*data))
    set_config(admin, topic, setting, now)
    with pytest.raises(NotApplied, match=f"Kafka did not accept rows of this epoch for {topic}") as refused:
        feed.commit(attempt, staged)
    assert told in refused.value.remedy
    obeyed(admin, refused.value, topic)
    assert feed.commit(attempt, staged).rows == 3
    assert visible(broker.bootstrap, topic) == data


def obeyed(admin: AdminClient, refused: EpochError, markers: str) -> None:
    """Do what the command does that the error tells to run: it must be about this topic."""
    (command,) = re.findall(r"`(kafka-configs.sh [^`]*)`", refused.remedy)
    *_, topic, add, setting = command.split()
    assert (topic, add) == (markers, "--add-config")
    set_config(admin, topic, *setting.split("="))


def test_a_marker_that_its_topic_refuses_after_the_vote_is_sent_once_the_command_of_the_error_was_run(
    broker: Broker, admin: AdminClient, pipeline: str, tmp_path: Path
) -> None:
    topic, markers = create(admin, f"out-{pipeline}"), f"markers-{pipeline}"
    feed = a_feed(broker.bootstrap, topic, pipeline, tmp_path, marker_topic=markers)
    feed.run(rows("a"))
    attempt, sent = feed.attempt(), []
    staged = feed.staged(attempt, rows("b", "c"))
    set_config(admin, markers, "max.message.bytes", "200")
    feed.world.at["kafka.begin"] = lambda: sent.append("begin")
    with pytest.raises(Refused, match=f"The marker topic {markers} takes at most 200 bytes") as refused:
        feed.commit(attempt, staged)
    assert refused.value.code is codes.MARKER_TOO_LARGE and "Clear the failed task" in refused.value.remedy
    assert not sent, "no row need be sent to know this"
    assert visible(broker.bootstrap, topic) == ["a"]
    obeyed(admin, refused.value, markers)
    assert feed.commit(attempt, staged).rows == 2
    assert visible(broker.bootstrap, topic) == ["a", "b", "c"]


def test_a_marker_topic_that_shrinks_while_rows_are_sent_is_the_one_that_the_error_names(
    broker: Broker, admin: AdminClient, pipeline: str, tmp_path: Path
) -> None:
    topic, markers = create(admin, f"out-{pipeline}"), f"markers-{pipeline}"
    feed = a_feed(broker.bootstrap, topic, pipeline, tmp_path, marker_topic=markers)
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("a", "b"))
    feed.world.at["kafka.rows.sent"] = lambda: set_config(admin, markers, "max.message.bytes", "200")
    with pytest.raises(NotApplied, match=f"larger than topic {markers} takes now") as refused:
        feed.commit(attempt, staged)
    assert refused.value.code is codes.KAFKA_SEND_FAILED
    assert f"Raise `max.message.bytes` of topic {markers}, at least to what it was" in refused.value.remedy
    set_config(admin, markers, "max.message.bytes", "1048588")
    del feed.world.at["kafka.rows.sent"]
    assert feed.commit(attempt, staged).rows == 2
    assert visible(broker.bootstrap, topic) == ["a", "b"]


def test_a_marker_that_grew_with_partitions_added_after_the_vote_is_sent_once_the_command_of_the_error_was_run(
    broker: Broker, admin: AdminClient, pipeline: str, tmp_path: Path
) -> None:
    topic, added, limit = create(admin, f"out-{pipeline}"), 40, 1_000
    markers = create(admin, f"markers-{pipeline}", 2, cleanup_policy="compact", max_message_bytes=str(limit))
    feed = a_feed(broker.bootstrap, topic, pipeline, tmp_path, marker_topic=markers)
    attempt, data = feed.attempt(), [str(number) for number in range(2_000)]
    staged = feed.staged(attempt, rows(*data).append_column("key", pa.array(data, pa.string())))
    admin.create_partitions([NewPartitions(topic, added)])[topic].result()
    wait_until(lambda: len(admin.list_topics(topic, timeout=5).topics[topic].partitions) == added)
    with pytest.raises(Refused, match=rf"topic {topic} has {added} partitions.* takes at most {limit} byt") as refused:
        feed.commit(attempt, staged)
    obeyed(admin, refused.value, markers)
    receipt = feed.commit(attempt, staged)
    assert len(receipt.detail["offsets"]) == added
    for number in range(added):  # brokers answer a commit before its markers are in all partitions
        settled_end(admin, topic, number)
    seen = [values(seen_by_confluent(broker.bootstrap, topic, number)) for number in range(added)]
    assert sorted(value or "" for each in seen for value in each) == sorted(data)


# --- the vote -------------------------------------------------------------------------------------------------


def test_what_the_topic_does_not_take_is_a_vote_to_abort_and_what_it_takes_is_sent(
    broker: Broker, admin: AdminClient, pipeline: str, tmp_path: Path
) -> None:
    topic = create(admin, f"small-{pipeline}", max_message_bytes="2000")
    feed = a_feed(broker.bootstrap, topic, pipeline, tmp_path)
    header = len(f"airflow-epochs{pipeline}/events/1/0") + 10
    fits = 2000 - 97 - header
    assert "but the topic has max.message.bytes=2000" in reason(feed, rows("x" * (fits + 1)))
    assert "is for partition 1, but the topic has 1 partitions" in reason(feed, rows("x", partitions=[1]))
    data = ["x" * fits, *["y" * 700] * 20]
    feed.run(rows(*data))
    assert visible(broker.bootstrap, topic) == data


@pytest.mark.few(2)
@pytest.mark.parametrize("limit", ["segment_bytes", "max_message_bytes"])
@pytest.mark.parametrize("compression", ["gzip", "snappy", "producer", "lz4", "zstd"])
def test_the_largest_row_that_the_vote_takes_is_sent_whatever_limits_it_and_packs_it(
    broker: Broker, admin: AdminClient, pipeline: str, tmp_path: Path, limit: str, compression: str
) -> None:
    small, large = 1 << 20, 4 << 20
    settings = {"max_message_bytes": str(large), "segment_bytes": str(large), limit: str(small)}
    topic = create(admin, f"tight-{pipeline}", 1, compression_type=compression, **settings)
    feed = a_feed(broker.bootstrap, topic, pipeline, tmp_path)
    fits = small - growth(compression, small)
    refused = reason(feed, incompressible(fits + 1, pipeline))
    assert f"of {fits + 1} bytes, but the topic has {limit.replace('_', '.')}={small}" in refused
    assert (f"compression.type={compression}, so only {fits} surely fit" in refused) == compresses(compression)
    data = incompressible(fits, pipeline)
    feed.run(data)
    assert [message.value() for message in consumed(broker.bootstrap, topic)] == data["value"].to_pylist()


@pytest.mark.parametrize(
    ("topics", "options", "message"),
    [
        ({}, {}, "does not have the topic out-"),
        ({"out": {"message_timestamp_before_max_ms": "5"}}, {}, "message.timestamp.before.max.ms=5"),
        ({"out": {}}, {"transaction_timeout": 901}, "longer than transaction.max.timeout.ms of the brokers"),
        ({"out": {}, "m": {"cleanup_policy": "delete"}}, {}, "Kafka would delete epoch markers"),
    ],
)
def test_what_would_keep_the_commit_from_its_end_is_a_vote_to_abort(
    broker: Broker, admin: AdminClient, pipeline: str, tmp_path: Path, topics: Any, options: Any, message: str
) -> None:
    for name, settings in topics.items():
        create(admin, f"{name}-{pipeline}", **settings)
    marker_topic = f"m-{pipeline}" if "m" in topics else MARKERS
    feed = a_feed(broker.bootstrap, f"out-{pipeline}", pipeline, tmp_path, marker_topic=marker_topic, **options)
    assert message in reason(feed, rows("a"))


# --- after the decision ---------------------------------------------------------------------------------------


def test_rows_that_are_gone_leave_nothing_and_may_be_staged_again(feed: Feed, broker: Broker, topic: str) -> None:
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("a", "b"))
    again = feed.staged(attempt, rows("a", "b"))
    next(Path(staged.place).rglob("*.parquet")).unlink()
    with pytest.raises(RowsGone):
        feed.commit(attempt, staged)
    assert again.digest == staged.digest
    assert feed.commit(attempt, again).place == again.place
    assert visible(broker.bootstrap, topic) == ["a", "b"]


def test_a_topic_that_is_deleted_after_the_vote_can_be_created_again(
    feed: Feed, broker: Broker, admin: AdminClient, topic: str
) -> None:
    attempt = feed.attempt()
    staged = feed.staged(attempt, rows("a"))
    admin.delete_topics([topic])[topic].result()
    wait_until(lambda: topic not in admin.list_topics(timeout=5).topics)
    with pytest.raises(NotApplied, match="is gone"):
        feed.commit(attempt, staged)
    create(admin, topic)
    feed.commit(attempt, staged)
    assert visible(broker.bootstrap, topic) == ["a"]


@pytest.mark.parametrize("policy", ["delete", "compact"])
def test_records_that_newer_ones_have_replaced_in_a_compacted_topic_are_no_fault_of_their_epoch(
    policy: str, admin: AdminClient, broker: Broker, pipeline: str, tmp_path: Path
) -> None:
    """The receipt says one more than there are, as if compaction had deleted one. Its cleaner runs every 15 seconds."""
    topic = create(admin, f"{policy}-{pipeline}", cleanup_policy=policy)
    feed = a_feed(broker.bootstrap, topic, pipeline, tmp_path)
    receipt = feed.run(pa.table({"key": ["a", "b"], "value": ["1", "2"]}))
    assert len(list(feed.sink.rows_of(receipt, pipeline, feed.world))) == 2
    told = feed.sink.rows_of(replace(receipt, rows=3), pipeline, feed.world)
    if policy == "delete":
        assert len(list(told)) == 2, "so that the one who counts them finds the loss"
    else:
        with pytest.raises(Refused, match=r"EPOCHS-DRY-RUN-UNTOLD(.|\n)*the topic is compacted"):
            list(told)
