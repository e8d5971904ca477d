"""Prepares a row for Protobuf's JSON, which names NaN and infinities, and takes digits for an enum's number."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

_OF_NUMBERS = ("google.protobuf.DoubleValue", "google.protobuf.FloatValue")


def for_parsing(row: Mapping[str, Any], message: Descriptor) -> dict[str, Any]:
    """A row for ``ParseDict``. Numbers have names only where a field is of such numbers: in a string, a name is a text.

    Raises:
        ValueError: A text is not a name of its enum.
    """
    return {name: _named(value, _field(message, name)) for name, value in row.items()}


def _field(message: Descriptor, name: str) -> FieldDescriptor | None:
    return message.fields_by_name.get(name) or next((each for each in message.fields if each.json_name == name), None)


def _named(value: Any, field: FieldDescriptor | None) -> Any:
    if field is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) or not _is_of_numbers(field) else _name(value)
    if isinstance(value, str) and field.enum_type:
        return _enum_name(value, field.enum_type)
    if isinstance(value, list):
        return [_named(each, field) for each in value]
    if isinstance(value, dict) and field.message_type:
        if field.message_type.GetOptions().map_entry:
            of_value = field.message_type.fields_by_name["value"]
            return {key: _named(each, of_value) for key, each in value.items()}
        return for_parsing(value, field.message_type)
    return value


def _enum_name(value: str, enum: EnumDescriptor) -> str:
    if value not in enum.values_by_name:
        raise ValueError(f"{value!r} is no name of the enum {enum.full_name}")
    return value


def _is_of_numbers(field: FieldDescriptor) -> bool:
    if field.message_type:
        return field.message_type.full_name in _OF_NUMBERS
    return field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT)


def _name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
