"""Which rows a destination would not take, as conditions that Spark computes while it stages the others.

They are those of the vote (``sinks.row_flaws``), which judges every staged row again. So a flaw that is not seen here
aborts the epoch, and no row is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_epochs.spark.driver.delta.schema import quoted
from airflow_epochs.spark.driver.plans import Fit

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OF_A_RECORD = ("key", "value", "headers", "partition")
"""Columns that a topic takes as they are; without ``value``, it makes JSON of all others."""
Flaw = tuple[str, str]
"""What is wrong with a row, and the condition in SQL that is true of such a row."""

_TIMES = {
    "date": ("date'0001-01-01'", "date'9999-12-31'"),
    "timestamp": ("timestamp'0001-01-01 00:00:00Z'", "timestamp'9999-12-31 23:59:59.999999Z'"),
    "timestamp_ntz": ("timestamp_ntz'0001-01-01 00:00:00'", "timestamp_ntz'9999-12-31 23:59:59.999999'"),
}
_RECORD_OVERHEAD = 256
"""Of a Kafka record besides key, value and the row's own headers: its batch, and the provider's header."""


def first_flaw(frame: DataFrame, fit: Fit) -> Column | None:
    """The first flaw of a row, as text; NULL for a row without. None if no row can have one."""
    from pyspark.sql import functions as F

    found = list(flaws(json.loads(frame.schema.json()), fit))
    if not found:
        return None
    cases = " ".join(f"WHEN coalesce({condition}, false) THEN {_text(what)}" for what, condition in found)
    return F.expr(f"CASE {cases} END")


def flaws(schema: dict[str, Any], fit: Fit) -> Iterator[Flaw]:
    """All flaws that rows of this schema (in Spark's JSON) can have."""
    for field in schema["fields"]:
        yield from _of_column(field["name"], field["type"], fit)
    for what, condition in fit.conditions:
        yield f"the row breaks {what}", f"NOT coalesce(({condition}), false)"
    if fit.record_bytes is not None:
        size = _record_size([field["name"] for field in schema["fields"]])
        yield f"the record has more than {fit.record_bytes} bytes", f"{size} > {fit.record_bytes}"


def _of_column(name: str, kind: Any, fit: Fit) -> Iterator[Flaw]:
    column, low = quoted(name), name.lower()
    if fit.is_topic and low in OF_A_RECORD:  # bytes that the topic takes as they are
        if fit.keyed and low == "key":
            yield "the record has no key, which a compacted topic wants", f"{column} IS NULL"
        return
    if low in {each.lower() for each in fit.required}:
        yield f"column {name} is NULL", f"{column} IS NULL"
    if fit.utf8 and (condition := _anywhere(column, kind, _not_utf8)):
        yield f"column {name} is not UTF-8", condition
    if not fit.nul and (condition := _anywhere(column, kind, _has_nul)):
        yield f"column {name} has a NUL character", condition
    if fit.calendar and (condition := _anywhere(column, kind, _outside)):
        yield f"column {name} is outside of the years 1 to 9999", condition
    longest = {each.lower(): size for each, size in fit.longest.items()}.get(low)
    if longest is not None and _is_text(kind):
        yield f"column {name} has more than {longest} characters", f"char_length({column}) > {longest}"


def _is_text(kind: Any) -> bool:
    return isinstance(kind, str) and kind.startswith("string")


def _not_utf8(value: str, kind: str) -> str | None:
    return f"NOT is_valid_utf8({value})" if _is_text(kind) else None


def _has_nul(value: str, kind: str) -> str | None:
    return f"contains({value}, char(0))" if _is_text(kind) else None


def _outside(value: str, kind: str) -> str | None:
    if kind not in _TIMES:
        return None
    first, last = _TIMES[kind]
    return f"{value} NOT BETWEEN {first} AND {last}"


def _anywhere(value: str, kind: Any, test: Any, depth: int = 0) -> str | None:
    """The condition that ``test`` makes of a value, for a value or for any value inside of it; None if none can be."""
    if not isinstance(kind, dict):
        found: str | None = test(value, kind)
        return found
    if kind["type"] == "struct":
        inside = (_anywhere(f"{value}.{quoted(f['name'])}", f["type"], test, depth) for f in kind["fields"])
        return _either(list(inside))
    element = f"e{depth}"
    if kind["type"] == "array":
        return _exists(value, element, _anywhere(element, kind["elementType"], test, depth + 1))
    if kind["type"] == "map":
        keys = _exists(f"map_keys({value})", element, _anywhere(element, kind["keyType"], test, depth + 1))
        values = _exists(f"map_values({value})", element, _anywhere(element, kind["valueType"], test, depth + 1))
        return _either([keys, values])
    return None


def _exists(array: str, element: str, condition: str | None) -> str | None:
    return f"exists({array}, {element} -> coalesce({condition}, false))" if condition else None


def _either(conditions: list[str | None]) -> str | None:
    known = [f"coalesce({condition}, false)" for condition in conditions if condition]
    return f"({' OR '.join(known)})" if known else None


def _record_size(names: list[str]) -> str:
    """The bytes of the record that a row makes; of a value that the sink makes as JSON, nearly."""
    low = {name.lower(): quoted(name) for name in names}
    parts = [f"coalesce(octet_length({low[name]}), 0)" for name in ("key", "value") if name in low]
    if "value" not in low:
        others = ", ".join(quoted(name) for name in names if name.lower() not in OF_A_RECORD)
        parts.append(f"octet_length(to_json(struct({others}))) * 105 / 100")  # the sink writes it a little longer
    if "headers" in low:
        header = "octet_length(h.key) + coalesce(octet_length(h.value), 0) + 10"
        parts.append(f"aggregate({low['headers']}, 0, (n, h) -> n + coalesce({header}, 0))")
    return " + ".join([*parts, str(_RECORD_OVERHEAD)])


def _text(words: str) -> str:
    escaped = words.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
