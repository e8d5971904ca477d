"""Rows out of records of Protobuf in the wire format of Confluent's registry; and apart, the records that are corrupt.

Behind the magic byte and the id of the schema are the indexes of the message in that schema, and the message.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from airflow_epochs.transforms import protobuf_columns, protobuf_schemas, registry_frames, worker_functions
from airflow_epochs.transforms.avro_schemas import SchemaFlaw
from airflow_epochs.transforms.checks import Checks
from airflow_epochs.transforms.conditions import column_named, quoted
from airflow_epochs.transforms.parsed import ERROR, ORIGIN, Parsed, corrupt_of, fields_of, kept_of, once, origin_beside
from airflow_epochs.transforms.protobuf_columns import Field, Paths

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

_CHECKS = Checks("parse_protobuf")
_DECODED, _RAW = "__epochs_decoded", "__epochs_raw"
_LIBRARIES = {"google.protobuf": "protobuf", "pyarrow": "pyarrow"}


def parse_protobuf(
    batch: DataFrame,
    message: str,
    descriptor: bytes | str | Path,
    *,
    schemas: Mapping[int, bytes] | None = None,
    registry: str | None = None,
    corrupt: str = "raw",
    columns: Sequence[str | Column] = ORIGIN,
    value: str = "value",
) -> Parsed:
    """Decode each record whose schema can be read into one message. Makes a plan; Spark's Python workers decode.

    The rows have the columns of ``message`` as ``descriptor`` has it, the reader's, whatever the record's own schema
    is, by Protobuf's rules: fields that the reader's message does not have are left out, missing ones are NULL or have
    the default value.

    Corrupt are: records without a value, without the magic byte, or without message indexes; with an id that
    is not known; of a schema that cannot be read into the reader's; with indexes that name another
    message; that are not of their schema; with a text that is not UTF-8, or a number that an enum does not have. The
    Python of Spark's workers, and of the driver, must have the libraries ``protobuf`` and ``pyarrow``.

    Args:
        batch: The epoch's records.
        message: The full name of the message of the rows, such as ``"shop.Order"``. The records' messages have it, too.
        descriptor: A FileDescriptorSet, as ``protoc --include_imports --descriptor_set_out=FILE`` writes it of one
            file; or the path of such a file, where the transform runs.
        schemas: The id of each schema that records may have -> such a set. A rerun must have the same ones.
        registry: In place of ``schemas``, as for ``parse_avro``.
        corrupt: The name of the column with the record itself, binary, in ``Parsed.corrupt``.
        columns: What to keep of the batch, such as ``epoch.record``. Their names must not be names of the message.
        value: The batch's binary column with the records.

    Raises:
        Refused: An argument is not valid, a column is missing or has a name twice, or the driver lacks a library.
    """
    from pyspark.sql import functions as F

    worker_functions.require("parse_protobuf", _LIBRARIES)
    reader, fields = _reader(message, descriptor)
    written, unusable = _written(schemas, registry)
    registry_frames.require_binary(_CHECKS, batch, value)
    own = [field.name for field in fields]
    kept = kept_of(_CHECKS, batch, columns, [*own, _DECODED, _RAW], "the message has it, too")
    names, more = kept.columns, origin_beside(_CHECKS, batch, kept, corrupt)
    carried = batch.select(*columns, *more, F.col(quoted(value)).alias(_RAW))
    readable = {**_readable(written, reader), **unusable}
    decode = _decoder(protobuf_schemas.description_of(reader), fields, readable)
    told = once(carried.withColumn(_DECODED, F.arrow_udf(decode, _spark_type(fields))(_RAW)))
    error = f"{_DECODED}.{ERROR}"
    good, bad = told.where(f"{error} IS NULL"), told.where(f"{error} IS NOT NULL")
    return Parsed(
        rows=good.selectExpr(*map(column_named, names), *fields_of(f"{_DECODED}.value", own)),
        corrupt=corrupt_of(bad, [*names, *more], error, _RAW, corrupt),
    )


def _reader(message: str, descriptor: bytes | str | Path) -> tuple[Descriptor, tuple[Field, ...]]:
    told = descriptor if isinstance(descriptor, bytes) else _read(descriptor)
    try:
        files = protobuf_schemas.files_of(told)
    except SchemaFlaw as flaw:
        raise _CHECKS.argument("descriptor", _short(descriptor), "a whole set of files", f"this one {flaw}") from None
    try:
        reader = files.message(message)
        return reader, protobuf_schemas.columns_of(reader)
    except SchemaFlaw as flaw:
        wanted = "the full name of a message that Spark can read"
        raise _CHECKS.argument("message", message, wanted, f"the descriptor {flaw}") from None


def _read(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except (OSError, TypeError) as error:
        wanted = "bytes, or the path of a file that can be read where the transform runs"
        raise _CHECKS.argument("descriptor", path, wanted, str(error)) from None


def _short(descriptor: bytes | str | Path) -> object:
    return f"{len(descriptor)} bytes" if isinstance(descriptor, bytes) else descriptor


def _written(
    schemas: Mapping[int, bytes] | None, registry: str | None
) -> tuple[Mapping[int, bytes], Mapping[int, str]]:
    written, unusable = registry_frames.written(_CHECKS, schemas, registry, "PROTOBUF")
    if registry is not None:
        return {number: b64decode(text) for number, text in written.items()}, unusable
    return written, unusable


def _readable(schemas: Mapping[int, bytes], reader: Descriptor) -> dict[int, Paths | str]:
    """For each schema: the message indexes of its records and why they are corrupt; or why all are."""
    return {number: _paths(number, told, reader) for number, told in sorted(schemas.items())}


def _paths(number: int, told: bytes, reader: Descriptor) -> Paths | str:
    wanted = str(reader.full_name)
    try:
        files = protobuf_schemas.files_of(told)
    except SchemaFlaw as flaw:
        return f"schema {number} {flaw}"
    indexes = protobuf_schemas.indexes_of(files)
    problem = None
    if [wanted] in indexes.values() and (found := protobuf_schemas.unreadable(files.message(wanted), reader)):
        problem = f"schema {number} cannot be read into the reader's: {found}"
    other = f"the message indexes name {{}} in schema {number}, not {wanted}"
    return {path: problem if names == [wanted] else other.format(" or ".join(names)) for path, names in indexes.items()}


# -- what Spark evaluates ----------------------------------------------------------------------------------------------


def _decoder(description: bytes, fields: Sequence[Field], schemas: Mapping[int, Paths | str]) -> Callable[[Any], Any]:
    """The function that Spark's Python workers run to decode records."""
    make, ready = protobuf_columns.Decoder, list[Any]()

    def decode(records: Any) -> Any:
        if not ready:
            ready.append(make(description, fields, schemas))
        return ready[0].decoded(records)

    return worker_functions.of_a_column(decode, protobuf_columns, registry_frames)


def _spark_type(fields: Iterable[Field]) -> StructType:
    from pyspark.sql.types import StructType

    told = [_named(ERROR, "string"), _named("value", {"type": "struct", "fields": [*map(_as_json, fields)]})]
    return cast("StructType", StructType.fromJson({"type": "struct", "fields": told}))


def _named(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _as_json(field: Field) -> dict[str, Any]:
    """A column in Spark's own JSON."""
    if field.label == "map":
        key, each = (_as_json(entry)["type"] for entry in field.fields)
        return _named(field.name, {"type": "map", "keyType": key, "valueType": each, "valueContainsNull": True})
    kind: Any = "string" if field.kind == "enum" else field.kind
    if field.kind == "struct":
        kind = {"type": "struct", "fields": [*map(_as_json, field.fields)]}
    if field.label == "repeated":
        kind = {"type": "array", "elementType": kind, "containsNull": True}
    return _named(field.name, kind)
