"""Schemas of Protobuf: whether messages of a writer's schema can be read into a reader's message, and as which columns.

The rules are Protobuf's own ("Updating A Message Type"). They are stricter where its library would silently read
another value: an ``int64`` as an ``int32``, a number of an enum under another name, a field that got another number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_epochs.transforms.avro_schemas import SchemaFlaw
from airflow_epochs.transforms.protobuf_columns import ROOT, UNSIGNED, Field

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

_TYPES = (
    "double",
    "float",
    "int64",
    "uint64",
    "int32",
    "fixed64",
    "fixed32",
    "bool",
    "string",
    "group",
    "message",
    "bytes",
    "uint32",
    "enum",
    "sfixed32",
    "sfixed64",
    "sint32",
    "sint64",
)
"""The types of fields. Protobuf numbers them from 1 on."""
_KINDS = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), "integer"),
    **dict.fromkeys(("int64", "sint64", "sfixed64", "uint32", "fixed32"), "long"),
    **dict.fromkeys(("uint64", "fixed64"), UNSIGNED),
    "bool": "boolean",
    "bytes": "binary",
    "message": "struct",
}
"""Type of a field -> kind of its column. The others have the same name."""
_WIDENED = {"int32": ("int64",), "uint32": ("uint64", "int64"), "sint32": ("sint64",)}
"""Type of the writer -> other types as which the same bytes are the same value."""
_WELL_KNOWN = "google.protobuf."
_TIMESTAMP = f"{_WELL_KNOWN}Timestamp"
WRAPPERS = {
    f"{_WELL_KNOWN}{kind}Value"
    for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
"""Messages that stand for a value, or for NULL."""
_BYTES, _INT32 = 12, 5
_PARSED_AS = {"string": _BYTES, "enum": _INT32}
"""Type of a field -> the type as which it is parsed: see ``protobuf_columns``."""
_OPTIONAL, _REPEATED = 1, 3


@dataclass(frozen=True)
class SchemaFiles:
    """The files of a schema.

    Attributes:
        main: The file of the schema itself; the others are the files that it imports.
    """

    main: FileDescriptor
    pool: Any = field(repr=False)

    def message(self, name: str) -> Descriptor:
        """A message by its full name."""
        try:
            return self.pool.FindMessageTypeByName(name)
        except KeyError:
            known = ", ".join(sorted({each.full_name for _, each in _indexed(self.main.message_types_by_name, False)}))
            raise SchemaFlaw(f"has no message {name!r}; it has {known or 'none'}") from None


def files_of(told: bytes) -> SchemaFiles:
    """The files of a FileDescriptorSet. The main one is its last, as protoc writes them.

    Raises:
        SchemaFlaw: It is not valid, or not complete.
    """
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message import DecodeError

    try:
        files = FileDescriptorSet.FromString(told).file
    except (DecodeError, TypeError) as error:
        raise SchemaFlaw("is no FileDescriptorSet, which protoc --descriptor_set_out writes") from error
    if not files:
        raise SchemaFlaw("has no file")
    if lacking := sorted({name for each in files for name in each.dependency} - {each.name for each in files}):
        raise SchemaFlaw(f"lacks {', '.join(lacking)}, which it imports: let protoc write it with --include_imports")
    pool = DescriptorPool()
    try:
        for each in files:
            pool.AddSerializedFile(each.SerializeToString())
    except TypeError as error:
        raise SchemaFlaw(f"is not valid: {error}") from error
    return SchemaFiles(pool.FindFileByName(files[-1].name), pool)


# -- which message the indexes of a record name ------------------------------------------------------------------------


def indexes_of(files: SchemaFiles) -> dict[tuple[int, ...], list[str]]:
    """All message indexes of the main file -> the full name of the message.

    An index counts the messages that a file or a message declares. Confluent's client for Python counts the entries of
    maps, too, and the one for Java does not. Where the two name different messages, both are told.
    """
    named: dict[tuple[int, ...], list[str]] = {}
    for with_entries in (False, True):
        for indexes, each in _indexed(files.main.message_types_by_name, with_entries):
            if not each.GetOptions().map_entry and each.full_name not in named.setdefault(indexes, []):
                named[indexes].append(each.full_name)
    return named


def _indexed(messages: Any, with_entries: bool, within: tuple[int, ...] = ()) -> Iterator[tuple[Any, Descriptor]]:
    counted = [each for each in messages.values() if with_entries or not each.GetOptions().map_entry]
    for number, each in enumerate(counted):
        yield (*within, number), each
        yield from _indexed(each.nested_types_by_name, with_entries, (*within, number))


# -- columns of the reader's message -----------------------------------------------------------------------------------


def columns_of(message: Descriptor, at: str = "", within: tuple[str, ...] = ()) -> tuple[Field, ...]:
    """The fields of a message, as columns.

    Raises:
        SchemaFlaw: Spark has no columns for them.
    """
    if not message.fields:
        raise SchemaFlaw(f"has {_message(at)} without fields, and Spark's tables have no such column")
    names = [each.name.lower() for each in message.fields]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SchemaFlaw(f"has fields that differ only in upper and lower case: {', '.join(twice)}")
    return tuple(_as_column(each, _inside(at, each.name), (*within, message.full_name)) for each in message.fields)


def _as_column(told: FieldDescriptor, at: str, within: tuple[str, ...]) -> Field:
    inner, kind = told.message_type, type_of(told)
    if kind == "group":
        raise SchemaFlaw(f"has field {at}, which is a group: make it a message of its own")
    if is_map(told):
        entries = tuple(_as_column(each, _inside(at, each.name), within) for each in inner.fields)
        return Field(told.number, told.name, at, "map", "map", entries)
    make = partial(Field, told.number, told.name, at, label=_label(told))
    if kind == "enum":
        return make(kind="enum", symbols=_symbols(told))
    if kind != "message":
        return make(kind=_KINDS.get(kind, kind))
    if inner.full_name == _TIMESTAMP:
        return make(kind="timestamp")
    if inner.full_name in WRAPPERS:
        return make(kind=_as_column(inner.fields[0], at, within).kind, wrapped=True)
    if inner.full_name in within:
        raise SchemaFlaw(f"has field {at}, which is a message inside of itself, and Spark has no such type")
    return make(kind="struct", fields=columns_of(inner, at, within))


def _label(told: FieldDescriptor) -> str:
    if _is_repeated(told):
        return "repeated"
    if told.containing_type.GetOptions().map_entry or not told.has_presence:
        return "always"
    return "required" if _is_required(told) else "optional"


def _symbols(told: FieldDescriptor) -> dict[int, str]:
    """The names of an enum by their numbers; if a number has two names, the first."""
    return {each.number: each.name for each in reversed(told.enum_type.values)}


# -- the description by which records are parsed -----------------------------------------------------------------------


def description_of(message: Descriptor) -> bytes:
    """A file for the workers, in which the message is ``ROOT``: see ``protobuf_columns``."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    into = FileDescriptorProto(name="epochs.proto", syntax="proto2")
    _describe(message, into, {})
    return bytes(into.SerializeToString(deterministic=True))


