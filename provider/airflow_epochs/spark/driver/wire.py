"""Plans and reports on their way between a task and Spark's driver: frozen dataclasses, and JSON of them.

Both sides use the same classes, and both come from one version of this package. So nothing is left out, nothing has a
default on the way, and what does not fit is a mistake.
"""

from __future__ import annotations

from dataclasses import Field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, ClassVar, Protocol, TypeVar, get_args, get_origin, get_type_hints

JsonDict = dict[str, Any]


class Dataclass(Protocol):
    """Any plan or report."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


T = TypeVar("T", bound=Dataclass)


def as_json(value: Dataclass) -> JsonDict:
    """All fields of a plan or a report, as JSON would give them back: with lists for tuples."""
    return {field.name: _told(getattr(value, field.name)) for field in fields(value)}


def _told(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return as_json(value)
    if isinstance(value, dict):
        return {key: _told(each) for key, each in value.items()}
    return [_told(each) for each in value] if isinstance(value, (list, tuple)) else value


def from_json(kind: type[T], told: JsonDict) -> T:
    """The plan or report of class ``kind``, from its fields in ``told``.

    The fields' types may be plain ones, ``X | None``, ``tuple[X, ...]``, ``dict[str, X]``, and such dataclasses.

    Raises:
        ValueError: A field is missing or unknown, or is no list or object where it has to be one.
    """
    hints = _types_of(kind)
    if hints.keys() != told.keys():
        wrong = [f"{name} is missing" for name in sorted(hints.keys() - told.keys())]
        wrong += [f"{name} is unknown" for name in sorted(told.keys() - hints.keys())]
        raise ValueError(f"This is no {kind.__name__}: {', '.join(wrong)}.")
    return kind(**{name: _understood(hint, told[name], f"{kind.__name__}.{name}") for name, hint in hints.items()})


@cache  # each evaluation compiles the text of every annotation
def _types_of(kind: type[Dataclass]) -> dict[str, Any]:
    """The fields of a plan or a report, and their types."""
    known = get_type_hints(kind)
    return {field.name: known[field.name] for field in fields(kind)}


def _understood(hint: Any, value: Any, where: str) -> Any:
    # Plain values stay as they are: a DAG's author may write 10 where a text is meant, and Spark takes that.
    kind, of = get_origin(hint) or hint, get_args(hint)
    if NoneType in of:
        return None if value is None else _understood(next(one for one in of if one is not NoneType), value, where)
    nested = is_dataclass(kind)
    container: Any = dict if nested or kind is dict else list if kind is tuple else object
    if not isinstance(value, container):
        raise ValueError(f"{where} is of type {type(value).__name__}.")
    if nested:
        return from_json(kind, value)
    if kind is tuple:
        return tuple(_understood(of[0], each, where) for each in value)
    return {key: _understood(of[1], each, where) for key, each in value.items()} if kind is dict else value
