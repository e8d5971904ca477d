"""Values of partition columns, which a table's log has as texts: one value may be spelled in several ways."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal, InvalidOperation
from typing import Any

_WHOLE = ("byte", "short", "integer", "long")
_TIMES = ("timestamp", "timestamp_ntz")


def value_of(text: str | None, kind: Any) -> object:
    """The value that Delta reads from the text, so that equal values compare equal; the text itself in any other form.

    Args:
        text: The value as the log has it. An empty text is NULL.
        kind: The column's type.
    """
    if not text:
        return None
    name = str(kind)
    try:
        if name in ("float", "double"):
            number = float(text)  # 0.0 and -0.0 are equal
            return number if number == number else "NaN"
        if name in _WHOLE or name.startswith("decimal"):
            return Decimal(text)
        return _instant(text) if name in _TIMES else text
    except (ValueError, InvalidOperation):
        return text


def _instant(text: str) -> datetime:
    """Writers put a blank or a T before the time, and leave out the zone, zeros, or the whole time of day."""
    day, _, time = text.replace("T", " ").partition(" ")
    whole, _, fraction = time.removesuffix("Z").partition(".")
    found = datetime.fromisoformat(f"{day} {whole or '00:00:00'}")
    micros = int(fraction.ljust(6, "0")[:6]) if fraction else 0
    return found.replace(microsecond=micros, tzinfo=found.tzinfo or timezone.utc)
