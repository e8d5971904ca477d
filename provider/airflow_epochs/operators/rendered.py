"""What templates have rendered to: with ``render_template_as_native_obj=True``, Airflow makes 123 of the text "123"."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import BadArgument

log = secrecy.logger(__name__)

_TEXT = ("str", "str | None")
_TEXTS = "Sequence[str]"


def require_texts(owners: Iterable[Any]) -> None:
    """Turn whole numbers into texts in template fields that must be texts or lists of texts.

    Raises:
        BadArgument: Such a field is of another type.
    """
    for owner in owners:
        kinds = _annotated(type(owner))
        for field in getattr(owner, "template_fields", ()):
            if kinds.get(field) in _TEXT or _TEXTS in kinds.get(field, ""):
                value = getattr(owner, field)
                if value != (text := _as_text(owner, field, value, kinds[field])):
                    setattr(owner, field, text)


def _as_text(owner: object, field: str, value: object, kind: str) -> object:
    if isinstance(value, str) or (value is None and kind.endswith("| None")):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        log.warning(
            "The template of %s has rendered to the number %d. The text %r is used. If you mean another text, such "
            "as 1_000 or 0x10, write the template with quotation marks in it: \"'{{ … }}'\". Or leave "
            "render_template_as_native_obj=True out of the DAG.",
            _named(owner, field),
            value,
            str(value),
        )
        return str(value)
    if _TEXTS in kind and isinstance(value, (list, tuple)):
        return type(value)(_as_text(owner, field, each, "str") for each in value)
    raise BadArgument(
        f"The template of {_named(owner, field)} has rendered to a value of type {type(value).__name__}. It must be a "
        "text. The DAG has render_template_as_native_obj=True, so Airflow makes a value of Python of each text that "
        "looks like one. Let the template render to a text, or leave that argument of the DAG out.",
        code=codes.PIPELINE_ARGUMENT,
    )


def _named(owner: object, field: str) -> str:
    name = getattr(owner, "name", "")
    return f"`{field}` of {type(owner).__name__}{f' {name!r}' if name else ''}"


def _annotated(kind: type) -> dict[str, str]:
    """The types of the arguments that objects of this class are made with, as they are written."""
    made_with: dict[str, str] = {}
    for each in reversed(kind.__mro__):
        made_by = vars(each).get("__init__")
        for name, parameter in inspect.signature(made_by).parameters.items() if inspect.isfunction(made_by) else ():
            written: object = parameter.annotation
            made_with[name] = written.__name__ if isinstance(written, type) else str(written)
    return made_with
