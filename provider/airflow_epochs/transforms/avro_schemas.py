"""Avro schemas: whether records of a writer's schema can be read into a reader's.

The rules come from Avro's specification ("Schema Resolution"). They are stricter where Spark would silently read
another value: it does not look at the writer's logical types, so it would read milliseconds as microseconds, and a
decimal with another scale.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Schema = Any
"""A schema in JSON: a name, a list (a union), or an object."""

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NAMED = ("record", "error", "enum", "fixed")
_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""Type of the writer -> other types as which it may be read."""
_UNITS = {
    "date": "int",
    "time-millis": "int",
    "time-micros": "long",
    "timestamp-millis": "long",
    "timestamp-micros": "long",
    "timestamp-nanos": "long",
    "local-timestamp-millis": "long",
    "local-timestamp-micros": "long",
    "local-timestamp-nanos": "long",
    "duration": "fixed",
}
"""Logical types that say what a number means -> the type that a number with it has."""
_PRECISION_MAX = 38
"""The most digits that a decimal can have in Spark."""


class SchemaFlaw(ValueError):
    """Why a schema cannot be used, as the end of a sentence without full stop."""


@dataclass(frozen=True)
class Resolved:
    """A schema whose names are resolved.

    Attributes:
        root: The schema. Each name in it is a full one.
        named: Full name -> the definition of a record, enum or fixed type.
    """

    root: Schema
    named: Mapping[str, Schema] = field(repr=False)

    @property
    def text(self) -> str:
        """The schema for Spark."""
        return json.dumps(self.root)

    def meant(self, schema: Schema) -> Schema:
        """The definition of a named type; any other schema as it is."""
        return self.named.get(schema, schema) if isinstance(schema, str) else schema


def resolved(told: Schema, references: Mapping[str, Schema] = MappingProxyType({})) -> Resolved:
    """A schema, given as text or as what the text stands for.

    Args:
        told: The schema.
        references: Other schemas, by any names: Avro knows all types that they define, the inner ones too. A definition
            that ``told`` needs and does not have is put where its name is first used.

    Raises:
        SchemaFlaw: It is not valid.
    """
    try:
        named = _Names(map(_parsed, references.values()))
        return Resolved(_walked(_parsed(told), "", named), named)
    except (KeyError, TypeError, AttributeError) as error:
        raise SchemaFlaw(f"is no valid Avro schema: {error!r}") from error
    except SchemaFlaw:
        raise
    except ValueError as error:
        raise SchemaFlaw(f"is no JSON: {error}") from error


class _Names(dict[str, Schema]):
    """Full name -> definition, as found so far.

    ``others``: definitions in other schemas, which may still be needed. ``unlike``: names that several of these schemas
    define differently.
    """

    def __init__(self, references: Iterable[Schema]) -> None:
        super().__init__()
        self.others: dict[str, Schema] = {}
        self.unlike: set[str] = set()
        for full, definition in (each for schema in references for each in _definitions(schema, "")):
            if _shape(self.others.setdefault(full, definition)) != _shape(definition):
                self.unlike.add(full)


def _parsed(told: Schema) -> Schema:
    return json.loads(told) if isinstance(told, str) and told.strip()[:1] in ('"', "{", "[") else told


def _walked(schema: Schema, namespace: str, named: _Names) -> Schema:
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else _known(schema, namespace, named)
    if isinstance(schema, list):
        return [_walked(branch, namespace, named) for branch in schema]
    kind = schema["type"]
    if kind in NAMED:
        return _defined(schema, namespace, named)
    if kind == "array":
        return {**schema, "items": _walked(schema["items"], namespace, named)}
    if kind == "map":
        return {**schema, "values": _walked(schema["values"], namespace, named)}
    if kind in PRIMITIVES:
        return schema
    return _walked(kind, namespace, named)


def _known(name: str, namespace: str, named: _Names) -> Schema:
    for full in (_full(name, namespace), name):
        if full in named:
            return full
        if full in named.unlike:
            raise SchemaFlaw(f"has references that define {full!r} in different ways")
        if full in named.others:
            return _walked(named.others[full], "", named)
    raise SchemaFlaw(f"has no type {name!r}")


