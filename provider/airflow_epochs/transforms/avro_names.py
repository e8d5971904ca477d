"""A writer's and a reader's Avro schema with the same names, as Spark has to have them.

Avro's library for Java, by which Spark reads, takes an alias of a field only where the writer's record has the reader's
full name; an enum or a fixed type only by its name, and in a union only by its full name. Else it gives defaults, or
nothing. So both schemas get names here that say which type is read as which, and fields the reader's names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from airflow_epochs.transforms.avro_schemas import (
    NAMED,
    Resolution,
    Resolved,
    Schema,
    SchemaFlaw,
    fields_of,
    full_name,
    is_decimal,
)

_SPACE = "airflow_epochs.avro"
_ROOT, _LEFT_OUT = "at", "left_out"
_RECORDS = ("record", "error")
_LONG, DIGITS_OF_LONG = 8, 18
"""Bytes of a long, and the most digits of a decimal that Spark keeps in a long."""


def for_reader(reader: Resolved) -> Schema:
    """The reader's schema. It names each type by its place, and has no aliases. No record is inside of itself."""
    return _placed(reader, reader.root, _ROOT)


def for_writer(writer: Resolved, reader: Resolved) -> Schema:
    """The writer's schema, of the same bytes. What is read into a type of ``for_reader`` has its name.

    Raises:
        SchemaFlaw: The writer's schema cannot be read into the reader's.
    """
    pair = Resolution(writer, reader)
    if problem := pair.problem(writer.root, reader.root, ""):
        raise SchemaFlaw(problem)
    return _Writer(pair).of(writer.root, reader.root, _ROOT)


def with_room(schema: Schema) -> Schema:
    """The schema with room in its decimals for a number that has more digits than the schema says.

    If a decimal has at most 18 digits, Spark takes only the lower 64 bits of the number.
    """
    if isinstance(schema, list):
        return [with_room(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    if is_decimal(schema) and schema["precision"] <= DIGITS_OF_LONG and schema.get("size", _LONG + 1) > _LONG:
        return {**schema, "precision": DIGITS_OF_LONG + 1}
    made = {part: with_room(schema[part]) for part in ("items", "values") if part in schema}
    if schema["type"] in _RECORDS:
        made["fields"] = [{**each, "type": with_room(each["type"])} for each in schema["fields"]]
    return {**schema, **made}


def _placed(reader: Resolved, schema: Schema, place: str) -> Schema:
    schema = reader.meant(schema)
    if isinstance(schema, list):
        return [_placed(reader, branch, f"{place}_{number}") for number, branch in enumerate(schema)]
    if not isinstance(schema, dict):
        return schema
    if inner := _inner(schema):
        return {**schema, inner: _placed(reader, schema[inner], f"{place}_0")}
    made = _renamed(schema, _SPACE, place) if schema["type"] in NAMED else schema
    if schema["type"] in _RECORDS:
        made["fields"] = [
            {**_without_aliases(each), "type": _placed(reader, each["type"], f"{place}_{number}")}
            for number, each in enumerate(schema["fields"])
        ]
    return made


@dataclass(frozen=True)
class _Writer:
    """Renames a writer's types. ``names``: place in the reader's schema and the writer's full name -> the new name."""

    pair: Resolution
    names: dict[tuple[str, str], str] = field(default_factory=dict)

    def of(self, written: Schema, wanted: Schema | None, place: str, in_union: bool = False) -> Schema:
        """A writer's type with the names that Spark needs.

        ``wanted``: the reader's type for it; None if it is left out. ``in_union``: whether ``wanted`` is in a union.
        """
        written, wanted = self.pair.writer.meant(written), self.pair.reader.meant(wanted)
        if isinstance(written, list):
            return [self.of(branch, wanted, place, in_union) for branch in written]
        if isinstance(wanted, list):
            number = self.pair.branch(written, wanted)
            return written if number is None else self.of(written, wanted[number], f"{place}_{number}", True)
        if not isinstance(written, dict):
            return written
        if inner := _inner(written):
            return {**written, inner: self.of(written[inner], wanted and wanted[inner], _below(place, 0))}
        return self._named(written, wanted, place, in_union) if written["type"] in NAMED else written

    def _named(self, written: Schema, wanted: Schema | None, place: str, in_union: bool) -> Schema:
        """The schema of a named type: its definition where it comes first, then only its name."""
        full = full_name(written)
        if (place, full) in self.names:
            return self.names[place, full]
        others = [other for at, other in self.names if at == place]
        if others and in_union and written["type"] not in _RECORDS:
            raise SchemaFlaw(f"{others[0]} and {full} are both read into {full_name(wanted)} of a union")
        made = _renamed(written, f"{_SPACE}.n{len(others)}" if others else _SPACE, place)
        self.names[place, full] = full_name(made)
        if written["type"] in _RECORDS:
            read = {mine["name"]: name for name, mine in fields_of(written, wanted).items()} if wanted else {}
            made["fields"] = [self._field(each, wanted, read.get(each["name"]), place) for each in written["fields"]]
        return made

    def _field(self, written: Schema, record: Schema | None, name: str | None, place: str) -> Schema:
        """The writer's field under the name of the reader's field. ``name``: this name; None if it is left out."""
        if record is None or name is None:
            return {**written, "type": self.of(written["type"], None, _LEFT_OUT)}
        number, wanted = next((n, each) for n, each in enumerate(record["fields"]) if each["name"] == name)
        return {**written, "name": name, "type": self.of(written["type"], wanted["type"], f"{place}_{number}")}


def _inner(schema: Schema) -> str | None:
    return {"array": "items", "map": "values"}.get(schema["type"])


def _below(place: str, number: int) -> str:
    return place if place == _LEFT_OUT else f"{place}_{number}"


def _renamed(schema: Schema, space: str, name: str) -> dict[str, Any]:
    return {**_without_aliases(schema), "name": name, "namespace": space}


def _without_aliases(schema: Schema) -> dict[str, Any]:
    return {name: told for name, told in schema.items() if name != "aliases"}
