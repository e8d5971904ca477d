"""Makes Kafka records from staged columns. Vote and commit both use it, so the commit takes what the vote took.

The columns are the same as for Spark's own Kafka sink. Without a ``value`` column, the value is a JSON object of all
other columns, in the schema's order: NULL as null, decimals as strings, binary as base64, dates and times in ISO 8601
(in UTC if they have a zone), NaN and infinities as null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import cached_property
from itertools import repeat, starmap
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_epochs import codes
from airflow_epochs.errors import Refused, first_line
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.kafka.value_formats import ValueSchema, Write
from airflow_epochs.sinks.kafka.value_options import PROTOBUF
from airflow_epochs.sinks.row_flaws import Check, refusal, require_sound, row_named, sound
from airflow_epochs.spark.driver.delta.schema import type_name

if TYPE_CHECKING:
    import pyarrow as pa

HEADER = "airflow-epochs"
"""Header of every record: ``<pipeline>/<sink>/<epoch>/<number of the row in the epoch>``. It is the same each time the
epoch is sent, so consumers of uncommitted records can recognise duplicates."""
OVERHEAD = 61 + 36
"""The most bytes that a batch of one record takes besides the record's key, value and headers."""
OVERHEAD_OF_HEADER = 10

Headers = list[tuple[str, bytes | None]]

_NONE: Headers = []
_TEXT = ("string", "binary")
_JSON_PLAIN = {
    *("string", "binary", "boolean", "byte", "short", "integer", "long", "float", "double"),
    *("date", "timestamp", "timestamp_ntz"),
}
_KEYS = ("string",)
_KEYS_OF_PROTOBUF = (*_KEYS, "byte", "short", "integer", "long", "decimal(20,0)")
"""``protobuf_types`` says which of them a field takes. The decimal is how ``parse_protobuf`` reads a ``uint64``."""
_EPOCHS = {"timestamp": datetime(1970, 1, 1, tzinfo=timezone.utc), "timestamp_ntz": datetime(1970, 1, 1)}
_OF_KAFKA = ("key", "value", "headers", "partition")


KafkaRecord = tuple[bytes | None, bytes | None, int | None, Headers]
"""Key, value, partition (None: chosen by the key's hash), headers. A plain tuple, because there are millions."""


def size_of(record: KafkaRecord) -> int:
    """An upper bound of the bytes that the record takes in a batch of its own."""
    key, value, _, headers = record
    beside = sum(len(name.encode()) + len(content or b"") + OVERHEAD_OF_HEADER for name, content in headers)
    return OVERHEAD + len(key or b"") + len(value or b"") + beside


