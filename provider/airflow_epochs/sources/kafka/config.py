"""Validates the options of a KafkaSource. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_epochs.kafka.topics import require_topic_name
from airflow_epochs.sources.kafka.starting import AtOffsets, Starting, bad, parse_starting

DEFAULTS: Mapping[str, Any] = {
    "conn_id": "kafka_default",
    "starting": "earliest",
    "max_records": None,
    "min_records": 1,
    "max_wait": 60.0,
    "group_id": None,
    "options": {},
    "allow_loop": False,
}

# In lower case: Spark ignores the case of option names. A user may not set these, since the ranges and the guarantee
# depend on them.
_OURS = {"assign", "subscribe", "subscribepattern", "failondataloss", "kafka.isolation.level"}
_OURS_PREFIX = ("starting", "ending")
_CONNECTION = {"kafka.bootstrap.servers", "kafka.security.protocol"}
_CONNECTION_PREFIX = ("kafka.sasl.", "kafka.ssl.")


@dataclass(frozen=True, kw_only=True)
class KafkaConfig:
    """A KafkaSource's options, checked and typed. ``max_records`` None: no limit."""

    topics: tuple[str, ...]
    conn_id: str
    starting: Starting
    max_records: int | None
    min_records: int
    max_wait_s: float
    group_id: str | None
    options: dict[str, str]
    allow_loop: bool


def read_config(raw: Mapping[str, Any]) -> KafkaConfig:
    """Validate options by name. A missing option gets its default.

    ``topics`` may be missing while it is a template. Then ``starting`` is not compared with it.

    Raises:
        BadArgument: An option is not valid. The text names it and the accepted values.
    """
    given = {**DEFAULTS, **raw}
    config = KafkaConfig(
        topics=_topics(given["topics"]) if "topics" in given else (),
        conn_id=_text("conn_id", given["conn_id"]),
        starting=parse_starting(given["starting"]),
        max_records=None if _none(given["max_records"]) else _count("max_records", given["max_records"]),
        min_records=_count("min_records", given["min_records"]),
        max_wait_s=_seconds("max_wait", given["max_wait"]),
        group_id=None if _none(given["group_id"]) else _text("group_id", given["group_id"]),
        options=_options(given["options"]),
        allow_loop=_truth("allow_loop", given["allow_loop"]),
    )
    if config.max_records is not None and config.min_records > config.max_records:
        raise bad(
            f"`min_records` is {config.min_records}, and `max_records` is {config.max_records}. `min_records` must not "
            "be larger than `max_records`."
        )
    if config.topics and isinstance(config.starting, AtOffsets):
        _require_named(sorted(config.starting.offsets.keys() - set(config.topics)))
    return config


def _require_named(strangers: Sequence[str]) -> None:
    if strangers:
        raise bad(f"`starting` names {', '.join(strangers)}. It may name only topics that are in `topics`.")


def _topics(value: object) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not names:
        raise bad(f"`topics` is {value!r}. It must be a topic name or a list of topic names.")
    for name in names:
        require_topic_name(name)
    if len(set(names)) != len(names):
        raise bad(f"`topics` is {', '.join(names)}. It must name each topic only once.")
    return tuple(names)


def _none(value: object) -> bool:
    # an empty DAG param renders to "" or "None"
    return value is None or (isinstance(value, str) and value.strip() in ("", "None"))


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise bad(f"`{name}` is {value!r}. It must be a text that is not empty.")
    return value.strip()


def _truth(name: str, value: object) -> bool:
    truth = {"true": True, "false": False}.get(str(value).strip().lower())
    if truth is None:
        raise bad(f"`{name}` is {value!r}. It must be True or False.")
    return truth


def _count(name: str, value: object) -> int:
    count = _number(name, value)
    if count < 1 or not count.is_integer():
        raise bad(f"`{name}` is {value!r}. It must be a whole number, 1 or larger.")
    return int(count)


def _seconds(name: str, value: object) -> float:
    seconds = _number(name, value)
    if not 0 <= seconds <= 86_400:
        raise bad(f"`{name}` is {value!r}. It must be a number of seconds from 0 to 86400 (a day).")
    return seconds


def _number(name: str, value: object) -> float:
    try:
        number = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise bad(f"`{name}` is {value!r}. It must be a number.")
    return number


def _options(value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise bad(f"`options` is {value!r}. It must be a dict of options of Spark's Kafka source.")
    for name in value:
        _require_free(str(name))
    return {str(name): _option(str(name), given) for name, given in value.items()}


def _require_free(name: str) -> None:
    low = name.lower()
    if low in _OURS or low.startswith(_OURS_PREFIX):
        raise bad(
            f"`options` sets {name}. It must not: the pipeline itself sets which offsets are read, that only committed "
            "records are read, and that lost records stop the pipeline."
        )
    if low in _CONNECTION or low.startswith(_CONNECTION_PREFIX):
        raise bad(
            f"`options` sets {name}. It must not: this setting belongs to the Airflow connection, where secrets are "
            "safe."
        )


def _option(name: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise bad(f"`options[{name!r}]` is {value!r}. It must be a text, a number or a bool.")
