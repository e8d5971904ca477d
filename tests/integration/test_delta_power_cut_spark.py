"""A power cut takes no row of a table to which Spark commits: no log entry is flushed without the files that it adds.

Judged by DuckDB, of what was flushed: everything else is as a power cut leaves it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_epochs.delta.table import App
from airflow_epochs.sinks.delta import spark_commit
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.spark.driver.delta import jobs
from airflow_epochs.spark.driver.delta.layout import DEFAULT
from airflow_epochs.spark.driver.delta.session import AUTO_COMPACT
from tests.support.delta_modes_world import UPSERT, Epochs, create, values
from tests.support.delta_world import SparkOn, log_of, rows_by_duckdb
from tests.support.environment import Environment
from tests.support.power_cut import left_by_power_cut
from tests.support.spark_world import settings

pytestmark = pytest.mark.jvm

COMPACTS_AT_ONCE = {"spark.databricks.delta.autoCompact.minNumFiles": "2"}


class Disk:
    """The disk below a table, and what a power cut would leave there."""

    def __init__(self, table: str, synced: set[str | int], to: Path) -> None:
        self.table, self.synced, self.to = table, synced, to

    def require_whole(self) -> None:
        """A power cut now leaves every row."""
        assert rows_by_duckdb(self.left) == rows_by_duckdb(self.table)

    @property
    def left(self) -> str:
        return left_by_power_cut(self.table, self.synced, self.to)

    def require_newest(self) -> None:
        """A power cut now leaves the newest version, whole."""
        self.require_whole()
        assert DeltaTable(self.left).version() == DeltaTable(self.table).version()


@pytest.fixture
def disk(table: str, synced: set[str | int], tmp_path: Path) -> Disk:
    return Disk(table, synced, tmp_path / "cut")


def row(session: Any, number: int) -> Any:
    return values(session, "id, v, name", f"({number}L, 1L, 'a')", f"({number + 100}L, 1L, 'b')")


def operations(table: str) -> list[str]:
    return [action["commitInfo"]["operation"] for entry in log_of(table) for action in entry if "commitInfo" in action]


def test_a_power_cut_after_an_epoch_whose_upkeep_compacted_the_table_takes_no_row(
    session: Any, world: Environment, table: str, disk: Disk
) -> None:
    epochs = Epochs(DeltaSink("silver", table, **UPSERT, compact_every=2), world)
    for number in (1, 2, 3):
        epochs.run(row(session, number))
        disk.require_whole()
        epochs.sink.maintain("orders", number, world)
        disk.require_whole()
    assert "OPTIMIZE" in operations(table)


@pytest.mark.long
def test_what_a_compaction_wrote_is_flushed_before_the_epoch_is_complete_although_its_first_try_died(
    session: Any, world: Environment, table: str, disk: Disk
) -> None:
    epochs = Epochs(DeltaSink("silver", table, **UPSERT, compact_every=1), world)
    for number in (1, 2):
        epochs.run(row(session, number))
    spark_commit.optimize(table, DEFAULT, world)  # the last thing that a task did before it died
    epochs.sink.maintain("orders", 2, world)
    assert operations(table)[-1] == "OPTIMIZE"
    disk.require_newest()


OTHERS = ("OPTIMIZE {table}", "DELETE FROM {table} WHERE id = 101")


@pytest.mark.parametrize("vectors", ["true", pytest.param("false", marks=pytest.mark.long)])
def test_a_commit_flushes_what_other_programs_have_written_since_the_last_one(
    session: Any, world: Environment, table: str, disk: Disk, vectors: str
) -> None:
    rest = f"TBLPROPERTIES ('delta.enableDeletionVectors' = '{vectors}')"
    create(session, table, "id BIGINT, v BIGINT, name STRING", rest)
    epochs = Epochs(DeltaSink("silver", table, **UPSERT), world)
    for number in (1, 2):
        epochs.run(row(session, number))
    for statement in OTHERS:
        session.sql(statement.format(table=f"delta.`file://{table}`")).collect()
    epochs.run(row(session, 3))
    disk.require_newest()


@pytest.mark.long
def test_a_commit_flushes_what_lands_right_behind_it(session: Any, table: str, disk: Disk) -> None:
    compact = f"OPTIMIZE delta.`file://{table}`"
    world = Environment(spark=SparkOn(session), at={"delta.commit.after#2": lambda: session.sql(compact).collect()})
    epochs = Epochs(DeltaSink("silver", table, **UPSERT), world)
    for number in (1, 2):
        epochs.run(row(session, number))
        disk.require_newest()
    assert operations(table)[-1] == "OPTIMIZE"


@pytest.mark.parametrize("policy", ["v2", pytest.param("classic", marks=pytest.mark.long)])
def test_checkpoints_that_spark_writes_are_flushed_with_all_their_parts(
    session: Any, world: Environment, table: str, disk: Disk, policy: str
) -> None:
    rest = f"TBLPROPERTIES ('delta.checkpointInterval' = '2', 'delta.checkpointPolicy' = '{policy}')"
    create(session, table, "id BIGINT, v BIGINT, name STRING", rest)
    epochs = Epochs(DeltaSink("silver", table, **UPSERT), world)
    for number in (1, 2, 3):
        epochs.run(row(session, number))
        disk.require_newest()
    log = Path(table, "_delta_log")
    assert (log / "_last_checkpoint").exists()
    parts = [path for path in log.rglob("*") if ".checkpoint." in path.name or path.parent.name == "_sidecars"]
    assert parts and {path.stat().st_ino for path in parts if path.suffix != ".crc"} <= disk.synced


def test_notes_of_deleted_keys_survive_a_power_cut_after_their_upkeep(
    session: Any, world: Environment, table: str, disk: Disk
) -> None:
    sink = DeltaSink("silver", table, **UPSERT, delete_when="name = 'gone'", compact_every=3)
    epochs = Epochs(sink, world)
    for number in (1, 2, 3):
        epochs.run(values(session, "id, v, name", f"(7L, {number}L, 'gone')", f"({number + 10}L, 1L, 'a')"))
        sink.maintain("orders", number, world)
    (notes,) = Path(table, "_epochs").glob("*/deleted-*")
    assert "MERGE" in operations(str(notes))
    Disk(str(notes), disk.synced, disk.to).require_newest()


# -- a table that compacts itself ---------------------------------------------------------------------------------


def test_the_sink_commits_to_a_table_that_compacts_itself_and_leaves_that_to_compact_every(
    session: Any, table: str, disk: Disk
) -> None:
    rest = "TBLPROPERTIES ('delta.autoOptimize.autoCompact' = 'true')"
    create(session, table, "id BIGINT, v BIGINT, name STRING", rest)
    # The session of a task has no settings of the job that staged.
    at = {"delta.commit.before": lambda: session.conf.unset(AUTO_COMPACT)}
    epochs = Epochs(DeltaSink("silver", table, **UPSERT), Environment(spark=SparkOn(session), at=at))
    with settings(session, COMPACTS_AT_ONCE):
        for number in (1, 2, 3):
            _, _, receipt = epochs.run(row(session, number))
            assert receipt.version == DeltaTable(table).version()
            disk.require_newest()
    assert "OPTIMIZE" not in operations(table)


@pytest.mark.long
def test_notes_of_deleted_keys_still_compact_themselves(session: Any, world: Environment, table: str) -> None:
    epochs = Epochs(DeltaSink("silver", table, **UPSERT, delete_when="name = 'gone'"), world)
    with settings(session, COMPACTS_AT_ONCE):
        for number in (1, 2, 3):
            epochs.run(values(session, "id, v, name", f"(7L, {number}L, 'gone')"))
    (notes,) = Path(table, "_epochs").glob("*/deleted-*")
    assert "OPTIMIZE" in operations(str(notes))
    assert len(rows_by_duckdb(notes)) == 3


def test_a_compaction_that_carries_an_epochs_note_is_not_taken_for_its_commit(
    session: Any, world: Environment, table: str
) -> None:
    epochs = Epochs(DeltaSink("silver", table, **UPSERT), world)
    for number in (1, 2):
        _, _, receipt = epochs.run(row(session, number))
    (note,) = {action["commitInfo"]["userMetadata"] for action in log_of(table)[-1] if "commitInfo" in action}
    with settings(session, {"spark.databricks.delta.commitInfo.userMetadata": note}):
        session.sql(f"OPTIMIZE delta.`file://{table}`").collect()  # as Delta did behind a commit of version 0.7
    assert operations(table)[-1] == "OPTIMIZE"
    app = App.of("orders", "silver").epoch
    assert jobs.seen(session, table, app).marker.version == receipt.version
    assert jobs._in_log(session, f"file:{table}", app).version == receipt.version
