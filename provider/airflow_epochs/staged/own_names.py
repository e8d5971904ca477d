"""Gives columns of staged files their own names: with column mapping, a table's files use other names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from airflow_epochs.delta.shape import physical_name
from airflow_epochs.model import JsonDict

if TYPE_CHECKING:
    import pyarrow as pa


def named(batch: pa.RecordBatch, fields: Sequence[JsonDict]) -> pa.RecordBatch:
    """``batch`` with the names of ``fields``, the table's, also within structs, lists and maps. Copies no value."""
    import pyarrow as pa

    schema = pa.schema(_fields(batch.schema, fields))
    columns = [column.view(field.type) for column, field in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _fields(stored: Iterable[pa.Field], fields: Sequence[JsonDict]) -> list[pa.Field]:
    own = {physical_name(field): field for field in fields}
    return [_typed(field.with_name(own[field.name]["name"]), own[field.name]["type"]) for field in stored]


def _typed(field: pa.Field, kind: Any) -> pa.Field:
    return field.with_type(_type(field.type, kind)) if isinstance(kind, dict) else field


def _type(stored: pa.DataType, kind: JsonDict) -> pa.DataType:
    import pyarrow as pa

    if kind["type"] == "struct":
        return pa.struct(_fields(stored, kind["fields"]))
    if kind["type"] == "array":
        return pa.list_(_typed(stored.value_field, kind["elementType"]))
    return pa.map_(_typed(stored.key_field, kind["keyType"]), _typed(stored.item_field, kind["valueType"]))
