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
from stack.connect import ConnectServer
from tests.support import remedies
from tests.support.rebuilt import offsets_file
from tests.support.table_lab import PIPELINE, TableLab

pytestmark = pytest.mark.jvm


@pytest.fixture
def lab(tmp_path: Path, connect: ConnectServer) -> TableLab:
    return TableLab(tmp_path, connect.where)


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
def test_an_epoch_of_versions_is_listed_shown_and_played_again(lab: TableLab) -> None:
    epochs(lab, 1, 2)
    listed = lab.printed("list", "-o", "plain").splitlines()[1:]
    assert [line.split()[0] for line in listed] == ["2", "1"]
    assert str(lab.table) in lab.printed("show", "2")
    assert "No epoch is unfinished; the newest complete one is 2." in lab.printed("in-doubt")
    lab.delta.optimize.compact()
    for epoch in ("1", "2"):
        told = json.loads(lab.printed("dry-run", "--epoch", epoch, "-o", "json"))
        ((sink, then, now, lost, new),) = [
            (each["sink"], each["rows_then"], each["rows_now"], each["only_then"], each["only_now"])
            for each in told["sinks"]
        ]
        assert (sink, then, now, lost, new, told["decision"]) == ("rows", 1, 1, 0, 0, "GLOBAL_COMMIT")
    assert lab.ids() == Counter([1, 2])


def test_a_pipeline_goes_back_to_a_savepoint_with_its_tables_and_another_one_begins_there(lab: TableLab) -> None:
    epochs(lab, 1, 2)
    lab.ordered("savepoint", "good")
    assert "good" in lab.printed("savepoints")
    epochs(lab, 3)
    starting = json.loads(lab.printed("describe-savepoint", "good"))["starting"]
    other = TableLab(lab.folder / "other", lab.where, {"starting": starting})
    other.folder.mkdir()
    other.table = lab.table
    other.run()
    assert other.ids() == Counter([3])
    shown = lab.ordered("rewind", "--to-savepoint", "good", "--restore-tables")
    assert f"read again: 1 offsets, {lab.table}[0] [2, 3)" in shown
    lab.run()
    assert lab.ids() == Counter([1, 2])
    lab.run()
    assert lab.ids() == Counter([1, 2, 3])
    lab.ordered("dispose-savepoint", "good")
    with pytest.raises(SystemExit, match="has no savepoint 'good'"):
        lab.ordered("rewind", "--to-savepoint", "good")


@pytest.mark.long
def test_a_file_of_offsets_names_the_version_to_go_on_with(lab: TableLab) -> None:
    epochs(lab, 1, 2)
    assert "so rows that are there come twice: 1 offsets" in lab.ordered("rewind", "--offsets", file_of(lab, 1))
    lab.run()
    lab.write(3)
    lab.write(4)
    assert f"lost for good: 1 offsets, {lab.table}[0] [2, 3)" in lab.ordered("skip", "--offsets", file_of(lab, 3))
    lab.run()
    assert lab.ids() == Counter([1, 2, 2, 4])
    lab.ordered("reset-source", "--offsets", file_of(lab, 2))
    lab.run()
    assert lab.ids() == Counter([1, 2, 2, 3, 4, 4])
    with pytest.raises(SystemExit, match=r"and the newest version of .* is 3\. Nothing was changed"):
        lab.ordered("skip", "--offsets", file_of(lab, 99))


def test_a_sink_that_was_lost_is_adopted_and_gets_later_versions(lab: TableLab) -> None:
    epochs(lab, 1)
    shutil.rmtree(lab.folder / "rows")
    lab.write(2)
    error = stopped(lab)
    lab.ordered("adopt-sink", "rows")
    lab.run()
    assert error.sink == "rows"
    assert lab.ids() == Counter([2])


def lose_ledger(lab: TableLab) -> Ranges:
    """What the last epoch read."""
    ranges = lab.opened(lab.ledger.newest_complete()).ranges
    shutil.rmtree(lab.folder / "ledger")
    return ranges


def test_a_lost_ledger_is_rebuilt_from_the_sinks(lab: TableLab) -> None:
    epochs(lab, 1, 2)
    lose_ledger(lab)
    lab.write(3)
    assert "airflow epochs rebuild" in str(stopped(lab))
    lab.ordered("rebuild")
    lab.run()
    assert lab.ids() == Counter([1, 2, 3])


@pytest.mark.long
def test_a_lost_ledger_is_rebuilt_from_a_file_where_the_sinks_log_is_gone_too(lab: TableLab) -> None:
    epochs(lab, 1, 2)
    file = offsets_file(lab.folder, lose_ledger(lab))
    remedies.log_cleaned(lab.folder / "rows")
    lab.write(3)
    with pytest.raises(SystemExit, match="No sink knows the offsets"):
        lab.ordered("rebuild")
    lab.ordered("rebuild", "--offsets", file)
    lab.run()
    assert lab.ids() == Counter([1, 2, 3])


def everything(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in folder.rglob("*"))


def test_a_command_about_the_offsets_of_topics_says_so_and_writes_nothing(
    lab: TableLab, capsys: pytest.CaptureFixture[str]
) -> None:
    epochs(lab, 1)
    before, place = everything(lab.folder), str(lab.folder / "checkpoint")
    for command, *words in (
        ("adopt-checkpoint", place),
        ("adopt-group", "--group", "readers"),
        ("export-checkpoint", place),
        ("export-group", "--group", "readers"),
        ("rewind", "--to-timestamp", "2026-01-01T00:00Z"),
    ):
        with pytest.raises(SystemExit) as ended:
            lab.ordered(command, *words)
        text = capsys.readouterr().err
        assert ended.value.code == 2, command
        assert codes.SOURCE_NOT_MOVABLE.name in text
        assert re.search(r"Kafka only|DeltaSource does not go back to a time", text), text
        assert "Nothing was changed" in text
    assert everything(lab.folder) == before
