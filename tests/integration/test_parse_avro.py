"""``parse_avro`` over Spark Connect: records that fastavro wrote, read as fastavro reads them."""

from __future__ import annotations

import datetime as dt
import io
import random
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import fastavro
import pytest
from pyspark.sql import functions as F

from airflow_epochs.errors import Refused
from airflow_epochs.spark.driver import determinism, filling, stage
from airflow_epochs.transforms import parse_avro
from tests.support import pages
from tests.support.registry_lab import ORDERS, order, orders_of, shown_and_rejected
from tests.support.spark_world import batch_of, in_utc
from tests.support.state_lab import Lab

pytestmark = pytest.mark.jvm


def record(*fields: tuple[Any, ...], name: str = "shop.Order") -> dict[str, Any]:
    """A schema with fields of name, type and perhaps default."""
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": field, "type": kind, **({"default": default[0]} if default else {})}
            for field, kind, *default in fields
        ],
    }


MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
MOMENT = {"type": "long", "logicalType": "timestamp-millis"}
V1 = record(("id", "int"), ("customer", "string"), ("amount", MONEY), ("at", MOMENT))
V2 = record(
    ("at", MOMENT),
    ("id", "long"),
    ("amount", {**MONEY, "precision": 12}),
    ("tags", {"type": "array", "items": "string"}),
    ("note", ["null", "string"], None),
)
READER = record(
    ("id", "long"),
    ("amount", {**MONEY, "precision": 12}),
    ("at", MOMENT),
    ("note", ["null", "string"], None),
    ("channel", "string", "web"),
)
SCHEMAS: dict[int, Any] = {7: V1, 300: V2}
AT = dt.datetime(2026, 1, 31, 10, 20, 30, 123_000, dt.timezone.utc)
FIRST = {"id": 1, "customer": "Ann", "amount": Decimal("12.34"), "at": AT}
SECOND = {"id": 2**40, "amount": Decimal("-0.01"), "at": AT, "tags": ["a", "b"], "note": "late"}


