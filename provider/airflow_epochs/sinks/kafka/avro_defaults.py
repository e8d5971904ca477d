"""Defaults of a user's Avro schema, as fastavro writes them for fields that a row lacks.

In JSON, bytes are a text with a character for each byte. fastavro takes the text itself for the value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_epochs.transforms.avro_schemas import Schema

_BYTES = ("bytes", "fixed")


def parsed(text: str) -> Any:
    """A schema for fastavro's writer.

    Raises:
        SchemaParseException, UnknownType, UnicodeEncodeError: It is not valid.
    """
    import fastavro

    named: dict[str, Any] = {}
    schema = fastavro.parse_schema(json.loads(text), named_schemas=named)
    for field in [each for record in named.values() for each in record.get("fields", ())]:
        if "default" in field:
            field["default"] = _value(field["default"], field["type"], named)
    return schema


def _value(default: Any, schema: Schema, named: Mapping[str, Schema]) -> Any:
    """What a default in JSON stands for."""
    schema = named.get(schema, schema) if isinstance(schema, str) else schema
    if default is None:
        return None
    if isinstance(schema, list):
        return _value(default, next((branch for branch in schema if branch != "null"), "null"), named)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind in _BYTES:
        return default.encode("latin-1")
    if kind == "array":
        return [_value(each, schema["items"], named) for each in default]
    if kind == "map":
        return {key: _value(each, schema["values"], named) for key, each in default.items()}
    if kind == "record":
        kinds = {field["name"]: field["type"] for field in schema["fields"]}
        return {name: _value(each, kinds.get(name, "null"), named) for name, each in default.items()}
    return default
