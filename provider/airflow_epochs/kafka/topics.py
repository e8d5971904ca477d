"""Kafka's rule for topic names. No I/O."""

from __future__ import annotations

import re

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def require_topic_name(name: object) -> None:
    """Raise ValueError unless Kafka accepts ``name`` as a topic name."""
    if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise ValueError(f"{name!r} is not a topic name: 1 to 249 letters, digits, '.', '_' and '-'")
