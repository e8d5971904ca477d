"""Each command of ``airflow epochs`` with a pipeline that reads a table. DuckDB counts what comes of it."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt, EpochError, Refused, located
from airflow_epochs.model import Ranges
from tests.support import remedies
from tests.support.rebuilt import offsets_file
from tests.support.table_lab import PIPELINE, TableLab

pytestmark = pytest.mark.jvm


def epochs(lab: TableLab, *ids: int) -> None:
    """An epoch for each row."""
    for number in ids:
        lab.write(number)
        lab.run()


def stopped(lab: TableLab) -> EpochError:
    with pytest.raises((Corrupt, Refused)) as error, located(PIPELINE):
        lab.run()
    return error.value


def file_of(lab: TableLab, version: int) -> str:
    file = lab.folder / "FILE"
    file.write_text(json.dumps({str(lab.table): {"0": version}}))
    return str(file)


@pytest.mark.long
def test_an_epoch_of_versions_is_listed_shown_and_played_again(table_lab: TableLab) -> None:
    epochs(table_lab, 1, 2)
    listed = table_lab.printed("list", "-o", "plain").splitlines()[1:]
    assert [line.split()[0] for line in listed] == ["2", "1"]
    assert str(table_lab.table) in table_lab.printed("show", "2")
    assert "No epoch is unfinished; the newest complete one is 2." in table_lab.printed("in-doubt")
    table_lab.delta.optimize.compact()
    for epoch in ("1", "2"):
        told = json.loads(table_lab.printed("dry-run", "--epoch", epoch, "-o", "json"))
        ((sink, then, now, lost, new),) = [
            (each["sink"], each["rows_then"], each["rows_now"], each["only_then"], each["only_now"])
            for each in told["sinks"]
        ]
        assert (sink, then, now, lost, new, told["decision"]) == ("rows", 1, 1, 0, 0, "GLOBAL_COMMIT")
    assert table_lab.ids() == Counter([1, 2])


def test_a_pipeline_goes_back_to_a_savepoint_with_its_tables_and_another_one_begins_there(table_lab: TableLab) -> None:
    epochs(table_lab, 1, 2)
    table_lab.ordered("savepoint", "good")
    assert "good" in table_lab.printed("savepoints")
    epochs(table_lab, 3)
    starting = json.loads(table_lab.printed("describe-savepoint", "good"))["starting"]
    other = TableLab(table_lab.folder / "other", table_lab.where, {"starting": starting})
    other.folder.mkdir()
    other.table = table_lab.table
    other.run()
    assert other.ids() == Counter([3])
    shown = table_lab.ordered("rewind", "--to-savepoint", "good", "--restore-tables")
    assert f"read again: 1 offsets, {table_lab.table}[0] [2, 3)" in shown
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2])
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2, 3])
    table_lab.ordered("dispose-savepoint", "good")
    with pytest.raises(SystemExit, match="has no savepoint 'good'"):
        table_lab.ordered("rewind", "--to-savepoint", "good")


@pytest.mark.long
def test_a_file_of_offsets_names_the_version_to_go_on_with(table_lab: TableLab) -> None:
    epochs(table_lab, 1, 2)
    assert "so rows that are there come twice: 1 offsets" in table_lab.ordered(
        "rewind", "--offsets", file_of(table_lab, 1)
    )
    table_lab.run()
    table_lab.write(3)
    table_lab.write(4)
    assert f"lost for good: 1 offsets, {table_lab.table}[0] [2, 3)" in table_lab.ordered(
        "skip", "--offsets", file_of(table_lab, 3)
    )
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2, 2, 4])
    table_lab.ordered("reset-source", "--offsets", file_of(table_lab, 2))
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2, 2, 3, 4, 4])
    with pytest.raises(SystemExit, match=r"and the newest version of .* is 3\. Nothing was changed"):
        table_lab.ordered("skip", "--offsets", file_of(table_lab, 99))


def test_a_sink_that_was_lost_is_adopted_and_gets_later_versions(table_lab: TableLab) -> None:
    epochs(table_lab, 1)
    shutil.rmtree(table_lab.folder / "rows")
    table_lab.write(2)
    error = stopped(table_lab)
    table_lab.ordered("adopt-sink", "rows")
    table_lab.run()
    assert error.sink == "rows"
    assert table_lab.ids() == Counter([2])


def lose_ledger(lab: TableLab) -> Ranges:
    """What the last epoch read."""
    ranges = lab.opened(lab.ledger.newest_complete()).ranges
    shutil.rmtree(lab.folder / "ledger")
    return ranges


def test_a_lost_ledger_is_rebuilt_from_the_sinks(table_lab: TableLab) -> None:
    epochs(table_lab, 1, 2)
    lose_ledger(table_lab)
    table_lab.write(3)
    assert "airflow epochs rebuild" in str(stopped(table_lab))
    table_lab.ordered("rebuild")
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2, 3])


@pytest.mark.long
def test_a_lost_ledger_is_rebuilt_from_a_file_where_the_sinks_log_is_gone_too(table_lab: TableLab) -> None:
    epochs(table_lab, 1, 2)
    file = offsets_file(table_lab.folder, lose_ledger(table_lab))
    remedies.log_cleaned(table_lab.folder / "rows")
    table_lab.write(3)
    with pytest.raises(SystemExit, match="No sink knows the offsets"):
        table_lab.ordered("rebuild")
    table_lab.ordered("rebuild", "--offsets", file)
    table_lab.run()
    assert table_lab.ids() == Counter([1, 2, 3])


def everything(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


def test_a_command_about_the_offsets_of_topics_says_so_and_writes_nothing(
    table_lab: TableLab, capsys: pytest.CaptureFixture[str]
) -> None:
    epochs(table_lab, 1)
    before, place = everything(table_lab.folder), str(table_lab.folder / "checkpoint")
    for command, *words in (
        ("adopt-checkpoint", place),
        ("adopt-group", "--group", "readers"),
        ("export-checkpoint", place),
        ("export-group", "--group", "readers"),
        ("rewind", "--to-timestamp", "2026-01-01T00:00Z"),
    ):
        with pytest.raises(SystemExit) as ended:
            table_lab.ordered(command, *words)
        text = capsys.readouterr().err
        assert ended.value.code == 2, command
        assert codes.SOURCE_NOT_MOVABLE.name in text
        assert re.search(r"Kafka only|DeltaSource does not go back to a time", text), text
        assert "Nothing was changed" in text
    assert everything(table_lab.folder) == before
