"""Values of a KafkaSink by a schema: what a schema of the user's takes, and what would become another value."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
from base64 import b64encode
from dataclasses import replace
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from airflow_epochs.errors import Refused
from airflow_epochs.kafka.protobuf_files import compiled
from airflow_epochs.schemas import WriterSchema
from airflow_epochs.sinks.kafka.protobuf_types import misfits
from airflow_epochs.sinks.kafka.rows import RowShape
from airflow_epochs.sinks.kafka.value_formats import ValueSchema, Write, schema_of, writes_by
from airflow_epochs.sinks.kafka.value_options import flaw_of
from airflow_epochs.transforms import protobuf_records
from airflow_epochs.transforms.protobuf_columns import Decoder
from airflow_epochs.transforms.protobuf_schemas import columns_of, description_of, files_of
from tests.support.protobuf_world import message_class

POINT = {"type": "struct", "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}]}
COUNTS = {"type": "map", "keyType": "string", "valueType": "long"}
NUMBERS = {"type": "array", "elementType": "double", "containsNull": True}
AT = dt.datetime(2026, 1, 31, 10, 20, 30, 123_456, dt.timezone.utc)
DAY = {"type": "int", "logicalType": "date"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
CENTS = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
CENTS_OF_2 = {"type": "fixed", "name": "C", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2}


def record(**fields: Any) -> str:
    return json.dumps(
        {"type": "record", "name": "Order", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}
    )


def refused(text: str, **columns: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        writes_by(WriterSchema(kind="AVRO", text=text), columns)
    return caught.value


def read_back(text: str, kind: Any, value: Any) -> Any:
    """A value of a column of this type, written by the schema and read by it."""
    schema = writes_by(WriterSchema(kind="AVRO", text=text), {"x": kind})
    written = ValueSchema(value_format="avro", number=1, text=schema, given=True).writer()({"x": value})
    told: Any = fastavro.schemaless_reader(io.BytesIO(written[5:]), fastavro.parse_schema(json.loads(text)), None)
    return told["x"]


# -- Avro --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [lambda kind: kind, lambda kind: ["null", kind]], ids=["required", "nullable"])
@pytest.mark.parametrize(
    ("column", "kind", "told"),
    [
        ("string", "boolean", "column 'x' is string, and the schema has boolean"),
        ("integer", "boolean", "boolean"),
        ("double", "long", "column 'x' is double, and the schema has long"),
        ("decimal(10,2)", "long", "column 'x' is decimal(10,2), and the schema has long"),
        ("decimal(10,2)", "double", "double"),
        ("long", "double", "double"),
        ("double", "float", "float"),
        ("timestamp", DAY, "column 'x' is timestamp, and the schema has date"),
        ("double", DAY, "date"),
        ("decimal(10,2)", MICROS, "timestamp-micros"),
        ("timestamp_ntz", MICROS, "column 'x' is timestamp_ntz, and the schema has timestamp-micros"),
        ("timestamp", LOCAL, "column 'x' is timestamp, and the schema has local-timestamp-micros"),
        ("binary", {"type": "array", "items": "int"}, "column 'x' is binary, and the schema has array"),
        ("binary", CENTS, "column 'x' is binary, and the schema has decimal(4,2)"),
        ("decimal(4,0)", CENTS_OF_2, "column 'x' is decimal(4,0), and the schema has decimal(4,2)"),
        ("string", {"type": "map", "values": "int"}, "column 'x' is string, and the schema has map"),
        (NUMBERS, {"type": "array", "items": "int"}, "column 'x' is double, and the schema has int"),
    ],
)
def test_a_column_whose_values_the_users_avro_schema_would_change_is_refused(
    column: Any, kind: Any, told: str, wrap: Any
) -> None:
    error = refused(record(x=wrap(kind)), x=column)
    assert error.code and error.code.name == "EPOCHS-TOPIC-ROWS-UNFIT"
    assert "column 'x' is" in error.what and (told in error.what or isinstance(column, dict))


def test_a_field_of_a_struct_is_named_with_its_path() -> None:
    inner = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "double"}]}
    assert "column 'p.x' is long, and the schema has double" in refused(record(p=inner), p=POINT).what


TEXTS = {"type": "map", "values": "string"}


def point(name: str, kind: Any) -> Any:
    return {"type": "record", "name": name, "fields": [{"name": "x", "type": kind}]}


@pytest.mark.parametrize(
    ("column", "branches"),
    [
        ("long", ["null", "double", "long"]),
        ("long", ["null", "int", "double"]),
        ("timestamp", ["null", DAY, MICROS]),
        ("string", ["null", DAY, "string"]),
        ("string", ["null", {"type": "enum", "name": "E", "symbols": ["a"]}, DAY]),
        ("long", ["null", "string"]),
        (POINT, ["null", point("P", "long"), {"type": "map", "values": "long"}]),
        (POINT, ["null", point("P", "long"), {"type": "map", "values": ["null", "string"]}]),
        (POINT, ["null", point("Q", "double"), point("P", "long")]),
        ({**POINT, "fields": [{"name": "x", "type": "string"}]}, ["null", point("P", "string"), TEXTS]),
    ],
)
def test_of_a_union_no_branch_that_fastavro_prefers_may_change_the_value(column: Any, branches: Any) -> None:
    refused(record(x=branches), x=column)


@pytest.mark.parametrize(
    ("column", "branches", "value"),
    [
        ("string", ["null", "string", DAY], "2026-01-31"),
        ("long", ["null", "int", "long", "double"], 2**60 + 1),
        (POINT, ["null", point("P", "long"), TEXTS], {"x": 2**60 + 1}),
        (POINT, ["null", point("Q", "string"), point("P", "long")], {"x": 2**60 + 1}),
    ],
)
def test_of_a_union_a_branch_that_fastavro_does_not_prefer_may_have_another_type(
    column: Any, branches: Any, value: Any
) -> None:
    assert read_back(record(x=branches), column, value) == value


NOTED = {"type": "struct", "fields": [{"name": name, "type": "long"} for name in ("x", "note")]}


def noted(name: str, kind: str, *others: Any) -> Any:
    fields = [{"name": "x", "type": "long"}, {"name": "note", "type": ["null", kind]}, *others]
    return {"type": "record", "name": name, "fields": fields}


VIEW, CLICK = noted("View", "long"), noted("Click", "string", {"name": "y", "type": "int"})


@pytest.mark.parametrize("branches", [[CLICK, VIEW], [VIEW, CLICK]], ids=["before", "after"])
@pytest.mark.parametrize("note", [2**60 + 1, None])
def test_of_a_union_a_record_with_a_field_that_the_struct_lacks_takes_no_value(branches: Any, note: int | None) -> None:
    value = {"x": 1, "note": note}
    assert read_back(record(x=["null", *branches]), NOTED, value) == value


@pytest.mark.parametrize(
    "other", [{"name": "y", "type": "int", "default": 0}, {"name": "y", "type": ["null", "int"]}, None]
)
def test_of_a_union_a_record_that_needs_no_more_than_the_struct_has_may_take_its_values(other: Any) -> None:
    click = noted("Click", "string", *([other] if other else []))
    refused(record(x=["null", click, VIEW]), x=NOTED)


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        ("boolean", "boolean", True),
        ("long", "int", 5),
        ("long", "int", 2**31 - 1),
        ("long", "int", -(2**31)),
        ("integer", "double", 2**31 - 1),
        ("string", {"type": "enum", "name": "E", "symbols": ["a", "b"]}, "b"),
        ("binary", {"type": "fixed", "name": "F", "size": 2}, b"\xff\xfe"),
        ("decimal(10,2)", CENTS, Decimal("12.34")),
        ("decimal(2,0)", CENTS_OF_2, Decimal(-99)),
        ("date", DAY, dt.date(2026, 1, 31)),
        ("timestamp", MICROS, AT),
        ("timestamp_ntz", LOCAL, AT.replace(tzinfo=None)),
        ("long", ["null", "long", "double"], 2**60),
        ("double", ["null", "long", "double"], 1.5),
        ("string", ["null", "int", "string"], "a"),
        ("boolean", ["null", "boolean"], None),
        (POINT, {"type": "record", "name": "P", "fields": [{"name": "x", "type": "long"}]}, {"x": 1}),
        (COUNTS, {"type": "map", "values": "long"}, {"k": 1}),
    ],
)
def test_a_value_that_the_users_avro_schema_takes_is_read_back_as_it_was(column: Any, kind: Any, value: Any) -> None:
    assert read_back(record(x=kind), column, value) == value
    assert read_back(record(x=["null", kind]), column, value) == value if not isinstance(kind, list) else True


@pytest.mark.parametrize(
    ("column", "kind", "value", "at"),
    [
        ("boolean", "boolean", None, "x"),
        ({**NUMBERS, "elementType": "boolean"}, {"type": "array", "items": "boolean"}, [True, None], "x"),
        (
            {"type": "map", "keyType": "string", "valueType": "boolean"},
            {"type": "map", "values": {"type": "boolean"}},
            {"k": None},
            "x",
        ),
        (
            {"type": "struct", "fields": [{"name": "y", "type": "boolean"}]},
            {"type": "record", "name": "P", "fields": [{"name": "y", "type": "boolean"}]},
            {"y": None},
            "x.y",
        ),
        (
            {"type": "struct", "fields": [{"name": "y", "type": "boolean"}]},
            {"type": "record", "name": "Order", "namespace": "other", "fields": [{"name": "y", "type": "boolean"}]},
            {"y": None},
            "x.y",
        ),
    ],
    ids=["column", "array", "map", "struct", "another record of the same name"],
)
def test_a_null_where_the_schema_has_true_or_false_is_refused(column: Any, kind: Any, value: Any, at: str) -> None:
    with pytest.raises(ValueError, match=rf"{at} is NULL, and the schema has boolean"):
        read_back(record(x=kind), column, value)


@pytest.mark.parametrize(
    ("column", "kind", "value", "at"),
    [
        ("long", "int", 2**31, "x"),
        ("long", "int", -(2**31) - 1, "x"),
        ("long", DAY, 2**40, "x"),
        ("long", {"type": "int", "logicalType": "time-millis"}, 2**31, "x"),
        ({**NUMBERS, "elementType": "long"}, {"type": "array", "items": "int"}, [1, 2**31], "x"),
        (POINT, {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}, {"x": 2**31}, "x.x"),
        (COUNTS, {"type": "map", "values": "int"}, {"k": 2**31}, "x"),
    ],
    ids=["column", "below", "date", "time", "array", "struct", "map"],
)
def test_a_number_that_no_reader_of_an_int_can_decode_is_refused(column: Any, kind: Any, value: Any, at: str) -> None:
    with pytest.raises(ValueError, match=rf"^{at} is -?\d+, and the schema has int, which ends at 2147483647$"):
        read_back(record(x=kind), column, value)


def test_what_is_in_a_record_inside_of_itself_is_looked_at_as_deep_as_it_goes() -> None:
    leaf = {"type": "struct", "fields": [{"name": "n", "type": "long"}]}
    leaves = {"type": "array", "elementType": leaf, "containsNull": True}
    column = {"type": "struct", "fields": [*leaf["fields"], {"name": "inner", "type": leaves}]}
    inner = {"name": "inner", "type": {"type": "array", "items": "Node"}, "default": []}
    node = {"type": "record", "name": "Node", "fields": [{"name": "n", "type": "int"}, inner]}
    whole = {"n": 1, "inner": [{"n": 2, "inner": []}]}
    assert read_back(record(x=node), column, {"n": 1, "inner": [{"n": 2}]}) == whole
    with pytest.raises(ValueError, match=r"x\.inner\.n is 2147483648, and the schema has int"):
        read_back(record(x=node), column, {"n": 1, "inner": [{"n": 2**31}]})


BYTES = {"type": "record", "name": "B", "fields": [{"name": "b", "type": "bytes"}]}
WITH_DEFAULT = {"type": "record", "name": "D", "fields": [{"name": "b", "type": "bytes", "default": "ÿ"}]}


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        ("bytes", "", b""),
        ({"type": "fixed", "name": "F", "size": 2}, "\x00ÿ", b"\x00\xff"),
        (CENTS, "\x00", Decimal("0.00")),
        (["bytes", "null"], "ÿ", b"\xff"),
        (["bytes", "string"], "a", b"a"),
        (["null", "bytes"], None, None),
        ({"type": "array", "items": "bytes"}, ["ÿ"], [b"\xff"]),
        ({"type": "map", "values": ["bytes", "null"]}, {"k": "ÿ"}, {"k": b"\xff"}),
        (BYTES, {"b": "ÿ"}, {"b": b"\xff"}),
        (WITH_DEFAULT, {}, {"b": b"\xff"}),
        ("string", "ÿ", "ÿ"),
    ],
)
def test_a_default_for_a_field_that_the_row_lacks_is_read_back_as_the_schema_has_it(
    kind: Any, default: Any, value: Any
) -> None:
    schema = json.loads(record(x="long"))
    schema["fields"].append({"name": "y", "type": kind, "default": default})
    text = writes_by(WriterSchema(kind="AVRO", text=json.dumps(schema)), {"x": "long"})
    written = ValueSchema(value_format="avro", number=1, text=text, given=True).writer()({"x": 1})
    assert fastavro.schemaless_reader(io.BytesIO(written[5:]), schema, None) == {"x": 1, "y": value}


def test_a_default_of_bytes_with_a_character_that_is_no_byte_is_refused_before_it_is_registered() -> None:
    schema = json.loads(record(x="long"))
    schema["fields"].append({"name": "y", "type": "bytes", "default": "€"})
    assert "The `value_schema` is no valid Avro schema: " in refused(json.dumps(schema), x="long").what


def test_the_schema_that_is_made_of_the_columns_takes_them() -> None:
    plain = ["byte", "short", "integer", "long", "float", "double", "boolean", "string", "binary", "date"]
    kinds = [*plain, "timestamp", "timestamp_ntz", "decimal(10,2)", POINT, NUMBERS]
    columns = {f"c{number}": kind for number, kind in enumerate(kinds)}
    made = schema_of("avro", None, columns, "orders")
    assert writes_by(made, columns) == made.text


def test_a_schema_that_only_fastavro_refuses_is_refused_before_it_is_registered() -> None:
    error = refused(record(x={**CENTS_OF_2, "precision": 9}), x="decimal(9,2)")
    assert "The `value_schema` is no valid Avro schema: decimal precision of 9" in error.what


# -- JSON Schema -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"type": "text"}, "$.type: 'text' is not valid"),
        ({"properties": {"x": {"pattern": "("}}}, "$.properties.x.pattern: '(' is not a 'regex'"),
        ({"properties": {"x": {"multipleOf": 0}}}, "$.properties.x.multipleOf: 0 is less than"),
    ],
)
def test_a_json_schema_that_cannot_be_used_is_refused_before_it_is_registered(schema: Any, told: str) -> None:
    with pytest.raises(Refused, match="The `value_schema` is no valid JSON Schema: ") as caught:
        writes_by(WriterSchema(kind="JSON", text=json.dumps(schema)), {"x": "string"})
    assert told in caught.value.what
    assert caught.value.code and caught.value.code.name == "EPOCHS-SINK-MISCONFIGURED"


@pytest.mark.parametrize("address", ["#/definitions/gone", "https://example.invalid/x.json"])
def test_a_row_is_refused_if_the_json_schema_refers_to_what_it_does_not_have(address: str) -> None:
    text = json.dumps({"properties": {"x": {"$ref": address}}})
    write = ValueSchema(value_format="json_schema", number=1, text=text, given=True).writer()
    with pytest.raises(ValueError, match="the schema is not complete in itself"):
        write({"x": "a"})


def test_a_json_schema_without_end_refuses_the_row() -> None:
    write = ValueSchema(value_format="json_schema", number=1, text='{"$ref": "#"}', given=True).writer()
    with pytest.raises(ValueError, match="has no end"):
        write({"x": "a"})


@pytest.mark.parametrize("text", ["[]", "5", "null"])
def test_a_json_schema_that_is_no_object_is_refused_in_the_dag(text: str) -> None:
    assert flaw_of("json_schema", text) == "is no object of JSON"
    assert flaw_of("json_schema", "true") is None


# -- Protobuf ----------------------------------------------------------------------------------------------------------

PROTO = """
syntax = "proto3";
import "google/protobuf/wrappers.proto";
import "google/protobuf/any.proto";
message Order {
  double share = 1;
  repeated float path = 2;
  map<string, double> by_name = 3;
  Point point = 4;
  google.protobuf.DoubleValue maybe = 5;
  string name = 6;
  google.protobuf.Any other = 7;
}
message Point { double x = 1; }
"""


@pytest.fixture(scope="module")
def protobuf() -> Write:
    text = writes_by(WriterSchema(kind="PROTOBUF", text=PROTO), {})
    return ValueSchema(value_format="protobuf", number=1, text=text, given=True).writer()


def order_of(value: bytes) -> Any:
    return message_class(compiled(PROTO, {}), "Order").FromString(value[6:])


@pytest.mark.proof
def test_numbers_that_json_does_not_have_are_numbers_in_protobuf(protobuf: Write) -> None:
    nan, least = float("nan"), float("-inf")
    row = {"share": nan, "path": [1.5, least], "byName": {"a": -least}, "point": {"x": nan}, "maybe": least}
    told = order_of(protobuf({**row, "name": "NaN"}))
    assert math.isnan(told.share) and math.isnan(told.point.x)
    assert ([*told.path], dict(told.by_name), told.maybe.value, told.name) == (
        [1.5, least],
        {"a": -least},
        least,
        "NaN",
    )


def test_a_number_is_no_text_in_protobuf_even_if_it_has_only_a_name(protobuf: Write) -> None:
    with pytest.raises(ValueError, match="name"):
        protobuf({"name": float("nan")})


def test_an_any_of_no_type_is_refused_with_its_row(protobuf: Write) -> None:
    with pytest.raises(ValueError, match="int"):
        protobuf({"other": {"@type": 5}})


KEPT = """
syntax = "proto3";
import "google/protobuf/struct.proto";
import "google/protobuf/wrappers.proto";
message Order {
  bytes raw = 1;
  string name = 2;
  int64 number = 3;
  int32 small = 4;
  double share = 5;
  float rough = 6;
  bool yes = 7;
  google.protobuf.DoubleValue maybe = 8;
  google.protobuf.BytesValue maybe_raw = 9;
  google.protobuf.Value any = 10;
  google.protobuf.Struct many = 11;
  google.protobuf.ListValue list = 12;
  repeated double path = 13;
  map<string, double> by_name = 14;
  Point point = 15;
  double odd = 16 [json_name = "ODD"];
  State state = 17 [json_name = "STATE"];
  map<int64, string> by_number = 18;
  google.protobuf.Int32Value maybe_small = 19;
  repeated State states = 20;
}
enum State { NEW = 0; PAID = 1; BACK = -1; }
message Point { double x = 1; }
"""
LONGS = {"type": "array", "elementType": "long"}
TEXTS_BY_TEXT = {"type": "map", "keyType": "string", "valueType": "string"}
NAMED = {"type": "struct", "fields": [{"name": "007", "type": "string"}]}


@pytest.fixture(scope="module")
def kept() -> bytes:
    return compiled(KEPT, {})


@pytest.mark.parametrize(
    ("column", "field", "told"),
    [
        ("string", "raw", "column 'raw' is string, and the schema has bytes"),
        ("date", "raw", "column 'raw' is date, and the schema has bytes"),
        ("decimal(10,2)", "raw", "column 'raw' is decimal(10,2), and the schema has bytes"),
        ("binary", "name", "column 'name' is binary, and the schema has string"),
        ("binary", "number", "column 'number' is binary, and the schema has int64"),
        ("string", "number", "column 'number' is string, and the schema has int64"),
        ("string", "small", "column 'small' is string, and the schema has int32"),
        ("string", "maybe_small", "column 'maybe_small' is string, and the schema has google.protobuf.Int32Value"),
        ("decimal(38,2)", "number", "column 'number' is decimal(38,2), and the schema has int64"),
        (TEXTS_BY_TEXT, "by_number", "column 'by_number' is string, and the schema has int64"),
        (NAMED, "by_number", "column 'by_number' is string, and the schema has int64"),
        ("long", "state", "column 'state' is long, and the schema has enum"),
        ("double", "state", "column 'state' is double, and the schema has enum"),
        ("long", "share", "column 'share' is long, and the schema has double"),
        ("decimal(10,2)", "share", "column 'share' is decimal(10,2), and the schema has double"),
        ("string", "share", "column 'share' is string, and the schema has double"),
        ("boolean", "share", "column 'share' is boolean, and the schema has double"),
        ("long", "rough", "column 'rough' is long, and the schema has float"),
        ("integer", "rough", "column 'rough' is integer, and the schema has float"),
        ("double", "rough", "column 'rough' is double, and the schema has float"),
        ("decimal(10,2)", "rough", "column 'rough' is decimal(10,2), and the schema has float"),
        ("long", "maybe", "column 'maybe' is long, and the schema has google.protobuf.DoubleValue"),
        ("string", "maybe_raw", "column 'maybe_raw' is string, and the schema has google.protobuf.BytesValue"),
        ("string", "maybeRaw", "column 'maybeRaw' is string, and the schema has google.protobuf.BytesValue"),
        ("long", "ODD", "column 'ODD' is long, and the schema has double"),
        ("long", "any", "column 'any' is long, and the schema has google.protobuf.Value"),
        (COUNTS, "many", "column 'many' is long, and the schema has google.protobuf.Struct"),
        (LONGS, "list", "column 'list' is long, and the schema has google.protobuf.ListValue"),
        (LONGS, "path", "column 'path' is long, and the schema has double"),
        (COUNTS, "by_name", "column 'by_name' is long, and the schema has double"),
        (POINT, "by_name", "column 'by_name' is long, and the schema has double"),
        (POINT, "point", "column 'point.x' is long, and the schema has double"),
        (COUNTS, "point", "column 'point.x' is long, and the schema has double"),
    ],
)
def test_a_column_whose_values_a_message_of_protobuf_would_change_is_told(
    kept: bytes, column: Any, field: str, told: str
) -> None:
    assert misfits(files_of(kept).message("Order"), {field: column, "unknown": "long"}) == [told]


def test_columns_whose_values_a_message_of_protobuf_would_change_are_refused_before_it_is_registered() -> None:
    columns = {"raw": "string", "number": "long", "share": "long"}
    with pytest.raises(Refused, match="The `value_schema` cannot have these values as they are: ") as refused:
        writes_by(WriterSchema(kind="PROTOBUF", text=KEPT), columns)
    assert refused.value.code and refused.value.code.name == "EPOCHS-TOPIC-ROWS-UNFIT"
    assert "'raw' is string, and" in refused.value.what and "'share' is long, and" in refused.value.what
    assert "'number'" not in refused.value.what


@pytest.mark.parametrize(
    ("column", "field", "value", "read"),
    [
        ("binary", "raw", b"\x00\xff", b"\x00\xff"),
        ("string", "name", "YWJj", "YWJj"),
        ("decimal(10,2)", "name", Decimal("1.50"), "1.50"),
        ("date", "name", dt.date(2026, 1, 31), "2026-01-31"),
        ("long", "number", 2**63 - 1, 2**63 - 1),
        ("decimal(19,0)", "number", Decimal(2**63 - 1), 2**63 - 1),
        ("decimal(10,2)", "number", Decimal("5.00"), 5),
        ("double", "number", 2.0**60, 2**60),
        ({**TEXTS_BY_TEXT, "keyType": "long"}, "by_number", {2**60 + 1: "a"}, {2**60 + 1: "a"}),
        ("string", "state", "PAID", 1),
        ({**LONGS, "elementType": "string"}, "states", ["NEW", "PAID"], [0, 1]),
        ("integer", "state", 1, 1),
        ("short", "state", 0, 0),
        ("byte", "state", -1, -1),
        ("integer", "state", 2**31 - 1, 2**31 - 1),
        ({**LONGS, "elementType": "integer"}, "states", [1, 7], [1, 7]),
        ("long", "small", 5, 5),
        ("integer", "share", 2**31 - 1, 2**31 - 1),
        ("float", "share", 0.5, 0.5),
        ("short", "rough", 2**15 - 1, 2**15 - 1),
        ("boolean", "yes", True, True),
    ],
)
def test_a_value_that_a_message_of_protobuf_takes_is_read_back_as_it_was(
    kept: bytes, column: Any, field: str, value: Any, read: Any
) -> None:
    assert misfits(files_of(kept).message("Order"), {field: column}) == []
    assert getattr(in_protobuf(kept, {field: value}), field) == read


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_a_number_that_does_not_fit_a_field_of_protobuf_refuses_its_row(kept: bytes, value: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        in_protobuf(kept, {"small": value})


@pytest.mark.parametrize(
    "row", [{"state": "7"}, {"state": "1"}, {"STATE": "1"}, {"states": ["NEW", "1"]}], ids=["7", "1", "json", "list"]
)
def test_a_text_that_is_no_name_of_an_enum_refuses_its_row(kept: bytes, row: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"'[17]' is no name of the enum State"):
        in_protobuf(kept, row)


def in_protobuf(files: bytes, row: dict[str, Any]) -> Any:
    """A row, written by the schema and read with the class that protoc makes."""
    text = b64encode(files).decode()
    written = ValueSchema(value_format="protobuf", number=1, text=text, given=True).writer()(row)
    return message_class(files, "Order").FromString(written[6:])


@pytest.mark.parametrize(
    ("key", "value"),
    [("int64", 2**60 + 1), ("sint32", -1), ("uint32", 2**32 - 1), ("fixed64", 2**64 - 1), ("string", "007")],
)
def test_a_map_that_parse_protobuf_reads_is_written_as_it_was(key: str, value: Any) -> None:
    files = compiled(f'syntax = "proto3"; message Order {{ map<{key}, string> names = 1; }}', {})
    message = files_of(files).message("Order")
    sent = message_class(files, "Order")(names={value: "a"}).SerializeToString()
    columns, known = columns_of(message), protobuf_records._readable({1: files}, message)
    decoder = Decoder(description_of(message), columns, known)
    (names,) = decoder.decoded(pa.array([b"\0\0\0\0\1\0" + sent])).field("value").flatten()
    row = pa.RecordBatch.from_arrays([names], ["names"])
    schema = {"fields": [protobuf_records._as_json(each) for each in columns]}
    shape = RowShape.of(schema, "topic t", "protobuf")
    assert misfits(message, shape.fields) == []
    by = ValueSchema(value_format="protobuf", number=1, text=b64encode(files).decode(), given=True)
    (made,) = replace(shape, schema=by).records(iter([row]), "orders/events/1", lambda _: 0)
    assert made[1] == b"\0\0\0\0\1\0" + sent
    if key != "string":
        for other in (None, "json_schema", "avro"):
            with pytest.raises(Refused, match="'names' is map"):
                RowShape.of(schema, "topic t", other)


def test_a_map_with_keys_of_true_and_false_is_refused_as_protobufs_json_has_them_as_texts() -> None:
    kind = {**TEXTS_BY_TEXT, "keyType": "boolean"}
    with pytest.raises(Refused, match="'names' is map"):
        RowShape.of({"fields": [{"name": "names", "type": kind}]}, "topic t", "protobuf")


@pytest.mark.proof
@pytest.mark.parametrize("row", [{"state": 7}, {"states": [1, 7]}], ids=["alone", "list"])
def test_a_number_without_a_name_in_an_enum_of_proto2_refuses_its_row(row: dict[str, Any]) -> None:
    text = """
    syntax = "proto2";
    message Order { optional State state = 1; repeated State states = 2; }
    enum State { NEW = 0; PAID = 1; }
    """
    files = compiled(text, {})
    assert in_protobuf(files, {"state": 1}).state == 1
    with pytest.raises(ValueError, match="Invalid enum value 7"):
        in_protobuf(files, row)


@pytest.mark.parametrize("field", ["id", "point.x"])
def test_a_null_for_a_required_field_of_proto2_refuses_its_row(field: str) -> None:
    text = """
    syntax = "proto2";
    message Order { required int64 id = 1; optional Point point = 2; }
    message Point { required int64 x = 1; }
    """
    files = compiled(text, {})
    row = {"id": None} if field == "id" else {"id": 1, "point": {"x": None}}
    with pytest.raises(ValueError, match=rf"required fields: {field}"):
        in_protobuf(files, row)
    told = in_protobuf(files, {"id": 1, "point": None})
    assert (told.id, told.HasField("point")) == (1, False)
