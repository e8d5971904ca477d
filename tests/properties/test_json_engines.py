"""``parse_json`` with pyarrow gives what Spark's ``from_json`` gives, whatever the records are."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_epochs.transforms import Parsed, parse_json
from tests.support.odd_json import DDL, SUITE, record, records

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

Records = Sequence[bytes | None]


def batch_of(session: Any, values: Records) -> Any:
    rows = [("clicks", 0, number, value) for number, value in enumerate(values)]
    return session.createDataFrame(rows, "topic string, partition int, offset long, value binary")


def told(frame: Any) -> list[str]:
    """Each row in full: a NaN is one, and -0.0 is not 0.0."""
    return [repr(row) for row in frame.collect()]


def by_from_json(batch: Any) -> dict[int, str]:
    """Offset -> the row that Spark makes of the record."""
    from pyspark.sql import functions as F

    row = F.from_json(F.col("value").cast("string"), DDL)
    return {offset: repr(row) for offset, row in batch.select("offset", row).collect()}


def require_equal(session: Any, values: Records, mode: str = "permissive") -> Parsed:
    batch = batch_of(session, values)
    spark, arrow = (parse_json(batch, DDL, mode=mode, engine=engine) for engine in ("spark", "arrow"))
    rows = arrow.rows.collect()
    assert list(map(repr, rows)) == told(spark.rows)
    assert told(arrow.corrupt) == told(spark.corrupt)
    oracle = by_from_json(batch)
    for row in rows:
        assert repr(type(row)(*row[3:])).partition("(")[2] == repr_of(oracle[row.offset])
    return arrow


def repr_of(row: str) -> str:
    return row.partition("(")[2]


@pytest.mark.parametrize("mode", ["permissive", "strict"])
def test_cases_that_divide_parsers_are_what_from_json_makes_of_them(session: Any, mode: str) -> None:
    require_equal(session, SUITE, mode)
    usual = [b'{"i":1,"x":"a"}'] * len(SUITE)
    require_equal(session, [value for pair in zip(SUITE, usual, strict=True) for value in pair], mode)


@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_random_records_are_what_from_json_makes_of_them(session: Any, seed: int) -> None:
    require_equal(session, records(Random(seed), 3_000))


@given(st.randoms(use_true_random=False), st.sampled_from(["permissive", "strict"]))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_few_records_are_what_from_json_makes_of_them(session: Any, dice: Random, mode: str) -> None:
    require_equal(session, [record(dice) for _ in range(20)], mode)
