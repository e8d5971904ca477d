"""The columns of a table at a version, and whether Spark reads rows of two versions with one set of columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_epochs.delta.shape import PHYSICAL_NAME, TableShape
from airflow_epochs.model import JsonDict

_PARTS = ("type", "elementType", "keyType", "valueType")


@dataclass(frozen=True)
class Columns:
    """The columns of a table. ``schema``: in the JSON that Spark writes. ``partition_by``: the partition columns."""

    schema: JsonDict
    partition_by: tuple[str, ...]

    @classmethod
    def of(cls, shape: TableShape) -> Columns:
        """The columns of a table."""
        return cls(shape.schema, shape.partition_by)


def difference(columns: Columns, later: Columns, *, or_gone: bool) -> str | None:
    """Why Spark cannot read rows of both versions together, as a predicate of the later version; None if it can.

    ``or_gone``: whether a column that the later version lacks is a reason, too.
    """
    if columns.partition_by != later.partition_by:
        return "partitions the table by other columns"
    name = changed_column(columns.schema, later.schema, or_gone=or_gone)
    return f"removes or changes the column {name}" if name else None


def changed_column(schema: JsonDict, later: JsonDict, *, or_gone: bool = True) -> str | None:
    """A column of ``schema`` that has another type in the ``later`` one; None if all have the same type.

    ``or_gone``: a column that ``later`` lacks counts, too. A struct may have got fields.
    """
    now = {field["name"]: field for field in later["fields"]}
    then = {field["name"]: field for field in schema["fields"] if or_gone or field["name"] in now}
    return next((name for name, field in then.items() if not _extends(now.get(name), field)), None)


def _extends(now: Any, then: Any) -> bool:
    """Whether a field or a type still has all that it had before."""
    if not isinstance(now, dict) or not isinstance(then, dict):
        return bool(now == then)
    if then.get("type") == "struct" and now.get("type") == "struct":
        return changed_column(then, now) is None
    same_files = (now.get("metadata") or {}).get(PHYSICAL_NAME) == (then.get("metadata") or {}).get(PHYSICAL_NAME)
    return same_files and all(_extends(now.get(part), then[part]) for part in _PARTS if part in then)
