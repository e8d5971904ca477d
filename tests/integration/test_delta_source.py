"""A pipeline that reads a Delta table, over Spark Connect. DuckDB looks at what comes out."""

from __future__ import annotations

import shutil
from collections import Counter
from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_epochs import SparkConnect, codes
from airflow_epochs.errors import Code, Corrupt, EpochError, NoNewData, NotApplied, located
from airflow_epochs.testing import Crash
from tests.support.faults_world import crash
from tests.support.spark_world import IGNORING
from tests.support.table_lab import PIPELINE, TableLab

pytestmark = pytest.mark.jvm
FEED = {"delta.enableChangeDataFeed": "true"}


def stopped(lab: TableLab, code: Code) -> EpochError:
    with pytest.raises(Corrupt) as error, located(PIPELINE):  # as a task does
        lab.run()
    assert error.value.code is code
    return error.value


# -- rows ------------------------------------------------------------------------------------------------------------


def test_each_row_that_versions_append_comes_once_and_a_run_without_a_new_version_is_skipped(
    table_lab: TableLab,
) -> None:
    table_lab.write(1, 2)
    table_lab.write(3)
    table_lab.run()
    with pytest.raises(NoNewData):
        table_lab.run()
    table_lab.write(4)
    table_lab.write(5, 6)
    table_lab.run()
    assert table_lab.ids() == Counter(range(1, 7))
    assert table_lab.versions() == [(0, 2), (2, 4)]


def a_day(day: date | None, place: str | None, number: int, **more: pa.Array) -> pa.Table:
    columns = {
        "id": pa.array([number], pa.int64()),
        "day": pa.array([day], pa.date32()),
        "place": pa.array([place], pa.string()),
    }
    return pa.table({**columns, **more})


@pytest.mark.long
def test_rows_have_their_partitions_and_columns_that_were_added_later_whoever_rearranges_the_table(
    table_lab: TableLab, session: Any
) -> None:
    places = ["Zürich {1}", "a/b: 50 %", None, "[x]*?"]
    days = [date(2026, 1, 2), date(1999, 12, 31), None, date(2026, 1, 2)]
    table_lab.options["starting"] = 1
    table, by = str(table_lab.table), ["day", "place"]
    write_deltalake(table, a_day(days[0], places[0], 0), partition_by=by)
    for number, (day, place) in enumerate(zip(days, places, strict=True), 1):
        write_deltalake(table, a_day(day, place, number), mode="append")
    late = session.createDataFrame(
        [(9, date(2026, 1, 2), places[1], "new")], "id long, day date, place string, x string"
    )
    late.write.format("delta").mode("append").option("mergeSchema", "true").save(table)
    session.sql(f"OPTIMIZE delta.`{table}`")
    table_lab.run()
    expected = [(n, day, place, None) for n, (day, place) in enumerate(zip(days, places, strict=True), 1)]
    rows = table_lab.asked("SELECT id, day, place, x FROM t ORDER BY id")
    assert rows == [*expected, (9, date(2026, 1, 2), places[1], "new")]


def test_rows_have_all_columns_though_an_overwrite_has_partitioned_the_table_since(table_lab: TableLab) -> None:
    table = str(table_lab.table)
    write_deltalake(table, a_day(date(2026, 1, 1), "here", 1))
    table_lab.run()
    write_deltalake(table, a_day(date(2026, 1, 2), "there", 2), mode="append")
    anew = a_day(date(2026, 1, 3), "nowhere", 3)
    write_deltalake(table, anew, mode="overwrite", schema_mode="overwrite", partition_by=["place", "day"])
    table_lab.run()
    rows = table_lab.asked("SELECT id, day, place FROM t ORDER BY id")
    assert rows == [(1, date(2026, 1, 1), "here"), (2, date(2026, 1, 2), "there")]