def _full(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _defines(schema: Schema, namespace: str) -> str:
    return _full(schema["name"], schema.get("namespace", namespace))


def _definitions(schema: Schema, namespace: str) -> Iterator[tuple[str, Schema]]:
    """Each full name that a schema defines, at any depth, and the definition."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _definitions(branch, namespace)
    elif isinstance(schema, dict):
        if schema["type"] in NAMED:
            full = _defines(schema, namespace)
            namespace, _, name = full.rpartition(".")
            yield full, {**schema, "name": name, "namespace": namespace}
        inside = [schema[part] for part in ("type", "items", "values") if part in schema]
        for each in [*inside, *(each["type"] for each in schema.get("fields", ()))]:
            yield from _definitions(each, namespace)


def _shape(schema: Schema, namespace: str = "", within: bool = False) -> Schema:
    """The part of a definition that decides the bytes, to compare two. Types defined inside are there by name."""
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else _full(schema, namespace)
    if isinstance(schema, list):
        return [_shape(branch, namespace, True) for branch in schema]
    if schema["type"] not in NAMED:
        inner = {part: _shape(schema[part], namespace, True) for part in ("type", "items", "values") if part in schema}
        return {**schema, **inner}
    full = _defines(schema, namespace)
    if within:
        return full
    fields = [(each["name"], _shape(each["type"], full.rpartition(".")[0], True)) for each in schema.get("fields", ())]
    told = {part: schema[part] for part in schema if part not in ("doc", "aliases", "name", "namespace")}
    return {**told, "name": full, "fields": fields}


def _defined(schema: Schema, namespace: str, named: _Names) -> Schema:
    full = _defines(schema, namespace)
    if full in named:
        if _shape(schema, namespace) == _shape(named[full]):
            return full
        raise SchemaFlaw(f"defines {full!r} twice")
    inner, _, name = full.rpartition(".")
    made = {**schema, "name": name, "namespace": inner}
    named[full] = made
    if schema["type"] == "enum":
        made["symbols"] = list(schema["symbols"])
    elif schema["type"] == "fixed":
        made["size"] = int(schema["size"])
    else:
        made["fields"] = [{**each, "type": _walked(each["type"], inner, named)} for each in schema["fields"]]
    return made


# -- what Spark makes of a reader's schema -----------------------------------------------------------------------------


def require_columns(reader: Resolved) -> None:
    """Refuse a reader's schema if Spark would not make the columns that it describes.

    Raises:
        SchemaFlaw: It is not a record, or has a type that Spark cannot read or reads in part.
    """
    if _type(reader.root) != "record":
        raise SchemaFlaw("is no record, so it gives no columns")
    for flaw in _flaws(reader, reader.root, "", ()):
        raise SchemaFlaw(flaw)


def _flaws(reader: Resolved, schema: Schema, at: str, within: tuple[str, ...]) -> Iterator[str]:
    schema = reader.meant(schema)
    if isinstance(schema, list):
        for branch in schema:
            if branch != "null":
                yield from _flaws(reader, branch, at, within)
        return
    kind, logical = _type(schema), _logical(schema)
    if kind == "null":
        yield f"has {_field(at)} of type null"
    elif logical == "time-micros":
        yield f"has {_field(at)} of type time-micros, which Spark Connect cannot return: read it as a long"
    elif logical == "decimal" and schema["precision"] > _PRECISION_MAX:
        yield f"has {_field(at)} with {schema['precision']} digits, and Spark's decimals have at most {_PRECISION_MAX}"
    elif kind in ("array", "map"):
        yield from _flaws(reader, schema["items" if kind == "array" else "values"], at, within)
    elif kind in ("record", "error"):
        yield from _flaws_of_record(reader, schema, at, within)


def _flaws_of_record(reader: Resolved, schema: Schema, at: str, within: tuple[str, ...]) -> Iterator[str]:
    full = f"{schema['namespace']}.{schema['name']}"
    if full in within:
        yield f"has {_field(at)}, which is a record inside of itself, and Spark has no such type"
        return
    names = [each["name"].lower() for each in schema["fields"]]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield f"has fields that differ only in upper and lower case: {', '.join(twice)}"
    for each in schema["fields"]:
        yield from _flaws(reader, each["type"], _inside(at, each["name"]), (*within, full))


# -- whether one can be read into the other ----------------------------------------------------------------------------


def unreadable(writer: Resolved, reader: Resolved) -> str | None:
    """Why records of the writer's schema cannot be read into the reader's; None if they can.

    A record may still not fit: it may have a NULL, or a symbol of an enum, that the reader's schema does not have.
    """
    return Resolution(writer, reader).problem(writer.root, reader.root, "")


@dataclass(frozen=True)
class Resolution:
    """Finds the part of a reader's schema into which a part of a writer's schema is read."""

    writer: Resolved
    reader: Resolved

    def problem(self, written: Schema, wanted: Schema, at: str) -> str | None:
        """Why one part cannot be read into the other; ``at``: its place."""
        written, wanted = self.writer.meant(written), self.reader.meant(wanted)
        if isinstance(written, list):
            branches = [branch for branch in written if branch != "null"] or written
            found = (self.problem(branch, wanted, at) for branch in branches)
            return next((problem for problem in found if problem), None)
        if isinstance(wanted, list):
            return self._of_union(written, wanted, at)
        if _type(written) != _type(wanted):
            return None if self._promoted(written, wanted) else self._differ(written, wanted, at)
        if problem := _of_meaning(written, wanted):
            return f"{_field(at)}: {problem}"
        return self._inside(written, wanted, at)

    def branch(self, written: Schema, wanted: list[Schema]) -> int | None:
        """The branch of a reader's union that a value is read into; None if no branch takes it."""
        numbers = self._candidates(written, wanted)
        return next((number for number in numbers if not self.problem(written, wanted[number], "")), None)

    def _of_union(self, written: Schema, wanted: list[Schema], at: str) -> str | None:
        problems = [self.problem(written, wanted[number], at) for number in self._candidates(written, wanted)]
        if not problems:
            return self._differ(written, wanted, at)
        return problems[0] if all(problems) else None

    def _candidates(self, written: Schema, wanted: list[Schema]) -> list[int]:
        """The branches to try: the branch of the same type, else the first one as which Avro can read the value."""
        kind, kinds = _type(written), [_type(self.reader.meant(branch)) for branch in wanted]
        same = [number for number, each in enumerate(kinds) if each == kind]
        if not same:
            return [number for number, each in enumerate(kinds) if each in _PROMOTED.get(kind, ())][:1]
        return self._namesakes(written, wanted, same) if kind in NAMED else same

    def _namesakes(self, written: Schema, wanted: list[Schema], same: list[int]) -> list[int]:
        """The branches with the same full name, else with the same name, else ``same``.

        If several records remain, their fields decide. If several enums or fixed types remain, no branch fits.
        """
        branches = {number: self.reader.meant(wanted[number]) for number in same}
        full = [number for number, each in branches.items() if full_name(written) in (full_name(each), *_aliases(each))]
        short = [number for number, each in branches.items() if each["name"] == written["name"]]
        found = full or short or same
        return found if len(found) == 1 or _type(written) in ("record", "error") else []

    def _promoted(self, written: Schema, wanted: Schema) -> bool:
        """Whether a number may be read as one of a wider type. A unit may be lost or added, but not change."""
        return _type(wanted) in _PROMOTED.get(_type(written), ()) and not _of_meaning(written, wanted)

    def _inside(self, written: Schema, wanted: Schema, at: str) -> str | None:
        match _type(written):
            case "array":
                return self.problem(written["items"], wanted["items"], at)
            case "map":
                return self.problem(written["values"], wanted["values"], at)
            case "fixed" if written["size"] != wanted["size"]:
                return f"{_field(at)} has {written['size']} bytes, not {wanted['size']}"
            case "record" | "error":
                known = fields_of(written, wanted)
                found = (self._of_field(known.get(each["name"]), each, at) for each in wanted["fields"])
                return next((problem for problem in found if problem), None)
            case _:
                return None

    def _of_field(self, written: Schema | None, wanted: Schema, at: str) -> str | None:
        if written:
            return self.problem(written["type"], wanted["type"], _inside(at, wanted["name"]))
        if "default" in wanted:
            return None
        return f"{_field(_inside(at, wanted['name']))} is missing, and the reader's schema has no default for it"

    def _differ(self, written: Schema, wanted: Schema, at: str) -> str:
        return f"{_field(at)} is {_told(written, apart=True)}, not {_told(wanted, apart=True)}"


def fields_of(written: Schema, wanted: Schema) -> dict[str, Schema]:
    """Name of a reader's field -> the writer's field read into it, by name or alias. Each is read at most once."""
    known = {each["name"]: each for each in written["fields"]}
    found = {each["name"]: known.pop(each["name"]) for each in wanted["fields"] if each["name"] in known}
    for each in wanted["fields"]:
        alias = next((alias for alias in each.get("aliases", ()) if alias in known), None)
        if alias is not None and each["name"] not in found:
            found[each["name"]] = known.pop(alias)
    return found


def full_name(schema: Schema) -> str:
    """The name of a record, enum or fixed type with its namespace."""
    return _full(schema["name"], schema["namespace"])


def _aliases(schema: Schema) -> list[str]:
    return [_full(alias, schema["namespace"]) for alias in schema.get("aliases", ())]


def _of_meaning(written: Schema, wanted: Schema) -> str | None:
    """Why a value means something else to the reader, though both have it as the same number or bytes."""
    mine, theirs = _logical(written), _logical(wanted)
    if "decimal" in (mine, theirs) and "string" in (_type(written), _type(wanted)):
        return f"{_told(written)} is not {_told(wanted)}"  # the digits' text, and the number's bytes
    if "decimal" in (mine, theirs) and mine == theirs:
        if written.get("scale", 0) != wanted.get("scale", 0) or written["precision"] > wanted["precision"]:
            return f"{_told(written)} is not {_told(wanted)}"
    elif mine in _UNITS and theirs in _UNITS and mine != theirs:
        return f"{mine} is not {theirs}"
    return None


def _type(schema: Schema) -> str:
    return str(schema if isinstance(schema, str) else "union" if isinstance(schema, list) else schema["type"])


def _logical(schema: Schema) -> str | None:
    """The logical type. Avro takes no notice of one that does not fit its type, or of a decimal without precision."""
    told = schema.get("logicalType") if isinstance(schema, dict) else None
    if told == "decimal":
        return told if is_decimal(schema) else None
    return None if told in _UNITS and _UNITS[told] != _type(schema) else told


def is_decimal(schema: Schema) -> bool:
    """Whether a type in JSON is a decimal with all that Avro wants of one."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    whole = isinstance(precision, int) and isinstance(scale, int)
    named = schema.get("logicalType") == "decimal" and _type(schema) in ("bytes", "fixed")
    return named and whole and 0 <= scale <= precision and precision > 0


def _told(schema: Schema, *, apart: bool = False) -> str:
    """The type for people. ``apart``: tell decimals in bytes from decimals in a fixed, which Avro does not exchange."""
    if isinstance(schema, list):
        return " or ".join(_told(branch, apart=apart) for branch in schema)
    if _logical(schema) == "decimal":
        inside = f" in {_type(schema)}" if apart else ""
        return f"decimal({schema['precision']},{schema.get('scale', 0)}){inside}"
    if _type(schema) in NAMED:
        return str(_logical(schema) or schema["name"])
    return _logical(schema) or _type(schema)


def _inside(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _field(at: str) -> str:
    return f"field {at}" if at else "the record"
