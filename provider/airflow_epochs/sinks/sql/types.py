"""Which Delta types a database column can store, and which column to create for one. Standard library only.

The rules are strict, as for Delta tables: no conversion that could lose something or change the meaning.
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
"""Delta type -> the PostgreSQL types that can store it. The first is the one to create."""
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
"""These types round to less than a microsecond's precision, which Spark's times have."""
_CUT = re.compile(r"\"char\"|name|money|interval( \w.*)?\([0-5]\)|interval \w.*")
"""Types that silently keep only a part of a text: bytes, cents, hours."""
_CUT_WITHIN = re.compile(
    r"numeric\(.*|(character|character varying)\(.*|"
    r"date|timestamp(\(6\))? without time zone|time(\(6\))? (with|without) time zone"
)
"""Inside an array, a range or a row type, these keep only a part of a text in silence: they cut it to size, or drop its
date, time of day or zone. In a column of its own, ``values`` checks the text, or the column takes no text."""
_NUMBERS = {*_WHOLE, "real", "double precision"}
_SPELLED_ALIKE = {*_WHOLE, "uuid"}
"""Types whose values have one spelling, whatever the settings."""
_TEXTS = ("text", "character varying", "character", "bpchar")
_AFFINITIES = {"INT": "INTEGER", "CHAR|CLOB|TEXT": "TEXT", "BLOB": "BLOB", "REAL|FLOA|DOUB": "REAL"}
"""Words in a column's type -> what SQLite makes of texts and numbers there. The first that matches counts."""
NESTED = ("struct", "array", "map")
_DIGIT = "[0-9]"
_DATE = f"*-{_DIGIT * 2}-{_DIGIT * 2}"
_LOCAL = f"{_DATE} {_DIGIT * 2}:{_DIGIT * 2}:{_DIGIT * 2}.{_DIGIT * 6}"
_TIMES = {"date": (10, _DATE), "timestamp_ntz": (26, _LOCAL), "timestamp": (29, f"{_LOCAL}+00")}
"""The texts that ``values`` makes of dates and times: their length, and their pattern for SQLite's GLOB."""
_SIZED = re.compile(r"character(?: varying)?\((\d+)\)")


def family(kind: Any) -> str:
    """A Delta type without its parameters."""
    name = str(kind["type"] if isinstance(kind, dict) else kind)
    return "decimal" if _DECIMAL.fullmatch(name) else name


def variant_in(place: str, kind: Any) -> str | None:
    """The place of the first variant in a value of Delta's ``kind``; None if it has none.

    In the staged files a variant is two binary values, which only Spark understands.
    """
    if family(kind) == "variant":
        return place
    return next((found for inside, part in _inside(place, kind) if (found := variant_in(inside, part))), None)


def _inside(place: str, kind: Any) -> list[tuple[str, Any]]:
    """The places and the types of what is inside of a value."""
    match family(kind):
        case "struct":
            return [(f"{place}.{field['name']}", field["type"]) for field in kind["fields"]]
        case "array":
            return [(f"{place}.element", kind["elementType"])]
        case "map":
            return [(f"{place}.key", kind["keyType"]), (f"{place}.value", kind["valueType"])]
        case _:
            return []


def postgres_takes(column: str, kind: Any, parts: Sequence[str] = ()) -> bool:
    """Whether a column of PostgreSQL's type ``column`` can store Delta's ``kind`` unchanged.

    Text may also go into types that PostgreSQL reads from text and Delta does not have: enum, uuid, inet, json.

    Args:
        column: The column's type, as PostgreSQL spells it.
        kind: The Delta type.
        parts: The types inside it: an array's elements, a domain's base type, a row type's fields.
    """
    if variant_in("", kind) is not None:
        return False
    base = " ".join(re.sub(r"\([^)]*\)", "", column).split())
    if family(kind) == "string":
        within = [part for part in parts if part != column]
        cut = any(_CUT.fullmatch(part) or _ROUNDED_TIME.match(part) for part in (column, *within))
        return base not in _NOT_TEXT and not cut and not any(map(_CUT_WITHIN.fullmatch, within))
    if base == "numeric" and family(kind) in _POSTGRES and "numeric" in _POSTGRES[family(kind)]:
        return _scale(column) >= 0 and (family(kind) != "decimal" or _numeric_takes(column, str(kind)))
    return base in _POSTGRES.get(family(kind), ()) and not _ROUNDED_TIME.match(column)


def is_postgres_text(column: str) -> bool:
    """Whether the column holds text as it is, and so has a collation."""
    return re.sub(r"\([^)]*\)", "", column) in _TEXTS


def postgres_sorts(column: str, kind: Any) -> bool:
    """Whether a column of PostgreSQL's type ``column`` orders values of Delta's ``kind`` as Spark does.

    Texts do, compared byte by byte; what PostgreSQL makes of a text may have another order.
    """
    return is_postgres_text(column) if family(kind) == "string" else family(kind) not in NESTED


def sqlite_affinity(column: str, *, strict: bool) -> str:
    """The affinity by which SQLite converts texts and numbers in a column; ``BLOB`` converts nothing.

    See https://www.sqlite.org/datatype3.html, 3.1.

    Args:
        column: The column's type.
        strict: Whether its table is STRICT, where ``ANY`` has another meaning.
    """
    name = column.upper()
    if not name or (strict and name == "ANY"):
        return "BLOB"
    return next((affinity for words, affinity in _AFFINITIES.items() if re.search(words, name)), "NUMERIC")


