"""Whether a user's own Avro schema keeps the values of the columns.

fastavro writes a value as its schema says, and looks only at the values of unions. So 1.9 would become 1 in a ``long``,
and any text, or NULL, a ``boolean``. A column's type says at the vote, once, whether that can happen. A NULL, and a
number that is too large for an ``int``, are looked for in each row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from airflow_epochs.spark.driver.delta.schema import type_name
from airflow_epochs.transforms.avro_schemas import Resolved, Schema, full_name

_WHOLE = ("byte", "short", "integer", "long")
_TAKES: Mapping[str, tuple[str, ...]] = {
    "boolean": ("boolean",),
    **dict.fromkeys(("int", "long"), _WHOLE),  # ``require_kept`` finds a number that is too large for an int
    "float": ("byte", "short", "float"),
    "double": ("byte", "short", "integer", "float", "double"),
    "bytes": ("binary",),
    "fixed": ("binary",),
    "string": ("string",),
    "enum": ("string",),
    "date": ("date", *_WHOLE),
    **dict.fromkeys(("timestamp-millis", "timestamp-micros"), ("timestamp", *_WHOLE)),
    **dict.fromkeys(("local-timestamp-millis", "local-timestamp-micros"), ("timestamp_ntz", *_WHOLE)),
}
"""Avro's type or logical type -> Spark's types whose values it keeps. Milliseconds are an exception: Spark has no type
of them, so what is below a millisecond is cut off."""
_TIMES = ("timestamp", "timestamp_ntz")
_CHANGES: Mapping[str, tuple[str, ...]] = {
    "float": ("integer", "long", "double"),
    "double": ("long",),
    "decimal": ("binary",),
    "date": (*_TIMES, "string"),
    **{name: _TIMES for name in _TAKES if "timestamp-" in name},
}
"""Avro's types -> Spark's types whose values fastavro changes there. In a union, such a branch wins over later ones."""
_SOME_VALUES = ("enum", "fixed")
"""Avro's types that take some values of a column's type, and leave others to a later branch of the union."""
_BASES: Mapping[str, tuple[str, ...]] = {
    "date": ("int",),
    "decimal": ("bytes", "fixed"),
    **{name: ("long",) for name in _TAKES if "timestamp-" in name},
}
"""Logical type -> types that may have it. fastavro, too, ignores it elsewhere."""

Require = Callable[[Any], None]
"""Raises ValueError if a part of a value is one that fastavro would change."""


def misfits(schema: Resolved, columns: Mapping[str, Any]) -> list[str]:
    """Columns whose values would change, each as a part of a sentence.

    A column that the schema does not have, and a field without a column, are left to the writer.
    """
    fields = [{"name": name, "type": kind} for name, kind in columns.items()]
    return list(_Fit(schema).of_fields(fields, schema.root, ""))


@dataclass(frozen=True)
class _Fit:
    schema: Resolved

    def of_fields(self, columns: list[Any], record: Schema, at: str) -> Iterator[str]:
        known = {field["name"]: field["type"] for field in record["fields"]}
        for column in columns:
            if column["name"] in known:
                yield from self._of(column["type"], known[column["name"]], f"{at}{column['name']}")

    def _of(self, kind: Any, schema: Schema, at: str) -> Iterator[str]:
        schema = self.schema.meant(schema)
        if isinstance(schema, list):
            if not self._has_branch(kind, schema):
                yield _told(kind, schema, at)
        elif not isinstance(kind, dict):
            if not _takes(kind, schema):
                yield _told(kind, schema, at)
        elif kind["type"] == "struct" and _name(schema) in ("record", "error"):
            yield from self.of_fields(kind["fields"], schema, f"{at}.")
        elif kind["type"] == "array" == _name(schema):
            yield from self._of(kind["elementType"], schema["items"], at)
        elif kind["type"] == "map" == _name(schema):
            yield from self._of(kind["valueType"], schema["values"], at)
        else:
            yield _told(kind, schema, at)

    def _has_branch(self, kind: Any, union: list[Schema]) -> bool:
        """Whether a branch takes the type, and fastavro gives no value to one that would change it."""
        found = False
        for branch in map(self.schema.meant, union):
            if self._fits(kind, branch):
                found = True
                if _takes_all(kind, branch):
                    return True
            elif self._changes(kind, branch):
                return False
        return found

    def _fits(self, kind: Any, schema: Schema) -> bool:
        return not any(self._of(kind, schema, ""))

    def _changes(self, kind: Any, schema: Schema) -> bool:
        """Whether fastavro accepts a value of the type there, and writes a different value."""
        schema = self.schema.meant(schema)
        if isinstance(schema, list):
            return any(self._changes(kind, branch) for branch in schema)
        if not isinstance(kind, dict):
            return _changes(kind, schema)
        if kind["type"] == "struct":
            return self._changes_struct(kind["fields"], schema)
        if kind["type"] == "array" == _name(schema):
            return self._changes(kind["elementType"], schema["items"])
        return kind["type"] == "map" == _name(schema) and self._changes(kind["valueType"], schema["values"])

    def _changes_struct(self, fields: list[Any], schema: Schema) -> bool:
        """Whether fastavro may take a struct for this map or record: to fastavro, a struct is a dict.

        It prefers a map to any record, and a record to a later one.
        """
        if _name(schema) == "map":
            return all(self._may_take(field["type"], schema["values"]) for field in fields)
        if _name(schema) != "record" or self._lacks_a_value(fields, schema):
            return False
        known = {field["name"]: field["type"] for field in schema["fields"]}
        return all(each["name"] in known and self._may_take(each["type"], known[each["name"]]) for each in fields)

    def _lacks_a_value(self, fields: list[Any], record: Schema) -> bool:
        """Whether the record has a field without a value, so that fastavro never takes the struct for it."""
        given = {field["name"] for field in fields}
        missing = (field for field in record["fields"] if field["name"] not in given)
        return any("default" not in field and not self._takes_null(field["type"]) for field in missing)

    def _takes_null(self, schema: Schema) -> bool:
        schema = self.schema.meant(schema)
        return schema == "null" or (isinstance(schema, list) and "null" in schema)

    def _may_take(self, kind: Any, schema: Schema) -> bool:
        meant = self.schema.meant(schema)
        return self._takes_null(meant) or self._fits(kind, meant) or self._changes(kind, meant)


def _takes(kind: str, schema: Schema) -> bool:
    if kind.startswith("decimal("):
        return _name(schema) == "decimal" and _keeps_digits(kind, schema)
    return kind in _TAKES.get(_name(schema), ())


def _takes_all(kind: Any, schema: Schema) -> bool:
    """Whether no value of the type is left to a later branch. A struct's values may always be."""
    if isinstance(kind, dict):
        return False
    told = schema["type"] if isinstance(schema, dict) else schema
    return _name(schema) not in _SOME_VALUES and not (kind == "long" and told == "int")


