"""Compaction of tables that Spark writes: it reads files as Spark does or leaves them alone, and undoes nothing."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict, StagedClaim
from airflow_epochs.sinks.delta import compaction as delta_compaction
from airflow_epochs.staged.table import StagedTable
from airflow_epochs.storage.files import open_files
from airflow_epochs.storage.local import LocalFiles
from tests.support.delta_world import attempt_of, fill_with_spark, log_of, rows_by_duckdb, transaction
from tests.support.spark_world import CORRECTED, LEGACY, settings
from tests.support.waiting import wait_until

pytestmark = pytest.mark.jvm


def compacted(table: Path) -> JsonDict:
    return delta_compaction.compact(DeltaTable(str(table)), open_files(str(table)))


def append(session: Any, table: Path, *columns: str, files: int = 1) -> None:
    frame = session.range(0, files, 1, files).selectExpr(*columns)
    frame.write.format("delta").mode("append").save(f"file://{table}")


def seen_by_spark(session: Any, table: Path) -> list[str]:
    frame = session.read.format("delta").load(f"file://{table}")
    as_text = [f"to_json(struct(`{name}`)) AS `{name}`" for name in frame.columns]
    return sorted(map(str, frame.selectExpr(*as_text).collect()))


@pytest.mark.long
def test_files_of_a_converted_table_that_spell_columns_otherwise_keep_their_values(
    session: Any, table_path: Path
) -> None:
    nested = "array(map('k', named_struct('{0}', id, 'kept', '{0}'))) AS {1}"
    for spelling, column in (("inner", "outer"), ("Inner", "outer"), ("inner", "Outer")):
        frame = session.range(0, 4, 1, 4).selectExpr("id", nested.format(spelling, column))
        frame.write.mode("append").parquet(f"file://{table_path}")
    session.sql(f"CONVERT TO DELTA parquet.`file://{table_path}`").collect()
    before, by_duckdb = seen_by_spark(session, table_path), rows_by_duckdb(table_path)
    assert compacted(table_path)["files_removed"] == 4
    assert seen_by_spark(session, table_path) == before
    assert all(name in str(before) for name in ("inner", "Inner"))
    assert len(by_duckdb) == len(rows_by_duckdb(table_path)) == 12


@pytest.mark.long
@pytest.mark.parametrize("int96", [True, False])
def test_dates_that_spark_wrote_in_the_calendar_of_old_stay_what_they_are(
    session: Any, table_path: Path, int96: bool
) -> None:
    columns = ("id", "date'1500-01-01' AS day", "named_struct('at', timestamp'0001-01-01 00:00:00') AS s")
    kind = {"spark.sql.parquet.outputTimestampType": "INT96" if int96 else "TIMESTAMP_MICROS"}
    with settings(session, LEGACY | kind):
        append(session, table_path, *columns, files=4)
    before = seen_by_spark(session, table_path)
    assert compacted(table_path)["files_removed"] == 0
    with settings(session, CORRECTED | kind):
        append(session, table_path, *columns, files=4)
    assert compacted(table_path)["files_removed"] == 4
    assert seen_by_spark(session, table_path) == sorted(before * 2)


def staged_as_the_server_says(area: StagedTable, attempt: SinkAttempt, frame: Any) -> StagedClaim:
    """What version 0.1 staged, or what a transform that changes its session's settings lets us stage."""
    plan = area.plan(attempt, uuid.uuid4().hex)
    options = {"userMetadata": plan["user_metadata"], "txnAppId": "the pipeline", "txnVersion": "1"}
    frame.write.format("delta").mode("append").options(**options).save(f"file://{plan['place']}")
    return StagedClaim(place=plan["place"])


def test_rows_staged_in_the_calendar_of_old_are_a_vote_abort_and_staged_again_they_are_right(
    session: Any, tmp_path: Path
) -> None:
    area = StagedTable(root=str(tmp_path / "staging"), sink="orders", target="topic orders", options={})
    attempt = attempt_of(transaction(1))
    frame = session.sql("SELECT array(date'1500-01-01') AS days, timestamp'1500-01-01 00:00:00' AS at")
    with settings(session, LEGACY):
        with pytest.raises(Refused, match=r"days.* in the Julian calendar"):
            area.checked(attempt, staged_as_the_server_says(area, attempt, frame))
        claim = fill_with_spark(session, area.plan(attempt, uuid.uuid4().hex), frame)
    _, what = area.checked(attempt, claim)
    (row,) = [row for batch in area.rows(attempt, what) for row in batch.to_pylist()]
    assert (str(row["days"]), str(row["at"])[:10]) == ("[datetime.date(1500, 1, 1)]", "1500-01-01")


