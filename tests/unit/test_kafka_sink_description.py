"""The Kafka sink as it stands in a DAG and in the ledger, and its markers as they stand in a topic."""

from __future__ import annotations

import json
import re
import sys
import time
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, ThrottleEvent

from airflow_epochs import KafkaSink, codes
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import BadArgument, Corrupt, NotApplied, Refused
from airflow_epochs.kafka.connection import read_connection
from airflow_epochs.model import Staged, StagedClaim, TransactionId, VoteKind
from airflow_epochs.sinks import from_spec
from airflow_epochs.sinks.kafka import publish as kafka_publish
from airflow_epochs.sinks.kafka.checks import require_taken
from airflow_epochs.sinks.kafka.cluster import Cluster, TopicFacts
from airflow_epochs.sinks.kafka.committed_records import PartitionLog
from airflow_epochs.sinks.kafka.marker import FORMAT, MarkerRecord, Markers
from airflow_epochs.sinks.kafka.marker_partitions import Assignment, Assignments, own_id
from airflow_epochs.sinks.kafka.marker_topic import require_compacted
from airflow_epochs.sinks.kafka.producer import producer_options, within
from airflow_epochs.sinks.kafka.rows import size_of
from airflow_epochs.sinks.kafka.voted import Voted
from tests.support.delta_world import attempt_of, transaction
from tests.support.environment import Environment
from tests.support.kafka_certificates import Authority
from tests.support.pyproject import ROOT

TXN = TransactionId("orders", 3, 1, "0" * 31 + "1")


def sink(**options: Any) -> KafkaSink:
    return KafkaSink("events", **{"topic": "out", "staging": "/lake/staging", **options})


# --- description ----------------------------------------------------------------------------------------------


def test_a_specification_and_its_sink_are_inverse() -> None:
    it = sink(staging="s3a://lake/staging/", conn_id="k", options={"linger.ms": 5}, transaction_timeout=60)
    spec = json.loads(json.dumps(it.spec()))
    assert spec["staging"] == "s3://lake/staging"
    assert from_spec(spec).spec() == spec


def test_it_stands_for_an_asset_by_connection_and_topic_until_which_is_known() -> None:
    assert sink().asset_uri("orders") == sink().destination() == "kafka://kafka_default/out"
    template = sink(topic="{{ params.topic }}")
    assert (template.asset_uri("orders"), template.destination()) == ("epochs://orders/events", None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "a b"}, "The topic name 'a b' is not valid"),
        ({"marker_topic": "out"}, "`topic` and `marker_topic` of sink 'events' are both 'out'"),
        ({"transaction_timeout": 0}, "is 0. It must be a whole number of seconds from 1 to 86400"),
        ({"transaction_timeout": True}, "is True. It must be a whole number of seconds from 1 to 86400"),
        ({"options": {"acks": 1}}, "sets acks. It may set only batch"),
        ({"options": {"batch.size": "big"}}, "is 'big'. It must be a whole number"),
        ({"options": {"enable.idempotence": False}}, "sets enable.idempotence"),
        ({"options": {"queue.buffering.max.kbytes": 1}}, "sets queue.buffering.max.kbytes"),
    ],
)
def test_what_cannot_work_fails_where_the_dag_is_parsed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        sink(**options)


def test_what_a_template_became_is_checked_before_it_is_recorded() -> None:
    it = sink(topic="{{ x }}")
    it.topic = "a b"
    with pytest.raises(Refused, match=r"KafkaSink is not valid\. The topic name 'a b' is not valid") as refused:
        it.spec()
    assert str(refused.value).count("EPOCHS-") == 1
    with pytest.raises(Refused, match="neither an absolute path nor a URL"):
        sink(staging="lake").spec()


def test_durability_and_order_are_not_for_options_to_change() -> None:
    options = producer_options("orders.events", 900, {"linger.ms": 0})
    assert (options["acks"], options["enable.idempotence"], options["linger.ms"]) == ("all", True, 0)
    assert options["transaction.timeout.ms"] == options["message.timeout.ms"] == 900_000


def test_what_the_producer_holds_is_bounded_also_where_a_topic_takes_records_of_any_size() -> None:
    settings = {"max.message.bytes": str(2**31 - 1)}
    facts = TopicFacts(
        name="t", id="i", partitions=1, replicas=1, allowed=None, settings=settings, servers=("kafka-1:9092",)
    )
    options = within(producer_options("orders.events", 900, {}), facts)
    assert options["queue.buffering.max.kbytes"] == 64 * 1024 == 2 * options["message.max.bytes"] // 1024
    assert options["queue.buffering.max.messages"] <= 50_000