def _describe(message: Descriptor, into: FileDescriptorProto, known: dict[str, str]) -> str:
    """Add the message and those inside of it, each once. Returns the name that it has there."""
    if message.full_name in known:
        return known[message.full_name]
    name = known[message.full_name] = f"m{len(known)}" if known else ROOT
    made = into.message_type.add(name=name)
    oneofs = [each for each in message.oneofs if len(each.fields) > 1]
    for each in oneofs:
        made.oneof_decl.add(name=f"o{each.index}")
    for each in message.fields:
        added = made.field.add(name=f"f{each.number}", number=each.number, label=_OPTIONAL)
        added.type = _PARSED_AS.get(type_of(each), each.type)
        if _is_repeated(each):
            added.label = _REPEATED
        if each.containing_oneof in oneofs:
            added.oneof_index = oneofs.index(each.containing_oneof)
        if each.message_type:
            added.type_name = f".{_describe(each.message_type, into, known)}"
    return name


# -- whether one can be read into the other ----------------------------------------------------------------------------


def unreadable(writer: Descriptor, reader: Descriptor, at: str = "") -> str | None:
    """Why messages of the writer's cannot be read into the reader's; None if they can. No reader is inside of itself.

    A record may still not fit: it may lack a required field, or have a number that the reader's enum does not have.
    """
    fields = (_unreadable_field(writer, each, _inside(at, each.name)) for each in reader.fields)
    found = (problem for problem in (*fields, *_oneof_flaws(writer, reader, at)) if problem)
    return next(found, None)