def written(number: int, schema: Any, value: Any) -> bytes:
    """A record in Confluent's wire format."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def test_each_record_is_read_with_its_own_schema_into_the_columns_of_the_readers(session: Any) -> None:
    batch = batch_of(session, [written(7, V1, FIRST), written(300, V2, SECOND), written(7, V1, FIRST)])
    parsed = parse_avro(batch, READER, schemas=SCHEMAS)
    assert parsed.rows.columns == ["topic", "partition", "offset", "id", "amount", "at", "note", "channel"]
    first = {"id": 1, "amount": Decimal("12.34"), "at": AT, "note": None, "channel": "web"}
    second = {"id": 2**40, "amount": Decimal("-0.01"), "at": AT, "note": "late", "channel": "web"}
    found = [in_utc(row) for row in parsed.rows.drop("topic", "partition").collect()]
    assert found == [{"offset": 0, **first}, {"offset": 1, **second}, {"offset": 2, **first}]
    assert parsed.corrupt.collect() == []


def test_what_cannot_be_read_comes_out_apart_with_its_bytes_and_the_reason(session: Any) -> None:
    good, narrow = written(7, V1, FIRST), record(("id", "string"), ("amount", MONEY), ("at", MOMENT))
    bad_text = good.replace(b"Ann", b"A\xffn")
    values: dict[bytes | None, str] = {
        None: "no value",
        b"": "no magic byte and schema id",
        b"\0\0\0": "no magic byte and schema id",
        b'{"id": 1}': "no magic byte and schema id",
        b"\1" + good[1:]: "no magic byte and schema id",
        b"\0\xff\xff\xff\xff" + good[5:]: "unknown schema id 4294967295",
        b"\0\0\0\0\x09" + good[5:]: "unknown schema id 9",
        b"\0\0\0\0\x08" + good[5:]: "schema 8 cannot be read into the reader's: field id is string, not long",
        b"\0\0\0\0\x05" + good[5:]: "schema 5 has no type 'Gone'",
        good[:-1]: "not of its schema, 7",
        good[:5]: "not of its schema, 7",
        good[:6] + b"\x80\xbc\xc1\x96\x0b" + good[7:]: "not of its schema, 7",  # a text of 1.5 GB
        good + b"\0": "bytes left over behind a value of schema 7",
        good + b"EPOCHS": "bytes left over behind a value of schema 7",
        bad_text: "a text that is not UTF-8",
    }
    schemas = {**SCHEMAS, 8: narrow, 5: record(("id", "Gone"))}
    reader = record(*((field["name"], field["type"]) for field in READER["fields"][:3]), ("customer", "string", ""))
    batch = batch_of(session, [*values, good])
    parsed = parse_avro(batch, reader, schemas=schemas)
    found = parsed.corrupt.collect()
    assert parsed.corrupt.columns == ["topic", "partition", "offset", "error", "raw"]
    assert {None if row.raw is None else bytes(row.raw): row.error for row in found} == values
    assert [row.offset for row in parsed.rows.collect()] == [len(values)]


def test_a_number_with_more_digits_than_its_decimal_is_corrupt_wherever_it_is(session: Any) -> None:
    """Of 18 digits and less, Spark alone reads the lower 64 bits."""

    def lines_of(digits: int) -> dict[str, Any]:
        money, eight = {**MONEY, "precision": digits}, {"type": "fixed", "name": "F8", "size": 8}
        line = record(("price", ["null", money]), ("text", "string"), name="Line")
        whole = {**money, "type": "fixed", "name": "F16", "size": 16}
        by = {"type": "map", "values": {**money, **eight, "precision": min(digits, 18)}}
        return record(("lines", {"type": "array", "items": line}), ("by", by), ("whole", whole))

    narrow = lines_of(10)
    free: dict[str, Any] = {"lines": [{"price": None, "text": ""}], "by": {}, "whole": Decimal(0)}
    least, large = Decimal("99999999.99"), Decimal(2**64).scaleb(-2) + 1
    good = [{**free, "lines": [{"price": -least, "text": "a"}], "by": {"k": least}, "whole": least}, free]
    bad = [
        {**free, "lines": [*free["lines"], {"price": large, "text": "a"}]},
        {**free, "lines": [{"price": -least - Decimal("0.01"), "text": "a"}]},
        {**free, "whole": -large},
        {**free, "by": {"k": least + Decimal("0.01")}},
    ]
    values = [written(7, lines_of(30), value) for value in [*good, *bad]]
    parsed = parse_avro(batch_of(session, values), narrow, schemas={7: narrow}, columns=["offset"])
    kinds = ["bigint", "array<struct<price:decimal(10,2),text:string>>", "map<string,decimal(10,2)>", "decimal(10,2)"]
    assert [kind for _, kind in parsed.rows.dtypes] == kinds
    found = [row.asDict(recursive=True) for row in parsed.rows.collect()]
    assert found == [{"offset": offset, **value} for offset, value in enumerate(good)]
    assert [(row.offset, row.error) for row in parsed.corrupt.collect()] == [
        (offset, "not of its schema, 7") for offset in range(2, 6)
    ]


def test_odd_names_of_the_batch_stay_in_the_rows_and_in_the_corrupt_records(session: Any) -> None:
    batch = batch_of(session, [written(7, V1, FIRST), b"?"]).withColumnRenamed("value", "body.x")
    kept = ["offset", F.lit(5).alias("meta.ip")]
    parsed = parse_avro(batch, READER, schemas=SCHEMAS, columns=kept, value="body.x", corrupt="raw.x")
    assert [(row["meta.ip"], row.id) for row in parsed.rows.collect()] == [(5, 1)]
    assert [(row["meta.ip"], bytes(row["raw.x"])) for row in parsed.corrupt.collect()] == [(5, b"?")]
    assert parsed.corrupt.columns == ["offset", "meta.ip", "topic", "partition", "error", "raw.x"]


def test_no_beginning_of_a_record_is_taken_for_one(session: Any) -> None:
    whole = written(300, V2, SECOND)
    parsed = parse_avro(batch_of(session, [whole[:size] for size in range(len(whole))]), READER, schemas=SCHEMAS)
    assert (parsed.rows.count(), parsed.corrupt.count()) == (0, len(whole))


KINDS: list[tuple[Any, Any, Any]] = [
    ("int", "long", lambda chance: chance.randint(-(2**31), 2**31 - 1)),
    ("long", "double", lambda chance: chance.randint(-(2**50), 2**50)),
    ("boolean", "boolean", lambda chance: chance.random() < 0.5),
    ("double", ["null", "double"], lambda chance: chance.uniform(-1e9, 1e9)),
    ("string", "string", lambda chance: chance.choice(["", "Zürich", "\x00", "😀" * 40])),
    ("bytes", "bytes", lambda chance: chance.randbytes(chance.randint(0, 70))),
    (["null", "long"], ["null", "long"], lambda chance: chance.choice([None, chance.randint(-9, 9)])),
    ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, lambda chance: [1] * chance.randint(0, 4)),
    ({"type": "map", "values": "string"}, {"type": "map", "values": "string"}, lambda chance: {"k": "v"}),
    (
        {"type": "fixed", "name": "F", "size": 4},
        {"type": "fixed", "name": "F", "size": 4},
        lambda chance: b"\0\xff\1\2",
    ),
    (MONEY, MONEY, lambda chance: Decimal(chance.randint(-(10**9), 10**9)) / 100),
    (
        {"type": "int", "logicalType": "date"},
        {"type": "int", "logicalType": "date"},
        lambda chance: dt.date(1500, 1, 1) + dt.timedelta(days=chance.randint(0, 300_000)),
    ),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "long", "logicalType": "timestamp-micros"},
        lambda chance: AT + dt.timedelta(microseconds=chance.randint(-(2**50), 2**50)),
    ),
    (
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "enum", "name": "E", "symbols": ["B", "A"]},
        lambda chance: chance.choice("AB"),
    ),
    (
        record(("x", "int"), ("y", "string"), name="Point"),
        record(("y", "string"), ("z", "int", 3), ("x", "long"), name="Point"),
        lambda chance: {"x": chance.randint(-5, 5), "y": "p"},
    ),
]


@pytest.mark.parametrize("seed", range(3))
def test_random_records_of_random_schemas_are_read_as_fastavro_reads_them(session: Any, seed: int) -> None:
    chance = random.Random(seed)
    chosen = [(f"f{number}", *kind) for number, kind in enumerate(KINDS)]
    reader = record(*((name, wanted) for name, _, wanted, _ in chosen), ("more", "string", "none"))
    schemas: dict[int, Any] = {}
    records: list[bytes] = []
    expected: list[dict[str, Any]] = []
    for number in range(4):
        chance.shuffle(chosen)
        schemas[number] = record(*((name, kind) for name, kind, _, _ in chosen), ("surplus", "string"))
        for _ in range(25):
            value = {name: make(chance) for name, _, _, make in chosen} | {"surplus": "s"}
            records.append(written(number, schemas[number], value))
            told = io.BytesIO(records[-1][5:])
            expected.append(fastavro.schemaless_reader(told, schemas[number], reader))  # type: ignore[arg-type]
    parsed = parse_avro(batch_of(session, records), reader, schemas=schemas, columns=[])
    found = [in_utc(row) for row in parsed.rows.collect()]
    assert [{name: bytes(v) if isinstance(v, bytearray) else v for name, v in row.items()} for row in found] == expected


WAY = {"type": "enum", "name": "Channel", "symbols": ["WEB", "APP"]}
HASH = {"type": "fixed", "name": "Hash", "size": 2}
ALIAS = {"name": "customer", "type": ["null", "string"], "aliases": ["cust"], "default": None}
NODE = record(("next", ["null", "Node"]), ("way", "Channel"), ("id", "int"), name="Node")


def with_alias(name: str, *fields: tuple[Any, ...]) -> dict[str, Any]:
    made = record(*fields, name=name)
    return {**made, "fields": [*made["fields"], ALIAS]}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("writer", "reader", "value", "row"),
    [
        (record(("cust", "string"), name="com.shop.Order"), with_alias("Order"), {"cust": "Ann"}, {"customer": "Ann"}),
        (
            record(("cust", "string"), ("customer", "string"), name="Order"),
            with_alias("Order"),
            {"cust": "old", "customer": "new"},
            {"customer": "new"},
        ),
        (
            record(("buyer", record(("cust", "string"), name="Buyer")), name="com.shop.Order"),
            record(("buyer", ["null", with_alias("Person")]), name="Order"),
            {"buyer": {"cust": "Ann"}},
            {"buyer": ("Ann",)},
        ),
        (
            record(("way", WAY), ("hash", HASH), name="com.shop.Order"),
            record(("way", ["null", WAY]), ("hash", ["null", {**HASH, "name": "Digest"}]), name="Order"),
            {"way": "APP", "hash": b"ab"},
            {"way": "APP", "hash": b"ab"},
        ),
        (
            record(("way", ["null", WAY]), ("hash", HASH), name="com.shop.Order"),
            record(("way", {**WAY, "name": "Way"}), ("hash", {**HASH, "name": "Digest"}), name="Order"),
            {"way": "APP", "hash": b"ab"},
            {"way": "APP", "hash": b"ab"},
        ),
        (
            record(("first", WAY), ("left", {"type": "array", "items": NODE}), ("node", "Node"), name="com.shop.Order"),
            record(("node", record(("way", ["null", WAY]), name="N")), ("first", {**WAY, "name": "F"}), name="Order"),
            {
                "first": "APP",
                "left": [],
                "node": {"next": {"next": None, "way": "WEB", "id": 1}, "way": "WEB", "id": 2},
            },
            {"node": ("WEB",), "first": "APP"},
        ),
        (
            [record(("way", WAY), name="com.A"), record(("id", "int"), ("way", "com.Channel"), name="com.B")],
            record(("way", ["null", WAY]), name="Order"),
            ("com.B", {"id": 1, "way": "APP"}),
            {"way": "APP"},
        ),
        (
            record(("of", [record(("x", "int"), name="A"), record(("y", "int"), name="B")]), name="com.shop.Order"),
            record(("of", [record(("y", "int", 0), name="B"), record(("x", "int", 0), name="A")]), name="Order"),
            {"of": ("com.shop.A", {"x": 1})},
            {"of": (None, (1,))},
        ),
    ],
    ids=["alias", "name first", "nested", "union", "no union", "in two places", "two records", "two of a union"],
)
def test_names_of_types_and_records_do_not_keep_a_value_from_its_column(
    session: Any, writer: Any, reader: Any, value: Any, row: dict[str, Any]
) -> None:
    parsed = parse_avro(batch_of(session, [written(7, writer, value)]), reader, schemas={7: writer}, columns=[])
    assert parsed.corrupt.collect() == []
    (found,) = parsed.rows.collect()
    assert {name: bytes(told) if isinstance(told, bytearray) else told for name, told in found.asDict().items()} == row


@pytest.mark.parametrize(
    ("reader", "options", "problem"),
    [
        ("[]", {}, "reader_schema must be a schema that Spark can read; this one is no record"),
        ({"type": "record"}, {}, "this one is no valid Avro schema: KeyError('name')"),
        (READER, {"schemas": {}}, "schemas must be a dict of at least one schema, by ids from 0 to"),
        (READER, {"schemas": {"7": V1}}, "schemas must be a dict of at least one schema, by ids from 0 to"),
        (READER, {"value": "topic"}, "value must be the name of a binary column; this one is string"),
        (READER, {"columns": ["topic", "value"], "corrupt": "value"}, "'value' must not be among the columns"),
        (record(("offset", "long")), {}, "'offset' must not be among the columns of what is kept"),
    ],
)
def test_an_argument_that_cannot_be_meant_is_refused(
    session: Any, reader: Any, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(Refused) as refused:
        parse_avro(batch_of(session, []), reader, **{"schemas": SCHEMAS, **options})
    assert problem in str(refused.value)


def test_spark_never_plans_two_sinks_of_records_of_avro_at_once(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its map of options is shared by their plans, and fails now and then if two threads ask for it."""
    parsed = parse_avro(batch_of(session, [written(7, V1, FIRST)]), READER, schemas=SCHEMAS)
    plans = determinism.analysed_plans(session, {"rows": parsed.rows, "corrupt": parsed.corrupt})
    assert [stage.FROM_AVRO in plan for plan in plans.values()] == [True, True]
    seen: list[set[str]] = []

    def at_once(spark: Any, tasks: dict[str, Any]) -> dict[str, Any]:
        seen.append({*tasks})
        return {}

    monkeypatch.setattr(filling, "_at_once", at_once)
    plan: Any = SimpleNamespace(sinks={name: {"layout": None} for name in "abc"})
    filling._run_all(session, plan, dict.fromkeys("abc", Mock()), in_turn=True)
    assert seen == [{"a"}, {"b"}, {"c"}]


def test_the_example_of_the_page_shows_orders_and_letters_exactly_once(lab: Lab) -> None:
    app = lab.folder / "orders_avro.py"
    app.write_text(pages.blocks("read-your-topic.md", "Avro", "python")[0])
    old, new = ({"type": "record", "name": "Order", "fields": fields} for fields in page_fields())
    shown, rejected = shown_and_rejected(
        lab,
        app,
        lambda number: written(12, old, order(number)),
        lambda number: written(15, new, {**order(number), "channel": "app"}),
    )
    assert shown == orders_of("web", "app")
    assert rejected == [("no magic byte and schema id",)] * ORDERS


def page_fields() -> list[Any]:
    """The fields that the schemas 12 and 15 of the page have."""
    amount: list[Any] = [{"name": "order_id", "type": "string"}, {"name": "amount", "type": "int"}]
    return [amount, [*amount, {"name": "channel", "type": "string"}]]
