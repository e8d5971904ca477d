"""A writer's and a reader's Avro schema under the same names: what Avro's library for Java needs, read by fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pytest

from airflow_epochs.transforms.avro_names import for_reader, for_writer, with_room
from airflow_epochs.transforms.avro_schemas import SchemaFlaw, resolved, unreadable


def record(name: str, *fields: tuple[Any, ...]) -> dict[str, Any]:
    """A schema with fields of name, type and perhaps more attributes."""
    made = [{"name": field, "type": kind, **(more[0] if more else {})} for field, kind, *more in fields]
    return {"type": "record", "name": name, "fields": made}


def enum(name: str, *symbols: str) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols or ("WEB", "APP"))}


def fixed(name: str, size: int = 2) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


def both(writer: Any, reader: Any) -> tuple[Any, Any]:
    """The two schemas as Spark has them, from JSON."""
    told = resolved(writer), resolved(reader)
    assert unreadable(*told) is None
    return json.loads(json.dumps(for_writer(*told))), json.loads(json.dumps(for_reader(told[1])))


def read(writer: Any, reader: Any, value: Any) -> Any:
    """What fastavro reads of the bytes that it wrote with the writer's own schema, by the two as Spark has them."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(writer), value)
    mine, theirs = (fastavro.parse_schema(each) for each in both(writer, reader))
    found = fastavro.schemaless_reader(io.BytesIO(out.getvalue()), mine, theirs)
    assert out.tell() == len(out.getvalue())
    return found


def names(schema: Any) -> Iterator[str]:
    """The full names that a schema defines."""
    if isinstance(schema, list):
        for branch in schema:
            yield from names(branch)
    elif isinstance(schema, dict):
        if "name" in schema:
            yield f"{schema['namespace']}.{schema['name']}"
        for field in schema.get("fields", ()):
            yield from names(field["type"])
        yield from (name for inner in ("items", "values") for name in names(schema.get(inner, "null")))


ORDER = record("com.shop.Order", ("cust", "string"))
ALIAS = ("customer", ["null", "string"], {"aliases": ["cust"], "default": None})


def test_a_field_that_is_found_by_an_alias_has_the_readers_name_whatever_the_record_is_called() -> None:
    reader = record("Order", ALIAS)
    writer, wanted = both(ORDER, reader)
    assert [field["name"] for field in writer["fields"]] == ["customer"]
    assert [*names(writer)] == [*names(wanted)]
    assert "aliases" not in json.dumps(wanted)
    assert read(ORDER, reader, {"cust": "Ann"}) == {"customer": "Ann"}


def test_a_field_is_read_by_its_name_before_an_alias_and_never_twice() -> None:
    writer = record("Order", ("cust", "string"), ("customer", "string"))
    value = {"cust": "old", "customer": "new"}
    assert read(writer, record("Order", ALIAS), value) == {"customer": "new"}
    assert read(writer, record("Order", ("cust", "string"), ALIAS), value) == value
    assert read(ORDER, record("Order", ("cust", "string"), ALIAS), {"cust": "Ann"}) == {"cust": "Ann", "customer": None}
    needed = record("Order", ("cust", "string"), ("customer", "string", {"aliases": ["cust"]}))
    problem = "field customer is missing, and the reader's schema has no default for it"
    assert unreadable(resolved(ORDER), resolved(needed)) == problem


@pytest.mark.parametrize(
    ("written", "wanted", "value"),
    [
        (enum("com.shop.Channel"), ["null", enum("Channel")], "APP"),
        (enum("com.shop.Channel"), ["null", enum("shop.Way")], "APP"),
        (enum("com.shop.Channel"), enum("Way"), "APP"),
        (fixed("com.shop.Hash"), ["null", fixed("Digest")], b"ab"),
        (fixed("com.shop.Hash"), fixed("Digest"), b"ab"),
        (["null", enum("com.shop.Channel")], ["null", enum("Channel")], None),
        ([enum("com.shop.Channel"), "null"], ["null", enum("Channel")], "APP"),
        ({"type": "array", "items": enum("a.E")}, {"type": "array", "items": ["null", enum("b.E")]}, ["WEB", "APP"]),
        ({"type": "map", "values": fixed("a.F")}, {"type": "map", "values": ["null", fixed("b.F")]}, {"k": b"ab"}),
        (enum("a.E"), ["null", enum("a.Other"), enum("b.E")], "APP"),
        (enum("a.E"), ["null", enum("b.E", "X"), {**enum("b.Other"), "aliases": ["a.E"]}], "APP"),
    ],
)
def test_enums_and_fixed_types_have_the_name_of_what_they_are_read_into(written: Any, wanted: Any, value: Any) -> None:
    writer, reader = record("R", ("f", written)), record("R", ("f", wanted))
    mine, theirs = both(writer, reader)
    assert {*names(mine)} <= {*names(theirs)}
    assert read(writer, reader, {"f": value}) == {"f": value}