def test_dates_of_today_are_taken_from_files_of_either_calendar(session: Any, tmp_path: Path) -> None:
    area = StagedTable(root=str(tmp_path / "staging"), sink="orders", target="topic orders", options={})
    attempt = attempt_of(transaction(1))
    with settings(session, LEGACY | {"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}):
        frame = session.sql("SELECT date'1582-10-15' AS day, timestamp'1901-01-01 00:00:00' AS at")
        claim = staged_as_the_server_says(area, attempt, frame)
    assert area.checked(attempt, claim)[1].rows == 1


@pytest.mark.long
def test_a_stream_of_spark_reads_on_across_a_compaction_and_sees_each_row_once(
    session: Any, table_path: Path, tmp_path: Path
) -> None:
    append(session, table_path, "id", "id % 2 AS p", files=4)
    out, progress = tmp_path / "out", tmp_path / "progress"

    def read_on() -> int:
        stream = session.readStream.format("delta").load(f"file://{table_path}").writeStream
        query = stream.format("delta").option("checkpointLocation", f"file://{progress}")
        query.trigger(availableNow=True).start(f"file://{out}").awaitTermination()
        return int(session.read.format("delta").load(f"file://{out}").count())

    assert read_on() == 4
    metadata = _metadata_of(table_path, 0)
    assert compacted(table_path)["files_removed"] == 4
    assert _metadata_of(table_path, 1) == metadata
    append(session, table_path, "id", "id AS p", files=1)
    assert read_on() == 5


def _metadata_of(table: Path, version: int) -> JsonDict:
    found: JsonDict = next(action["metaData"] for action in log_of(table)[version] if "metaData" in action)
    return found | {"schemaString": json.loads(found["schemaString"])}


@pytest.mark.long
@pytest.mark.parametrize("moment", [pytest.param("before", marks=pytest.mark.long), "after"])
def test_a_vacuum_of_spark_at_0_hours_that_overlaps_a_compaction_loses_no_row(
    session: Any, table_path: Path, moment: str
) -> None:
    class Vacuumed(LocalFiles):
        done = False

        def write_new(self, path: str, value: bytes) -> bool:
            if self.done:
                return super().write_new(path, value)
            self.done = True
            if moment == "before":
                session.sql(f"VACUUM delta.`file://{table_path}` RETAIN 0 HOURS").collect()
            written = super().write_new(path, value)
            if moment == "after":
                session.sql(f"VACUUM delta.`file://{table_path}` RETAIN 0 HOURS").collect()
            return written

    append(session, table_path, "id", files=4)
    done = delta_compaction.compact(DeltaTable(str(table_path)), Vacuumed(table_path))
    assert done["files_removed"] == 4
    assert len(seen_by_spark(session, table_path)) == len(rows_by_duckdb(table_path)) == 4


@pytest.mark.long
def test_an_overwrite_of_spark_that_began_before_a_compaction_is_refused(
    session: Any, table_path: Path, tmp_path: Path
) -> None:
    """It counts the rows it has read in a Python function, which waits there until the compaction has landed."""
    from pyspark.sql import functions as F

    append(session, table_path, "id", files=4)
    begun, go_on = str(tmp_path / "begun"), str(tmp_path / "go_on")

    def wait(value: int) -> int:
        import pathlib
        import time

        pathlib.Path(begun).touch()
        for _ in range(600):
            if pathlib.Path(go_on).exists():
                return value
            time.sleep(0.1)
        raise TimeoutError

    errors: list[str] = []

    def overwrite() -> None:
        rows = (
            session.read.format("delta")
            .load(f"file://{table_path}")
            .select(F.udf(wait, "long", useArrow=False)("id").alias("id"))
        )
        try:
            rows.write.format("delta").mode("overwrite").save(f"file://{table_path}")
        except Exception as error:
            errors.append(str(error))

    thread = Thread(target=overwrite)
    thread.start()
    try:
        wait_until(lambda: Path(begun).exists(), 60)
        assert compacted(table_path)["files_removed"] == 4
    finally:
        Path(go_on).touch()
        thread.join(60)
    assert len(errors) == 1
    assert "DELTA_" in errors[0]
    assert len(seen_by_spark(session, table_path)) == len(rows_by_duckdb(table_path)) == 4
