"""Validates the options of a KafkaSource. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_epochs.errors import BadArgument
from airflow_epochs.kafka.topics import require_topic_name
from airflow_epochs.sources.kafka.starting import AtOffsets, AtTime, Earliest, Starting, bad, parse_starting
from airflow_epochs.sources.sizes import FORMS, bytes_in

DEFAULTS: Mapping[str, Any] = {
    "conn_id": "kafka_default",
    "starting": "earliest",
    "max_records": None,
    "max_bytes": None,
    "min_records": 1,
    "max_delay": None,
    "target_duration": None,
    "max_wait": 60.0,
    "group_id": None,
    "options": {},
    "allow_loop": False,
    "bounds": "available",
    "grace": 0,
    "missed": "read",
    "registry_conn_id": None,
    "subjects": None,
}
AVAILABLE, DATA_INTERVAL = "available", "data_interval"
READ, REFUSE = "read", "refuse"
SIZES = ("max_records", "max_bytes", "min_records", "max_delay", "target_duration")
"""Options that decide the size of an epoch. They exclude ``bounds="data_interval"``, where the interval decides."""

# In lower case: Spark ignores the case of option names. A user may not set these, since the ranges and the guarantee
# depend on them.
_OURS = {"assign", "subscribe", "subscribepattern", "failondataloss", "kafka.isolation.level"}
_OURS_PREFIX = ("starting", "ending")
_CONNECTION = {"kafka.bootstrap.servers", "kafka.security.protocol"}
_CONNECTION_PREFIX = ("kafka.sasl.", "kafka.ssl.")


DURATION_S_MAX = 7 * 86_400


@dataclass(frozen=True, kw_only=True)
class KafkaConfig:
    """A KafkaSource's options, checked and typed. None: no limit, no delay that ends the wait, no target.

    ``by_interval``: ``bounds`` is "data_interval". ``refuses_missed``: ``missed`` is "refuse". ``registry_conn_id``:
    None if no schema registry is asked. ``subjects``: by default ``<topic>-value`` of each topic.
    """

    topics: tuple[str, ...]
    conn_id: str
    starting: Starting
    max_records: int | None
    max_bytes: int | None
    min_records: int
    max_delay_s: float | None
    target_s: float | None
    max_wait_s: float
    group_id: str | None
    options: dict[str, str]
    allow_loop: bool
    by_interval: bool
    grace_s: float
    refuses_missed: bool
    registry_conn_id: str | None
    subjects: tuple[str, ...]


def read_config(raw: Mapping[str, Any]) -> KafkaConfig:
    """Validate options by name. A missing option gets its default.

    ``topics`` may be missing while it is a template. Then ``starting`` is not compared with it.

    Raises:
        BadArgument: An option is not valid. The text names it and the accepted values.
    """
    given = {**DEFAULTS, **raw}
    topics = _topics(given["topics"]) if "topics" in given else ()
    config = KafkaConfig(
        topics=topics,
        conn_id=_text("conn_id", given["conn_id"]),
        starting=parse_starting(given["starting"]),
        max_records=None if _none(given["max_records"]) else _count("max_records", given["max_records"]),
        max_bytes=None if _none(given["max_bytes"]) else _bytes("max_bytes", given["max_bytes"]),
        min_records=_count("min_records", given["min_records"]),
        max_delay_s=None if _none(given["max_delay"]) else _duration("max_delay", given["max_delay"], least_s=0),
        target_s=None if _none(given["target_duration"]) else _duration("target_duration", given["target_duration"]),
        max_wait_s=_seconds("max_wait", given["max_wait"]),
        group_id=None if _none(given["group_id"]) else _text("group_id", given["group_id"]),
        options=_options(given["options"]),
        allow_loop=_truth("allow_loop", given["allow_loop"]),
        by_interval=_one_of("bounds", given["bounds"], AVAILABLE, DATA_INTERVAL) == DATA_INTERVAL,
        grace_s=_duration("grace", given["grace"], least_s=0),
        refuses_missed=_one_of("missed", given["missed"], READ, REFUSE) == REFUSE,
        registry_conn_id=None
        if _none(given["registry_conn_id"])
        else _text("registry_conn_id", given["registry_conn_id"]),
        subjects=tuple(f"{topic}-value" for topic in topics) if _none(given["subjects"]) else _subjects(given),
    )
    if config.by_interval:
        _require_bounds_alone(given, config.starting)
    if config.max_records is not None and config.min_records > config.max_records:
        raise bad(
            f"`min_records` is {config.min_records}, and `max_records` is {config.max_records}. `min_records` must not "
            "be larger than `max_records`."
        )
    if config.topics and isinstance(config.starting, AtOffsets):
        _require_named(sorted(config.starting.offsets.keys() - set(config.topics)))
    return config


def _require_bounds_alone(given: Mapping[str, Any], starting: Starting) -> None:
    for name in SIZES:
        if str(given[name]).strip() not in (str(DEFAULTS[name]), "", "None"):
            raise bad(
                f"`{name}` is {given[name]!r}, and `bounds` is 'data_interval'. Leave one of them out: the interval "
                "says which records an epoch has."
            )
    if not isinstance(starting, AtTime | Earliest):
        raise bad(
            f"`starting` is {given['starting']!r}, and `bounds` is 'data_interval'. It must be a time, or left out: "
            "the pipeline then begins with the interval of its first run."
        )


def _one_of(name: str, value: object, *allowed: str) -> str:
    if value not in allowed:
        raise bad(f"`{name}` is {value!r}. It must be {' or '.join(map(repr, allowed))}.")
    return str(value)


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


def _subjects(given: Mapping[str, Any]) -> tuple[str, ...]:
    value = given["subjects"]
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else value
    if (
        not isinstance(names, Sequence)
        or not names
        or not all(isinstance(name, str) and name.strip() for name in names)
    ):
        raise bad(f"`subjects` is {value!r}. It must be a subject of the schema registry, or a list of subjects.")
    if _none(given["registry_conn_id"]):
        raise bad(
            f"`subjects` is {value!r}, and `registry_conn_id` is left out. Give both, or neither: `registry_conn_id` "
            "is the connection of the schema registry that has the subjects."
        )
    return tuple(dict.fromkeys(names))


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


def _bytes(name: str, value: object) -> int:
    if (size := bytes_in(value)) is None:
        raise bad(f"`{name}` is {value!r}. It must be {FORMS}.")
    return size


def _duration(name: str, value: object, least_s: float = 1) -> float:
    """The seconds that a value means: a number, a text with a number, or a text with a unit."""
    parsed = None
    if isinstance(value, str):
        from airflow_epochs.event_time import parse_duration  # with it comes ``model``, which few DAG files need

        parsed = parse_duration(value)
    try:
        seconds = parsed.total_seconds() if parsed else _number(name, value)
    except BadArgument:
        seconds = math.nan
    if not least_s <= seconds <= DURATION_S_MAX:
        raise bad(
            f"`{name}` is {value!r}. It must be a number of seconds from {least_s:g} to {DURATION_S_MAX} (a week), or "
            "a text like '90 s', '10m' or '2 hours'."
        )
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
