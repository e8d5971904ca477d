"""Makes JSON of rows that keeps every value. Spark's own JSON ends at milliseconds, and leaves NULL fields out.

Times are in UTC, whatever the zone of the session: the same rows make the same text everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from airflow_epochs.transforms.conditions import field_of, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of ``to_json``, and of ``to_csv``."""


def call(name: str, kind: str) -> str:
    """The call that makes JSON of a column, for a remedy's text. ``kind``: the column's type in SQL."""
    return f"F.to_json({name!r}{f', {OPTIONS}' if 'timestamp' in kind else ''})"


def in_sql(value: str) -> str:
    """The JSON of a struct, an array or a map, all in SQL. Its maps must have keys that JSON can have."""
    options = ", ".join(f"'{word}'" for pair in OPTIONS.items() for word in (part.replace("'", "\\'") for part in pair))
    return f"to_json({value}, map({options}))"


def of_columns(rows: DataFrame, names: Iterable[str]) -> Column:
    """A JSON object of these columns, as text."""
    from pyspark.sql import functions as F

    kinds = {field.name: field.dataType.jsonValue() for field in rows.schema.fields}
    told = {name: _with_text_keys(quoted(name), kinds[name]) for name in names}
    columns = (F.expr(value).alias(name) if value else F.col(quoted(name)) for name, value in told.items())
    return F.to_json(F.struct(*columns), OPTIONS)


def _with_text_keys(value: str, kind: Any, depth: int = 0) -> str | None:
    """The value with texts in place of binary keys of its maps, at any depth; None if it has no such keys.

    Spark writes an address in memory for such a key, which is another one each time.
    """
    kind_of = kind.get("type") if isinstance(kind, dict) else None
    if kind_of == "struct":
        parts = {field["name"]: field_of(value, field["name"]) for field in kind["fields"]}
        told = {field["name"]: _with_text_keys(parts[field["name"]], field["type"], depth) for field in kind["fields"]}
        fields = ", ".join(f"{told[name] or part} AS {quoted(name)}" for name, part in parts.items())
        return f"if({value} IS NULL, NULL, struct({fields}))" if any(told.values()) else None
    if kind_of == "array":
        return _each(value, kind["elementType"], depth)
    if kind_of == "map":
        keys, values = f"map_keys({value})", f"map_values({value})"
        told_keys, told_values = _texts(keys, kind["keyType"], depth), _each(values, kind["valueType"], depth)
        return f"map_from_arrays({told_keys or keys}, {told_values or values})" if told_keys or told_values else None
    return None


def _each(array: str, kind: Any, depth: int) -> str | None:
    element = f"e{depth}"
    told = _with_text_keys(element, kind, depth + 1)
    return f"transform({array}, {element} -> {told})" if told else None


def _texts(keys: str, kind: Any, depth: int) -> str | None:
    """The keys as texts: binary ones as base64 in one line, as Spark writes binary values; nested ones as JSON."""
    key = f"e{depth}"
    if kind == "binary":
        return f"transform({keys}, {key} -> translate(base64({key}), concat(char(13), char(10)), ''))"
    return f"transform({keys}, {key} -> {in_sql(key)})" if '"binary"' in json.dumps(kind) else None


def of_time(name: str) -> Column:
    """The time in a column as it is in the JSON, without quotes."""
    from pyspark.sql import functions as F

    return F.to_csv(F.struct(quoted(name)), OPTIONS)
