"""Numbers that Protobuf has and JSON does not: NaN and the infinities. Protobuf's JSON has them by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_OF_NUMBERS = ("google.protobuf.DoubleValue", "google.protobuf.FloatValue")


def with_numbers_named(row: Mapping[str, Any], message: Descriptor) -> dict[str, Any]:
    """A row for ``ParseDict``. Only where a field is of such numbers: in a string, a name would be a text."""
    return {name: _named(value, _field(message, name)) for name, value in row.items()}


def _field(message: Descriptor, name: str) -> FieldDescriptor | None:
    return message.fields_by_name.get(name) or message.fields_by_camelcase_name.get(name)


def _named(value: Any, field: FieldDescriptor | None) -> Any:
    if field is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) or not _is_of_numbers(field) else _name(value)
    if isinstance(value, list):
        return [_named(each, field) for each in value]
    if isinstance(value, dict) and field.message_type:
        if field.message_type.GetOptions().map_entry:
            of_value = field.message_type.fields_by_name["value"]
            return {key: _named(each, of_value) for key, each in value.items()}
        return with_numbers_named(value, field.message_type)
    return value


def _is_of_numbers(field: FieldDescriptor) -> bool:
    if field.message_type:
        return field.message_type.full_name in _OF_NUMBERS
    return field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT)


def _name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
