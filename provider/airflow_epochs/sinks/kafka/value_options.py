"""Checks ``value_format`` and ``value_schema`` of a KafkaSink. Every task parses its DAG file, so it imports little."""

from __future__ import annotations

import json

AVRO, JSON_SCHEMA, PROTOBUF = "avro", "json_schema", "protobuf"
KINDS = {AVRO: "AVRO", JSON_SCHEMA: "JSON", PROTOBUF: "PROTOBUF"}
"""The sink's ``value_format`` -> the registry's ``schemaType``."""


def flaw_of(value_format: str, text: str | None) -> str | None:
    """What is wrong with a user's schema, as the end of a sentence; None if nothing is seen without a library."""
    if text is None:
        return "is missing: Protobuf needs the text of a .proto file" if value_format == PROTOBUF else None
    if value_format == PROTOBUF:
        return None  # only protoc can tell
    try:
        if value_format == AVRO:
            return _flaw_of_avro(text)
        return None if isinstance(json.loads(text), dict | bool) else "is no object of JSON"
    except ValueError as error:
        return f"is no JSON: {error}"


def _flaw_of_avro(text: str) -> str | None:
    from airflow_epochs.transforms.avro_schemas import SchemaFlaw, resolved

    try:
        schema = resolved(text).root
    except SchemaFlaw as flaw:
        return str(flaw)
    return None if isinstance(schema, dict) and schema["type"] == "record" else "is no record"
