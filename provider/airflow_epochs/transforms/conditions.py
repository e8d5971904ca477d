"""Conditions in SQL on a column, and on the values inside of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

Test = Callable[[str, str], "str | None"]
"""Makes the condition for a value, given in SQL, and its type; None if it cannot be true."""
OfMap = Callable[[str], str]
_WORD = re.compile(r"\w+", re.ASCII)
"""Names that Spark never takes for a pattern. It takes other quoted names of columns for patterns if
``spark.sql.parser.quotedRegexColumnNames`` is set."""
_TIMES = {
    "date": ("date'0001-01-01'", "date'9999-12-31'"),
    "timestamp": ("timestamp'0001-01-01 00:00:00Z'", "timestamp'9999-12-31 23:59:59.999999Z'"),
    "timestamp_ntz": ("timestamp_ntz'0001-01-01 00:00:00'", "timestamp_ntz'9999-12-31 23:59:59.999999'"),
}


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def column_named(name: str) -> str:
    """A column in SQL, whatever is in its name, and never a pattern."""
    if _WORD.fullmatch(name):
        return quoted(name)
    return f"IDENTIFIER(CAST(X'{quoted(name).encode().hex()}' AS STRING))"


def field_of(struct: str, name: str) -> str:
    """A field in SQL, whatever is in its name. Spark takes it for a pattern only after the bare name of a column."""
    return f"{struct}.{quoted(name)}" if _WORD.fullmatch(name) else f"coalesce({struct}).{quoted(name)}"


def is_text(kind: Any) -> bool:
    """Whether a type in Spark's JSON is a type of texts."""
    return isinstance(kind, str) and kind.startswith("string")


def not_utf8(value: str, kind: str) -> str | None:
    """The condition that a text is not UTF-8; None for another type."""
    return f"NOT is_valid_utf8({value})" if is_text(kind) else None


def outside(value: str, kind: str) -> str | None:
    """The condition that a time is outside of the years 1 to 9999; None for another type."""
    if kind not in _TIMES:
        return None
    first, last = _TIMES[kind]
    return f"{value} NOT BETWEEN {first} AND {last}"


def anywhere(value: str, kind: Any, test: Test, depth: int = 0, of_map: OfMap | None = None) -> str | None:
    """The condition that a test is true of a value, or of any value inside of it; None if it cannot be true.

    ``test``: makes the condition for a value that has no others inside; ``of_map``: the one for a map.
    """
    if not isinstance(kind, dict):
        return test(value, kind)
    element, inside = f"e{depth}", partial(anywhere, test=test, of_map=of_map)
    if kind["type"] == "struct":
        return _either([inside(field_of(value, f["name"]), f["type"], depth=depth) for f in kind["fields"]])
    if kind["type"] == "array":
        return _exists(value, element, inside(element, kind["elementType"], depth=depth + 1))
    if kind["type"] == "map":
        keys = _exists(f"map_keys({value})", element, inside(element, kind["keyType"], depth=depth + 1))
        values = _exists(f"map_values({value})", element, inside(element, kind["valueType"], depth=depth + 1))
        return _either([of_map(value) if of_map else None, keys, values])
    return None


def _exists(array: str, element: str, condition: str | None) -> str | None:
    return f"exists({array}, {element} -> coalesce({condition}, false))" if condition else None


def _either(conditions: list[str | None]) -> str | None:
    known = [f"coalesce({condition}, false)" for condition in conditions if condition]
    return f"({' OR '.join(known)})" if known else None
