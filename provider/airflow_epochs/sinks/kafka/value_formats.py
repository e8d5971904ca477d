"""How a KafkaSink writes values as a schema of a registry says: in Confluent's wire format.

The vote makes the schema of the columns, or takes the user's own, and has its id from the registry. The decision keeps
both, so the commit asks no registry.

The wire format (https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/, "Wire format")
is a zero byte, the id in four bytes, the most significant one first, and the value; of Protobuf, the indexes of the
message in the schema stand before the value: a zero byte for the first one.
"""

from __future__ import annotations

import io
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_epochs import codes
from airflow_epochs.errors import Refused, first_line
from airflow_epochs.kafka.protobuf_files import compiled
from airflow_epochs.model import JsonDict, Staged
from airflow_epochs.schemas import WriterSchema
from airflow_epochs.sinks.kafka import avro_defaults, avro_types, protobuf_types
from airflow_epochs.sinks.kafka.protobuf_values import for_parsing
from airflow_epochs.sinks.kafka.value_options import AVRO, JSON_SCHEMA, KINDS, PROTOBUF
from airflow_epochs.transforms import protobuf_schemas
from airflow_epochs.transforms.avro_schemas import SchemaFlaw, resolved
from airflow_epochs.transforms.registry_frames import head_of

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

_DETAIL = "value_schema"
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_AVRO_PLAIN: Mapping[str, Any] = {
    "byte": "int",
    "short": "int",
    "integer": "int",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "timestamp_ntz": {"type": "long", "logicalType": "local-timestamp-micros"},
}
"""Spark's types that have another name in Avro."""
_JSON_PLAIN: Mapping[str, JsonDict] = {
    **{kind: {"type": "integer"} for kind in ("byte", "short", "integer", "long")},
    **{kind: {"type": "number"} for kind in ("float", "double")},
    "boolean": {"type": "boolean"},
    "binary": {"type": "string", "contentEncoding": "base64"},
    "date": {"type": "string", "format": "date"},
    "timestamp": {"type": "string", "format": "date-time"},
}
"""Types of Spark whose JSON is more than a string."""

Write = Callable[[dict[str, Any]], bytes]
"""Makes a value of a row. Raises ValueError or TypeError if the schema does not take the row."""


@dataclass(frozen=True, kw_only=True)
class ValueSchema:
    """The schema that an epoch's values are written with.

    Attributes:
        value_format: The sink's ``value_format``.
        number: The schema's id in the registry.
        text: The schema that writes the values; for Protobuf, a FileDescriptorSet in base64.
        given: Whether the user has given the schema; else it was made of the columns.
    """

    value_format: str
    number: int
    text: str
    given: bool

    @classmethod
    def of(cls, staged: Staged) -> ValueSchema | None:
        """The schema that the vote recorded; None: the sink has no ``value_format``."""
        told = staged.detail.get(_DETAIL)
        return cls(**told) if told else None

    def detail(self) -> JsonDict:
        """The schema as JSON, for ``Staged.detail``."""
        return {_DETAIL: asdict(self)}

    def writer(self) -> Write:
        """The function that makes the values. Its ``ImportError`` names a package that the worker lacks."""
        return {AVRO: self._avro, JSON_SCHEMA: self._json, PROTOBUF: self._protobuf}[self.value_format]()

    def _avro(self) -> Write:
        import fastavro

        schema, head = avro_defaults.parsed(self.text), head_of(self.number)
        told = resolved(self.text)
        require = avro_types.require_kept(told, told.root) if self.given else None

        def write(row: dict[str, Any]) -> bytes:
            if require:
                require(row)
            out = io.BytesIO()
            out.write(head)
            fastavro.schemaless_writer(out, schema, row, strict_allow_default=True)
            return out.getvalue()

        return write

    def _json(self) -> Write:
        encode, head = msgspec.json.Encoder().encode, head_of(self.number)
        require = self._validator() if self.given else None

        def write(row: dict[str, Any]) -> bytes:
            value = encode(row)
            if require:
                require(json.loads(value))
            return head + value

        return write

    def _protobuf(self) -> Write:
        from google.protobuf import json_format, message_factory
        from google.protobuf.message import EncodeError

        files = protobuf_schemas.files_of(b64decode(self.text))
        make = message_factory.GetMessageClass(_first_of(files))
        head = head_of(self.number) + b"\0"

        def write(row: dict[str, Any]) -> bytes:
            try:
                told = for_parsing(msgspec.to_builtins(row), make.DESCRIPTOR)
                message = json_format.ParseDict(told, make())
                return head + bytes(message.SerializeToString(deterministic=True))
            except (json_format.ParseError, EncodeError, AttributeError) as error:
                # EncodeError: a NULL for a required field of proto2. AttributeError: an Any whose @type is no text.
                raise ValueError(str(error)) from None

        return write

    def _validator(self) -> Callable[[Any], None]:
        from jsonschema import ValidationError
        from jsonschema.validators import validator_for
        from jsonschema_specifications import REGISTRY
        from referencing.exceptions import Unresolvable

        schema = json.loads(self.text)
        validator = validator_for(schema)(schema, registry=REGISTRY)  # the default one downloads other schemas

        def require(value: Any) -> None:
            try:
                validator.validate(value)
            except ValidationError as error:
                raise ValueError(f"{error.json_path}: {error.message}") from None
            except Unresolvable as error:
                raise ValueError(f"the schema is not complete in itself: {error}") from None
            except RecursionError:
                raise ValueError("the schema, or the row, has no end") from None

        return require


