"""The violations that a checker reports."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

EXAMPLES = 3


class Violation(NamedTuple):
    """Something that must not happen. ``witness``: the least that shows it (rows, records, keys …)."""

    sentence: str
    witness: Any

    def __str__(self) -> str:
        return f"{self.sentence} [{self.witness}]"


def some(things: Collection[Any]) -> str:
    """The first few of ``things``, sorted, and how many more there are."""
    first = [str(tuple(each)) if isinstance(each, tuple) else str(each) for each in sorted(things)[:EXAMPLES]]
    more = len(things) - len(first)
    return ", ".join(first) + (f" and {more} more" if more > 0 else "")
