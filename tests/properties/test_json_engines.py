"""``parse_json`` with pyarrow gives what Spark's ``from_json`` gives, whatever the records are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_epochs.transforms import json_columns, parse_json
from tests.support.odd_json import DDL, SUITE, alike, records
from tests.support.spark_world import batch_of
from tests.support.spark_world import settings as session_settings

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]

Records = Sequence[bytes | None]


@pytest.fixture(autouse=True)
def no_batch_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise pyarrow would decode few of these records. The number travels to the workers with the functions."""
    monkeypatch.setattr(json_columns, "PATIENCE", 10**9)


def told(frame: Any) -> list[str]:
    """Each row as Spark writes it: Python has no times after the year 9999."""
    from pyspark.sql import functions as F

    named = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    written = [F.col(name).cast("string").cast("binary") for name in named.columns]
    return [repr(tuple(row)) for row in named.select(*written).collect()]


def by_from_json(batch: Any) -> Any:
    """The rows that Spark makes of the records."""
    from pyspark.sql import functions as F

    row = F.explode(F.array(F.from_json(F.col("value").cast("string"), DDL))).alias("row")
    return batch.select("topic", "partition", "offset", row).select("topic", "partition", "offset", "row.*")


def require_equal(session: Any, values: Records, mode: str = "permissive") -> None:
    from pyspark.sql import functions as F

    batch = batch_of(session, values)
    spark, arrow = (parse_json(batch, DDL, mode=mode, engine=engine) for engine in ("spark", "arrow"))
    rows = told(arrow.rows)
    assert rows == told(spark.rows)
    assert told(arrow.corrupt) == told(spark.corrupt)
    corrupt = {row.offset for row in arrow.corrupt.collect()}
    assert rows == told(by_from_json(batch).where(~F.col("offset").isin(*corrupt)))


@pytest.mark.few(1)
@pytest.mark.parametrize("mode", ["permissive", "strict"])
def test_cases_that_divide_parsers_are_what_from_json_makes_of_them(session: Any, mode: str) -> None:
    require_equal(session, SUITE, mode)
    usual = [b'{"i":1,"x":"a"}'] * len(SUITE)
    require_equal(session, [value for pair in zip(SUITE, usual, strict=True) for value in pair], mode)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "zone"), [(0, "UTC"), (1, "America/New_York"), (2, "Europe/Zurich")])
def test_thousands_of_random_records_are_what_from_json_makes_of_them(session: Any, seed: int, zone: str) -> None:
    many = records(Random(seed), 3_000)
    with session_settings(session, {"spark.sql.session.timeZone": zone}):
        require_equal(session, many)
    decoded = json_columns.decoded(pa.array(many, pa.binary()), schema_of(session))
    assert decoded.null_count < 0.6 * len(many), "too few records are decoded for this to say anything"


def schema_of(session: Any) -> Any:
    return json.loads(session.createDataFrame([], DDL).schema.json())


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_records_that_are_written_alike_are_what_from_json_makes_of_them(session: Any, seed: int) -> None:
    """Records of one form follow one another, so those of a batch of Spark's have few."""
    dice = Random(seed)
    many = [record for _ in range(60) for record in alike(dice, 60)]
    with session_settings(session, {"spark.sql.execution.arrow.maxRecordsPerBatch": "60"}):
        require_equal(session, many)


@given(st.randoms(use_true_random=False), st.sampled_from(["permissive", "strict"]))
@settings(max_examples=5, suppress_health_check=list(HealthCheck))
def test_any_few_records_are_what_from_json_makes_of_them(session: Any, dice: Random, mode: str) -> None:
    require_equal(session, records(dice, 10), mode)