def test_the_changes_of_a_feed_add_up_to_the_table_whatever_changed_it(table_lab: TableLab, session: Any) -> None:
    table_lab.options, table_lab.transform = {"changes": "feed"}, "net"
    table_lab.write(1, 2, 3, configuration=FEED)
    table_lab.write(4)
    table_lab.run()
    session.sql(f"DELETE FROM delta.`{table_lab.table}` WHERE id = 1")
    session.sql(f"UPDATE delta.`{table_lab.table}` SET amount = 7 WHERE id = 2")
    session.sql(
        f"MERGE INTO delta.`{table_lab.table}` t USING (SELECT explode(array(3L, 5L)) AS id, 9.0D AS amount) s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    table_lab.run()
    table_lab.write(6)
    session.sql(f"OPTIMIZE delta.`{table_lab.table}`")
    table_lab.run()
    found = table_lab.asked("SELECT id, amount FROM t GROUP BY ALL HAVING sum(change) <> 0 ORDER BY id")
    assert found == table_lab.asked("SELECT id, amount FROM t ORDER BY id", of="table")
    assert [row[0] for row in table_lab.asked("SELECT count(*) FROM t")] == [4 + 1 + 2 + 3 + 1]
    kinds = table_lab.asked(
        "SELECT _commit_version, string_agg(DISTINCT _change_type) FROM t GROUP BY ALL ORDER BY 1 LIMIT 1"
    )
    assert kinds == [(1, "insert")]
    assert table_lab.asked(
        "SELECT count(*) FROM t WHERE _commit_timestamp IS NULL OR _commit_timestamp < '2020-01-01'"
    ) == [(0,)]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("epochs_before", "ignored", "options", "transform"),
    [
        (1, IGNORING, {"changes": "feed"}, "net"),
        (0, IGNORING, {"changes": "feed"}, "net"),
        (0, IGNORING, {}, "copied"),
        (0, {}, {}, "ignoring"),
    ],
)
def test_a_damaged_file_stops_the_epoch_though_the_server_or_the_transform_ignores_such_files(
    table_lab: TableLab, epochs_before: int, ignored: dict[str, str], options: dict[str, Any], transform: str
) -> None:
    table_lab.spark, table_lab.options, table_lab.transform = (
        SparkConnect("spark", session_conf=ignored),
        options,
        transform,
    )
    table_lab.write(1, 2, configuration=FEED)
    for _ in range(epochs_before):
        table_lab.run()
    before = set(table_lab.table.glob("*.parquet"))
    table_lab.write(3)
    (file,) = set(table_lab.table.glob("*.parquet")) - before
    whole = file.read_bytes()
    file.write_bytes(b"x" * len(whole))
    with pytest.raises(NotApplied, match=rf"EPOCHS-SPARK-JOB-FAILED(.|\n)*{file.name}"):
        table_lab.run()
    file.write_bytes(whole)
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2, 3])


def test_a_feed_is_read_to_its_newest_version_though_the_server_shows_tables_as_they_were(table_lab: TableLab) -> None:
    table_lab.spark = SparkConnect("spark", session_conf={"spark.databricks.delta.stalenessLimit": "1h"})
    table_lab.options, table_lab.transform = {"changes": "feed"}, "net"
    table_lab.write(1, configuration=FEED)
    table_lab.run()
    table_lab.write(2)
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2])


@pytest.mark.long
def test_a_rerun_of_an_aborted_epoch_reads_the_same_versions_though_the_table_goes_on(
    table_lab: TableLab, session: Any
) -> None:
    table_lab.write(1)
    table_lab.run()
    table_lab.write(2)
    table_lab.write(3)
    with pytest.raises(Crash):
        table_lab.run(at={"stage.done": crash})
    table_lab.write(4)
    session.sql(f"OPTIMIZE delta.`{table_lab.table}`")
    session.sql(f"DELETE FROM delta.`{table_lab.table}` WHERE id = 2")
    session.sql(f"ALTER TABLE delta.`{table_lab.table}` ADD COLUMNS (later string)")
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2, 3])
    assert table_lab.versions() == [(0, 1), (1, 3)]
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2, 3, 4])


