"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_S = 0.02


def wait_until(condition: Callable[[], object], seconds: float = 20, what: str = "the condition holds") -> None:
    """Poll until ``condition`` is true. Raises AssertionError at the deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(PAUSE_S)
