"""Values that a KafkaSink writes as a schema of a real registry says, read by Confluent's deserializers."""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
import uuid
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from airflow_epochs import KafkaSink
from airflow_epochs.contracts import Connection
from airflow_epochs.errors import BadArgument, NotApplied
from airflow_epochs.kafka.protobuf_files import compiled
from airflow_epochs.model import VoteKind
from stack.broker import Broker
from stack.ports import free_port
from stack.registry import SchemaRegistry
from tests.support.delta_world import stage_with_deltalake
from tests.support.kafka_sink_world import Feed, a_feed, consumed
from tests.support.protobuf_world import message_class

pytestmark = pytest.mark.jvm

CONN = "schema_registry_default"
AT = dt.datetime(2026, 1, 31, 10, 20, 30, 123_456, dt.timezone.utc)
POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])
ORDERS = pa.table({"key": ["k1", "k2"], "id": pa.array([1, 2], pa.int64()), "name": ["Zürich", None]})
EVERY = pa.table(
    {
        "n": pa.array([1, None], pa.int32()),
        "big": pa.array([2**60, None], pa.int64()),
        "share": pa.array([0.5, None], pa.float64()),
        "name": ["Zürich", None],
        "raw": pa.array([b"\x00\xff", None], pa.binary()),
        "yes": [True, None],
        "amount": pa.array([Decimal("12.34"), None], pa.decimal128(10, 2)),
        "day": pa.array([dt.date(2026, 1, 31), None]),
        "at": pa.array([AT, None], pa.timestamp("us", "UTC")),
        "tags": pa.array([["a", None], None], pa.list_(pa.string())),
        "counts": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
        "point": pa.array([{"x": 1, "y": None}, None], POINT),
        "path": pa.array([[{"x": 1, "y": "p"}], None], pa.list_(POINT)),
    }
)
GIVEN = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "channel", "type": "string", "default": "web"},
    ],
}

REQUIRED_PROTO = 'syntax = "proto2"; message Order { required int64 id = 1; }'
SMALL = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}


@pytest.fixture
def fed(broker: Broker, topic: str, pipeline: str, tmp_path: Path, registry: SchemaRegistry) -> Callable[..., Feed]:
    """Makes a sink for the topic, with these options."""

    def made(**options: Any) -> Feed:
        feed = a_feed(broker.bootstrap, topic, pipeline, tmp_path, **options)
        feed.world.connections[CONN] = Connection(conn_id=CONN, conn_type="schema_registry", host=registry.url)
        return feed

    return made


@pytest.fixture
def read(broker: Broker, topic: str, client: SchemaRegistryClient) -> Callable[[Any], list[Any]]:
    """What a consumer with a deserializer of Confluent's has of the topic."""

    def found(deserializer: Any) -> list[Any]:
        context = SerializationContext(topic, MessageField.VALUE)
        return [deserializer(message.value(), context) for message in consumed(broker.bootstrap, topic)]

    return found


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist(maps_as_pydicts="strict")
    return rows


def fastavro_row(value: bytes, text: Any) -> Any:
    """A value behind the id of its schema."""
    return fastavro.schemaless_reader(io.BytesIO(value[5:]), fastavro.parse_schema(json.loads(text)), None)


def reason(feed: Feed, data: pa.Table) -> str:
    vote = feed.vote(feed.attempt(), data)
    assert vote.vote is VoteKind.VOTE_ABORT
    return vote.reason or ""


def test_avro_of_every_type_is_read_by_confluents_deserializer_as_it_was_staged(
    fed: Callable[..., Feed], client: SchemaRegistryClient, read: Callable[[Any], list[Any]], topic: str
) -> None:
    fed(value_format="avro").run(EVERY)
    assert read(AvroDeserializer(client)) == rows_of(EVERY)
    assert client.get_versions(f"{topic}-value") == [1]


def test_json_of_a_json_schema_is_read_by_confluents_deserializer_which_validates_it(
    fed: Callable[..., Feed], client: SchemaRegistryClient, read: Callable[[Any], list[Any]], topic: str
) -> None:
    fed(value_format="json_schema").run(EVERY)
    text = client.get_latest_version(f"{topic}-value").schema.schema_str
    first, second = read(JSONDeserializer(text, schema_registry_client=client))
    assert (first["name"], first["amount"], first["raw"]) == ("Zürich", "12.34", "AP8=")
    assert (first["at"], first["point"]) == ("2026-01-31T10:20:30.123456Z", {"x": 1, "y": None})
    assert second == dict.fromkeys(EVERY.column_names)


