"""Looks at the values that a function of pandas returns, before Spark converts them.

Spark cuts 3.7 to 3 for an int, makes NULL of a field that it does not find by its name, and says of a number that does
not fit only that something in the row does not. Spark's workers get this module by value: it uses nothing but the
standard library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

StateKey = tuple[Any, ...]
ReturnedRow = dict[str, Any]
ValueCheck = Callable[[str, Any], "str | None"]
"""Takes the name of a value's place, and the value. Returns what is wrong with it; None if nothing is."""
ColumnChecks = Mapping[str, "ValueCheck | None"]
"""The columns that are declared, each with the check of its values."""
_BITS = {"byte": 7, "short": 15, "integer": 31, "long": 63}
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")


def check_of(kind: Any) -> ValueCheck | None:
    """The check of values for a type in Spark's JSON; None if Spark itself refuses all that does not fit."""
    if isinstance(kind, str):
        found = _DECIMAL.fullmatch(kind)
        if found:
            return partial(_decimal, digits=int(found[1]), scale=int(found[2]))
        return partial(_whole, bits=_BITS[kind]) if kind in _BITS else None
    if kind["type"] == "struct":
        return partial(_struct, checks={field["name"]: check_of(field["type"]) for field in kind["fields"]})
    if kind["type"] == "array":
        element = check_of(kind["elementType"])
        return partial(_array, check=element) if element else None
    if kind["type"] == "map":
        return partial(_map, keys=check_of(kind["keyType"]), values=check_of(kind["valueType"]))
    return None


def flaw_of(record: Mapping[str, Any], checks: ColumnChecks) -> str | None:
    """The first flaw in the columns of a row; None if every value fits."""
    return _first(check(f"column {name!r}", record.get(name)) for name, check in checks.items() if check)


def records(frame: pd.DataFrame) -> list[ReturnedRow]:
    """Each row by its columns' names; None for what pandas calls missing."""
    values = frame.astype(object)
    found: list[ReturnedRow] = values.where(values.notna(), None).to_dict("records")
    return found


def shown_records(key: StateKey, shown: pd.DataFrame | None, checks: ColumnChecks) -> list[ReturnedRow]:
    """The rows to show that the function returned for a key."""
    if shown is None or not len(shown):
        return []
    if not shown.columns.is_unique or _is_mistaken(shown.columns, checks):
        raise ValueError(
            f"stateful: for the key {key} the function returned rows to show with the columns {list(shown.columns)}. "
            f"They must have the columns of out: {list(checks)}."
        )
    return _fitting(key, "rows to show", records(shown), checks)


def _is_mistaken(found: Iterable[str], declared: Iterable[str]) -> bool:
    """Whether declared names are missing and undeclared ones are there: then a name is wrong.

    Otherwise an undeclared column is left out, and a missing one is NULL.
    """
    return bool({*declared} - {*found}) and bool({*found} - {*declared})


def kept_records(
    key: StateKey, kept: pd.DataFrame | None, keys: Iterable[str], checks: ColumnChecks
) -> list[ReturnedRow]:
    """The state that the function returned for a key, with the key."""
    if kept is None or kept.empty:
        return []
    if len(kept) > 1 or not kept.columns.is_unique or {*kept.columns, *keys} != {*checks}:
        raise ValueError(
            f"stateful: for the key {key} the function returned {len(kept)} rows of state with the columns "
            f"{list(kept.columns)}. It must return None, or one row with the columns {list(checks)}."
        )
    whole = [{**record, **dict(zip(keys, key, strict=True))} for record in records(kept)]
    return _fitting(key, "a state", whole, checks)


def _fitting(key: StateKey, what: str, found: list[ReturnedRow], checks: ColumnChecks) -> list[ReturnedRow]:
    for record in found:
        if flaw := flaw_of(record, checks):
            raise ValueError(f"stateful: for the key {key} the function returned {what} that does not fit: {flaw}.")
    return found


def _first(flaws: Iterable[str | None]) -> str | None:
    return next((flaw for flaw in flaws if flaw), None)


def _is_number(value: Any) -> bool:
    if isinstance(value, Decimal):
        return not value.is_nan()  # NaN is NULL
    return isinstance(value, Real) and value == value


def _whole(place: str, value: Any, *, bits: int) -> str | None:
    if not _is_number(value):
        return None
    if value in (float("inf"), -float("inf")) or value != int(value):
        return f"{place} is {value!r}, which is no whole number. Round it, or declare a decimal or a double"
    if not -(2**bits) <= int(value) < 2**bits:
        return f"{place} is {value!r}, which is too large for a column of {bits + 1} bits. Declare it as a larger type"
    return None


def _decimal(place: str, value: Any, *, digits: int, scale: int) -> str | None:
    if not _is_number(value):
        return None
    if not isinstance(value, (Decimal, Integral)):
        return f"{place} is {value!r}, a {type(value).__name__}. Make a decimal.Decimal of it, as by Decimal(str(…))"
    if not _has_digits(Decimal(int(value)) if isinstance(value, Integral) else value, digits, scale):
        return f"{place} is {value!r}, which does not fit a decimal({digits},{scale}). Round it, or declare more digits"
    return None


def _has_digits(number: Decimal, digits: int, scale: int) -> bool:
    """Whether a decimal has the number. Python's own arithmetic rounds to 28 digits."""
    _, figures, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        return False
    text = "".join(map(str, figures)).lstrip("0")
    exponent += len(text) - len(text.rstrip("0"))
    text = text.rstrip("0")
    return not text or (-exponent <= scale and len(text) + exponent <= digits - scale)


def _struct(place: str, value: Any, *, checks: ColumnChecks) -> str | None:
    names = [*checks]
    if isinstance(value, Mapping):
        if _is_mistaken(value, names):
            return f"{place} has the fields {[*value]}. Give it the fields {names}"
    elif isinstance(value, (tuple, list)):
        if len(value) != len(names):
            return f"{place} has {len(value)} fields. Give it the fields {names}"
        value = dict(zip(names, value, strict=True))
    else:
        return None
    return _first(check(f"{place}, field {name!r}", value.get(name)) for name, check in checks.items() if check)


def _array(place: str, value: Any, *, check: ValueCheck) -> str | None:
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes, Mapping)):
        return None
    return _first(check(f"{place}, an element", each) for each in value)


def _map(place: str, value: Any, *, keys: ValueCheck | None, values: ValueCheck | None) -> str | None:
    if not isinstance(value, Mapping):
        return None
    of_keys = (keys(f"{place}, a key", each) for each in value) if keys else ()
    of_values = (values(f"{place}, the value of {key!r}", each) for key, each in value.items()) if values else ()
    return _first(of_keys) or _first(of_values)
