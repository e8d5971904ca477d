"""Parses ``starting`` of a KafkaSource: where a topic's first epoch begins. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_epochs import codes
from airflow_epochs.errors import BadArgument

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LAST_MS = 253_402_300_799_999
"""The last millisecond of the year 9999: a datetime cannot tell a later one."""
_FORMS = (
    '"earliest", "latest", a time with its zone such as "2026-01-31T00:00:00Z" (or {"timestamp": ...} with a time or '
    'milliseconds since 1970), or offsets per partition such as {"orders": {"0": 4711}}'
)


@dataclass(frozen=True)
class Earliest:
    """The oldest record that the brokers have."""


@dataclass(frozen=True)
class Latest:
    """The end of the log when the first epoch is planned."""


@dataclass(frozen=True)
class AtTime:
    """The first record at or after ``ms`` (milliseconds since 1970); the end of the log if there is no such record."""

    ms: int

    @property
    def at(self) -> datetime:
        """``ms`` as a datetime; at most the end of the year 9999: a datetime cannot tell a later time."""
        return time_of(min(self.ms, _LAST_MS))


@dataclass(frozen=True)
class AtOffsets:
    """The first offset to read, per topic and partition. A partition without one begins at its oldest record."""

    offsets: Mapping[str, Mapping[int, int]]


Starting = Earliest | Latest | AtTime | AtOffsets


def parse_starting(value: object) -> Starting:
    """Parse the user's value. Raises BadArgument; the text names the accepted forms."""
    if isinstance(value, datetime):
        return AtTime(_ms(value))
    if isinstance(value, Mapping):
        return _parse_mapping(value)
    if isinstance(value, str):
        return _parse_text(value.strip())
    raise _no_form(repr(value))


def parse_time(text: str) -> int:
    """A time as milliseconds since 1970. Raises BadArgument, whose text names no other form of ``starting``."""
    try:
        parsed = parse_starting(text)
    except ValueError:  # also a number with more digits than Python reads
        parsed = None
    if not isinstance(parsed, AtTime) or parsed.ms > _LAST_MS:
        raise bad(
            f"The time is {text!r}. It must be a time with its zone, such as 2026-01-31T00:00:00Z, from 1970 to the "
            "year 9999 in UTC."
        )
    return parsed.ms


def bad(what: str) -> BadArgument:
    """The error for an argument of KafkaSource."""
    return BadArgument(what, code=codes.KAFKA_SOURCE_ARGUMENT)


def _no_form(given: str) -> BadArgument:
    return bad(f"`starting` is {given}. It must be {_FORMS}.")


def starting_json(value: object) -> str | dict[str, Any]:
    """Turn the user's value into JSON that ``parse_starting`` reads as the same. Templates stay as they are."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): _inner_json(inner) for key, inner in value.items()}
    return str(value)


def _inner_json(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    return {str(key): inner for key, inner in value.items()} if isinstance(value, Mapping) else value


def _parse_text(text: str) -> Starting:
    if text.lower() == "earliest":
        return Earliest()
    if text.lower() == "latest":
        return Latest()
    if text.startswith("{"):
        try:
            return _parse_mapping(json.loads(text))
        except json.JSONDecodeError as error:
            raise bad(
                f"`starting` begins with '{{' and is not valid JSON: {error}. If it is a template of a mapping, use "
                "the filter tojson."
            ) from error
    return AtTime(_ms_of_text(text))


def _parse_mapping(value: Mapping[Any, Any]) -> Starting:
    if not value:
        raise _no_form("an empty mapping")
    if set(value) == {"timestamp"} and not isinstance(value["timestamp"], Mapping):
        return AtTime(_ms_of(value["timestamp"]))
    return AtOffsets({str(topic): _partitions(str(topic), offsets) for topic, offsets in value.items()})


def _partitions(topic: str, offsets: object) -> dict[int, int]:
    if not isinstance(offsets, Mapping):
        raise bad(f"`starting[{topic!r}]` is {offsets!r}. It must map partitions to offsets, like {{'0': 4711}}.")
    return {
        _count(f"A partition of `starting[{topic!r}]`", partition): _count(
            f"`starting[{topic!r}][{partition!r}]`", offset
        )
        for partition, offset in offsets.items()
    }


def _count(what: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and value.isascii() and value.isdigit():
        return int(value)
    raise bad(f"{what} is {value!r}. It must be a whole number, 0 or larger.")


def _ms_of(value: object) -> int:
    if isinstance(value, datetime):
        return _ms(value)
    if isinstance(value, str) and not value.isdigit():
        return _ms_of_text(value)
    return _count("`starting['timestamp']`", value)


def _ms_of_text(text: str) -> int:
    try:
        # Python 3.10 does not know the Z.
        time = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)
    except ValueError:
        raise _no_form(repr(text)) from None
    return _ms(time)


def _ms(time: datetime) -> int:
    if time.tzinfo is None:
        raise bad(f"`starting` is {time.isoformat()}. It must have a time zone, like {time.isoformat()}Z.")
    if time < _EPOCH:
        raise bad(f"`starting` is {time.isoformat()}. It must not be before 1970.")
    return ms_of(time)


def ms_of(time: datetime) -> int:
    """Milliseconds since 1970, rounded up: so no record with a later millisecond is from before the time."""
    # Airflow's own times are pendulum's, whose differences do not divide.
    plain = datetime.combine(time.date(), time.time(), time.tzinfo).replace(fold=time.fold)
    return -((_EPOCH - plain) // timedelta(milliseconds=1))


def time_of(ms: int) -> datetime:
    """The inverse of ``ms_of``."""
    return _EPOCH + timedelta(milliseconds=ms)