@pytest.mark.parametrize(
    ("value_format", "packed"), [(None, False), ("json_schema", False), ("avro", True), ("protobuf", True)]
)
def test_a_value_that_is_packed_is_not_measured_as_json_before_it_is_made(
    value_format: str | None, packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"max.message.bytes": "1000", "cleanup.policy": "delete"}
    facts = TopicFacts(name="out", id="i", partitions=1, replicas=1, allowed=None, settings=settings, servers=())
    monkeypatch.setattr(Cluster, "topic", lambda *_: facts)
    schema = 'syntax = "proto3"; message M { int32 x = 1; }' if value_format == "protobuf" else None
    world = Environment({"kafka_default": Connection(conn_id="k", conn_type="kafka", host="127.0.0.1")})
    fit = sink(value_format=value_format, value_schema=schema).fit("orders", world)
    assert (fit["record_bytes"], fit["packed"]) == (1000, packed)


def test_without_confluent_kafka_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    world = Environment({"kafka_default": Connection(conn_id="k", conn_type="kafka", host="127.0.0.1")})
    with pytest.raises(Refused, match=r"airflow-provider-epochs\[kafka-sink\]"):
        sink().last_committed("orders", world)


def topic_with(**settings: str) -> TopicFacts:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return TopicFacts(name="m", id="i", partitions=1, replicas=1, allowed=None, settings=named, servers=("k:9092",))


@pytest.mark.parametrize("untold", ["None", "", "-1", "0"])
def test_a_size_that_brokers_do_not_tell_limits_nothing(untold: str) -> None:
    assert topic_with(max_message_bytes="1000", segment_bytes=untold).batch_bytes_max == 1000
    assert topic_with(max_message_bytes=untold, segment_bytes="2000").batch_bytes_max == 2000


def test_a_promised_marker_is_not_refused_for_what_compression_could_add_at_worst() -> None:
    staged = Staged(place="/p", version=0, files=0, rows=0, bytes=0, digest="d")
    topic = topic_with(max_message_bytes="10000")
    marker = MarkerRecord.of(transaction(2), topic, topic, staged, {})
    size = size_of((b"orders/events", marker.encoded(), None, []))
    tight = topic_with(max_message_bytes=str(size), compression_type="snappy")
    assert tight.record_bytes_max < size
    require_taken(tight, topic, marker, "orders/events")
    with pytest.raises(Refused, match=f"takes at most {size - 1} bytes"):
        require_taken(topic_with(max_message_bytes=str(size - 1)), topic, marker, "orders/events")


def test_what_spark_could_not_stage_is_a_vote_to_abort() -> None:
    vote = sink().vote(attempt_of(transaction(1)), StagedClaim(place="x", problem="bad rows"), Environment())
    assert vote.vote is VoteKind.VOTE_ABORT and str(vote.reason).startswith("EPOCHS-ROWS-UNFIT: bad rows\n")


def test_an_epoch_in_doubt_takes_a_longer_timeout_and_the_tuning_of_today_and_nothing_else() -> None:
    then = sink(transaction_timeout=60, options={"linger.ms": 5})
    today = sink(topic="elsewhere", marker_topic="m", transaction_timeout=900, options={"compression.type": "lz4"})
    taken = {"transaction_timeout": 900, "options": {"compression.type": "lz4"}}
    assert then.with_todays(today).spec() == {**then.spec(), **taken}
    assert today.with_todays(then).spec()["transaction_timeout"] == 900


# --- markers --------------------------------------------------------------------------------------------------


def marker(**changed: Any) -> MarkerRecord:
    given = {"txn_id": TXN, "topic": "out", "rows": 1, "files": 1, "size": 9, "place": "/p", "at": "now"}
    return MarkerRecord(**{**given, "offsets": {"0": [5, 6]}, **changed})


def test_a_marker_is_json_that_names_its_epoch_and_reads_back() -> None:
    value = marker().encoded()
    assert json.loads(value)["epoch"] == 3
    assert MarkerRecord.decoded(value) == marker()


def test_the_marker_of_a_fence_tells_position_and_topic_of_the_epoch_before() -> None:
    before = marker(topic_id="t", marker_topic_id="m", ends={"in": {"0": 7}}, vouched_end=5)
    fence = MarkerRecord.of_fence(TXN.fence, "elsewhere", before)
    assert (fence.topic, fence.topic_id, fence.marker_topic_id, fence.ends) == ("out", "t", "m", {"in": {"0": 7}})
    assert (fence.rows, fence.offsets, fence.vouched_end) == (0, {}, None)
    first = MarkerRecord.of_fence(TXN.fence, "elsewhere", None)
    assert (first.topic, first.ends) == ("elsewhere", {})


