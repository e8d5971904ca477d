"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

PAUSE_S_MIN, PAUSE_S_MAX = 0.02, 0.3
"""Between two looks: a fiftieth of the wait so far. Some looks are requests that keep a server busy."""


def wait_until(condition: Callable[[], object], seconds: float = 20, what: str = "the condition holds") -> None:
    """Poll until ``condition`` is true. Raises AssertionError at the deadline."""
    started = time.monotonic()
    while not condition():
        waited = time.monotonic() - started
        assert waited < seconds, f"not within {seconds:g} s: {what}"
        time.sleep(min(PAUSE_S_MAX, max(PAUSE_S_MIN, waited / 50)))
