"""Kafka's rule for topic names. No I/O."""

from __future__ import annotations

import re

from airflow_epochs import codes
from airflow_epochs.errors import BadArgument

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def require_topic_name(name: object) -> None:
    """Raise BadArgument unless Kafka accepts ``name`` as a topic name."""
    if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise BadArgument(
            f"The topic name {name!r} is not valid. A topic's name has 1 to 249 letters, digits, '.', '_' and '-'.",
            code=codes.NAME,
        )