@dataclass(frozen=True, kw_only=True)
class RowShape:
    """The role of each column.

    ``fields``: the columns that the sink makes a value of; empty if there is a column ``value``. ``schema``: how the
    value is made; None: as a JSON object.
    """

    key: str | None
    value: str | None
    headers: str | None
    partition: str | None
    fields: Mapping[str, Any]
    schema: ValueSchema | None = None

    @classmethod
    def of(cls, schema: JsonDict, target: str, value_format: str | None = None) -> RowShape:
        """Find the columns by name, ignoring case.

        Raises:
            Refused: Some columns cannot be sent; names each.
        """
        types = {field["name"]: field["type"] for field in schema["fields"]}
        found = {name.lower(): name for name in types if name.lower() in _OF_KAFKA}
        others = {name: kind for name, kind in types.items() if name.lower() not in _OF_KAFKA}
        if problems := [*_misfits(types, found, value_format), *_unsent(others, "value" in found, value_format)]:
            raise Refused(
                f"The rows do not fit {target}: {'; '.join(problems)}.",
                code=codes.TOPIC_ROWS_UNFIT,
                remedy="Let the transform return `key` and `value` (string or binary), `headers` and `partition`. Or "
                "let it return any columns without `value`: the sink makes a JSON object of them. See "
                "docs/kafka-sink.md. Clear the stage task.",
            )
        key, value, headers, partition = map(found.get, _OF_KAFKA)
        return cls(
            key=key, value=value, headers=headers, partition=partition, fields={} if "value" in found else others
        )

    def records(
        self, batches: Iterator[pa.RecordBatch], source: str, numbers: Callable[[int], int]
    ) -> Iterator[KafkaRecord]:
        """The records of the rows, in order.

        Args:
            batches: The rows.
            source: The first part of ``HEADER``'s value: ``<pipeline>/<sink>/<epoch>``.
            numbers: Chooses a partition by the row's number, for a row with neither key nor partition.
        """
        header, number = source.replace("%", "%%").encode() + b"/%d", 0
        for batch in batches:
            for key, value, partition, headers in self._rows_of(batch):
                if partition is None and key is None:
                    partition = numbers(number)
                own = (HEADER, header % number)
                yield key, value, partition, [*headers, own] if headers else [own]
                number += 1

    def _rows_of(self, batch: pa.RecordBatch) -> Iterator[KafkaRecord]:
        import pyarrow as pa

        # The column `partition` is the record's destination here, so only a struct can tell a row's origin.
        require_sound(batch, self._checks, [self.key] if self.key else [], flat=False)
        try:
            return self._rows(batch)
        except (pa.ArrowException, ValueError, OverflowError, TypeError, KeyError) as error:
            raise Refused(
                f"The sink cannot make a Kafka record of a row: {first_line(error)}",
                code=codes.TOPIC_ROWS_UNFIT,
                remedy="Correct the transform, for example by a cast of the column to string. Clear the stage task.",
            ) from error

    def _rows(self, batch: pa.RecordBatch) -> Iterator[KafkaRecord]:
        partitions = _column(batch, self.partition).to_pylist() if self.partition else repeat(None)
        headers = map(_headers, _column(batch, self.headers).to_pylist()) if self.headers else repeat(_NONE)
        values = _bytes(batch, self.value) if self.value else self._values(batch)
        return zip(_bytes(batch, self.key), values, partitions, headers, strict=False)

    def _values(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        columns = [_for_json(_column(batch, name), kind) for name, kind in self.fields.items()]
        # Encode the whole batch at once: a value that cannot be written must fail here.
        if self.schema is None:
            return iter(list(map(msgspec.json.Encoder().encode, starmap(self._object, zip(*columns, strict=True)))))
        rows = (dict(zip(self.fields, values, strict=True)) for values in zip(*columns, strict=True))
        return iter([self._written(batch, number, row) for number, row in enumerate(rows)])

    def _written(self, batch: pa.RecordBatch, number: int, row: dict[str, Any]) -> bytes:
        try:
            return self._write(row)
        except (ValueError, TypeError, OverflowError) as error:
            named = row_named(batch, number, [self.key] if self.key else [], flat=False)
            raise refusal(f"{named}: the schema of the values does not take it: {first_line(error)}") from error

    @cached_property
    def _write(self) -> Write:
        assert self.schema
        return self.schema.writer()

    @cached_property
    def _checks(self) -> dict[str, Check]:
        return {name: sound(kind) for name, kind in self.fields.items()}

    @cached_property
    def _object(self) -> Callable[..., Any]:
        """Makes one JSON object from its values. A struct takes half a dict's time, but not every name allows one."""
        fields = {f"c{number}": name for number, name in enumerate(self.fields)}
        try:
            return msgspec.defstruct("Row", [(field, Any) for field in fields], rename=fields, gc=False)
        except ValueError:  # a name with a quote or a backslash
            return lambda *values: dict(zip(self.fields, values, strict=True))


def _misfits(types: Mapping[str, Any], found: Mapping[str, str], value_format: str | None) -> Iterator[str]:
    if value_format and "value" in found:
        yield f"there is a column {found['value']!r}, and the sink makes the values itself ({value_format})"
    for name, column in found.items():
        kind = types[column]
        wanted = {
            "key": "string or binary",
            "value": "string or binary",
            "partition": "int",
            "headers": "array<struct<key: string, value: binary>>",
        }[name]
        fits = {"partition": kind == "integer", "headers": _is_headers(kind)}.get(name, kind in _TEXT)
        if not fits:
            yield f"column {column!r} is {type_name(kind)}, but it must be {wanted}"


def _is_headers(kind: Any) -> bool:
    if not isinstance(kind, dict) or kind["type"] != "array" or not isinstance(kind["elementType"], dict):
        return False
    fields = kind["elementType"].get("fields", [])
    return [(field["name"].lower(), field["type"]) for field in fields] == [("key", "string"), ("value", "binary")]


def _unsent(others: Mapping[str, Any], has_value: bool, value_format: str | None) -> Iterator[str]:
    if has_value and others:
        yield f"because there is a column `value`, {', '.join(map(repr, others))} would not be sent"
    if not has_value and not others:
        yield "there is no column `value`, and no other column to make a JSON object of"
    if not has_value:
        for name, kind in others.items():
            if not _fits_json(kind, _KEYS_OF_PROTOBUF if value_format == PROTOBUF else _KEYS):
                yield f"column {name!r} is {type_name(kind)}, which JSON cannot express"


def _fits_json(kind: Any, keys: tuple[str, ...]) -> bool:
    """Whether JSON can hold the type. ``keys``: the types that keys of maps may have."""
    if not isinstance(kind, dict):
        return kind in _JSON_PLAIN or str(kind).startswith("decimal(")
    if kind["type"] == "struct":
        return all(_fits_json(field["type"], keys) for field in kind["fields"])
    if kind["type"] == "array":
        return _fits_json(kind["elementType"], keys)
    return bool(kind["type"] == "map" and kind["keyType"] in keys and _fits_json(kind["valueType"], keys))


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    return batch.column(name)


def _bytes(batch: pa.RecordBatch, name: str | None) -> Iterator[bytes | None]:
    import pyarrow as pa

    if name is None:
        return repeat(None)
    values: list[bytes | None] = _column(batch, name).cast(pa.large_binary()).to_pylist()
    return iter(values)


def _headers(row: list[dict[str, Any]] | None) -> Headers:
    """One row's headers, without ``HEADER``, which a row copied from another pipeline's topic may have."""
    headers = []
    for header in row or ():
        if header is None:
            raise Refused(
                "A row has a NULL among its headers: one struct in the array of column `headers` is NULL.",
                code=codes.TOPIC_ROWS_UNFIT,
                remedy="Let the transform drop it: filter(headers, h -> h IS NOT NULL). Clear the stage task.",
            )
        name, value = header.values()
        if name is None:
            raise Refused(
                "A row has a header without a key, and Kafka rejects such a header.",
                code=codes.TOPIC_ROWS_UNFIT,
                remedy="Let the transform drop it: filter(headers, h -> h.key IS NOT NULL). Clear the stage task.",
            )
        if "\0" in name:
            raise Refused(
                f"A row has a header with the key {name!r}. Kafka's client would cut it off at the character U+0000.",
                code=codes.TOPIC_ROWS_UNFIT,
                remedy="Let the transform take this character out of the key. Clear the stage task.",
            )
        if name != HEADER:
            headers.append((name, value))
    return headers


def _for_json(column: pa.Array, kind: Any) -> list[Any]:
    """A column's values for JSON. Times become microseconds, in UTC if they have a zone, whatever unit the file has."""
    import pyarrow as pa

    if isinstance(kind, dict):
        return list(column.to_pylist(maps_as_pydicts="strict"))
    if kind in _EPOCHS:
        epoch, zone = _EPOCHS[kind], "UTC" if kind == "timestamp" else None
        # Convert through numbers: pyarrow's own conversion to datetimes takes ten times as long.
        numbers = column.cast(pa.timestamp("us", zone)).cast(pa.int64()).to_pylist()
        return [None if number is None else epoch + timedelta(0, 0, number) for number in numbers]
    return list(column.to_pylist())
