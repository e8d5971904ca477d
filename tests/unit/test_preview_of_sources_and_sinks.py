"""A preview by source and by sink: versions of a table, the interval of a run; rows that a table or topic refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_epochs import DeltaSource, KafkaSink, SqlSink, codes
from airflow_epochs.contracts import Interval, Sink
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.inspection.preview import preview
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import JsonDict, Run
from airflow_epochs.testing import run_epoch
from tests.support.environment import Environment
from tests.support.faults_disk import FileSource, TableSpark
from tests.support.faults_world import DiskWorld
from tests.support.sql_world import SqliteDb, new_sqlite


def write(folder: Path, *ids: int) -> None:
    """One version of the table that the pipeline reads."""
    write_deltalake(str(folder / "table"), pa.table({"id": pa.array(ids, pa.int64())}), mode="append")


@pytest.fixture
def database(tmp_path: Path) -> SqliteDb:
    return new_sqlite(tmp_path)


@pytest.fixture
def reader(tmp_path: Path, database: SqliteDb) -> Callable[..., Coordinator]:
    """What one task makes of a pipeline that reads a table and writes to a database, and to ``more`` sinks."""

    def coordinator(*more: Sink) -> Coordinator:
        pipeline = Pipeline(
            wait_for_others=0,
            name="reader",
            dag_id="dag",
            source=DeltaSource(str(tmp_path / "table"), max_wait=0, max_versions=2),
            sinks=(SqlSink("ids", "db", "ids", staging=str(tmp_path / "staging")), *more),
            transform=Transform(path="disk.py", function="keep_all"),
        )
        env = Environment({"db": database.connection()})
        env.spark = TableSpark(env.reached)
        return Coordinator(
            TaskTry(pipeline=pipeline, ledger=Ledger(LocalStore(tmp_path / "ledger"), "reader"), env=env)
        )

    return coordinator


def test_the_statement_that_a_preview_of_a_table_prints_makes_the_table_for_which_open_has_refused_the_epoch(
    tmp_path: Path, database: SqliteDb, reader: Callable[..., Coordinator]
) -> None:
    write(tmp_path, 1, 2)
    with pytest.raises(Refused, match="EPOCHS-SQL-TABLE-MISSING") as refused:
        run_epoch(reader(), Run("dag", "run 1"))
    assert "`airflow epochs preview reader`" in refused.value.remedy
    (ids,) = preview(reader().task, 100, 1).sinks
    assert ids.sample and ids.sample.creates and ids.rows == 2
    database.run(ids.sample.creates)
    run_epoch(reader(), Run("dag", "run 1"))
    assert database.run("SELECT id FROM ids") == [(1,), (2,)]


@pytest.mark.proof
def test_a_preview_of_a_table_reads_the_versions_of_the_next_epoch_and_says_that_it_counts_no_records(
    tmp_path: Path, database: SqliteDb, reader: Callable[..., Coordinator]
) -> None:
    database.run("CREATE TABLE ids (id bigint)")
    write(tmp_path, 1, 2)
    run_epoch(reader(), Run("dag", "run 1"))
    for number in (3, 4, 5):
        write(tmp_path, number)
    told = preview(reader().task, 1, 5)
    assert [(each.sink, each.rows) for each in told.sinks] == [("ids", 2)]
    assert told.warnings == (
        "The source has versions, and no records to count. These are an epoch's, whatever --records says.",
    )
    run_epoch(reader(), Run("dag", "run 2"))
    record = reader().task.ledger.complete_record(2)
    assert record and record.ranges == told.ranges


def test_a_preview_says_why_a_table_or_a_topic_would_not_take_the_rows_and_shows_them(
    tmp_path: Path, database: SqliteDb, reader: Callable[..., Coordinator]
) -> None:
    database.run("CREATE TABLE ids (value bigint, city text NOT NULL)")
    write_deltalake(str(tmp_path / "table"), pa.table({"value": pa.array([1, 2], pa.int64())}))
    topic = KafkaSink("topic", "orders", staging=str(tmp_path / "staging"))
    ids, orders = preview(reader(topic).task, 100, 1).sinks
    assert "city" in (ids.problem or "") and "EPOCHS-SQL-" in (ids.problem or "")
    assert "The rows do not fit topic orders" in (orders.problem or "")
    for each in (ids, orders):
        assert each.rows == 2 and each.sample and [row["value"] for row in each.sample.rows] == [1]


def test_a_preview_finds_nothing_against_rows_that_fit(
    tmp_path: Path, database: SqliteDb, reader: Callable[..., Coordinator]
) -> None:
    database.run("CREATE TABLE ids (id bigint)")
    write(tmp_path, 1, 2)
    told = preview(reader(KafkaSink("topic", "orders", staging=str(tmp_path / "staging"))).task, 100, 1)
    assert [each.problem for each in told.sinks] == [None, None]
    assert database.run("SELECT count(*) FROM ids") == [(0,)]


@dataclass(frozen=True, kw_only=True)
class IntervalSource(FileSource):
    """A source whose epochs have the data intervals of their runs."""

    def by_interval(self) -> bool:
        return True

    def planned_for(self, state: JsonDict) -> Interval | None:
        return None

    def read_until(self, state: JsonDict) -> datetime | None:
        return None


def test_a_preview_is_refused_where_an_epoch_has_the_interval_of_its_run_and_names_what_can_be_done(
    tmp_path: Path,
) -> None:
    world = DiskWorld(tmp_path)
    world.produce(1)
    task = world.coordinator().task
    task = replace(task, pipeline=replace(task.pipeline, source=IntervalSource(folder=world.source.folder)))
    with pytest.raises(Refused, match="have the data intervals of their runs") as refused:
        preview(task, 100, 1)
    assert refused.value.code is codes.DRY_RUN_UNSUITABLE
    assert "`airflow epochs dry-run orders --epoch N`" in refused.value.remedy