def _unreadable_field(writer: Descriptor, wanted: FieldDescriptor, at: str) -> str | None:
    namesake = writer.fields_by_name.get(wanted.name)
    if namesake and namesake.number != wanted.number:
        return f"field {at} has the number {namesake.number}, not {wanted.number}"
    written = writer.fields_by_number.get(wanted.number)
    if written is None:
        return f"field {at} is missing, and the reader's message requires it" if _is_required(wanted) else None
    if (mine := _shape(written)) != (theirs := _shape(wanted)):
        return f"field {at} is {mine}, not {theirs}"
    if is_map(wanted):
        return unreadable(written.message_type, wanted.message_type, at)
    return _unreadable_value(written, wanted, at)


def _unreadable_value(written: FieldDescriptor, wanted: FieldDescriptor, at: str) -> str | None:
    mine, theirs = type_of(written), type_of(wanted)
    if mine != theirs:
        return None if theirs in _WIDENED.get(mine, ()) else f"field {at} is {mine}, not {theirs}"
    if mine == "enum":
        return _unreadable_enum(written, wanted, at)
    if mine != "message":
        return None
    first, second = written.message_type, wanted.message_type
    if first.full_name != second.full_name and any(_is_well_known(each) for each in (first, second)):
        return f"field {at} is {first.full_name}, not {second.full_name}"
    return unreadable(first, second, at)


def _unreadable_enum(written: FieldDescriptor, wanted: FieldDescriptor, at: str) -> str | None:
    mine, theirs = _names(written), _names(wanted)
    for number in sorted(mine.keys() & theirs.keys()):
        if mine[number].isdisjoint(theirs[number]):
            first, second = (" or ".join(sorted(names[number])) for names in (mine, theirs))
            return f"field {at}: the number {number} is {first}, not {second}"
    return None


def _names(told: FieldDescriptor) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for each in told.enum_type.values:
        found.setdefault(each.number, set()).add(each.name)
    return found


def _oneof_flaws(writer: Descriptor, reader: Descriptor, at: str) -> Iterator[str]:
    """Why the writer could set two fields of one oneof of the reader's, which would keep only the last."""
    known = writer.fields_by_number
    for oneof in reader.oneofs:
        homes = [known[each.number].containing_oneof for each in oneof.fields if each.number in known]
        names = {each and each.full_name for each in homes}
        if len(homes) > 1 and (None in names or len(names) > 1):
            yield f"the fields of {_inside(at, oneof.name)} are not in one oneof"


def _is_well_known(message: Descriptor) -> bool:
    return bool(message.full_name.startswith(_WELL_KNOWN))


def _shape(told: FieldDescriptor) -> str:
    return "a map" if is_map(told) else "repeated" if _is_repeated(told) else "single"


def is_map(told: FieldDescriptor) -> bool:
    """Whether the field is a map. Protobuf has it as repeated messages."""
    return bool(told.message_type and told.message_type.GetOptions().map_entry)


def _is_repeated(told: FieldDescriptor) -> bool:
    """Whether a field is repeated. The library's version 7 has no ``label``, and ``is_repeated`` is new in 6."""
    return bool(told.is_repeated if hasattr(told, "is_repeated") else told.label == told.LABEL_REPEATED)


def _is_required(told: FieldDescriptor) -> bool:
    return bool(told.is_required if hasattr(told, "is_required") else told.label == told.LABEL_REQUIRED)


def type_of(told: FieldDescriptor) -> str:
    """The name of a field's type; ``message`` for any message."""
    return _TYPES[told.type - 1]


def _inside(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _message(at: str) -> str:
    return f"field {at}, a message" if at else "a message"
