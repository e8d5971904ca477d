"""Sizes in bytes, as users write them. No I/O."""

from __future__ import annotations

import math
import re

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE | re.ASCII)
FORMS = "a number of bytes, 1 or larger, or a text like '256MiB' or '1 GB'"


def bytes_in(value: object) -> int | None:
    """The bytes that a number, or a text with a unit, stands for; None if it is neither."""
    found = _SIZE.fullmatch(value) if isinstance(value, str) else None
    number = _sized(*found.groups()) if found else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not 1 <= number < math.inf:
        return None
    return int(number)


def _sized(number: str, prefix: str, binary: str) -> float:
    factor: int = (1024 if binary else 1000) ** " KMGT".index(prefix.upper() or " ")
    return float(number) * factor