@pytest.mark.long
def test_a_rerun_of_a_feed_reads_the_same_changes_and_columns(table_lab: TableLab, session: Any) -> None:
    table_lab.options["changes"] = "feed"
    table_lab.write(1, configuration=FEED)
    table_lab.run()
    table_lab.write(2)
    with pytest.raises(Crash):
        table_lab.run(at={"stage.done": crash})
    table_lab.write(3)
    session.sql(f"ALTER TABLE delta.`{table_lab.table}` ADD COLUMNS (later string)")
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2])
    names = [row[0] for row in table_lab.asked("DESCRIBE t")]
    assert names == ["id", "amount", "_change_type", "_commit_version", "_commit_timestamp", "epoch"]


@pytest.mark.long
def test_a_whole_table_is_read_as_of_its_version_by_a_rerun(table_lab: TableLab, session: Any) -> None:
    table_lab.write(1, 2)
    session.sql(f"ALTER TABLE delta.`{table_lab.table}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    table_lab.write(3)
    session.sql(f"DELETE FROM delta.`{table_lab.table}` WHERE id = 1")
    with pytest.raises(Crash):
        table_lab.run(at={"stage.done": crash})
    session.sql(f"DELETE FROM delta.`{table_lab.table}` WHERE id = 2")
    table_lab.run()
    assert table_lab.ids() == Counter([2, 3])


@pytest.mark.long
def test_a_row_that_the_transform_rejects_is_in_the_dead_letters_with_its_table(table_lab: TableLab) -> None:
    table_lab.letters, table_lab.transform = True, "judged"
    table_lab.write(1, 2)
    write_deltalake(
        str(table_lab.table), pa.table({"id": pa.array([3], pa.int64())}), mode="append", schema_mode="merge"
    )
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2])
    letters = table_lab.asked('SELECT topic, "partition", "offset", sink, error, "row" FROM t', of="rejected")
    assert letters == [(str(table_lab.table), None, None, None, "no amount", '{"id":3}')]
    complete = table_lab.ledger.complete_record(1)
    assert complete
    assert complete.metrics["rows_in"] == 3


@pytest.mark.long
def test_a_new_sink_begins_with_the_rows_of_earlier_epochs(table_lab: TableLab) -> None:
    for number in (1, 2, 3):
        table_lab.write(number)
        table_lab.run()
    table_lab.transform, table_lab.more_sinks, table_lab.backfill = "twice", ("late",), {"late": 2}
    table_lab.write(4)
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2, 3, 4])
    assert Counter(row[0] for row in table_lab.asked("SELECT id FROM t", of="late")) == Counter([2, 3, 4])


# -- every remedy, to the letter -------------------------------------------------------------------------------------


def test_a_version_that_deletes_rows_is_left_out_by_the_command_that_the_error_names(table_lab: TableLab) -> None:
    table_lab.write(1)
    table_lab.run()
    table_lab.write(2)
    table_lab.delta.delete("id = 1")
    table_lab.write(3)
    table_lab.run()
    shown = table_lab.typed(stopped(table_lab, codes.ROWS_CHANGED), "skip")
    assert f"lost for good: 1 offsets, {table_lab.table}[0] [2, 3)" in shown
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2, 3])
    assert table_lab.versions() == [(0, 1), (1, 2), (3, 4)]


@pytest.mark.long
def test_a_feed_reads_a_version_that_stopped_the_appends(table_lab: TableLab) -> None:
    table_lab.write(1, 2, configuration=FEED)
    table_lab.run()
    table_lab.delta.delete("id = 1")
    error = stopped(table_lab, codes.ROWS_CHANGED)
    assert "you can set changes='feed' in the DAG instead" in str(error)
    table_lab.options["changes"] = "feed"
    table_lab.folder.joinpath("rows").rename(table_lab.folder / "rows_before")
    table_lab.ordered("adopt-sink", "rows", "--new-table")
    table_lab.run()
    assert table_lab.asked("SELECT id, _change_type FROM t") == [(1, "delete")]


