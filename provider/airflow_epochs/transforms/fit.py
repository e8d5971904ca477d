"""Brings columns into the types that a state declares for them, and changes no value on the way.

A cast of Spark's cuts numbers off, rounds them, and takes the fields of structs by their place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_epochs.transforms.conditions import is_text

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

OUTGROWN = "is not exactly in the type that the state declares"
"""A part of the error text when Spark meets a number that the declared type does not have."""
_WIDER = {
    "byte": ("short", "integer", "long", "double"),
    "short": ("integer", "long", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}
_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}
_FLOATING = ("float", "double")
_ONE_TEXT = ("boolean", *_DIGITS, "date")
"""Types whose values have one text each, and no two of them the same."""
_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")


def widens(kind: Any, wider: Any) -> bool:
    """Whether a column of type ``kind`` can get the ``wider`` type in Delta, which has all values of it. Not nested."""
    if not isinstance(kind, str) or not isinstance(wider, str) or kind == wider:
        return False
    if wider in _WIDER.get(kind, ()):
        return True
    narrow, wide = _digits(kind), _decimal_digits(wider)
    return narrow is not None and wide is not None and narrow[0] <= wide[0] and narrow[1] <= wide[1]


def _digits(kind: str) -> tuple[int, int] | None:
    """How many digits an exact number has before and behind the point; None for other types."""
    return (_DIGITS[kind], 0) if kind in _DIGITS else _decimal_digits(kind)


def _decimal_digits(kind: str) -> tuple[int, int] | None:
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]) - int(found[2]), int(found[2])) if found else None


@dataclass(frozen=True)
class Part:
    """A column or what is inside of it: its name, the type that it has, and the declared one. None: it is not there."""

    name: str
    kind: DataType | None
    wanted: DataType | None

    @property
    def changes(self) -> bool:
        """Whether the declared type is another one."""
        return self.kind is None or self.wanted is None or self.kind.simpleString() != self.wanted.simpleString()


def misfit(part: Part, *, is_key: bool = False) -> Part | None:
    """The first part, itself or inside of it, whose values would change in the declared type.

    ``is_key``: the nearest number is another one, too. A key has nothing inside of it.
    """
    if part.kind is None or part.wanted is None:
        return part
    if is_key and is_near(part.kind.jsonValue(), part.wanted.jsonValue()):
        return part
    if inside := _inside(part.name, part.kind, part.wanted):
        return next((found for each in inside if (found := misfit(each))), None)
    return None if _keeps(part.kind, part.wanted) else part


def fitted(value: Column, part: Part, operator: str) -> Column:
    """The values in the declared type, of a column that is no misfit. ``operator``: begins the error.

    A number that is too large fails, whatever ``spark.sql.ansi.enabled`` says.
    """
    from pyspark.sql import types

    kind, wanted = part.kind, part.wanted
    if kind is None or wanted is None or not part.changes:
        return value
    if isinstance(kind, types.StructType) and isinstance(wanted, types.StructType):
        return _struct(value, part.name, kind, wanted, operator)
    if isinstance(kind, types.ArrayType):
        return _array(value, _inside(part.name, kind, wanted)[0], operator)
    if isinstance(kind, types.MapType):
        return _map(value, _inside(part.name, kind, wanted), operator)
    if _may_be_too_large(kind, wanted):
        return _checked(value, part.name, kind, wanted, operator)
    return value.cast(wanted)


def reordered(kind: DataType, like: DataType) -> DataType:
    """``kind`` with the fields of each struct in the order that they have in ``like``, if both name the same ones."""
    from pyspark.sql import types

    if isinstance(kind, types.StructType) and isinstance(like, types.StructType):
        ours, theirs = _by_name(kind), _by_name(_named_as(like, kind))
        if ours.keys() != theirs.keys():
            return kind
        names = {field.name.lower(): field.name for field in kind}
        fields = [types.StructField(names[each], reordered(ours[each], theirs[each])) for each in theirs]
        return types.StructType(fields)
    if isinstance(kind, types.ArrayType) and isinstance(like, types.ArrayType):
        return types.ArrayType(reordered(kind.elementType, like.elementType))
    if isinstance(kind, types.MapType) and isinstance(like, types.MapType):
        return types.MapType(reordered(kind.keyType, like.keyType), reordered(kind.valueType, like.valueType))
    return kind


def _inside(name: str, kind: DataType, wanted: DataType) -> list[Part]:
    """The parts of a value: a struct's fields by their names, whose case does not matter; an array's or a map's parts.

    If two structs have no name in common, as with ``col1``, their fields correspond by their places.
    """
    from pyspark.sql import types

    if isinstance(kind, types.StructType) and isinstance(wanted, types.StructType):
        ours, theirs = _by_name(_named_as(kind, wanted)), _by_name(wanted)
        names = {each.lower(): each for each in [*_named_as(kind, wanted).names, *wanted.names]}
        return [Part(f"{name}.{told}", ours.get(each), theirs.get(each)) for each, told in names.items()]
    if isinstance(kind, types.ArrayType) and isinstance(wanted, types.ArrayType):
        return [Part(f"{name}.element", kind.elementType, wanted.elementType)]
    if isinstance(kind, types.MapType) and isinstance(wanted, types.MapType):
        return [
            Part(f"{name}.key", kind.keyType, wanted.keyType),
            Part(f"{name}.value", kind.valueType, wanted.valueType),
        ]
    return []


def _named_as(kind: StructType, wanted: StructType) -> StructType:
    """The struct with the other's names, if they have no name in common."""
    from pyspark.sql import types

    if _by_name(kind).keys() & _by_name(wanted).keys() or len(kind.fields) != len(wanted.fields):
        return kind
    pairs = zip(wanted.names, kind.fields, strict=True)
    return types.StructType([types.StructField(name, field.dataType) for name, field in pairs])


