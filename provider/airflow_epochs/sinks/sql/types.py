"""What of Delta's types a column of a database can take, and what column to create for one. Standard library only.

Strict on purpose, as for Delta tables: nothing is cast that could lose something, or turn into something else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_WHOLE = ("smallint", "integer", "bigint", "numeric")
_POSTGRES: dict[str, tuple[str, ...]] = {
    "byte": _WHOLE,
    "short": _WHOLE,
    "integer": _WHOLE[1:],
    "long": _WHOLE[2:],
    "float": ("real", "double precision"),
    "double": ("double precision",),
    "decimal": ("numeric",),
    "boolean": ("boolean",),
    "binary": ("bytea",),
    "date": ("date",),
    "timestamp": ("timestamp with time zone",),
    "timestamp_ntz": ("timestamp without time zone",),
    "struct": ("jsonb", "json"),
    "array": ("jsonb", "json"),
    "map": ("jsonb", "json"),
}
"""Per Delta type the types of PostgreSQL that take it, the one to create first."""
_NOT_TEXT = {name for names in _POSTGRES.values() for name in names} - {"json", "jsonb"}
_SQLITE = {
    "byte": "INTEGER",
    "short": "INTEGER",
    "integer": "INTEGER",
    "long": "INTEGER",
    "boolean": "INTEGER",
    "float": "REAL",
    "double": "REAL",
    "binary": "BLOB",
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_NUMERIC = re.compile(r"numeric(?:\((\d+)(?:,(-?\d+))?\))?")
_ROUNDED_TIME = re.compile(r"(timestamp|time)\([0-5]\)")
"""Spark's instants go to the microsecond."""
_CUT = re.compile(r"\"char\"|name|money|interval( \w.*)?\([0-5]\)|interval \w.*")
"""Types that quietly keep only a part of a text: bytes, cents, hours."""
_CUT_WITHIN = re.compile(r"numeric\(.*|(character|character varying)\(.*")
"""The same within an array or a row type: there a value is cut to size. In a column itself each one is looked at."""
_SIZED = re.compile(r"character(?: varying)?\((\d+)\)")


def family(kind: Any) -> str:
    """A Delta type without its parameters."""
    name = str(kind["type"] if isinstance(kind, dict) else kind)
    return "decimal" if _DECIMAL.fullmatch(name) else name


def postgres_takes(column: str, kind: Any, parts: Sequence[str] = ()) -> bool:
    """Whether a column of the type that PostgreSQL spells ``column`` takes Delta's ``kind`` unchanged.

    Text goes where PostgreSQL reads a type from text that Delta does not have: enum, uuid, inet, json.

    Args:
        column: The type.
        kind: Delta's.
        parts: The types that it is made of: elements of an array, what a domain is of, fields of a row type.
    """
    base = " ".join(re.sub(r"\([^)]*\)", "", column).split())
    if family(kind) == "string":
        within = [part for part in parts if part != column]
        cut = any(_CUT.fullmatch(part) or _ROUNDED_TIME.match(part) for part in (column, *within))
        return base not in _NOT_TEXT and not cut and not any(map(_CUT_WITHIN.fullmatch, within))
    if base == "numeric" and family(kind) in _POSTGRES and "numeric" in _POSTGRES[family(kind)]:
        return _scale(column) >= 0 and (family(kind) != "decimal" or _numeric_takes(column, str(kind)))
    return base in _POSTGRES.get(family(kind), ()) and not _ROUNDED_TIME.match(column)


def _scale(column: str) -> int:
    numeric = _NUMERIC.fullmatch(column)
    return int(numeric[2] or 0) if numeric else 0


def longest_text(column: str) -> int | None:
    """How many characters a column of this type takes; it drops blanks beyond them without a word."""
    sized = _SIZED.fullmatch(column)
    return int(sized[1]) if sized else None


def _numeric_takes(column: str, kind: str) -> bool:
    decimal, numeric = _DECIMAL.fullmatch(kind), _NUMERIC.fullmatch(column)
    if not decimal or not numeric:
        return False
    if numeric[1] is None:
        return True
    digits, scale = int(decimal[1]), int(decimal[2])
    return int(numeric[2] or 0) >= scale and int(numeric[1]) - int(numeric[2] or 0) >= digits - scale


def postgres_type(kind: Any) -> str | None:
    """The type of a column to create for ``kind``; None if there is none."""
    if family(kind) == "string":
        return "text"
    if family(kind) == "byte":
        return "smallint"
    if decimal := _DECIMAL.fullmatch(str(kind)):
        return f"numeric({decimal[1]},{decimal[2]})"
    names = _POSTGRES.get(family(kind))
    return names[0] if names else None


def sqlite_type(kind: Any) -> str | None:
    """As ``postgres_type``. Decimals, times and nested values are text there: SQLite would round them or has none."""
    if postgres_type(kind) is None:
        return None
    return _SQLITE.get(family(kind), "TEXT")
