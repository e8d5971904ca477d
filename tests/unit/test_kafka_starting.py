from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone

import pendulum
import pytest

from airflow_epochs import KafkaSource
from airflow_epochs.contracts import Position
from airflow_epochs.errors import BadArgument
from airflow_epochs.sources.kafka.starting import (
    AtOffsets,
    AtTime,
    Earliest,
    Latest,
    Starting,
    parse_starting,
    parse_time,
    starting_json,
)
from airflow_epochs.testing import MemoryEnvironment

NEW_YEAR_MS = 1_767_225_600_000
LAST_MS = 253_402_300_799_999
NEW_YEAR = datetime(2026, 1, 1, tzinfo=timezone.utc)

ACCEPTED: list[tuple[object, Starting]] = [
    ("earliest", Earliest()),
    ("Latest", Latest()),
    ("2026-01-01T00:00:00Z", AtTime(NEW_YEAR_MS)),
    ("2026-01-01T01:00:00+01:00", AtTime(NEW_YEAR_MS)),
    (NEW_YEAR, AtTime(NEW_YEAR_MS)),
    (NEW_YEAR + timedelta(microseconds=1), AtTime(NEW_YEAR_MS + 1)),
    (pendulum.datetime(2026, 1, 1, 1, tz="Europe/Berlin"), AtTime(NEW_YEAR_MS)),  # Airflow's own times
    ({"timestamp": NEW_YEAR_MS}, AtTime(NEW_YEAR_MS)),
    ({"timestamp": str(NEW_YEAR_MS)}, AtTime(NEW_YEAR_MS)),
    ({"timestamp": "2026-01-01T00:00:00Z"}, AtTime(NEW_YEAR_MS)),
    ({"timestamp": NEW_YEAR}, AtTime(NEW_YEAR_MS)),
    ("9999-12-31T23:59:59.999Z", AtTime(LAST_MS)),
    ("9999-12-31T23:59:59.999-01:00", AtTime(LAST_MS + 3_600_000)),  # as milliseconds may be: the end of the log
    ({"timestamp": 2**63 - 1}, AtTime(2**63 - 1)),
    ({"orders": {"0": 5, 1: "7"}}, AtOffsets({"orders": {0: 5, 1: 7}})),
    ({"timestamp": {"0": 5}}, AtOffsets({"timestamp": {0: 5}})),  # a topic of that name
    ('{"orders": {"0": 5}}', AtOffsets({"orders": {0: 5}})),  # a DAG param
]


@pytest.mark.parametrize(("written", "meant"), ACCEPTED)
def test_every_form_is_understood(written: object, meant: Starting) -> None:
    assert parse_starting(written) == meant


@pytest.mark.parametrize("written", [written for written, _ in ACCEPTED])
def test_every_form_means_the_same_after_a_round_trip_through_json(written: object) -> None:
    assert parse_starting(json.loads(json.dumps(starting_json(written)))) == parse_starting(written)


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("newest", '`starting` is \'newest\'. It must be "earliest", "latest"'),
        ("", "`starting` is ''"),
        (None, "`starting` is None"),
        (7, "`starting` is 7"),
        ({}, "`starting` is an empty mapping"),
        ("2026-01-01T00:00:00", "must have a time zone, like 2026-01-01T00:00:00Z"),
        (datetime(2026, 1, 1), "must have a time zone"),
        ("1969-12-31T23:59:59Z", "before 1970"),
        ("0001-01-01T00:00+14:00", "before 1970"),
        ({"timestamp": -1}, "whole number, 0 or larger"),
        ({"timestamp": True}, "whole number, 0 or larger"),
        ({"orders": 5}, r"`starting\['orders'\]` is 5. It must map partitions to offsets"),
        ({"orders": {"0": -2}}, r"`starting\['orders'\]\['0'\]` is -2. It must be a whole number, 0 or larger"),
        ({"orders": {"first": 2}}, r"A partition of `starting\['orders'\]` is 'first'"),
        ("{'orders': {'0': 5}}", "not valid JSON.*tojson"),
    ],
)
def test_what_cannot_be_meant_is_named(written: object, complaint: str) -> None:
    with pytest.raises(BadArgument, match=complaint):
        parse_starting(written)


@pytest.mark.parametrize(
    "written",
    [
        *("yesterday", "earliest", "", "2026-01-01", "2026-01-01T00:00", "1969-12-31T23:59Z", "9" * 5000),
        *("9999-12-31T23:59:59-12:00", "9999-12-31T23:59:59.9999Z", "0001-01-01T00:00+14:00"),
        *('{"orders": {"0": 5}}', f'{{"timestamp": {"9" * 5000}}}'),
    ],
)
def test_a_time_to_go_back_to_is_refused_as_a_time_whatever_else_was_typed(written: str) -> None:
    allowed = "a time with its zone, such as 2026-01-31T00:00:00Z, from 1970 to the year 9999 in UTC."
    with pytest.raises(BadArgument) as refused:  # before any broker is asked
        KafkaSource("orders").to_time(Position(ranges={}, state={}), written, MemoryEnvironment())
    assert refused.value.what == f"The time is {written!r}. It must be {allowed}"
    assert parse_time(" 2026-01-01T01:00+01:00 ") == NEW_YEAR_MS