def test_a_type_of_several_names_in_a_union_without_one_of_the_writers_is_refused() -> None:
    told = resolved(record("R", ("f", enum("a.E")))), resolved(record("R", ("f", [enum("b.F"), enum("b.G")])))
    assert unreadable(*told) == "field f is E, not F or G"
    with pytest.raises(SchemaFlaw, match="field f is E, not F or G"):
        for_writer(*told)


def test_of_a_readers_union_a_number_is_judged_by_the_branch_that_avro_takes() -> None:
    day, micros = (
        {"type": kind, "logicalType": told} for kind, told in (("int", "date"), ("long", "timestamp-micros"))
    )
    told = resolved(record("R", ("f", day))), resolved(record("R", ("f", ["null", micros, "double"])))
    assert unreadable(*told) == "field f is date, not timestamp-micros"


def test_one_type_is_read_into_two_and_two_are_read_into_one() -> None:
    writer = record("R", ("a", enum("W")), ("b", "W"), ("c", fixed("V")), ("d", fixed("U")))
    reader = record("R", ("a", enum("X")), ("b", ["null", enum("Y")]), ("c", fixed("Z")), ("d", "Z"))
    value = {"a": "WEB", "b": "APP", "c": b"ab", "d": b"cd"}
    assert read(writer, reader, value) == value


def test_what_the_reader_leaves_out_may_be_inside_of_itself_and_may_be_read_elsewhere() -> None:
    node = record("Node", ("next", ["null", "Node"]), ("id", "int"), ("way", enum("Way")))
    writer = record("com.R", ("a", "int"), ("left", {"type": "array", "items": node}), ("kept", "Node"), ("way", "Way"))
    reader = record("R", ("kept", record("Node", ("way", enum("Way")), ("id", "long"))), ("way", ["null", "Way"]))
    inner = {"next": {"next": None, "id": 2, "way": "APP"}, "id": 1, "way": "WEB"}
    value = {"a": 5, "left": [inner, inner], "kept": inner, "way": "APP"}
    assert read(writer, reader, value) == {"kept": {"id": 1, "way": "WEB"}, "way": "APP"}


def test_several_records_of_a_union_are_read_into_one() -> None:
    writer: Any = [
        record("com.Placed", ("id", "int"), ("way", enum("com.Way")), ("note", "string")),
        record("com.Paid", ("way", "com.Way"), ("id", "long")),
    ]
    reader = record("Event", ("id", "long"), ("way", enum("Way")))
    assert read(writer, reader, ("com.Placed", {"id": 1, "way": "WEB", "note": ""})) == {"id": 1, "way": "WEB"}
    assert read(writer, reader, ("com.Paid", {"id": 2, "way": "APP"})) == {"id": 2, "way": "APP"}
    mine, _ = both(writer, record("Event", ("id", "long"), ("way", ["null", enum("Way")])))
    assert len({*names(mine)}) == len([*names(mine)]) == 3, "each type is defined once"


def test_two_enums_that_one_of_a_union_would_have_to_take_are_refused() -> None:
    writer = [record("A", ("way", enum("W"))), record("B", ("way", enum("V", "APP")))]
    reader = record("Event", ("way", ["null", enum("Way")]))
    with pytest.raises(SchemaFlaw, match=r"^W and V are both read into Way of a union$"):
        for_writer(resolved(writer), resolved(reader))
    for_writer(resolved(writer), resolved(record("Event", ("way", enum("Way")))))


def test_only_a_decimal_of_which_spark_would_take_the_lower_bits_gets_room_and_no_more_than_its_bytes_have() -> None:
    def schema(digits: int) -> Any:
        decimal = {"type": "bytes", "logicalType": "decimal", "scale": 2}
        narrow, wide = {**decimal, "precision": digits}, {**decimal, "precision": 30}
        fixed = {**decimal, "type": "fixed", "name": "F", "size": 8, "precision": 18}
        inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": ["null", narrow], "default": None}]}
        kinds: list[Any] = [narrow, wide, fixed, inner, {"type": "array", "items": {"type": "map", "values": narrow}}]
        kinds += [{**fixed, "name": "G", "size": 9, "precision": digits}, {**decimal, "type": "string", "precision": 5}]
        fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(kinds)]
        return {"type": "record", "name": "R", "fields": fields}

    assert with_room(schema(18)) == with_room(schema(4)) == schema(19)
    assert with_room(schema(19)) == schema(19)
