"""A JSON Schema becomes columns, or an error that says where it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.transforms.json_schema import struct_of

ORDER = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["id"],
    "$defs": {"money": {"properties": {"amount": {"type": "number"}, "currency": {"type": "string"}}}},
    "properties": {
        "id": {"type": "integer", "minimum": 1},
        "paid": {"type": ["boolean", "null"]},
        "at": {"type": "string", "format": "date-time"},
        "day": {"anyOf": [{"type": "null"}, {"type": "string", "format": "date"}]},
        "total": {"$ref": "#/$defs/money"},
        "lines": {"type": "array", "items": {"properties": {"sku": {"type": "string", "pattern": "^[A-Z]+$"}}}},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


def test_a_schema_becomes_columns_in_its_order() -> None:
    assert struct_of(ORDER).simpleString() == (
        "struct<id:bigint,paid:boolean,at:timestamp,day:date,total:struct<amount:double,currency:string>,"
        "lines:array<struct<sku:string>>,tags:map<string,string>>"
    )


@pytest.mark.parametrize(
    ("column", "why"),
    [
        ({}, r"\$\.a has no type"),
        ({"type": ["string", "integer"]}, r"\$\.a may be of several types"),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, r"\$\.a may be of several types"),
        ({"type": "array"}, r"\$\.a has no `items`"),
        ({"type": "array", "items": {"type": "object"}}, r"\$\.a\[\] is an object without `properties`"),
        ({"type": "date"}, r"\$\.a has the type 'date'"),
        ({"enum": ["x", 1]}, r"\$\.a may be of several types: integer, string"),
        ({"enum": [True, 1]}, r"\$\.a may be of several types: boolean, integer"),
        ({"enum": [None]}, r"\$\.a has no type"),
        ({"const": {"x": 1}}, r"\$\.a is an object without `properties`"),
        ({"properties": {"x": False}}, r"\$\.a is an object without `properties`"),
        ({"$ref": "#/$defs/nowhere"}, r"\$\.a refers to '#/\$defs/nowhere', which is not there"),
        ({"$ref": "https://example.com/order"}, r"\$\.a refers to another document"),
        ({"$ref": "#"}, "is nested too deeply, or refers to itself"),
        ({"$ref": "#/properties/a"}, "refers to itself"),
        ({"$ref": "#money"}, r"\$\.a refers to an anchor, '#money'"),
        ({"$ref": "#/allOf/1"}, r"\$\.a refers to '#/allOf/1', which is not there"),
        ({"type": "integer", "$dynamicRef": "#/$defs/money"}, r"\$\.a has a `\$dynamicRef`"),
        ({"properties": ["id"]}, r"\$\.a has `properties` that is no object"),
        ({"anyOf": "string"}, r"\$\.a has `anyOf` that is no list"),
        (True, r"\$\.a has no type"),
        ("string", r"\$\.a is no schema"),
    ],
)
def test_what_has_no_column_is_refused_by_its_place(column: Any, why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        struct_of({"type": "object", "properties": {"a": column}})
    assert refused.value.code is codes.OPERATOR_ARGUMENT and "as DDL" in str(refused.value)


def test_the_root_must_be_an_object() -> None:
    with pytest.raises(Refused, match=r"\$ is not of type object"):
        struct_of({"type": "array", "items": {"type": "string"}})


ID, TEXT = {"type": "integer"}, {"type": "string"}
WITH_ID = {"type": "object", "properties": {"id": ID}}
WITH_TEXT = {"properties": {"a": TEXT}}
AT = {"type": "string", "format": "date-time"}
DEFS = {"id": ID, "with id": WITH_ID, "choice": {"anyOf": [ID, TEXT]}, "a/b~c": TEXT}


KEYED = "struct<k:string,x:bigint>"


def column_of(schema: Any) -> str:
    made = struct_of({"type": "object", "properties": {"c": schema}, "$defs": DEFS})
    return str(made["c"].dataType.simpleString())


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        (WITH_ID | {"allOf": [WITH_TEXT]}, "id:bigint,a:string"),
        ({"allOf": [WITH_ID, {"allOf": [WITH_TEXT]}]}, "id:bigint,a:string"),
        ({"$ref": "#/$defs/with%20id"} | WITH_TEXT, "a:string,id:bigint"),
        (WITH_ID | {"anyOf": [WITH_TEXT]}, "id:bigint,a:string"),
        (WITH_ID | {"oneOf": [{"type": "null"}, WITH_TEXT]}, "id:bigint,a:string"),
        (WITH_ID | {"oneOf": [WITH_TEXT, {"properties": {"b": AT}}]}, "id:bigint,a:string,b:timestamp"),
        (WITH_ID | {"if": {"required": ["a"]}, "then": WITH_TEXT}, "id:bigint,a:string"),
        (WITH_ID | {"if": {"required": ["a"]}, "else": WITH_TEXT}, "id:bigint,a:string"),
        (WITH_ID | {"dependentSchemas": {"id": WITH_TEXT}}, "id:bigint,a:string"),
        (WITH_ID | {"dependencies": {"id": WITH_TEXT, "a": ["id"]}}, "id:bigint,a:string"),
        (
            {"properties": {"o": WITH_ID, "l": {"type": "array", "items": WITH_ID}}}
            | {"allOf": [{"properties": {"o": WITH_TEXT, "l": {"items": WITH_TEXT}}}]},
            "o:struct<id:bigint,a:string>,l:array<struct<id:bigint,a:string>>",
        ),
    ],
)
def test_columns_of_all_parts_of_a_schema_are_united(schema: dict[str, Any], columns: str) -> None:
    assert struct_of(schema | {"$defs": DEFS}).simpleString() == f"struct<{columns}>"
    assert column_of(schema) == f"struct<{columns}>"


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"format": "date-time", "anyOf": [TEXT, {"type": ["null"]}]}, "timestamp"),
        ({"allOf": [TEXT, {"format": "date"}, True]}, "date"),
        ({"allOf": [{"anyOf": [ID, {"type": "null"}]}, {"oneOf": [{"const": 1}, {"const": 2}]}]}, "bigint"),
        ({"$ref": "#/$defs/id", "description": "of the order", "minimum": 1}, "bigint"),
        ({"$ref": "#/$defs/choice/anyOf/1"}, "string"),
        ({"$ref": "#/$defs/a~1b~0c"}, "string"),
        ({"enum": ["a", None, "b"]}, "string"),
        ({"enum": [1, 2], "const": 1}, "bigint"),
        ({"const": 1.5}, "double"),
        ({"const": True}, "boolean"),
        ({"enum": ["2026-01-31"], "format": "date"}, "date"),
        ({"type": "number", "enum": [1, 2.5]}, "double"),
        ({"anyOf": [{"const": None}, {"enum": [None]}, AT]}, "timestamp"),
        ({"oneOf": [{"properties": {"k": {"const": "a"}, "x": ID}}, {"properties": {"k": {"enum": ["b"]}}}]}, KEYED),
        ({"properties": {"id": ID, "gone": False}}, "struct<id:bigint>"),
        ({"properties": {"a": False}, "allOf": [WITH_TEXT]}, "struct<a:string>"),
        (
            WITH_ID | {"if": WITH_ID, "then": {"properties": {"a": False}}, "else": WITH_TEXT},
            "struct<id:bigint,a:string>",
        ),
        ({"type": "object", "allOf": [{"additionalProperties": ID}]}, "map<string,bigint>"),
        ({"type": "array", "prefixItems": [WITH_ID], "items": WITH_TEXT}, "array<struct<a:string,id:bigint>>"),
    ],
)
def test_parts_of_a_schema_give_one_type_together(schema: dict[str, Any], kind: str) -> None:
    assert column_of(schema) == kind


@pytest.mark.parametrize(
    "restriction",
    [
        {"anyOf": [{"required": ["id"]}, {"required": ["a"]}]},
        {"anyOf": [{"required": ["id"]}]},
        {"oneOf": [{"properties": {"a": {"const": "x"}}}, {"properties": {"a": {"pattern": "^y"}}}]},
        {"allOf": [{"if": {"properties": {"id": {"const": 1}}}, "then": {"required": ["a"]}}]},
        {"if": {"properties": {"seen": {"type": "boolean"}}}, "then": {"properties": {"a": {"minLength": 1}}}},
        {"not": {"properties": {"gone": TEXT}}, "dependentRequired": {"a": ["id"]}, "additionalProperties": False},
    ],
)
def test_what_only_restricts_values_changes_no_column(restriction: dict[str, Any]) -> None:
    both = {"properties": {"id": ID, "a": TEXT}}
    assert struct_of(both | restriction).simpleString() == "struct<id:bigint,a:string>"


@pytest.mark.parametrize("word", ["anyOf", "oneOf"])
def test_a_choice_of_values_of_one_type_is_of_that_type(word: str) -> None:
    assert column_of({"type": "string", word: [{"const": "a"}, {"pattern": "^b"}]}) == "string"
    assert column_of({word: [{"type": "string", "const": "a"}, {"type": "string", "format": "email"}]}) == "string"


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"allOf": [{"properties": {"a": ID}}]}, r"\$\.a may be of several types: integer, string"),
        ({"oneOf": [{"properties": {"b": ID}}, {"properties": {"b": TEXT}}]}, r"\$\.b may be of .*: bigint, string"),
        ({"oneOf": [{"properties": {"a": {"format": "date"}}}, True]}, r"\$\.a may be of .*: date, string"),
        ({"allOf": [{"properties": {"a": WITH_ID}}]}, r"\$\.a may be of several types: object, string"),
        ({"allOf": [{"properties": {"a": {"properties": {"id": ID}}}}]}, r"\$\.a may be of .*: object, string"),
        ({"allOf": [{"additionalProperties": ID}]}, r"\$ has `properties` in one part, and is a map"),
        ({"anyOf": [{"properties": {"b": {"minimum": 1}}}, True]}, r"\$\.b has no type"),
        (
            {"anyOf": [{"properties": {"b": {"const": 1}}}, {"properties": {"b": {"const": "x"}}}]},
            r"\$\.b may be of .*:",
        ),
        ({"properties": {"a": AT | {"allOf": [{"format": "date"}]}}}, r"\$\.a may be of .*: date, timestamp"),
    ],
)
def test_parts_of_a_schema_that_give_two_types_are_refused(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(Refused, match=why):
        struct_of(WITH_TEXT | schema)