def schema_of(value_format: str, given: str | None, columns: Mapping[str, Any], topic: str) -> WriterSchema:
    """The user's schema, or one made of the columns: name -> type in Spark's JSON. Every value in it may be NULL.

    For Protobuf, it is always the user's: numbers of fields must not follow from the order of columns.

    Whether a column may be NULL in Spark is not looked at: it may change from epoch to epoch with Spark's plan.

    Raises:
        Refused: Avro cannot have a column with this name.
    """
    if given is None:
        name = re.sub(r"\W", "_", topic, flags=re.ASCII)
        made = (
            _avro_record(columns, f"_{name}" if name[0].isdigit() else name) if value_format == AVRO else _json(columns)
        )
        given = json.dumps(made)
    return WriterSchema(kind=KINDS[value_format], text=given)


def writes_by(schema: WriterSchema, columns: Mapping[str, Any]) -> str:
    """``ValueSchema.text`` for a schema.

    Raises:
        Refused: protoc, fastavro or jsonschema does not take it, or protoc is not installed; or values would change.
    """
    try:
        if schema.kind == KINDS[PROTOBUF]:
            return b64encode(_compiled(schema.text, columns)).decode()
        if schema.kind == KINDS[AVRO]:
            _require_kept(_avro_misfits(schema.text, columns))
        if schema.kind == KINDS[JSON_SCHEMA]:
            _require_usable(json.loads(schema.text))
    except SchemaFlaw as flaw:
        raise Refused(
            f"The `value_schema` {flaw}.",
            code=codes.SINK_MISCONFIGURED,
            remedy="Correct `value_schema` of the KafkaSink in the DAG. Then clear the failed task.",
        ) from flaw
    return schema.text


def _require_kept(problems: list[str]) -> None:
    if problems:
        raise Refused(
            f"The `value_schema` cannot have these values as they are: {'; '.join(problems)}.",
            code=codes.TOPIC_ROWS_UNFIT,
            remedy="Let the transform cast each column to the schema's type, or correct `value_schema` in the DAG. "
            "Clear the stage task.",
        )


# -- Protobuf --------------------------------------------------------------------------------------------------------


def _compiled(text: str, columns: Mapping[str, Any]) -> bytes:
    files = compiled(text, {})
    messages = protobuf_schemas.files_of(files)
    if not messages.main.message_types_by_name:
        raise SchemaFlaw("has no message")
    _require_kept(protobuf_types.misfits(_first_of(messages), columns))
    return files


def _first_of(messages: protobuf_schemas.SchemaFiles) -> Descriptor:
    return next(iter(messages.main.message_types_by_name.values()))


# -- Avro ------------------------------------------------------------------------------------------------------------


def _avro_misfits(text: str, columns: Mapping[str, Any]) -> list[str]:
    from fastavro.schema import SchemaParseException, UnknownType

    try:
        avro_defaults.parsed(text)
    except (SchemaParseException, UnknownType, UnicodeEncodeError) as error:
        raise SchemaFlaw(f"is no valid Avro schema: {first_line(error)}") from error
    return avro_types.misfits(resolved(text), columns)


def _avro_record(columns: Mapping[str, Any], name: str) -> JsonDict:
    wrong = [column for column in columns if not _AVRO_NAME.fullmatch(column)]
    if wrong:
        raise Refused(
            f"Avro cannot have fields with the names of the columns {', '.join(map(repr, wrong))}.",
            code=codes.TOPIC_ROWS_UNFIT,
            remedy="Let the transform give them names of letters, digits and '_' that do not begin with a digit. Clear "
            "the stage task.",
        )
    fields = [_avro_field(column, kind, f"{name}.{column}") for column, kind in columns.items()]
    return {"type": "record", "name": name, "fields": fields}


def _avro_field(column: str, kind: Any, name: str) -> JsonDict:
    return {"name": column, "type": ["null", _avro(kind, name)], "default": None}


def _avro(kind: Any, name: str) -> Any:
    """The Avro schema of a Spark type. ``name``: the name of its record, if it has one."""
    if not isinstance(kind, dict):
        return _avro_decimal(kind) if kind.startswith("decimal(") else _AVRO_PLAIN.get(kind, kind)
    if kind["type"] == "struct":
        return _avro_record({field["name"]: field["type"] for field in kind["fields"]}, name)
    if kind["type"] == "array":
        return {"type": "array", "items": ["null", _avro(kind["elementType"], name)]}
    return {"type": "map", "values": ["null", _avro(kind["valueType"], name)]}


def _avro_decimal(kind: str) -> JsonDict:
    precision, scale = map(int, re.findall(r"\d+", kind))
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


# -- JSON Schema -----------------------------------------------------------------------------------------------------


def _require_usable(schema: Any) -> None:
    """Require a schema that can check rows: of the right form, with patterns that Python knows."""
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    try:
        validator_for(schema).check_schema(schema)
    except SchemaError as error:
        raise SchemaFlaw(f"is no valid JSON Schema: {error.json_path}: {error.message}") from error


def _json(columns: Mapping[str, Any]) -> JsonDict:
    return {"$schema": "http://json-schema.org/draft-07/schema#", **_json_object(columns)}


def _json_object(columns: Mapping[str, Any]) -> JsonDict:
    return {"type": "object", "properties": {name: _or_null(kind) for name, kind in columns.items()}}


def _or_null(kind: Any) -> JsonDict:
    return {"oneOf": [{"type": "null"}, _json_type(kind)]}


def _json_type(kind: Any) -> JsonDict:
    if not isinstance(kind, dict):
        return _JSON_PLAIN.get(kind, {"type": "string"})
    if kind["type"] == "struct":
        return _json_object({field["name"]: field["type"] for field in kind["fields"]})
    if kind["type"] == "array":
        return {"type": "array", "items": _or_null(kind["elementType"])}
    return {"type": "object", "additionalProperties": _or_null(kind["valueType"])}
