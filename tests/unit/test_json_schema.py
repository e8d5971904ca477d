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
        ({"$ref": "#/$defs/nowhere"}, r"\$\.a refers to '#/\$defs/nowhere', which is not there"),
        ({"$ref": "https://example.com/order"}, r"\$\.a refers to another document"),
        ({"$ref": "#"}, "is nested too deeply, or refers to itself"),
        ({"$ref": "#/properties/a"}, "refers to itself"),
        (True, r"\$\.a is no schema"),
    ],
)
def test_what_has_no_column_is_refused_by_its_place(column: Any, why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        struct_of({"type": "object", "properties": {"a": column}})
    assert refused.value.code is codes.OPERATOR_ARGUMENT and "as DDL" in str(refused.value)


def test_the_root_must_be_an_object() -> None:
    with pytest.raises(Refused, match=r"\$ is not of type object"):
        struct_of({"type": "array", "items": {"type": "string"}})