def test_a_marker_of_version_0_1_is_read() -> None:
    given = {"epoch": 3, "txn_id": TXN, "topic": "out", "rows": 1, "files": 1, "size": 9, "place": "/p", "at": "now"}
    assert MarkerRecord.decoded(json.dumps({**given, "offsets": {"0": [5, 6]}, "format": 1}).encode()) == marker()


def test_a_claim_of_version_0_1_keeps_its_transactional_id_and_a_new_one_has_our_prefix() -> None:
    key = "orders/events"
    assert Assignment.decoded(key, b'{"partition": 3, "format": 1}') == Assignment(
        partition=3, transactional_id="orders.events"
    )
    mine = Assignment(partition=3, transactional_id=own_id(key))
    assert mine.transactional_id == "airflow-epochs.orders.events"
    assert Assignment.decoded(key, mine.encoded()) == mine


@pytest.mark.parametrize(
    ("topic", "beginning", "vouched", "lost"),
    [
        ("m", 0, None, False),
        ("m", 7, None, False),
        ("m", 8, None, True),
        ("other", 0, None, True),
        (None, 0, None, True),
        ("m", 9, ("m", 9), False),
        ("m", 9, ("m", 8), True),
        ("other", 0, ("other", 0), False),
        ("other", 0, ("m", 0), True),
    ],
)
def test_a_marker_may_be_lost_unless_all_that_came_after_the_vote_is_there_or_an_operator_vouched_for_it(
    topic: str | None, beginning: int, vouched: tuple[str, int] | None, lost: bool
) -> None:
    voted = Voted(topic_id="t", partitions=1, marker_topic_id="m", marker_end=7)
    now = (
        TopicFacts(name="m", id=topic, partitions=2, replicas=1, allowed=None, settings={}, servers=("kafka-1:9092",))
        if topic
        else None
    )
    found = marker(marker_topic_id=vouched[0], vouched_end=vouched[1]) if vouched else marker()
    assert voted.has_lost_markers(found, now, beginning) is lost


def test_what_the_vote_saw_is_read_back_from_the_decision_and_is_none_in_one_of_version_0_1() -> None:
    voted = Voted(topic_id="t", partitions=1, marker_topic_id="m", marker_end=7)
    staged = Staged(place="/p", version=0, files=0, rows=0, bytes=0, digest="d", detail=voted.detail())
    assert Voted.of(staged) == voted
    assert Voted.of(replace(staged, detail={})) is None


def test_a_marker_with_more_fields_of_the_same_format_is_read() -> None:
    value = json.dumps({**json.loads(marker().encoded()), "more": 1}).encode()
    assert MarkerRecord.decoded(value) == marker()


@pytest.mark.parametrize(
    "value",
    [b"", b"7", b"[]", b"{}", b"\xff", marker(format=FORMAT + 1).encoded(), b'{"txn_id":"x"}'],
)
def test_anything_else_is_no_marker(value: bytes) -> None:
    with pytest.raises(ValueError):
        MarkerRecord.decoded(value)


@pytest.mark.parametrize(
    "value", [b"", b"7", b"{}", b'{"partition":0,"format":1}', b'{"partition":"1","format":1}', b'{"format":2}']
)
def test_what_does_not_say_which_partition_is_a_sinks_own_stops_everything(
    monkeypatch: pytest.MonkeyPatch, value: bytes
) -> None:
    monkeypatch.setattr(PartitionLog, "records", lambda _: iter([(b"orders/events", value)]))
    access = read_connection(Connection(conn_id="k", conn_type="kafka", host="127.0.0.1"))
    assignments = Assignments(cluster=Cluster(access), topic="m")
    assert assignments.find("orders/audit") is None
    with pytest.raises(Corrupt, match="does not name the partition of this sink"):
        assignments.find("orders/events")


def publication(**options: Any) -> kafka_publish.TopicTransaction:
    facts = TopicFacts(
        name="t",
        id="i",
        partitions=1,
        replicas=1,
        allowed=None,
        settings={"max.message.bytes": "1000"},
        servers=("kafka-1:9092",),
    )
    access = read_connection(Connection(conn_id="k", conn_type="kafka", host="127.0.0.1"))
    return kafka_publish.TopicTransaction(
        cluster=Cluster(access),
        markers=Markers(cluster=Cluster(access), topic="m", key="orders/events"),
        topic="t",
        facts=(facts, facts),
        options=options,
        txn=transaction(2),
        previous=transaction(1),
        staged=Staged(place="/p", version=0, files=0, rows=0, bytes=0, digest="d"),
        ends={},
        records=lambda _: iter(()),
    )