def lose_versions(lab: TableLab) -> None:
    """Two versions whose files a VACUUM takes, and one more."""
    lab.write(1)
    lab.run()
    lab.write(2)
    lab.write(3)
    lab.delta.optimize.compact()
    lab.delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    lab.write(4)


def test_versions_that_a_vacuum_took_are_skipped_by_the_command_that_the_error_names(table_lab: TableLab) -> None:
    lose_versions(table_lab)
    shown = table_lab.typed(stopped(table_lab, codes.VERSIONS_GONE), "skip")
    assert f"lost for good: 2 offsets, {table_lab.table}[0] [1, 3)" in shown
    table_lab.run()
    assert table_lab.ids() == Counter([1, 4])


@pytest.mark.long
def test_the_whole_table_is_read_again_after_a_vacuum_by_the_other_command_that_the_error_names(
    table_lab: TableLab,
) -> None:
    lose_versions(table_lab)
    shown = table_lab.typed(stopped(table_lab, codes.VERSIONS_GONE), "reset-source")
    assert "left for good" in shown
    table_lab.run()
    assert table_lab.ids() == Counter([1, 1, 2, 3, 4])


def test_versions_of_a_log_that_was_cleaned_up_are_skipped(table_lab: TableLab) -> None:
    table_lab.write(1)
    table_lab.run()
    for number in (2, 3, 4):
        table_lab.write(number)
    table_lab.delta.create_checkpoint()
    for version in (1, 2):
        (table_lab.table / "_delta_log" / f"{version:020}.json").unlink()
    shown = table_lab.typed(stopped(table_lab, codes.VERSIONS_GONE), "skip")
    assert f"lost for good: 2 offsets, {table_lab.table}[0] [1, 3)" in shown
    table_lab.run()
    assert table_lab.ids() == Counter([1, 4])


@pytest.mark.long
def test_a_table_that_was_created_again_is_read_from_its_beginning_by_the_command(table_lab: TableLab) -> None:
    table_lab.write(1)
    table_lab.write(2)
    table_lab.run()
    shutil.rmtree(table_lab.table)
    for number in (7, 8, 9):
        table_lab.write(number)
    table_lab.typed(stopped(table_lab, codes.SOURCE_TABLE_REPLACED), "reset-source")
    table_lab.run()
    table_lab.write(10)
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2, 7, 8, 9, 10])


@pytest.mark.long
def test_a_feed_that_was_off_goes_on_with_the_first_version_that_has_one(table_lab: TableLab) -> None:
    table_lab.options["changes"] = "feed"
    table_lab.write(1)
    table_lab.run()
    table_lab.write(2)
    error = stopped(table_lab, codes.CHANGE_FEED_OFF)
    table_lab.delta.alter.set_table_properties(FEED)
    shown = table_lab.typed(error, "skip")
    assert f"lost for good: 1 offsets, {table_lab.table}[0] [1, 2)" in shown
    table_lab.write(3)
    table_lab.run()
    assert table_lab.ids() == Counter([1, 3])


def test_an_epoch_whose_whole_table_is_gone_is_planned_anew(table_lab: TableLab) -> None:
    table_lab.write(1)
    table_lab.write(2)
    with pytest.raises(Crash):
        table_lab.run(at={"stage.start": crash})
    table_lab.delta.optimize.compact()
    table_lab.delta.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    table_lab.typed(stopped(table_lab, codes.VERSIONS_GONE), "replan")
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2])


@pytest.mark.long
def test_a_rewound_pipeline_reads_the_versions_once_more(
    table_lab: TableLab, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2, 3):
        table_lab.write(number)
        table_lab.run()
    shown = table_lab.ordered("rewind", "--to-epoch", "1")
    assert f"read again, so rows that are there come twice: 2 offsets, {table_lab.table}[0] [1, 3)" in shown
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2, 2, 3, 3])
    with pytest.raises(SystemExit) as refused:
        table_lab.ordered("rewind", "--to-timestamp", "2026-01-01T00:00Z")
    assert refused.value.code == 2
    assert "Use --to-epoch, --to-savepoint, or --offsets FILE" in capsys.readouterr().err