def _by_name(kind: StructType) -> dict[str, DataType]:
    return {field.name.lower(): field.dataType for field in kind.fields}


def _keeps(kind: DataType, wanted: DataType) -> bool:
    """Whether the declared type has every value of a type, or fails for it. Nothing is inside of them."""
    ours, theirs = kind.jsonValue(), wanted.jsonValue()
    same = ours == theirs or ours == "void" or (is_text(ours) and is_text(theirs))
    return same or widens(ours, theirs) or _means_the_same(ours, theirs) or _may_be_too_large(kind, wanted)


def _means_the_same(ours: Any, theirs: Any) -> bool:
    """Whether a cast keeps the meaning: a text, the beginning of a day, or a number that need not be exact."""
    as_text = isinstance(ours, str) and ours in _ONE_TEXT and is_text(theirs)
    return as_text or (ours, theirs) == ("date", "timestamp") or is_near(ours, theirs)


def is_near(ours: Any, theirs: Any) -> bool:
    """Whether a cast takes numbers, which need not be whole, to the nearest ones that a floating-point type has."""
    if not isinstance(ours, str) or theirs not in _FLOATING or ours == theirs or widens(ours, theirs):
        return False
    return ours in _FLOATING or (_digits(ours) or (0, 0))[1] > 0


def _may_be_too_large(kind: DataType, wanted: DataType) -> bool:
    """Whether the declared type has all digits behind the point of an exact number, but maybe not all before it.

    Most sums are such numbers: Spark makes them ten digits longer than the numbers it adds up. A whole number may
    also have more digits than a floating-point number keeps.
    """
    ours, theirs = kind.jsonValue(), wanted.jsonValue()
    if not isinstance(ours, str) or not isinstance(theirs, str) or ours == theirs or widens(ours, theirs):
        return False
    narrow, wide = _digits(ours), (0, 0) if theirs in _FLOATING else _digits(theirs)
    return narrow is not None and wide is not None and narrow[1] <= wide[1]


def _checked(value: Column, name: str, kind: DataType, wanted: DataType, operator: str) -> Column:
    from pyspark.sql import functions as F

    made = value.try_cast(wanted)
    # The largest bigint becomes 2^63 as a double, which would be the largest bigint again.
    back = made.try_cast("decimal(38,0)" if wanted.simpleString() in _FLOATING else kind)
    told = f"{operator}: a value of column {name!r} {OUTGROWN}, {wanted.simpleString()}: "
    is_kept = value.isNull() | F.coalesce(back == value, F.lit(False))
    return F.when(is_kept, made).otherwise(F.raise_error(F.concat(F.lit(told), value.cast("string"))))


def _struct(value: Column, name: str, kind: StructType, wanted: StructType, operator: str) -> Column:
    from pyspark.sql import functions as F

    named, fields = zip(_named_as(kind, wanted).names, kind.fields, strict=True), []
    ours = {told.lower(): field for told, field in named}
    for field in wanted.fields:
        own = ours[field.name.lower()]
        part = Part(f"{name}.{field.name}", own.dataType, field.dataType)
        fields.append(fitted(value.getField(own.name), part, operator).alias(field.name))
    return F.when(value.isNotNull(), F.struct(*fields))


def _array(value: Column, element: Part, operator: str) -> Column:
    from pyspark.sql import functions as F

    return F.transform(value, lambda each: fitted(each, element, operator))


def _map(value: Column, inside: list[Part], operator: str) -> Column:
    from pyspark.sql import functions as F

    parts = zip((F.map_keys(value), F.map_values(value)), inside, strict=True)
    return F.map_from_arrays(*(_array(values, part, operator) for values, part in parts))