def test_the_marker_is_read_only_when_no_other_producer_can_change_it_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Read before ``init_transactions``, it may be out of date when this process sends: every row twice."""
    order: list[str] = []
    monkeypatch.setattr(kafka_publish, "transactional", lambda *_: order.append("init_transactions"))
    monkeypatch.setattr(Markers, "newest", lambda _: order.append("marker"))
    monkeypatch.setattr(Markers, "require_shown", lambda *_: order.append("what hangs"))

    def stop(*_: object) -> None:
        order.append("look")
        raise Corrupt("stop", remedy="")

    monkeypatch.setattr(kafka_publish, "_require_kept", stop)
    this = publication()
    with pytest.raises(Corrupt, match="stop"):
        kafka_publish.publish(this, Environment())
    assert order == ["init_transactions", "marker", "what hangs", "look"]


def test_a_producer_that_failed_for_good_is_asked_why_if_the_clients_exception_is_lost() -> None:
    class Failed:
        def begin_transaction(self) -> None:
            raise KafkaException(KafkaError(KafkaError._FENCED))

    this = publication(**{"transaction.timeout.ms": 4000})
    sending = kafka_publish._Transaction(this, Failed(), Environment(), kafka_publish._Heard())
    lost = SystemError("<method 'flush'> returned NULL without setting an exception")
    assert "EPOCHS-KAFKA-SEND-FENCED" in str(sending._not_applied(kafka_publish._told_by(lost)))


@pytest.mark.parametrize(
    ("failed", "says", "told"),
    [
        ([("m[3]", KafkaError._PURGE_QUEUE)], "no Write", "the marker of this epoch for m[3]: no Write."),
        ([("t[0]", KafkaError._PURGE_QUEUE)], "no Write", "rows of this epoch for t[0]: no Write."),
        (
            [("t[0]", KafkaError._PURGE_INFLIGHT), ("t[1]", KafkaError.INVALID_MSG)],
            "no Write",
            "rows of this epoch for t[1]: Broker: Invalid message",
        ),
        ([("t[0]", KafkaError._PURGE_QUEUE)], None, "rows of this epoch for t[0]: Local: Purged in queue."),
    ],
)
def test_of_records_that_the_client_gave_up_the_error_tells_why_and_whether_they_are_rows(
    failed: list[tuple[str, int]], says: str | None, told: str
) -> None:
    class GaveUp:
        def begin_transaction(self) -> None:
            code = KafkaError.TOPIC_AUTHORIZATION_FAILED if says else KafkaError._STATE
            raise KafkaException(KafkaError(code, says or "Operation not valid"))

    heard = kafka_publish._Heard(failed=[(partition, KafkaError(code)) for partition, code in failed])
    this = publication(**{"transaction.timeout.ms": 4000})
    sending = kafka_publish._Transaction(this, GaveUp(), Environment(), heard)
    error = sending._not_applied(heard.failed[0][1])
    assert error.code is codes.KAFKA_SEND_FAILED
    assert told in error.what


@pytest.mark.parametrize(
    ("waits", "told", "remedy"),
    [
        ([0.02, 0], "did not accept rows of this epoch for out[0]", "Check that the brokers run"),
        ([3.2, 0.02], "A quota of the brokers has held the sink back, for up to 3 s at once", "Raise the quota"),
    ],
    ids=["hardly", "for seconds"],
)
def test_a_record_that_timed_out_is_blamed_on_a_quota_only_if_it_held_the_sink_back_for_a_second(
    waits: list[float], told: str, remedy: str
) -> None:
    heard = kafka_publish._Heard(failed=[("out[0]", KafkaError(KafkaError._MSG_TIMED_OUT))])
    for seconds in waits:
        heard.throttled(ThrottleEvent("kafka-1:9092", 1, seconds))
    this = publication(**{"transaction.timeout.ms": 4000})
    late = time.monotonic() - 5
    sending = kafka_publish._Transaction(this, producer=None, env=Environment(), heard=heard, begun=late)
    with pytest.raises(NotApplied) as failed:
        sending._require_sound()
    assert told in str(failed.value)
    assert failed.value.remedy.startswith(remedy)


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (2, "Give it 3 partitions again: `kafka-topics.sh {} --alter --topic out --partitions 3`."),
        (
            4,
            "Delete it, and create it again with 3 partitions and its old settings: `kafka-topics.sh {} --delete "
            "--topic out`, then `kafka-topics.sh {} --create --topic out --partitions 3`.",
        ),
    ],
)
def test_a_topic_of_another_size_is_given_back_by_commands_that_can_be_pasted(now: int, told: str) -> None:
    servers = ("kafka-1:9092", "kafka-2:9092")
    rows = TopicFacts(name="out", id="i", partitions=now, replicas=1, allowed=None, settings={}, servers=servers)
    at = "--bootstrap-server kafka-1:9092,kafka-2:9092"
    assert kafka_publish._giving_back(rows, 3) == told.format(at, at)


def test_a_marker_topic_is_put_right_by_a_command_that_can_be_pasted() -> None:
    settings = {"cleanup.policy": "delete"}
    facts = TopicFacts(name="m", id="i", partitions=1, replicas=1, allowed=None, settings=settings, servers=("k:9092",))
    with pytest.raises(Refused) as refused:
        require_compacted(facts)
    assert (
        "Set the policy: `kafka-configs.sh --bootstrap-server k:9092 --alter --entity-type topics --entity-name m "
        "--add-config cleanup.policy=compact`. Clear" in refused.value.remedy
    )


def test_every_command_of_a_kafka_tool_in_code_and_documents_names_the_brokers() -> None:
    texts = {path.name: path.read_text() for path in [*ROOT.glob("docs/*.md"), *ROOT.glob("provider/**/*.py")]}
    calls = [(name, call) for name, text in texts.items() for call in re.findall(r"kafka-[a-z-]+\.sh +-.{0,20}", text)]
    assert len(calls) > 3
    assert [each for each in calls if " --bootstrap-server" not in each[1]] == []


def test_an_error_of_a_commit_and_of_a_look_names_the_sink_and_what_is_known_of_the_attempt() -> None:
    no_protocol = Connection(conn_id="kafka_default", conn_type="kafka", extra={"security.protocol": "none"})
    world = Environment({"kafka_default": no_protocol})
    staged = Staged(place="/p", version=0, files=0, rows=0, bytes=0, digest="d")
    with pytest.raises(Refused) as commit:
        sink().commit(attempt_of(transaction(2)), staged, world)
    with pytest.raises(Refused) as look:
        sink().last_committed("orders", world)
    assert "\nWhere: pipeline orders, epoch 2, attempt 1, sink events\n" in str(commit.value)
    assert "\nWhere: pipeline orders, sink events\n" in str(look.value)


# --- connection -----------------------------------------------------------------------------------------------


def librdkafka(extra: dict[str, Any], **connection: Any) -> dict[str, Any]:
    extra = {"bootstrap.servers": "kafka:9092", **extra}
    return read_connection(Connection(conn_id="k", conn_type="kafka", extra=extra, **connection)).librdkafka_options()


def test_a_plain_connection_is_translated_without_what_belongs_to_other_clients() -> None:
    extra = {"client.id": "me", "acks": "1", "enable.idempotence": False, "group.id": "g"}
    assert librdkafka(extra) == {
        "bootstrap.servers": "kafka:9092",
        "security.protocol": "PLAINTEXT",
        "socket.timeout.ms": 15_000,
        "client.id": "me",
    }


def test_a_secured_connection_is_translated_whole() -> None:
    authority = Authority("a")
    extra = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.ca.pem": authority.pem,
        "ssl.endpoint.identification.algorithm": "none",
    }
    options = librdkafka(extra, login="u", password="s3cret")
    assert (options["sasl.mechanisms"], options["sasl.username"], options["sasl.password"]) == (
        "SCRAM-SHA-512",
        "u",
        "s3cret",
    )
    assert options["ssl.ca.pem"].strip() == authority.pem.strip()
    assert options["ssl.endpoint.identification.algorithm"] == "none"


def test_confluent_kafka_takes_every_setting_that_is_made() -> None:
    from confluent_kafka import Producer

    authority = Authority("a")
    pair = authority.issue("client")
    extra = {
        "security.protocol": "SSL",
        "ssl.ca.pem": authority.pem,
        "ssl.certificate.pem": pair.certificate_pem,
        "ssl.key.pem": pair.key_pem(),
        "bootstrap.servers": "127.0.0.1:1",
    }
    Producer({**librdkafka(extra), **producer_options("a.b", 900, {"compression.type": "lz4"}), "log_level": 0})
