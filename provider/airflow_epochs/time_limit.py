"""A time limit for a call that has no limit of its own, such as a client's call to a server that never answers."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")


def bounded(call: Callable[[], T], seconds: float, late: Exception) -> T:
    """Run ``call()`` in a daemon thread. After this many seconds, leave it running there and raise ``late``."""
    outcome: dict[str, Any] = {}

    def target() -> None:
        try:
            outcome["value"] = call()
        except BaseException as error:
            outcome["error"] = error

    thread = Thread(target=target, daemon=True)
    thread.start()
    thread.join(seconds)
    if "error" in outcome:
        raise outcome["error"]
    if "value" not in outcome:
        raise late
    return outcome["value"]  # type: ignore[no-any-return]