def _changes(kind: str, schema: Schema) -> bool:
    if kind.startswith("decimal("):
        return _name(schema) == "decimal"
    # bytes are a list of numbers, too
    return kind in _CHANGES.get(_name(schema), ()) or (kind == "binary" and _name(schema) == "array")


def _keeps_digits(kind: str, schema: Schema) -> bool:
    """Whether no such decimal gets too many digits unnoticed: fastavro counts them before it shifts to the scale."""
    (digits, below), scale = map(int, re.findall(r"\d+", kind)), schema.get("scale", 0)
    return bool(below == scale or (below < scale and digits - below <= schema["precision"] - scale))


def _name(schema: Schema) -> str:
    """The logical type, if fastavro writes by it; else the type."""
    if not isinstance(schema, dict):
        return str(schema)
    kind, logical = str(schema["type"]), str(schema.get("logicalType"))
    if kind not in _BASES.get(logical, ()) or (logical == "decimal" and not isinstance(schema.get("precision"), int)):
        return kind
    return logical


def _told(kind: Any, schema: Schema, at: str) -> str:
    branches = schema if isinstance(schema, list) else [schema]
    wanted = " or ".join(_shown(branch) for branch in branches if branch != "null")
    return f"column {at!r} is {type_name(kind)}, and the schema has {wanted or 'null'}"


def _shown(schema: Schema) -> str:
    if _name(schema) == "decimal":
        return f"decimal({schema['precision']},{schema.get('scale', 0)})"
    return _name(schema)


# -- what only a row's own values tell ---------------------------------------------------------------------------------

_INT = range(-(2**31), 2**31)


def require_kept(schema: Resolved, inside: Schema, at: str = "", within: tuple[str, ...] = ()) -> Require | None:
    """The check for a NULL that would become false, and for a number that no reader could decode as an ``int``.

    None if neither can occur. fastavro itself checks what is in a union.

    Args:
        schema: The whole schema.
        inside: The part of it that a value has.
        at: The field's name.
        within: Full names of the records around it.
    """
    inside = schema.meant(inside)
    if isinstance(inside, list):
        return None
    kind = inside if isinstance(inside, str) else inside["type"]
    if kind in _PLAIN:
        return _PLAIN[kind](at.rstrip("."))
    if kind in ("record", "error"):
        return _of_record(schema, inside, at, within)
    if kind == "array":
        return _in_each(require_kept(schema, inside["items"], at, within), lambda value: value)
    if kind == "map":
        return _in_each(require_kept(schema, inside["values"], at, within), lambda value: value.values())
    return None


def _of_record(schema: Resolved, record: Schema, at: str, within: tuple[str, ...]) -> Require | None:
    full = full_name(record)
    if full in within:
        return _later(lambda: require_kept(schema, record, at))
    around = (*within, full)
    found = {f["name"]: require_kept(schema, f["type"], f"{at}{f['name']}.", around) for f in record["fields"]}
    return _in_record({name: require for name, require in found.items() if require})


def _later(make: Callable[[], Require | None]) -> Require:
    """The check of a record inside itself. It is made only when a value is that deep."""
    made = cache(make)

    def require(value: Any) -> None:
        inner = made() if value is not None else None
        inner(value) if inner else None

    return require


def _boolean(at: str) -> Require:
    def require(value: Any) -> None:
        if value is None:
            raise ValueError(f"{at} is NULL, and the schema has boolean")

    return require


def _int(at: str) -> Require:
    def require(value: Any) -> None:
        if isinstance(value, int) and value not in _INT:
            raise ValueError(f"{at} is {value}, and the schema has int, which ends at {_INT[-1]}")

    return require


_PLAIN: Mapping[str, Callable[[str], Require]] = {"boolean": _boolean, "int": _int}


def _in_record(inner: Mapping[str, Require]) -> Require | None:
    def require(value: Any) -> None:
        for name, each in inner.items():
            if value is not None and name in value:
                each(value[name])

    return require if inner else None


def _in_each(inner: Require | None, elements: Callable[[Any], Any]) -> Require | None:
    def require(value: Any) -> None:
        for each in elements(value) if value is not None else ():
            inner(each) if inner else None

    return require if inner else None
