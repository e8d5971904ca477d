"""Staged rows are read back from their files, not by Delta's reader, wherever the files tell everything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver.delta import staged
from airflow_epochs.spark.driver.delta.spelling import for_spark
from stack.spark import S3Access
from tests.support.delta_world import attempt_of, fill_with_spark, transaction
from tests.support.environment import Environment

pytestmark = pytest.mark.jvm

EVERY_TYPE = """
    SELECT id, id % 3 = 0 AS flag, cast(id AS decimal(38, 10)) / 7 AS price, cast(id AS float) / 3 AS f,
        timestamp_seconds(id) AS at, cast(timestamp_seconds(id) AS timestamp_ntz) AS local,
        date_from_unix_date(-700000) AS day,
        cast(cast(id AS string) AS binary) AS raw, if(id = 1, NULL, named_struct('in-side', array(id, NULL))) AS st,
        map(id, map('k', id)) AS `a.b`, parse_json('{"x": [1, null]}') AS v
    FROM range(5)
"""


def rewrite_log(place: str, pattern: str, by: str) -> None:
    (entry,) = Path(place, "_delta_log").glob("*.json")
    entry.write_text(re.sub(pattern, by, entry.read_text()))
    (entry.parent / f".{entry.name}.crc").unlink()  # Hadoop's checksum


@pytest.mark.few(1)
@pytest.mark.parametrize("query", [EVERY_TYPE, f"SELECT * FROM ({EVERY_TYPE}) WHERE false"], ids=["rows", "no rows"])
def test_staged_rows_are_read_back_without_the_state_of_their_table(
    session: Any, world: Environment, table: str, query: str
) -> None:
    plan = DeltaSink("bronze", table).plan_stage(attempt_of(transaction(1)), "a" * 32, world)
    assert fill_with_spark(session, plan, session.sql(query)).problem is None
    by_delta = staged.table(session, plan["place"])
    expected = (by_delta.schema, sorted(map(str, by_delta.collect())))
    rewrite_log(plan["place"], r'"minReaderVersion":\d+', '"minReaderVersion":99')
    rows = staged.rows(session, plan["place"])  # Delta would refuse the table
    assert (rows.schema, sorted(map(str, rows.collect()))) == expected


@pytest.mark.parametrize("where", ["a [folder] of {odd} * name", pytest.param("s3", marks=pytest.mark.long)])
def test_staged_rows_are_read_back_from_every_place(
    session: Any, tmp_path: Path, s3: S3Access, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(staged, "table")
    place = f"s3://{s3.bucket}/read-back/1-1-a" if where == "s3" else f"{tmp_path}/{where}/1-1-a"
    session.range(4).write.format("delta").save(for_spark(place))
    assert sorted(row.id for row in staged.rows(session, place).collect()) == [0, 1, 2, 3]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("SELECT id, id % 2 AS part FROM range(4)", {"partition_by": ["part"]}),
        ("SELECT id, id AS `a b` FROM range(4)", {"properties": {"delta.columnMapping.mode": "name"}}),
        ("SELECT id, NULL AS nothing FROM range(4)", {}),
    ],
    ids=["partitions", "column mapping", "void"],
)
def test_staged_rows_that_their_files_do_not_tell_alone_are_read_by_delta(
    session: Any,
    world: Environment,
    table: str,
    query: str,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some versions of Delta write partition columns into the files, too, and others do not."""
    sink = DeltaSink("bronze", table, **options)
    plan = sink.plan_stage(attempt_of(transaction(1)), "a" * 32, world)
    assert fill_with_spark(session, plan, session.sql(query)).problem is None
    monkeypatch.delattr(staged, "rows_in")
    rows = staged.rows(session, plan["place"])
    assert sorted(map(str, rows.collect())) == sorted(map(str, session.sql(query).collect()))


def test_a_deletion_in_a_private_table_is_not_overlooked(session: Any, world: Environment, table: str) -> None:
    sink = DeltaSink("bronze", table)
    plan = sink.plan_stage(attempt_of(transaction(1)), "a" * 32, world)
    assert fill_with_spark(session, plan, session.range(4)).problem is None
    session.sql(f"DELETE FROM delta.`file://{plan['place']}` WHERE id = 3").collect()
    assert sorted(row.id for row in staged.rows(session, plan["place"]).collect()) == [0, 1, 2]


def test_a_staging_log_that_is_damaged_is_an_error(session: Any, world: Environment, table: str) -> None:
    """Else the files that it names would be missing from what a commit through Spark appends."""
    plan = DeltaSink("bronze", table).plan_stage(attempt_of(transaction(1)), "a" * 32, world)
    assert fill_with_spark(session, plan, session.range(4)).problem is None
    rewrite_log(plan["place"], '{"add"', '{"add')
    with pytest.raises(Exception, match="MALFORMED_RECORD"):
        staged.rows(session, plan["place"])
