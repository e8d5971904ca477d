"""The DAG changes its DeltaSource, as an error said: the commands that the next errors name lead to a run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt, EpochError, Refused, located
from airflow_epochs.model import OffsetRange
from tests.support.table_lab import PIPELINE, TableLab, entry, maps_in
from tests.support.table_staging import WithoutSpark

pytestmark = pytest.mark.proof

ON = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def lab(tmp_path: Path) -> TableLab:
    """Epoch 1 has read the table with rows 1 and 2, epoch 2 has read row 3, as appends."""
    lab = TableLab(tmp_path, spark=WithoutSpark())
    lab.write(1, 2)
    lab.run()
    lab.write(3)
    lab.run()
    return lab


def stopped(lab: TableLab) -> EpochError:
    with pytest.raises((Corrupt, Refused)) as error, located(PIPELINE):
        lab.run()
    return error.value


def set_on(lab: TableLab, *, mapped: bool = False) -> None:
    """The table keeps its changes from now on. ``mapped``: it has column mapping, too, which deltalake does not set."""
    lab.delta.alter.set_table_properties(ON)
    if mapped:
        log, plain = entry(lab, lab.delta.version()), '"configuration":{'
        log.write_text(log.read_text().replace(plain, plain + '"delta.columnMapping.mode":"name",'))


def test_a_pipeline_goes_on_behind_versions_from_before_the_feed_that_the_error_said_to_read(lab: TableLab) -> None:
    lab.write(4)
    set_on(lab)
    lab.write(5)
    set_on(lab, mapped=True)
    error = stopped(lab)
    assert error.code is codes.DELTA_SOURCE_UNREADABLE and "Set changes='feed' in the DAG" in error.remedy
    lab.options = {"changes": "feed"}
    error = stopped(lab)
    assert error.code is codes.CHANGE_FEED_OFF
    assert "lost for good: 1 offsets" in lab.typed(error, "skip")
    lab.run()
    assert lab.ids() == Counter([1, 2, 3, 5])


def test_a_table_that_the_dag_reads_as_a_feed_since_the_last_epoch_is_read_as_a_whole(lab: TableLab) -> None:
    lab.write(4)
    set_on(lab, mapped=True)
    lab.options = {"changes": "feed", "starting": "latest", "max_versions": 1}
    error = stopped(lab)
    assert error.code is codes.CHANGE_FEED_OFF
    lab.typed(error, "reset-source")
    lab.run()
    assert lab.ids() == Counter([1, 1, 2, 2, 3, 3, 4]), "the remedy says that it reads the whole table"


@pytest.mark.parametrize(
    ("command", "rows"), [("skip", [1, 2, 3, 5]), ("reset-source", [1, 1, 2, 2, 3, 3, 4, 5])], ids=str
)
def test_rows_of_a_time_when_files_called_a_column_otherwise_are_left_out_or_read_with_the_whole_table(
    lab: TableLab, command: str, rows: list[int]
) -> None:
    lab.write(4)
    lab.write(5)
    maps_in(lab, 2, "price")
    maps_in(lab, 3, None)
    error = stopped(lab)
    assert error.code is codes.COLUMNS_CHANGED
    lab.typed(error, command)
    lab.run()
    assert lab.ids() == Counter(rows)


def test_skip_judges_versions_as_the_dag_reads_them_now(lab: TableLab) -> None:
    lab.delta.delete("id = 1")
    error = stopped(lab)
    assert error.code is codes.ROWS_CHANGED and "set changes='feed' in the DAG" in error.remedy
    lab.options = {"changes": "feed"}
    lab.write(4)
    set_on(lab)
    lab.write(5)
    error = stopped(lab)
    assert error.code is codes.CHANGE_FEED_OFF
    lab.typed(error, "skip")
    lab.run()
    assert lab.ids() == Counter([1, 2, 3, 5])


def test_reset_source_goes_on_in_the_table_that_the_dag_names_now(lab: TableLab) -> None:
    first, lab.table = lab.table, lab.folder / "other"
    lab.write(7, 8)
    error = stopped(lab)
    assert error.code is codes.SOURCE_TABLE_REPLACED
    shown = lab.typed(error, "reset-source")
    assert "left for good" in shown and str(first) in shown
    lab.run()
    lab.write(9)
    lab.run()
    assert lab.ids() == Counter([1, 2, 3, 7, 8, 9])


def test_versions_before_the_one_that_reset_source_chose_in_another_table_are_not_told_as_lost(lab: TableLab) -> None:
    """As with a topic that was created again: the pipeline begins there. What a later command passes over is lost."""
    lab.table = lab.folder / "other"
    for row in (7, 8, 9):
        lab.write(row)
    screen = lab.ordered("reset-source", "--starting", "1")
    assert "left for good" in screen and "lost for good" not in screen
    (lab.folder / "offsets").write_text(json.dumps({str(lab.table): {"0": 2}}))
    screen = lab.ordered("skip", "--offsets", str(lab.folder / "offsets"))
    assert f"  lost for good: 1 offsets, {lab.table}[0] [1, 2)\n" in screen
    lab.run()
    completed = lab.ledger.complete_record(3)
    assert completed
    assert [each.lost for each in completed.commands] == [{}, {str(lab.table): (OffsetRange(0, 1, 2),)}]
    assert lab.ids() == Counter([1, 2, 3, 9])


def test_where_no_dag_tells_the_source_a_command_takes_the_recorded_one_and_says_so(
    lab: TableLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(*asked: object, **named: object) -> None:
        raise Refused("No DAG has it.", code=codes.PIPELINE_NOT_IN_DAGS)

    lab.delta.delete("id = 1")
    lab.write(4)
    error = stopped(lab)
    lab.in_dags = nowhere
    shown = lab.typed(error, "skip")
    assert "EPOCHS-PIPELINE-NOT-IN-DAGS" in shown and "it is taken as epoch 2 has it on record" in shown
    lab.run()
    assert lab.ids() == Counter([1, 2, 3, 4])


def moved(lab: TableLab) -> None:
    """Somebody moves the table, and the DAG follows."""
    lab.table = lab.table.rename(lab.folder / "elsewhere")


@pytest.mark.parametrize("read", [True, False], ids=["read there", "not yet read there"])
def test_a_pipeline_of_a_table_that_was_moved_goes_back_with_its_tables_to_before_the_move(
    lab: TableLab, read: bool
) -> None:
    moved(lab)
    if read:
        lab.write(4)
        lab.run()
    text = lab.ordered("rewind", "--to-epoch", "1", "--restore-tables")
    assert f"read again: {2 if read else 1} offsets, {lab.table}[0] [1, " in text
    lab.run()
    assert lab.ids() == Counter([1, 2])
    lab.run()
    assert lab.ids() == Counter([1, 2, 3, *([4] if read else [])])
    assert "offsets" in (verified := lab.printed("verify")) and "wrong" not in verified


def test_a_backfill_reads_what_a_table_had_before_it_was_moved_and_the_offsets_are_found_contiguous(
    lab: TableLab,
) -> None:
    moved(lab)
    lab.write(4)
    lab.run()
    lab.write(5)
    lab.more_sinks, lab.backfill = ("gold",), {"gold": 1}
    lab.run()
    assert sorted(row[0] for row in lab.asked("SELECT id FROM t", of="gold")) == [1, 2, 3, 4, 5]
    verified = lab.printed("verify")
    assert "offsets" in verified and "wrong" not in verified


# -- a table that went back ------------------------------------------------------------------------------------------


def test_a_pipeline_that_has_read_rows_which_the_table_took_back_is_rewound_as_the_error_says(lab: TableLab) -> None:
    lab.delta.restore(0)
    lab.write(3)  # as a pipeline does that writes the table and was rewound with --restore-tables
    lab.write(4)
    error = stopped(lab)
    assert error.code is codes.ROWS_CHANGED and "it takes the table back to version 0, and the pip" in error.what
    assert "`airflow epochs rewind reader --to-epoch N --restore-tables" in str(error)
    found = lab.typed(error, "find", "-o", "plain", "--ledger-conn-id", "epochs_default")
    assert "reader 2 " in " ".join(found.split())
    lab.ordered("rewind", "--to-epoch", "1", "--restore-tables")
    lab.run()
    assert lab.ids() == Counter([1, 2])
    lab.run()
    assert lab.ids() == Counter([1, 2, 3, 4])


@pytest.mark.parametrize("bounds", [{}, {"max_versions": 1}, {"max_files": 1}], ids=str)
@pytest.mark.parametrize("between", ["", "compact", "vacuum", "restore"])
def test_rows_that_a_table_took_back_before_they_were_read_are_left_out(
    lab: TableLab, bounds: dict[str, int], between: str
) -> None:
    lab.write(4)
    if between == "compact":
        lab.delta.optimize.compact()
    if between == "restore":
        lab.delta.restore(1)
    lab.write(5)
    lab.delta.restore(1)
    if between == "vacuum":
        lab.delta.vacuum(0, dry_run=False, enforce_retention_duration=False)
    lab.write(6)
    lab.options = bounds
    while lab.versions()[-1][1] <= lab.delta.version():
        lab.run()
    assert lab.ids() == Counter([1, 2, 3, 6])


def test_a_version_that_only_says_that_it_leads_back_stops_the_pipeline(lab: TableLab) -> None:
    lab.write(4)
    lab.delta.delete("id = 4")
    lab.write(5)
    log = entry(lab, lab.delta.version())
    log.write_text(log.read_text().replace('"operation":"WRITE"', '"operation":"RESTORE"'))
    lab.run()
    assert stopped(lab).code is codes.ROWS_CHANGED
    assert lab.ids() == Counter([1, 2, 3, 4])


def test_a_first_epoch_that_read_rows_which_the_table_took_back_is_read_again_into_an_empty_table(
    tmp_path: Path,
) -> None:
    lab = TableLab(tmp_path, spark=WithoutSpark())
    lab.write(1)
    lab.write(2)
    lab.run()
    lab.delta.restore(0)
    lab.write(2)
    error = stopped(lab)
    assert "If there is no epoch before it, empty the tables of the sinks" in error.remedy
    DeltaTable(str(lab.folder / "rows")).delete()
    lab.typed(error, "reset-source")
    lab.run()
    assert lab.ids() == Counter([1, 2])


def test_the_first_step_through_a_history_ends_before_versions_that_were_taken_back(tmp_path: Path) -> None:
    lab = TableLab(tmp_path, spark=WithoutSpark(), options={"starting": 0, "max_versions": 3})
    for number in (1, 2, 3):
        lab.write(number)
    lab.delta.restore(0)
    for number in (2, 3):
        lab.write(number)
    lab.run()
    assert lab.versions() == [(0, 1)]
    while lab.versions()[-1][1] <= lab.delta.version():
        lab.run()
    assert lab.ids() == Counter([1, 2, 3])


def test_a_version_that_cannot_be_read_behind_what_was_taken_back_is_left_out_by_the_command_in_the_error(
    lab: TableLab,
) -> None:
    lab.write(4)
    lab.delta.restore(1)
    lab.delta.delete("id = 1")
    lab.write(9)
    lab.run()
    assert "lost for good: 1 offsets" in lab.typed(stopped(lab), "skip")
    lab.run()
    assert lab.ids() == Counter([1, 2, 3, 9])


def test_an_optimize_that_was_taken_back_stops_no_reader_wherever_an_epoch_ends(lab: TableLab) -> None:
    lab.options = {"max_versions": 2}
    lab.write(4)
    lab.delta.optimize.compact()
    lab.delta.restore(2)
    lab.write(5)
    while lab.versions()[-1][1] <= lab.delta.version():
        lab.run()
    assert lab.ids() == Counter([1, 2, 3, 4, 5])


def test_a_file_that_was_added_again_for_its_statistics_does_not_hide_that_its_rows_were_taken_back(
    lab: TableLab,
) -> None:
    lab.write(4)
    told, add = (json.loads(line) for line in entry(lab, 1).read_text().splitlines())
    add["add"]["dataChange"] = False
    entry(lab, 3).write_text("\n".join(json.dumps(action) for action in (told, add)))
    lab.delta.restore(0)
    lab.write(3)
    lab.run()
    assert stopped(lab).code is codes.ROWS_CHANGED
    assert lab.ids() == Counter([1, 2, 3, 4])