def test_the_key_stays_as_it_is_and_is_no_field_of_the_value(
    fed: Callable[..., Feed], client: SchemaRegistryClient, broker: Broker, topic: str
) -> None:
    fed(value_format="avro").run(ORDERS)
    assert [message.key() for message in consumed(broker.bootstrap, topic)] == [b"k1", b"k2"]
    fields = json.loads(client.get_latest_version(f"{topic}-value").schema.schema_str or "")["fields"]
    assert [field["name"] for field in fields] == ["id", "name"]


def test_a_new_column_is_a_new_version_and_readers_of_the_old_one_read_both(
    fed: Callable[..., Feed], client: SchemaRegistryClient, read: Callable[[Any], list[Any]], topic: str
) -> None:
    feed = fed(value_format="avro")
    client.set_compatibility(f"{topic}-value", "FULL")
    feed.run(ORDERS)
    old = client.get_latest_version(f"{topic}-value").schema.schema_str
    feed.run(ORDERS)
    feed.run(ORDERS.append_column("channel", pa.array(["app", "web"])))
    assert client.get_versions(f"{topic}-value") == [1, 2]
    assert read(AvroDeserializer(client, old)) == rows_of(ORDERS.drop_columns("key")) * 3


def test_a_commit_asks_no_registry_and_registers_nothing(
    fed: Callable[..., Feed], client: SchemaRegistryClient, read: Callable[[Any], list[Any]], topic: str
) -> None:
    feed = fed(value_format="avro")
    attempt = feed.attempt()
    staged = feed.staged(attempt, ORDERS)
    feed.world.connections.pop(CONN)
    feed.commit(attempt, staged)
    assert client.get_versions(f"{topic}-value") == [1]
    assert read(AvroDeserializer(client)) == rows_of(ORDERS.drop_columns("key"))


def test_rows_that_were_promised_are_staged_again_without_registering_anything(
    fed: Callable[..., Feed], client: SchemaRegistryClient, topic: str
) -> None:
    feed = fed(value_format="avro")
    attempt = replace(feed.attempt(), promised=True)
    assert "does not have this schema" in (feed.vote(attempt, ORDERS).reason or "")
    assert f"{topic}-value" not in client.get_subjects()


def test_promised_rows_are_staged_again_with_their_schema_even_if_it_was_deleted(
    fed: Callable[..., Feed], client: SchemaRegistryClient, read: Callable[[Any], list[Any]], topic: str
) -> None:
    feed = fed(value_format="avro")
    attempt = feed.attempt()
    lost = feed.staged(attempt, ORDERS)
    text = client.get_latest_version(f"{topic}-value").schema.schema_str
    client.delete_subject(f"{topic}-value")
    again = feed.staged(replace(attempt, promised=True), ORDERS)
    assert again.detail["value_schema"] == lost.detail["value_schema"]
    assert f"{topic}-value" not in client.get_subjects(), "nothing is registered"
    feed.commit(attempt, again)
    told = [fastavro_row(value, text) for value in read(lambda value, _: value)]
    assert told == rows_of(ORDERS.drop_columns("key"))


def test_a_dry_run_tells_the_records_and_registers_nothing(
    fed: Callable[..., Feed], client: SchemaRegistryClient, topic: str
) -> None:
    feed, attempt = fed(value_format="avro"), fed().attempt()
    plan = feed.sink.plan_stage(attempt, uuid.uuid4().hex, feed.world)
    claim = stage_with_deltalake(plan, ORDERS)
    told: list[Any] = list(feed.sink.rows_staged(attempt, claim.place, feed.world))
    assert [row["value"][:5] for row in told] == [b"\0\0\0\0\0"] * 2
    assert f"{topic}-value" not in client.get_subjects()


def test_a_sink_that_may_not_register_votes_against_rows_until_their_schema_is_there(
    fed: Callable[..., Feed], client: SchemaRegistryClient, read: Callable[[Any], list[Any]], topic: str
) -> None:
    feed = fed(value_format="avro", register_schemas=False)
    against = reason(feed, ORDERS)
    assert "EPOCHS-REGISTRY-SCHEMA-UNKNOWN" in against and "register_schemas=True" in against
    shown = against.partition(f"this schema in subject '{topic}-value': ")[2]
    schema, _ = json.JSONDecoder().raw_decode(shown)
    client.register_schema(f"{topic}-value", Schema(json.dumps(schema), "AVRO"))
    feed.run(ORDERS)
    assert read(AvroDeserializer(client)) == rows_of(ORDERS.drop_columns("key"))


