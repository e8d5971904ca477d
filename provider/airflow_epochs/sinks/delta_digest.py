"""A digest of what was staged, by content: equal if the same rows are staged again into other files.

It covers, of every file and in no order, its partition values, rows, bytes, and the minimum, maximum and number of
nulls of each column that Delta keeps statistics of; and the columns' names and types, and for which table all this
was staged. It leaves out what differs from try to try: names of files, times, physical names of columns.

An equal digest is not proof that every value is equal: nobody reads the rows again. A different one need not mean
different rows: another Spark, another number of cores or a shuffle may lay the same rows out in other files.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from airflow_epochs.model import JsonDict, Staged
from airflow_epochs.sinks.delta_log import StagedFile, Staging, rows_of

SCHEME = "content-1:"
"""Digests of another scheme cannot be compared with these."""
_PHYSICAL = "delta.columnMapping.physicalName"
_STATISTICS = ("numRecords", "minValues", "maxValues", "nullCount")


def staged_of(place: str, staging: Staging) -> Staged:
    """What a vote promises of the rows staged at ``place``."""
    return Staged(
        place=place,
        version=staging.version,
        files=len(staging.files),
        rows=sum(map(rows_of, staging.files)),
        bytes=sum(file.size for file in staging.files),
        digest=digest_of(staging),
    )


def digest_of(staging: Staging) -> str:
    fields = staging.shape.schema["fields"]
    content = {
        "table": staging.note.get("table_id"),
        "columns": _columns(staging.shape.schema),
        "partition_by": list(staging.shape.partition_by),
        "files": sorted(_compact(_facts(file, fields)) for file in staging.files),
    }
    return SCHEME + hashlib.sha256(_compact(content).encode()).hexdigest()


def _facts(file: StagedFile, fields: list[JsonDict]) -> list[Any]:
    stats = json.loads(file.stats) if file.stats else {}
    return [
        _logical(file.partition_values, fields),
        file.size,
        [_logical(stats.get(key), fields) for key in _STATISTICS],
    ]


def _logical(values: Any, fields: list[JsonDict]) -> Any:
    """``values`` per column under the columns' own names; physical ones are drawn anew for every staging table."""
    if not isinstance(values, dict):
        return values
    by_physical = {field.get("metadata", {}).get(_PHYSICAL, field["name"]): field for field in fields}
    renamed = {}
    for key, value in values.items():
        field = by_physical.get(key, {"name": key, "type": None})
        renamed[field["name"]] = _logical(value, _fields_of(field["type"]))
    return renamed


def _fields_of(kind: Any) -> list[JsonDict]:
    return kind["fields"] if isinstance(kind, dict) and kind["type"] == "struct" else []


def _columns(kind: Any) -> Any:
    """A type with the names, types and nullability of what is in it, and nothing else of it."""
    if not isinstance(kind, dict):
        return kind
    if kind["type"] == "struct":
        return [[field["name"], _columns(field["type"]), field.get("nullable", True)] for field in kind["fields"]]
    return [kind["type"], *(_columns(kind[key]) for key in ("elementType", "keyType", "valueType") if key in kind)]


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)
