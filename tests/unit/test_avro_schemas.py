"""Which schemas of a writer can be read into a reader's, and of which Spark would make something else."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from fastavro.utils import generate_one

from airflow_epochs.transforms.avro_schemas import SchemaFlaw, require_columns, resolved, unreadable


def record(kind: Any, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind, **more}]}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def logical(kind: str, base: str = "long") -> dict[str, Any]:
    return {"type": base, "logicalType": kind}


def enum(*symbols: str) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols)}


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("int", "int"),
        ("int", "long"),
        ("int", "double"),
        ("long", "double"),
        ("float", "double"),
        ("string", "bytes"),
        ("bytes", "string"),
        ("int", ["null", "long"]),
        (["null", "int"], ["null", "long"]),
        (["null", "int"], "int"),
        (["int", "string"], ["string", "null", "long"]),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}),
        ({"type": "map", "values": "int"}, {"type": "map", "values": ["null", "double"]}),
        (enum("A", "B"), enum("A")),
        (decimal(10, 2), decimal(12, 2)),
        (decimal(10, 2), "bytes"),
        ({"type": "bytes", "logicalType": "decimal"}, decimal(10, 2)),
        ({"type": "bytes", "logicalType": "decimal", "precision": "ten"}, "bytes"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}, "string"),
        ({"type": "string", "logicalType": "decimal"}, "string"),
        (logical("date"), logical("timestamp-millis")),
        ("long", logical("timestamp-millis")),
        (logical("timestamp-millis"), "long"),
        (logical("date", "int"), logical("date", "int")),
        (logical("timestamp-millis"), ["null", logical("timestamp-millis")]),
        ({"type": "fixed", "name": "F", "size": 3}, {"type": "fixed", "name": "G", "size": 3}),
        ({"type": "string", "avro.java.string": "String"}, "string"),
        ({"type": {"type": "string"}}, "string"),
    ],
)
def test_what_avro_can_resolve_is_readable(written: Any, wanted: Any) -> None:
    assert unreadable(resolved(record(written)), resolved(record(wanted))) is None


@pytest.mark.parametrize(
    ("written", "wanted", "problem"),
    [
        ("long", "int", "field f is long, not int"),
        ("string", "long", "field f is string, not long"),
        ("string", ["null", "long"], "field f is string, not null or long"),
        (["null", "string"], ["null", "long"], "field f is string, not null or long"),
        ({"type": "array", "items": "string"}, {"type": "array", "items": "int"}, "field f is string, not int"),
        ({"type": "array", "items": "int"}, "int", "field f is array, not int"),
        (record("int", "x") | {"name": "S"}, "int", "field f is S, not int"),
        (decimal(10, 2), decimal(12, 4), "field f: decimal(10,2) is not decimal(12,4)"),
        (decimal(12, 2), decimal(10, 2), "field f: decimal(12,2) is not decimal(10,2)"),
        ("string", decimal(10, 2), "field f is string, not decimal(10,2) in bytes"),
        (decimal(10, 2), "string", "field f is decimal(10,2) in bytes, not string"),
        (
            decimal(6, 2) | {"type": "fixed", "name": "F", "size": 3},
            ["null", decimal(6, 2)],
            "field f is decimal(6,2) in fixed, not null or decimal(6,2) in bytes",
        ),
        (decimal(10, 2), ["null", decimal(10, 3)], "field f: decimal(10,2) is not decimal(10,3)"),
        (
            logical("timestamp-millis"),
            logical("timestamp-micros"),
            "field f: timestamp-millis is not timestamp-micros",
        ),
        (logical("date", "int"), logical("timestamp-micros"), "field f is date, not timestamp-micros"),
        (
            logical("timestamp-micros"),
            logical("local-timestamp-micros"),
            "field f: timestamp-micros is not local-timestamp-micros",
        ),
        (
            {"type": "fixed", "name": "F", "size": 3},
            {"type": "fixed", "name": "F", "size": 4},
            "field f has 3 bytes, not 4",
        ),
    ],
)
def test_what_avro_cannot_resolve_or_spark_would_read_as_another_value_is_not(
    written: Any, wanted: Any, problem: str
) -> None:
    assert unreadable(resolved(record(written)), resolved(record(wanted))) == problem


def test_fields_are_found_by_name_or_alias_and_missing_ones_need_a_default() -> None:
    writer = resolved(record("int", "old"))
    assert unreadable(writer, resolved(record("int", "new", aliases=["old"]))) is None
    assert unreadable(writer, resolved(record("int", "new", default=0))) is None
    assert unreadable(writer, resolved(record(["null", "int"], "new", default=None))) is None
    problem = "field new is missing, and the reader's schema has no default for it"
    assert unreadable(writer, resolved(record("int", "new"))) == problem


def test_a_problem_inside_of_a_record_is_told_with_its_place() -> None:
    def nested(kind: str) -> Any:
        return record({"type": "array", "items": record(kind, "amount") | {"name": "Line"}}, "lines")

    assert unreadable(resolved(nested("string")), resolved(nested("int"))) == "field lines.amount is string, not int"


def test_names_are_resolved_as_avro_does_and_the_text_for_spark_has_full_ones() -> None:
    address = {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]}
    told = {
        "type": "record",
        "name": "shop.Customer",
        "fields": [{"name": "home", "type": address}, {"name": "work", "type": ["null", "Address"]}],
    }
    text = json.loads(resolved(json.dumps(told)).text)
    assert [field["type"] for field in text["fields"]] == [
        {**address, "namespace": "shop"},
        ["null", "shop.Address"],
    ]
    assert unreadable(resolved(told), resolved(told)) is None


CITY = {"type": "record", "name": "City", "fields": [{"name": "name", "type": "string"}]}
ADDRESS = {"type": "record", "name": "shop.Address", "fields": [{"name": "f0", "type": CITY}]}
AGAIN = {**ADDRESS, "doc": "the same once more"}
CUSTOMER = {"type": "record", "name": "Customer", "namespace": "shop", "fields": [{"name": "f0", "type": ADDRESS}]}
DEPOT = {"type": "record", "name": "shop.Depot", "fields": [{"name": "at", "type": ["null", "Address"]}]}


def order(*kinds: Any) -> Any:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": fields}


@pytest.mark.parametrize(
    ("told", "references"),
    [
        pytest.param(order("Customer"), {"Customer": CUSTOMER}, id="by another name"),
        pytest.param(order("shop.Address", "Customer"), {"shop.Customer": CUSTOMER}, id="an inner type first"),
        pytest.param(order("Customer", "shop.City"), {"shop.Customer": CUSTOMER}, id="an inner type last"),
        pytest.param(order("City"), {"x": ["null", {"type": "array", "items": CUSTOMER}]}, id="only an inner type"),
        pytest.param(order("Depot", "Customer"), {"x": DEPOT, "y": CUSTOMER}, id="of another reference"),
        pytest.param(order("Customer", "Depot"), {"x": DEPOT, "y": CUSTOMER, "z": ADDRESS}, id="two that are equal"),
        pytest.param(order("Address", AGAIN), {"x": ADDRESS}, id="equal to its own"),
    ],
)
def test_all_types_that_references_define_are_known_as_avros_java_has_it(told: Any, references: Any) -> None:
    found = resolved(json.dumps(told), {name: json.dumps(each) for name, each in references.items()})
    names: dict[str, Any] = {}  # as fastavro knows them, which takes no definition twice
    city, address, customer = {**CITY, "namespace": "shop"}, order("City"), order("Address")
    for each in (city, {**address, "name": "Address"}, {**customer, "name": "Customer"}, DEPOT):
        fastavro.parse_schema(each, names)
    plain = json.loads(json.dumps(told).replace(json.dumps(AGAIN), '"Address"'))
    known = fastavro.parse_schema(plain, names)
    value = generate_one(known)
    ours, theirs = io.BytesIO(), io.BytesIO()
    fastavro.schemaless_writer(ours, json.loads(found.text), value)
    fastavro.schemaless_writer(theirs, known, value)
    assert ours.getvalue() == theirs.getvalue()


def test_references_that_define_a_type_in_different_ways_are_a_flaw_where_it_is_used() -> None:
    other = json.dumps(ADDRESS).replace("f0", "town")
    references = {"x": CUSTOMER, "y": other, "z": DEPOT}
    for told in (order("Address"), order("Depot", "Customer")):
        with pytest.raises(SchemaFlaw, match=r"has references that define 'shop\.Address' in different ways"):
            resolved(told, references)
    with pytest.raises(SchemaFlaw, match=r"defines 'shop\.Address' twice"):
        resolved(order(json.loads(other), "Customer"), references)


@pytest.mark.parametrize(
    ("told", "flaw"),
    [
        ("{", "is no JSON"),
        ("{}", "is no valid Avro schema: KeyError('type')"),
        (record("Other"), "has no type 'Other'"),
        ('"Other"', "has no type 'Other'"),
        ({"type": "record", "name": "R"}, "is no valid Avro schema: KeyError('fields')"),
        (record(record("int")), "defines 'R' twice"),
    ],
)
def test_what_is_no_schema_is_told(told: Any, flaw: str) -> None:
    with pytest.raises(SchemaFlaw) as found:
        resolved(told)
    assert str(found.value).startswith(flaw)


@pytest.mark.parametrize(
    ("reader", "flaw"),
    [
        ("string", "is no record, so it gives no columns"),
        (record("null"), "has field f of type null"),
        (record(logical("time-micros")), "has field f of type time-micros, which Spark Connect cannot return"),
        (record(["null", decimal(40, 2)]), "has field f with 40 digits, and Spark's decimals have at most 38"),
        (record(["null", "R"]), "has field f, which is a record inside of itself, and Spark has no such type"),
        (
            {
                "type": "record",
                "name": "R",
                "fields": [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}],
            },
            "has fields that differ only in upper and lower case: a",
        ),
    ],
)
def test_a_schema_of_which_spark_makes_no_columns_or_other_ones_is_refused_for_the_reader(
    reader: Any, flaw: str
) -> None:
    with pytest.raises(SchemaFlaw) as found:
        require_columns(resolved(reader))
    assert str(found.value).startswith(flaw)


def test_a_record_inside_of_itself_that_the_reader_leaves_out_does_no_harm() -> None:
    node = record(["null", "R"]) | {"fields": [*record(["null", "R"])["fields"], {"name": "id", "type": "int"}]}
    assert unreadable(resolved(node), resolved(record("int", "id"))) is None