def test_a_schema_that_the_registry_does_not_take_is_a_vote_against(
    fed: Callable[..., Feed], client: SchemaRegistryClient, topic: str
) -> None:
    feed = fed(value_format="avro")
    feed.run(ORDERS)
    client.set_compatibility(f"{topic}-value", "BACKWARD")
    other = ORDERS.set_column(1, "id", pa.array(["a", "b"]))
    assert "EPOCHS-REGISTRY-SCHEMA-REFUSED" in reason(feed, other)
    assert client.get_versions(f"{topic}-value") == [1]
    feed.sink = fed(value_format="avro", subject=f"{topic}-2").sink
    feed.run(other)


def test_without_an_answer_of_the_registry_there_is_no_vote(fed: Callable[..., Feed]) -> None:
    feed = fed(value_format="avro")
    down = f"http://127.0.0.1:{free_port()}"
    feed.world.connections[CONN] = replace(feed.world.connections[CONN], host=down)
    with pytest.raises(NotApplied) as failed:
        feed.vote(feed.attempt(), ORDERS)
    assert failed.value.code and failed.value.code.name == "EPOCHS-REGISTRY-UNREACHABLE"


ORDER_PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1;
  optional string name = 2;
  string amount = 4;
  bytes raw = 5;
  google.protobuf.Timestamp at = 6;
  repeated string tags = 7;
  map<string, int64> counts = 8;
  Point point = 9;
  Channel channel = 10;
}
message Point { int64 x = 1; string y = 2; }
enum Channel { WEB = 0; APP = 1; }
"""


def test_protobuf_is_read_by_confluents_deserializer_with_the_classes_that_protoc_makes(
    fed: Callable[..., Feed], client: SchemaRegistryClient, read: Callable[[Any], list[Any]], topic: str
) -> None:
    whole = {
        "id": 2**60,
        "name": "Zürich",
        "amount": Decimal("12.34"),
        "raw": b"\x00\xff",
        "at": AT,
        "tags": ["a", "b"],
        "counts": [("a", 1)],
        "point": {"x": 1, "y": "p"},
        "channel": "APP",
    }
    fields = {**{name: EVERY.schema.field(name).type for name in whole.keys() & {*EVERY.column_names}}}
    schema = pa.schema([(name, fields.get(name, pa.int64() if name == "id" else pa.string())) for name in whole])
    feed = fed(value_format="protobuf", value_schema=ORDER_PROTO)
    feed.run(pa.Table.from_pylist([whole, {"id": 1}], schema))
    made = message_class(compiled(ORDER_PROTO, {}), "shop.Order")
    # Without the client: Apicurio returns no schemas of Protobuf in the form that it asks for.
    first, second = read(ProtobufDeserializer(made, {"use.deprecated.format": False}))
    number = client.get_latest_version(f"{topic}-value").schema_id
    assert [value[:6] for value in read(lambda value, _: value)] == [struct.pack(">bIb", 0, number, 0)] * 2
    assert (first.id, first.name, first.amount, first.raw) == (2**60, "Zürich", "12.34", b"\x00\xff")
    assert first.at.ToDatetime(dt.timezone.utc) == AT
    assert ([*first.tags], dict(first.counts), first.point.x, first.channel) == (["a", "b"], {"a": 1}, 1, 1)
    assert (second.id, second.HasField("name"), second.HasField("at"), [*second.tags]) == (1, False, False, [])


def test_a_schema_of_protobuf_that_protoc_does_not_take_is_a_vote_against(fed: Callable[..., Feed]) -> None:
    against = reason(fed(value_format="protobuf", value_schema="message Order { int64 id = 1 }"), ORDERS)
    assert "The `value_schema` cannot be compiled" in against
    assert "has no message" in reason(fed(value_format="protobuf", value_schema='syntax = "proto3";'), ORDERS)


def test_a_column_that_protobuf_would_change_is_a_vote_against_that_registers_nothing(
    fed: Callable[..., Feed], client: SchemaRegistryClient, topic: str
) -> None:
    against = reason(fed(value_format="protobuf", value_schema=ORDER_PROTO), pa.table({"raw": ["YWJj"]}))
    assert "EPOCHS-TOPIC-ROWS-UNFIT" in against and "column 'raw' is string, and the schema has bytes" in against
    assert f"{topic}-value" not in client.get_subjects()


def test_open_asks_whether_the_registry_answers_and_needs_no_subject_yet(fed: Callable[..., Feed]) -> None:
    feed = fed(value_format="avro")
    feed.sink.require_ready(feed.pipeline, None, feed.world)
    down = f"127.0.0.1:{free_port()}"
    feed.world.connections[CONN] = replace(feed.world.connections[CONN], host=down)
    with pytest.raises(NotApplied) as failed:
        feed.sink.require_ready(feed.pipeline, None, feed.world)
    assert failed.value.code and failed.value.code.name == "EPOCHS-REGISTRY-UNREACHABLE"


# -- schemas that users give -------------------------------------------------------------------------------------------


def test_a_users_own_avro_schema_says_how_values_are_written(
    fed: Callable[..., Feed], client: SchemaRegistryClient, read: Callable[[Any], list[Any]]
) -> None:
    feed = fed(value_format="avro", value_schema=GIVEN)
    feed.run(pa.table({"name": ["a"], "id": pa.array([7], pa.int64())}))
    assert read(AvroDeserializer(client)) == [{"id": 7, "name": "a", "channel": "web"}]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("value_format", "schema", "data", "problem"),
    [
        ("avro", GIVEN, ORDERS, "a row with key = 'k2'"),
        ("avro", GIVEN, pa.table({"id": pa.array([7], pa.int64())}), "name"),
        ("avro", GIVEN, pa.table({"id": pa.array([7], pa.int64()), "name": ["a"], "more": [1]}), "more fields"),
        ("avro", SMALL, pa.table({"key": ["k1", "k2"], "id": [1, 2**31]}), "a row with key = 'k2'"),
        ("protobuf", ORDER_PROTO, pa.table({"id": [1], "more": [1]}), 'has no field named "more"'),
        ("protobuf", REQUIRED_PROTO, pa.table({"key": ["k1", "k2"], "id": [1, None]}), "a row with key = 'k2'"),
        ("json_schema", {"properties": {"id": {"minimum": 2}}}, ORDERS, "$.id: 1 is less than the minimum of 2"),
    ],
    ids=[
        "a NULL",
        "a column is missing",
        "a column too many",
        "too large",
        "a field of Protobuf",
        "a required one",
        "a value",
    ],
)
def test_a_row_that_the_users_schema_does_not_take_is_a_vote_against_that_names_it(
    fed: Callable[..., Feed], value_format: str, schema: Any, data: pa.Table, problem: str
) -> None:
    against = reason(fed(value_format=value_format, value_schema=schema), data)
    assert problem in against and "the schema of the values does not take it" in against


def test_columns_that_no_schema_can_name_are_a_vote_against(fed: Callable[..., Feed]) -> None:
    assert "fields with the names of the columns 'a b'" in reason(fed(value_format="avro"), pa.table({"a b": [1]}))
    assert "the sink makes the values itself (avro)" in reason(fed(value_format="avro"), pa.table({"value": ["a"]}))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"value_format": "xml"},
            "`value_format` of sink 'events' is 'xml'. It must be 'avro' or 'json_schema' or 'protobuf'.",
        ),
        ({"subject": "s"}, "`value_schema` and `subject` of sink 'events' are given. Give `value_format` too"),
        ({"value_format": "avro", "value_schema": "{"}, "`value_schema` of sink 'events' is no JSON"),
        ({"value_format": "avro", "value_schema": '"long"'}, "`value_schema` of sink 'events' is no record"),
        ({"value_format": "avro", "value_schema": {"type": "Gone"}}, "has no type 'Gone'"),
        ({"value_format": "protobuf"}, "`value_schema` of sink 'events' is missing: Protobuf needs the text of"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_in_the_dag(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadArgument) as refused:
        KafkaSink("events", "orders", staging="/staging", **options)
    assert problem in str(refused.value)


def test_a_sink_is_the_same_after_the_ledger_and_one_without_a_format_is_as_before() -> None:
    sink = KafkaSink("events", "orders", staging="/staging", value_format="avro", value_schema=GIVEN, subject="s")
    assert KafkaSink.from_spec(sink.spec()).spec() == sink.spec()
    assert sink.spec()["registry_conn_id"] == CONN
    assert not {"value_format", "registry_conn_id"} & KafkaSink("events", "orders", staging="/staging").spec().keys()
