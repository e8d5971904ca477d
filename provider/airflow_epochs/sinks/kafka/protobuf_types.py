"""Whether a message of Protobuf keeps the values of the columns.

Values are parsed as Protobuf's JSON has them: any text in ``bytes`` as base64, ``"007"`` in an ``int64`` as 7, and any
number in a ``double`` to the nearest one. Nothing fails there, so a column's type says at the vote, once, whether that
can happen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_epochs.spark.driver.delta.schema import type_name
from airflow_epochs.transforms.protobuf_schemas import WRAPPERS, is_map, type_of

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

_TAKES: Mapping[str, tuple[str, ...]] = {
    "bytes": ("binary",),
    "float": ("byte", "short", "float"),
    "double": ("byte", "short", "integer", "float", "double"),
    # ``protobuf_values`` finds a text that is not a name. A number of more than 32 bits may lose the upper ones.
    "enum": ("string", "byte", "short", "integer"),
}
"""Types of fields -> Spark's types whose values they keep. Other fields keep a value or refuse its row; but for binary,
which is base64 there."""
_INTEGERS = {f"{kind}{bits}" for kind in ("int", "uint", "sint", "fixed", "sfixed") for bits in (32, 64)}
_NUMBERS = ("byte", "short", "integer", "long", "float", "double")
_FLOAT_DIGITS = 15
"""A number with a point is parsed as a float, which keeps so many digits."""
_LOOSE = tuple(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
"""Messages of any values. Each number in them is a double."""
_CHANGED_IN_LOOSE = ("long", "binary")


def misfits(message: Descriptor, columns: Mapping[str, Any]) -> list[str]:
    """Columns whose values would change, each as a part of a sentence.

    A column that the message does not have is left to the writer.
    """
    return list(_of_fields(columns, message, ""))


def _of_fields(columns: Mapping[str, Any], message: Descriptor, at: str) -> Iterator[str]:
    known = {**message.fields_by_name, **{field.json_name: field for field in message.fields}}
    for name, kind in columns.items():
        if name in known:
            yield from _of(kind, known[name], f"{at}{name}")


def _of(kind: Any, field: FieldDescriptor, at: str) -> Iterator[str]:
    inner = field.message_type
    if inner and inner.full_name in _LOOSE:
        yield from (_told(each, field, at) for each in _leaves(kind) if each in _CHANGED_IN_LOOSE)
    elif not isinstance(kind, dict):
        value = inner.fields_by_name["value"] if inner and inner.full_name in WRAPPERS else field
        if not _keeps(kind, type_of(value)):
            yield _told(kind, field, at)
    elif kind["type"] == "array":
        yield from _of(kind["elementType"], field, at)
    elif inner:
        yield from _of_message(kind, field, at)


def _of_message(kind: Any, field: FieldDescriptor, at: str) -> Iterator[str]:
    """The misfits of a struct or a map in a message or a map: all four are objects in JSON."""
    inner, is_struct = field.message_type, kind["type"] == "struct"
    if is_map(field):
        yield from _of("string" if is_struct else kind["keyType"], inner.fields_by_name["key"], at)
        for each in [each["type"] for each in kind["fields"]] if is_struct else [kind["valueType"]]:
            yield from _of(each, inner.fields_by_name["value"], at)
    elif is_struct:
        yield from _of_fields({each["name"]: each["type"] for each in kind["fields"]}, inner, f"{at}.")
    else:
        yield from _of_fields(dict.fromkeys(inner.fields_by_name, kind["valueType"]), inner, f"{at}.")


def _keeps(kind: str, told: str) -> bool:
    if told in _INTEGERS:
        return kind in _NUMBERS or _is_exact_decimal(kind)
    return kind in _TAKES[told] if told in _TAKES else kind != "binary"


def _is_exact_decimal(kind: str) -> bool:
    if not kind.startswith("decimal("):
        return False
    digits, scale = map(int, re.findall(r"\d+", kind))
    return scale == 0 or digits <= _FLOAT_DIGITS


def _leaves(kind: Any) -> Iterator[str]:
    if not isinstance(kind, dict):
        yield kind
    elif kind["type"] == "struct":
        yield from (leaf for each in kind["fields"] for leaf in _leaves(each["type"]))
    else:
        yield from _leaves(kind["elementType" if kind["type"] == "array" else "valueType"])


def _told(kind: str, field: FieldDescriptor, at: str) -> str:
    wanted = field.message_type.full_name if field.message_type else type_of(field)
    return f"column {at!r} is {type_name(kind)}, and the schema has {wanted}"
