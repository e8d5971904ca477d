"""The files that epochs leave in a Delta table: how many, how large, of which codec, with which row groups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver.delta.layout import CODECS
from airflow_epochs.spark.driver.delta.session import ROWS_IN_GROUP
from orders_demo.duck import duck
from tests.support.delta_world import (
    attempt_of,
    ids_in,
    promised,
    seen_by_duckdb,
    spark_epoch,
    stage_with_spark,
    transaction,
)
from tests.support.environment import Environment
from tests.support.spark_world import Topic, settings, stage_job

pytestmark = pytest.mark.jvm

MB = 2**20
TASKS = 12
ROWS = f"SELECT id, id % 3 AS p FROM RANGE(0, 300, 1, {TASKS})"
HEX = ", ".join(f"sha2(concat(id, '{each}'), 512)" for each in range(5))
LARGE = f"SELECT id, concat({HEX}) AS s FROM RANGE(0, 20000, 1, {TASKS})"
"""13 MB, of which a half is left, however compressed."""
HOWS: list[Any] = [{}, {"commit": "spark"}, pytest.param({"mode": "upsert", "keys": ["id"]}, marks=pytest.mark.long)]


def files_of(table: str | Path) -> list[Path]:
    """The files of the newest version, by its log."""
    return [Path(table, unquote(path)) for path in DeltaTable(str(table)).get_add_actions().column("path").to_pylist()]


def codecs_of(table: str | Path) -> set[str]:
    metadata = [pq.ParquetFile(file).metadata for file in files_of(table)]
    return {
        each.row_group(group).column(column).compression
        for each in metadata
        for group in range(each.num_row_groups)
        for column in range(each.num_columns)
    }


def staged(
    world: Environment, folder: Path, sql: str, sinks: Mapping[str, DeltaSink], ends: tuple[int, ...]
) -> dict[str, list[int]]:
    """Stage the rows of ``sql`` for all sinks in one job of Spark's; the bytes of each sink's files.

    ``ends``: the number of records in each partition of the topic, which is there to be read, but is not.
    """
    app, attempt = folder / "app.py", attempt_of(transaction(1))
    app.write_text(f"def f(batch, epoch):\n    return dict.fromkeys({[*sinks]}, batch.sparkSession.sql({sql!r}))\n")
    plans = {name: sink.plan_stage(attempt, "a" * 32, world) for name, sink in sinks.items()}
    world.spark.run(stage_job(Topic("t", "nowhere:1", ends), f"{app}:f", {}, outputs=tuple(sinks), sinks=plans))
    return {name: [file.stat().st_size for file in files_of(plan["place"])] for name, plan in plans.items()}


def test_a_file_has_rows_of_one_partition_and_is_compressed_by_zstd(
    session: Any, world: Environment, table: str
) -> None:
    spark_epoch(DeltaSink("orders", table, partition_by=["p"]), transaction(1), None, session.sql(ROWS), world)
    assert sorted(sorted(pq.read_table(file)["id"].to_pylist()) for file in files_of(table)) == [
        [*range(p, 300, 3)] for p in range(3)
    ]
    assert codecs_of(table) == {"ZSTD"}
    assert seen_by_duckdb(table) == [*range(300)]


def test_files_of_every_codec_are_read_by_duckdb_and_by_deltalake(
    session: Any, world: Environment, tmp_path: Path
) -> None:
    for codec in CODECS:
        table = str(tmp_path / codec)
        sink = DeltaSink("orders", table, compression=codec)
        spark_epoch(sink, transaction(1), None, session.range(0, 9, 1, 1), world)
        assert codecs_of(table) == {{"lz4_raw": "LZ4"}.get(codec, codec.upper())}
        assert seen_by_duckdb(table) == ids_in(table) == [*range(9)]


@pytest.mark.long
def test_sinks_of_one_job_get_files_of_the_size_that_each_of_them_wants(world: Environment, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"large": {}, "small": {"target_file_size": "1 MB"}}
    sinks = {name: DeltaSink(name, str(tmp_path / name), **size) for name, size in sizes.items()}
    found = staged(world, tmp_path, LARGE, sinks, ends=(1,))
    assert len(found["large"]) == 1 and found["large"][0] > 4 * MB
    assert 2 < len(found["small"]) < TASKS
    assert all(MB / 2 < size < 3 * MB for size in sorted(found["small"])[1:]), "but for the rest"


@pytest.mark.parametrize(("records", "files"), [((40_000,) * 4, 1), ((160_000,), TASKS)], ids=["many", "one"])
def test_rows_of_tasks_that_have_few_records_are_gathered_however_many_tasks_there_are(
    world: Environment, tmp_path: Path, table: str, records: tuple[int, ...], files: int
) -> None:
    assert len(staged(world, tmp_path, ROWS, {"orders": DeltaSink("orders", table)}, records)["orders"]) == files


@pytest.mark.long
def test_a_large_file_has_row_groups_that_readers_can_skip(session: Any, world: Environment, table: str) -> None:
    rows = session.range(0, ROWS_IN_GROUP + 1_000, 1, 1)
    spark_epoch(DeltaSink("orders", table), transaction(1), None, rows, world)
    metadata = pq.ParquetFile(files_of(table)[0]).metadata
    told = [metadata.row_group(group).column(0).statistics for group in range(metadata.num_row_groups)]
    assert [(each.min, each.max) for each in told] == [(0, ROWS_IN_GROUP - 1), (ROWS_IN_GROUP, ROWS_IN_GROUP + 999)]
    with duck() as database:
        query = "SELECT count(*) FROM delta_scan(?) WHERE id >= ?"
        assert database.execute(query, [table, ROWS_IN_GROUP]).fetchall() == [(1_000,)]


@pytest.mark.few(1)
@pytest.mark.parametrize("how", HOWS, ids=str)
def test_what_a_tables_owner_says_of_its_files_counts_more_than_what_the_sink_says(
    session: Any, world: Environment, tmp_path: Path, how: JsonDict
) -> None:
    for owner, codec in (("delta.a = '1'", "GZIP"), ("delta.parquet.compression.codec = 'snappy'", "SNAPPY")):
        table = str(tmp_path / codec)
        with settings(session, {"spark.databricks.delta.allowArbitraryProperties.enabled": "true"}):
            columns = f"(id BIGINT, p BIGINT) USING delta TBLPROPERTIES ({owner})"
            session.sql(f"CREATE TABLE delta.`file://{table}` {columns}").collect()
        sink = DeltaSink("orders", table, compression="gzip", **how)
        spark_epoch(sink, transaction(1), None, session.sql(ROWS), world)
        assert codecs_of(table) == {codec}
        assert seen_by_duckdb(table) == [*range(300)]


@pytest.mark.long
def test_spark_compacts_into_such_files_as_the_sink_wants(session: Any, world: Environment, table: str) -> None:
    session.sql(LARGE).write.format("delta").save(f"file://{table}")
    options: JsonDict = {"compression": "gzip", "target_file_size": "3 MB", "compact_every": 1}
    sink = DeltaSink("orders", table, commit="spark", **options)
    done = sink.maintain("orders", 1, world)
    assert done["files_removed"] == TASKS and done["files_added"] > 2
    assert codecs_of(table) == {"GZIP"}
    assert seen_by_duckdb(table) == [*range(20_000)]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "how", [{"mode": "upsert", "keys": ["id"]}, {"commit": "spark"}, {"mode": "overwrite"}], ids=str
)
def test_a_commit_and_a_compaction_through_spark_write_instants_and_lists_for_every_reader_whatever_the_server_says(
    session: Any, world: Environment, table: str, how: JsonDict
) -> None:
    sink, previous = DeltaSink("orders", table, **how, compact_every=2), None
    for epoch in (1, 2):
        attempt = attempt_of(transaction(epoch), previous)
        rows = session.sql(
            f"SELECT {epoch} AS id, at, ARRAY(at) AS ats FROM (SELECT TIMESTAMP'{FAR_DAY} 00:00:00Z' AS at)"
        )
        staged_rows = promised(sink.vote(attempt, stage_with_spark(sink, attempt, rows, world), world))
        with settings(session, SERVER_OF_OLD_FILES):  # a task has a session of its own: staging does not set it up
            sink.commit(attempt, staged_rows, world)
        require_far_day(table)
        previous = attempt.txn
    with settings(session, SERVER_OF_OLD_FILES):
        sink.maintain("orders", 2, world)
    require_far_day(table)


FAR_DAY = "9999-12-31"
SERVER_OF_OLD_FILES = {
    "spark.sql.parquet.outputTimestampType": "INT96",
    "spark.sql.parquet.writeLegacyFormat": "true",
}


def require_far_day(table: str) -> None:
    """Three readers see the day in every row; the files are read as a stranger to Delta reads them."""
    for file in files_of(table):
        assert {str(at)[:10] for row in pq.read_table(file).to_pylist() for at in (row["at"], *row["ats"])} == {FAR_DAY}
    query = 'SELECT CAST("at" AS VARCHAR) AS "at", CAST(ats[1] AS VARCHAR) AS ats FROM '
    by_deltalake = QueryBuilder().register("orders", DeltaTable(table)).execute(f"{query} orders").read_all()
    assert {text[:10] for row in pa.table(by_deltalake).to_pylist() for text in row.values()} == {FAR_DAY}
    with duck() as database:
        database.execute("SET TimeZone = 'UTC'")
        by_duckdb = database.execute(f"{query} delta_scan(?)", [table]).fetchall()
    assert {text[:10] for row in by_duckdb for text in row} == {FAR_DAY}
