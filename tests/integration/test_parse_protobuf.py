"""``parse_protobuf`` over Spark Connect: records that the library's own classes wrote, read as these read them."""

from __future__ import annotations

import datetime as dt
import os
import random
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from airflow_epochs.errors import Refused
from airflow_epochs.transforms import parse_protobuf
from tests.support import pages
from tests.support.protobuf_world import files, message_class, written
from tests.support.registry_lab import ORDERS, order, orders_of, shown_and_rejected
from tests.support.spark_world import batch_of, in_utc
from tests.support.state_lab import Lab

pytestmark = pytest.mark.jvm

AT = dt.datetime(2026, 1, 31, 10, 20, 30, 123_000, dt.timezone.utc)
TIME = 'import "google/protobuf/timestamp.proto";'
V1 = files(f"{TIME} message Order {{ int32 id = 1; string customer = 2; google.protobuf.Timestamp at = 4; }}")
V2 = files(
    f"""{TIME} message Other {{ int32 id = 1; }}
    message Order {{ message Line {{ string sku = 1; int32 n = 2; }}
      int64 id = 1; google.protobuf.Timestamp at = 4; repeated Line lines = 5; optional string note = 6;
      Channel channel = 7; map<string, uint64> counts = 8; }}
    enum Channel {{ WEB = 0; APP = 1; STORE = 2; }}"""
)
READER = files(
    f"""{TIME} message Order {{ message Line {{ string sku = 1; int32 n = 2; }}
      int64 id = 1; google.protobuf.Timestamp at = 4; repeated Line lines = 5; optional string note = 6;
      Channel channel = 7; map<string, uint64> counts = 8; }}
    enum Channel {{ WEB = 0; APP = 1; }}"""
)
SCHEMAS = {7: V1, 300: V2}
FIRST = message_class(V1, "shop.Order")(id=1, customer="Ann", at=AT)
SECOND = message_class(V2, "shop.Order")(
    id=2**40, lines=[{"sku": "a", "n": 2}, {"sku": "b"}], note="", channel=1, counts={"x": 2**64 - 1}
)
IN_V2 = [1]
"""The indexes of the order in the second schema."""


def test_each_record_is_read_with_its_own_schema_into_the_columns_of_the_readers(session: Any, tmp_path: Path) -> None:
    path = tmp_path / "order.bin"
    path.write_bytes(READER)
    batch = batch_of(session, [written(7, FIRST), written(300, SECOND, IN_V2), written(7, b"")])
    parsed = parse_protobuf(batch, "shop.Order", path, schemas=SCHEMAS)
    assert parsed.rows.drop("topic", "partition").schema.simpleString() == (
        "struct<offset:bigint,id:bigint,at:timestamp,lines:array<struct<sku:string,n:int>>,note:string,"
        "channel:string,counts:map<string,decimal(20,0)>>"
    )
    absent: dict[str, Any] = {"at": None, "lines": [], "note": None, "channel": "WEB", "counts": {}}
    lines = [{"sku": "a", "n": 2}, {"sku": "b", "n": 0}]
    found = [in_utc(row) for row in parsed.rows.drop("topic", "partition").collect()]
    assert found == [
        {"offset": 0, **absent, "id": 1, "at": AT},
        {"offset": 1, **absent, "id": 2**40, "lines": lines, "note": "", "channel": "APP", "counts": {"x": 2**64 - 1}},
        {"offset": 2, **absent, "id": 0},
    ]
    assert parsed.corrupt.collect() == []


