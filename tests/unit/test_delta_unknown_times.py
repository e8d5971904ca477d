"""Times in partition columns that only Spark knows: the vote refuses them, and what is there already is told."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import codes
from airflow_epochs.delta import unknown_times
from airflow_epochs.delta.log import log_entry
from airflow_epochs.delta.replay import newest_metadata
from airflow_epochs.errors import Corrupt, EpochError, Refused, cause_and_remedy, located
from airflow_epochs.model import Marker, VoteKind
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.storage.local import LocalFiles
from tests.support.delta_world import attempt_of, ids_in, promised, stage, transaction
from tests.support.environment import Environment
from tests.support.far_days import delete_far, make_far, of_day
from tests.support.table_lab import PIPELINE, TableLab
from tests.support.table_staging import WithoutSpark

JANUARY, FEBRUARY = date(2026, 1, 31), date(2026, 2, 1)
CONDITION = "`day` NOT BETWEEN date'0001-01-01' AND date'9999-12-31'"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """With row 0."""
    path = tmp_path / "days"
    write_deltalake(str(path), of_day(0, JANUARY), partition_by=["day"])
    return path


@pytest.fixture
def sink(table: Path) -> DeltaSink:
    return DeltaSink("bronze", str(table), commit="deltalake")


# -- the vote --------------------------------------------------------------------------------------------------------


def parted(kind: pa.DataType, *numbers: int | None) -> pa.Table:
    """Rows whose partitions are these days, or microseconds, since 1970."""
    number = pa.int32() if kind == pa.date32() else pa.int64()
    return pa.table({"id": pa.array(range(len(numbers)), pa.int64()), "p": pa.array(numbers, number).cast(kind)})


DAY, INSTANT, LOCAL = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")
FIRST, LAST = -719_162, 2_932_896


@pytest.mark.parametrize(
    ("kind", "number", "told"),
    [
        (DAY, LAST + 1, "+10000-01-01"),
        (DAY, FIRST - 1, "0000-12-31"),
        (DAY, FIRST - 366 - 1, "-0001-12-31"),
        (LOCAL, (LAST + 1) * 86_400_000_000, "+10000-01-01"),
    ],
)
def test_a_partition_outside_of_the_years_that_all_readers_know_is_voted_against(
    tmp_path: Path, world: Environment, kind: pa.DataType, number: int, told: str
) -> None:
    sink, attempt = DeltaSink("bronze", str(tmp_path / "new"), partition_by=["p"]), attempt_of(transaction(1))
    vote = sink.vote(attempt, stage(sink, attempt, parted(kind, 0, number), world), world)
    assert vote.vote is VoteKind.VOTE_ABORT
    cause, remedy = cause_and_remedy(vote.reason or "")
    assert f"A value of the partition column p is outside of the years 1 to 9999: {told}" in cause
    assert remedy == "Correct the transform or the table. Then clear the stage task."
    again = replace(attempt, promised=True)
    vote = sink.vote(again, stage(sink, again, parted(kind, 0, number), world), world)
    assert vote.vote is VoteKind.VOTE_COMMIT, "an earlier version has promised such rows"


@pytest.mark.parametrize("kind", [DAY, INSTANT, LOCAL])
def test_the_first_and_the_last_day_that_all_readers_know_are_voted_for(
    tmp_path: Path, world: Environment, kind: pa.DataType
) -> None:
    sink, attempt = DeltaSink("bronze", str(tmp_path / "new"), partition_by=["p"]), attempt_of(transaction(1))
    day = 1 if kind == DAY else 86_400_000_000
    data = parted(kind, None, FIRST * day, LAST * day)
    staged = promised(sink.vote(attempt, stage(sink, attempt, data, world), world))
    sink.commit(attempt, staged, world)
    assert ids_in(tmp_path / "new") == [0, 1, 2]


def test_dead_letters_are_told_of_the_partition_columns_of_the_table_or_of_the_one_to_be(
    table: Path, tmp_path: Path, world: Environment
) -> None:
    for sink in (
        DeltaSink("bronze", str(table)),
        DeltaSink("bronze", str(table), mode="upsert", keys=["id"]),
        DeltaSink("bronze", str(table), mode="merge", keys=["id"], merge="WHEN NOT MATCHED THEN INSERT *"),
        DeltaSink("bronze", str(tmp_path / "new"), partition_by=["day"]),
    ):
        fit = sink.fit("orders", world)
        assert (list(fit["partition_by"]), fit["dates"]) == (["day"], True)


# -- an epoch that was decided by an earlier version -----------------------------------------------------------------


def test_an_epoch_whose_table_cannot_be_opened_for_a_far_day_names_the_statement_after_which_it_ends(
    table: Path, sink: DeltaSink, world: Environment
) -> None:
    attempt = attempt_of(transaction(1))
    staged = promised(sink.vote(attempt, stage(sink, attempt, of_day(1, FEBRUARY), world), world))
    sink.commit(attempt, staged, world)
    make_far(table, 1, FEBRUARY)
    with pytest.raises(Refused) as error:
        sink.last_committed("orders", world)
    assert error.value.code is codes.DELTA_TABLE_UNREADABLE
    assert f"DELETE FROM delta.`file://{table}` WHERE {CONDITION}." in error.value.remedy
    delete_far(table, 1)
    assert sink.last_committed("orders", world) == Marker.of(attempt.txn)
    assert ids_in(table) == [0]


def test_a_sink_that_leaves_such_a_table_to_spark_warns_with_the_statement(
    table: Path, world: Environment, caplog: pytest.LogCaptureFixture
) -> None:
    make_far(table, 0, JANUARY)
    DeltaSink("bronze", str(table)).plan_stage(attempt_of(transaction(1)), "n", world)
    [warning] = caplog.messages
    assert warning.startswith(f"{table} is committed through Spark")
    assert f"DELETE FROM delta.`file://{table}` WHERE {CONDITION}." in warning


def test_the_statement_names_every_partition_column_of_times_as_the_log_has_them(tmp_path: Path) -> None:
    rows = {"id": [1], "p": ["x"], "day": [JANUARY], "hour": [datetime(2026, 1, 31, tzinfo=timezone.utc)]}
    write_deltalake(str(tmp_path), pa.table({**rows, "other": [JANUARY]}), partition_by=["p", "hour", "day"])
    DeltaTable(str(tmp_path)).create_checkpoint()
    (tmp_path / "_delta_log" / f"{0:020}.json").unlink()
    files = LocalFiles(tmp_path)
    assert (newest_metadata(files) or {})["partitionColumns"] == ["p", "hour", "day"]
    told = unknown_times.how_to_remove(files, "/t", "Kernel error: Failed to parse value '+1-1-1' as 'timestamp'") or ""
    hours = "`hour` NOT BETWEEN timestamp'0001-01-01 00:00:00Z' AND timestamp'9999-12-31 23:59:59.999999Z'"
    assert f" WHERE {hours} OR {CONDITION}. " in told


@pytest.mark.parametrize("kept_in", ["entry", "checkpoint"])
def test_the_statement_for_a_table_that_takes_appends_only_is_framed_by_those_that_let_it_delete(
    tmp_path: Path, kept_in: str
) -> None:
    options = {"delta.appendOnly": "true"}
    write_deltalake(str(tmp_path), of_day(0, JANUARY), partition_by=["day"], configuration=options)
    if kept_in == "checkpoint":
        DeltaTable(str(tmp_path)).create_checkpoint()
        (tmp_path / log_entry(0)).unlink()
    told = unknown_times.how_to_remove(LocalFiles(tmp_path), "/t", "Failed to parse value '+1-1-1' as 'date'") or ""
    set_to = "ALTER TABLE delta.`file:///t` SET TBLPROPERTIES ('delta.appendOnly' = '{}')"
    statements = [set_to.format("false"), f"DELETE FROM delta.`file:///t` WHERE {CONDITION}", set_to.format("true")]
    assert f" In Spark: {'; '.join(statements)}. See " in told


@pytest.mark.parametrize("problem", ["Unsupported: Reader features: ['new']", "Failed to parse value 'x' as 'integer'"])
def test_another_problem_of_a_table_has_no_such_remedy(table: Path, problem: str) -> None:
    assert unknown_times.how_to_remove(LocalFiles(table), str(table), problem) is None


# -- a pipeline that reads the table ---------------------------------------------------------------------------------


@pytest.fixture
def lab(tmp_path: Path) -> TableLab:
    """The pipeline has read row 1. Version 1 has row 2 of a good day, and row 3 of the far one."""
    lab = TableLab(tmp_path, spark=WithoutSpark())
    write(lab, 1, JANUARY)
    lab.run()
    rows = pa.concat_tables([of_day(2, JANUARY), of_day(3, FEBRUARY)])
    write_deltalake(str(lab.table), rows, mode="append")
    make_far(lab.table, 1, FEBRUARY)
    return lab


def write(lab: TableLab, id_: int, day: date) -> None:
    write_deltalake(str(lab.table), of_day(id_, day), mode="append", partition_by=["day"])


def stopped(lab: TableLab) -> EpochError:
    with pytest.raises((Corrupt, Refused)) as error, located(PIPELINE):
        lab.run()
    return error.value


@pytest.mark.proof
def test_a_source_reads_all_rows_of_a_table_after_the_statement_that_its_error_names(lab: TableLab) -> None:
    error = stopped(lab)
    assert error.code is codes.DELTA_SOURCE_UNREADABLE
    assert f"DELETE FROM delta.`file://{lab.table}` WHERE {CONDITION}." in error.remedy
    delete_far(lab.table, 1)
    write(lab, 4, date.today() + timedelta(days=1))
    lab.run()
    assert lab.ids() == Counter([1, 2, 3]), "what the version had appended"
    error = stopped(lab)
    assert error.code is codes.ROWS_CHANGED
    lab.typed(error, "skip")
    lab.run()
    assert lab.ids() == Counter([1, 2, 3, 4])


def test_a_version_with_a_far_day_is_not_read_by_the_columns_of_a_later_one(lab: TableLab) -> None:
    delete_far(lab.table, 1)
    wider = of_day(4, JANUARY).append_column("note", pa.array(["x"]))
    write_deltalake(str(lab.table), wider, mode="append", schema_mode="merge")
    assert stopped(lab).code is codes.VERSIONS_GONE
