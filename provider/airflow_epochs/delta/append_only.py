"""The property of a table that takes new rows only."""

from __future__ import annotations

from collections.abc import Mapping

APPEND_ONLY = "delta.appendOnly"


def is_append_only(properties: Mapping[str, str]) -> bool:
    """Whether a table with these properties takes new rows only."""
    return properties.get(APPEND_ONLY, "").lower() == "true"