def test_what_cannot_be_read_comes_out_apart_with_its_bytes_and_the_reason(session: Any) -> None:
    good = written(7, FIRST)
    store = message_class(V2, "shop.Order")(channel=2)
    values: dict[bytes | None, str] = {
        None: "no value",
        b"": "no magic byte and schema id",
        b'{"id": 1}': "no magic byte and schema id",
        b"\1" + good[1:]: "no magic byte and schema id",
        good[:5]: "no message indexes that can be read",
        b"\0\xff\xff\xff\xff" + good[5:]: "unknown schema id 4294967295",
        b"\0\0\0\0\x08" + good[5:]: "schema 8 cannot be read into the reader's: field id is string, not int64",
        b"\0\0\0\0\x05" + good[5:]: "schema 5 is no FileDescriptorSet, which protoc --descriptor_set_out writes",
        written(300, SECOND): "the message indexes name shop.Other in schema 300, not shop.Order",
        written(300, SECOND, [2]): "schema 300 has no message with the indexes [2]",
        good[:-1]: "not of its schema, 7",
        written(300, store, IN_V2): "field channel has the number 2, which its enum does not have",
        written(300, b"\x32\2a\xff", IN_V2): "a text that is not UTF-8",
    }
    schemas = {**SCHEMAS, 8: files("message Order { string id = 1; }"), 5: b"text"}
    parsed = parse_protobuf(batch_of(session, [*values, good]), "shop.Order", READER, schemas=schemas)
    assert parsed.corrupt.columns == ["topic", "partition", "offset", "error", "raw"]
    found = parsed.corrupt.collect()
    assert {None if row.raw is None else bytes(row.raw): row.error for row in found} == values
    assert [row.offset for row in found] == [*range(len(values))]
    assert [row.offset for row in parsed.rows.collect()] == [len(values)]


def test_odd_names_of_the_batch_stay_in_the_rows_and_in_the_corrupt_records(session: Any) -> None:
    batch = batch_of(session, [written(7, FIRST), b"?"]).withColumnRenamed("value", "body.x")
    kept = ["offset", F.lit(5).alias("meta.ip")]
    parsed = parse_protobuf(batch, "shop.Order", READER, schemas=SCHEMAS, columns=kept, value="body.x", corrupt="raw.x")
    assert [(row["meta.ip"], row.id) for row in parsed.rows.collect()] == [(5, 1)]
    assert [(row["meta.ip"], bytes(row["raw.x"])) for row in parsed.corrupt.collect()] == [(5, b"?")]
    assert parsed.corrupt.columns == ["offset", "meta.ip", "topic", "partition", "error", "raw.x"]


# -- the library reads the same ----------------------------------------------------------------------------------------

BODY = """
enum State { NEW = 0; PAID = 1; GONE = -5; }
message Order {
  %sint32 i32 = 1; %sint64 i64 = 2; %suint32 u32 = 3; %suint64 u64 = 4; %ssint32 s32 = 5; %ssint64 s64 = 6;
  %sfixed32 f32 = 7; %sfixed64 f64 = 8; %ssfixed32 sf32 = 9; %ssfixed64 sf64 = 10; %sfloat real = 11;
  %sdouble big = 12; %sbool yes = 13; %sstring text = 14; %sbytes bin = 15; %sState state = 16;
  optional int32 maybe = 17; optional State maybe_state = 18; repeated int32 numbers = 19; repeated string texts = 20;
  repeated State states = 21; %sLine line = 22; repeated Line lines = 23; map<string, int64> counts = 24;
  map<int32, Line> by_number = 25; map<bool, State> by_bool = 26;
  oneof choice { int32 left = 27; string right = 28; Line both = 29; }
  %sgoogle.protobuf.Timestamp at = 30; repeated google.protobuf.Timestamp times = 31;
  %sgoogle.protobuf.Duration took = 32; %sgoogle.protobuf.UInt64Value count = 33;
  repeated google.protobuf.StringValue names = 34; map<uint64, google.protobuf.BytesValue> blobs = 35;
  %sgoogle.protobuf.Any any = 36; repeated bool bits = 37; repeated uint64 large = 38; repeated bytes bins = 39;
  %sint32 class = 40;
}
message Line { %sstring sku = 1; optional uint32 quantity = 2; repeated double prices = 3; }
"""
IMPORTS = "".join(f'import "google/protobuf/{name}.proto";' for name in ("timestamp", "duration", "wrappers", "any"))
NUMBERS = {"int32": 32, "sint32": 32, "sfixed32": 32, "int64": 64, "sint64": 64, "sfixed64": 64}
CPP_INT32, CPP_INT64, CPP_UINT32, CPP_UINT64, CPP_DOUBLE, CPP_FLOAT, CPP_BOOL, CPP_ENUM, CPP_STRING, _ = range(1, 11)
TYPE_STRING = 9