def sqlite_takes(affinity: str, kind: Any) -> bool:
    """Whether a column of SQLite keeps all values of Delta's ``kind``: it makes no text a number, and rounds no number.

    SQLite converts what has the form of a number. Dates, times and JSON never have it.
    """
    match family(kind):
        case "string":
            return affinity in ("TEXT", "BLOB")
        case "float" | "double":
            return affinity != "TEXT"  # which has 15 digits of a number
        case "long":
            return affinity != "REAL"
        case "decimal":
            return affinity in ("TEXT", "BLOB") or _number_takes(affinity, str(kind))
        case _:
            return sqlite_type(kind) is not None


def _number_takes(affinity: str, kind: str) -> bool:
    """A floating-point number of SQLite has 15 digits; a whole number has 18, except where all are floating-point."""
    decimal = _DECIMAL.fullmatch(kind)
    return decimal is not None and int(decimal[1]) <= (18 if int(decimal[2]) == 0 and affinity != "REAL" else 15)


def sqlite_sorts(affinity: str, kind: Any) -> bool:
    """Whether a column of SQLite orders values of Delta's ``kind`` as Spark does.

    NaN becomes NULL, and decimals are texts.
    """
    match family(kind):
        case "string":
            return affinity in ("TEXT", "BLOB")
        case "float" | "double" | "decimal" | "struct" | "array" | "map":
            return False
        case "byte" | "short" | "integer" | "long" | "boolean":
            return affinity != "TEXT"
        case _:
            return True


def sqlite_stored_otherwise(value: str, affinity: str, kind: Any) -> str:
    """The condition that SQLite stored ``value``, of a column of this affinity, from rows of another type.

    It compares numbers by their value, and texts and bytes as they are stored. In a column for texts, it does not tell
    texts of the rows from what ``values`` makes of other types.
    """
    no_text = f"({value} < '' OR {value} >= x'')"  # in SQLite's order, numbers come first, then texts, then bytes
    match family(kind):
        case "binary":
            return f"{value} < x''"
        case "date" | "timestamp" | "timestamp_ntz" as name:
            others = " OR ".join(f"{value} GLOB '{form}'" for other, (_, form) in _TIMES.items() if other != name)
            return f"{no_text} OR (length({value}) <> {_TIMES[name][0]} AND ({others}))"
        case "byte" | "short" | "integer" | "long" | "boolean" | "float" | "double" | "decimal":
            decimal = _DECIMAL.fullmatch(str(kind))
            if affinity == "TEXT" or (decimal and affinity == "BLOB"):
                return f"{no_text} OR {_has_other_decimals(value, int(decimal[2]) if decimal else 0)}"
            return f"{value} >= ''"
        case _:
            return no_text


def sqlite_meant(value: str, kind: Any) -> str:
    """``value``, which is compared with values of Delta's ``kind``, as a text that does not depend on its form."""
    text = f"CAST({value} AS TEXT)"
    match family(kind):
        case "date" | "timestamp" | "timestamp_ntz":
            return f"substr(replace({text}, 'T', ' ') || ' 00:00:00.000000', 1, 26)"
        case "string" | "binary":
            return text
        case _:
            return f"CASE WHEN instr({text}, '.') > 0 THEN rtrim(rtrim({text}, '0'), '.') ELSE {text} END"


def _has_other_decimals(value: str, decimals: int) -> str:
    """The condition that a text is a number with another number of decimals. The cheap part comes first."""
    otherwise = f"substr({value}, {-1 - decimals}, 1) <> '.'" if decimals else f"instr({value}, '.') > 0"
    return f"({otherwise} AND {value} NOT GLOB '*[^-.0-9]*' AND {value} GLOB '*[0-9]*')"


def _scale(column: str) -> int:
    numeric = _NUMERIC.fullmatch(column)
    return int(numeric[2] or 0) if numeric else 0


def longest_text(column: str) -> int | None:
    """How many characters the column type takes; None if it has no limit. It drops extra blanks in silence."""
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
    """The column type to create for ``kind``; None if there is none."""
    if variant_in("", kind) is not None:
        return None
    if family(kind) == "string":
        return "text"
    if family(kind) == "byte":
        return "smallint"
    if decimal := _DECIMAL.fullmatch(str(kind)):
        return f"numeric({decimal[1]},{decimal[2]})"
    names = _POSTGRES.get(family(kind))
    return names[0] if names else None


def sqlite_type(kind: Any) -> str | None:
    """Like ``postgres_type``. Decimals, times and nested values become text: SQLite would round or not know them."""
    if postgres_type(kind) is None:
        return None
    return _SQLITE.get(family(kind), "TEXT")


def postgres_retyped(value: str, was: str, now: str) -> str | None:
    """``value``, of PostgreSQL's type ``was``, for a comparison with what ALTER makes of it in type ``now``.

    None if ALTER depends on settings, or if PostgreSQL compares the two types in another way than two values of one.
    """
    old, new = (" ".join(re.sub(r"\([^)]*\)", "", kind).split()) for kind in (was, now))
    if old == new or {old, new} <= _NUMBERS:
        return value
    if is_postgres_text(now) and (is_postgres_text(was) or old in _SPELLED_ALIKE):
        return f"CAST({value} AS {'bpchar' if new in ('character', 'bpchar') else 'text'})"
    return None


def sqlite_retyped(value: str, was: str, now: str) -> str:
    """Like ``postgres_retyped``, by affinities. SQLite itself makes numbers of texts to compare them with numbers."""
    return f"CAST({value} AS TEXT)" if now == "TEXT" and was != "TEXT" else value