def everything(syntax: str) -> bytes:
    """A schema with all kinds of fields; in proto2, each has a presence."""
    return files(IMPORTS + BODY.replace("%s", "optional " if syntax == "proto2" else ""), syntax)


def value_of(field: Any, chance: random.Random) -> Any:
    """A value of a field that is no message."""
    few = chance.random() < 0.3
    match field.cpp_type:
        case 1 | 2:
            bits = 31 if field.cpp_type == CPP_INT32 else 63
            return chance.randint(-3, 3) if few else chance.randint(-(2**bits), 2**bits - 1)
        case 3 | 4:
            return chance.randint(0, 3) if few else chance.randrange(2 ** (32 if field.cpp_type == CPP_UINT32 else 64))
        case 5 | 6:
            return chance.choice([0.0, -0.0, float("inf"), chance.uniform(-1e9, 1e9)])
        case 7:
            return few
        case 8:
            return chance.choice([each.number for each in field.enum_type.values])
        case _:
            text = chance.choice(["", "Zürich", "\0", "😀" * 40])
            return text if field.type == TYPE_STRING else chance.randbytes(chance.randint(0, 70))


def fill(message: Any, chance: random.Random) -> Any:
    """Set some of the fields of a message."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        message.FromDatetime(AT + dt.timedelta(microseconds=chance.randint(-(2**50), 2**50)))
        return message
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.3:
            continue
        found = getattr(message, field.name)
        if field.message_type and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            for _ in range(chance.randint(0, 4)):
                name = value_of(key, chance)
                if value.message_type:
                    fill(found[name], chance)
                else:
                    found[name] = value_of(value, chance)
        elif field.is_repeated:
            for _ in range(chance.randint(0, 4)):
                fill(found.add(), chance) if field.message_type else found.append(value_of(field, chance))
        elif field.message_type:
            found.SetInParent()
            fill(found, chance)
        else:
            setattr(message, field.name, value_of(field, chance))
    return message


def put(row: Any, message: Any) -> Any:
    """The message that a row stands for. The library tells whether it is the one that was written."""
    for field in message.DESCRIPTOR.fields:
        value = row[field.name]
        if value is None:
            continue
        found = getattr(message, field.name)
        if field.message_type and field.message_type.GetOptions().map_entry:
            for key, each in value.items():
                if field.message_type.fields[1].message_type:
                    put_message(each, found[int(key)])
                else:
                    found[key] = plain(field.message_type.fields[1], each)
        elif field.is_repeated:
            for each in value:
                put_message(each, found.add()) if field.message_type else found.append(plain(field, each))
        elif field.message_type:
            found.SetInParent()
            put_message(value, found)
        else:
            setattr(message, field.name, plain(field, value))
    return message


def put_message(value: Any, message: Any) -> None:
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        message.FromDatetime(value.astimezone(dt.timezone.utc))
    elif name.endswith("Value"):
        message.value = plain(message.DESCRIPTOR.fields[0], value)
    else:
        put(value, message)


def plain(field: Any, value: Any) -> Any:
    if field.enum_type:
        return field.enum_type.values_by_name[value].number
    return int(value) if isinstance(value, Decimal) else bytes(value) if isinstance(value, bytearray) else value


def damaged(message: Any, chance: random.Random) -> bytes:
    """A message with one to three other bytes, and without maps.

    The library leaves out an entry of a map that has a field beside key and value; Protobuf does not say so.
    """
    rest = type(message).FromString(message.SerializeToString())
    for field in rest.DESCRIPTOR.fields:
        if field.message_type and field.message_type.GetOptions().map_entry:
            rest.ClearField(field.name)
    found = bytearray(rest.SerializeToString())
    for _ in range(chance.randint(1, 3)):
        found[chance.randrange(len(found))] = chance.randrange(256)
    return bytes(found)


STRICTER = ("a text that is not UTF-8", "which its enum does not have", "is no time in the years 1 to 9999")
"""Reasons for which a record is corrupt, and the library may take it."""


@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_records_and_parts_damaged_ones_and_two_in_one_are_refused_or_read_as_the_library_reads_them(
    session: Any, syntax: str
) -> None:
    from google.protobuf.message import DecodeError

    chance, told = random.Random(syntax), everything(syntax)
    make = message_class(told, "shop.Order")
    messages = [fill(make(), chance) for _ in range(100)]
    whole = [each.SerializeToString() for each in messages]
    bodies = [*whole, *map(bytes.__add__, whole, whole[1:]), *(damaged(each, chance) for each in messages * 4)]
    bodies += [whole[0][:size] for size in range(len(whole[0]))]
    batch = batch_of(session, [written(7, body) for body in bodies])
    parsed = parse_protobuf(batch, "shop.Order", told, schemas={7: told})
    rows = {row.offset: row for row in parsed.rows.collect()}
    errors = {row.offset: row.error for row in parsed.corrupt.collect()}
    assert {*rows, *range(2 * len(whole) - 1)} == {*rows} and len(rows) + len(errors) == len(bodies)
    for number, body in enumerate(bodies):
        try:
            message = make.FromString(body)
        except DecodeError:
            assert errors[number] in ("not of its schema, 7", STRICTER[0])
        else:
            if number in errors:
                assert errors[number].endswith(STRICTER)
            else:
                assert put(rows[number], make()) == known(message)
    assert len(rows) > 2 * len(whole) + 50


def known(message: Any) -> Any:
    """The message without fields that its schema does not have, and with times in microseconds."""
    message.DiscardUnknownFields()
    for each in (*([message.at] if message.HasField("at") else ()), *message.times):
        each.nanos -= each.nanos % 1000
    return message


@pytest.mark.parametrize(
    ("message", "descriptor", "options", "problem"),
    [
        ("shop.Gone", READER, {}, "message must be the full name of a message that Spark can read; the descriptor has"),
        ("shop.Order", b"\xff", {}, "descriptor must be a whole set of files; this one is no FileDescriptorSet"),
        ("shop.Order", "/gone.bin", {}, "descriptor must be bytes, or the path of a file that can be read"),
        ("shop.Order", READER, {"schemas": {}}, "schemas must be a dict of at least one schema, by ids from 0 to"),
        ("shop.Order", READER, {"value": "topic"}, "value must be the name of a binary column; this one is string"),
        ("shop.Order", READER, {"columns": ["value"], "corrupt": "value"}, "'value' must not be among the columns"),
        (
            "shop.Order",
            files("message Order { int64 offset = 1; }"),
            {},
            "'offset' must not be among the columns of what is kept",
        ),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused(
    session: Any, message: str, descriptor: Any, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(Refused) as refused:
        parse_protobuf(batch_of(session, []), message, descriptor, **{"schemas": SCHEMAS, **options})
    assert problem in str(refused.value)


@pytest.mark.long
def test_the_example_of_the_page_shows_orders_and_letters_exactly_once(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    schemas = pages.blocks("read-your-topic.md", "Protobuf", "proto")
    for number, text in enumerate(schemas, 1):
        (lab.folder / f"order_v{number}.proto").write_text(text)
    [command] = pages.blocks("read-your-topic.md", "Protobuf", "sh")
    subprocess.run(["sh", "-euc", command], cwd=lab.folder, check=True)
    app = lab.folder / "orders_protobuf.py"
    app.write_text(pages.blocks("read-your-topic.md", "Protobuf", "python")[0])
    old, new = (message_class((lab.folder / f"order_v{number}.bin").read_bytes(), "shop.Order") for number in (1, 2))
    shown, rejected = shown_and_rejected(
        lab,
        app,
        lambda number: written(12, old(**order(number))),
        lambda number: written(15, new(**order(number), channel="app")),
    )
    assert shown == orders_of(None, "app")
    assert rejected == [("no magic byte and schema id",)] * ORDERS
