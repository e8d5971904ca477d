"""``airflow epochs state``."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from pathlib import Path

import pytest

from airflow_epochs import cli
from orders_demo.duck import duck
from tests.support.state_written import DELETED, START, WrittenState, at, mark


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenState:
    written = WrittenState(tmp_path)
    connection = {"conn_type": "epochs", "extra": {"ledger_root": written.root}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(connection))
    return written


def show(**given: object) -> None:
    defaults = {"name": None, "epoch": None, "sql": None, "storage_conn_id": None, "output": "json"}
    cli.show_state(Namespace(pipeline="p", ledger_conn_id="epochs_default", **(defaults | given)))


def test_state_prints_the_size_the_changes_and_the_times_of_each_state_table(
    written: WrittenState, capsys: pytest.CaptureFixture[str]
) -> None:
    written.epoch(("a", 10, 1), ("b", 20, 1), ("c", 90, 1), watermarks=(5, None))
    written.metrics = {"rows_late": 7}
    written.epoch(("a", 60, 2), ("c", 90, 1, DELETED), watermarks=(15, 5))
    show()
    [row] = json.loads(capsys.readouterr().out)
    size = sum(path.stat().st_size for path in written.table.glob("*.parquet"))
    lag_s = int(row.pop("lag").removesuffix(" s"))
    assert lag_s == pytest.approx(time.time() - START.timestamp() - 15, abs=60)
    assert row == {
        "state": "open",
        "epoch": 2,
        "version": 1,
        "keys": 2,
        "files": 2,
        "bytes": size,
        "rows changed": 2,
        "files dropped": 0,
        "rows late": 7,
        "watermark": at(15).isoformat(),
        "next expiry": at(20).isoformat(),
    }


def test_of_a_fold_and_without_event_time_state_prints_only_what_is_known(
    written: WrittenState, capsys: pytest.CaptureFixture[str]
) -> None:
    written.expires = None
    written.epoch(("a", 10, 1), ("b", 20, 1))
    written.epoch(("a", 10, 1), ("b", 20, 1), ("c", 20, 1), fold=True)
    show(name="open")
    [row] = json.loads(capsys.readouterr().out)
    assert (row["keys"], row["files"]) == (3, 1)
    unknown = ("rows changed", "files dropped", "rows late", "watermark", "lag", "next expiry")
    assert [row[column] for column in unknown] == [None] * 6


def test_state_counts_the_files_that_the_commit_dropped(
    written: WrittenState, capsys: pytest.CaptureFixture[str]
) -> None:
    written.epoch(("a", 10, 1), watermarks=(None, None))
    written.epoch(("b", 50, 1), watermarks=(10, None))
    written.drop_file_of(1)
    show()
    [row] = json.loads(capsys.readouterr().out)
    assert (row["keys"], row["files"], row["files dropped"]) == (1, 1, 1)


def test_state_of_an_earlier_epoch_is_that_of_then(written: WrittenState, capsys: pytest.CaptureFixture[str]) -> None:
    written.epoch(("a", 10, 1))
    written.epoch(("b", 10, 1))
    show(epoch=1)
    [row] = json.loads(capsys.readouterr().out)
    assert (row["epoch"], row["keys"]) == (1, 1)


@pytest.mark.parametrize("statements", [["duckdb"], ["duckdb", "duckdb"]], ids=["once", "twice"])
def test_what_state_prints_for_duckdb_makes_a_view_of_the_state(
    statements: list[str], written: WrittenState, capsys: pytest.CaptureFixture[str]
) -> None:
    written.epoch(("a", 10, 1), ("b", 10, 1))
    written.epoch(("a", 10, 2), ("b", 10, 1, DELETED))
    for engine in statements:
        show(name="open", sql=engine)
    with duck() as db:
        db.execute(capsys.readouterr().out)
        assert db.execute('SELECT page, n FROM "open"').fetchall() == [("a", 2)]


def test_the_sql_is_for_one_state(written: WrittenState) -> None:
    with pytest.raises(SystemExit, match=r"which state table(.|\n)*airflow epochs state p NAME --sql spark"):
        show(sql="spark")


def test_a_state_that_the_pipeline_does_not_have_is_refused_without_a_traceback(written: WrittenState) -> None:
    written.epoch(("a", 10, 1))
    with pytest.raises(SystemExit, match=r"EPOCHS-STATE-UNKNOWN: .*'shut'.\nWhere: pipeline p, sink shut\nWhat to do"):
        show(name="shut")


def test_a_pipeline_without_state_has_nothing_to_show(
    written: WrittenState, capsys: pytest.CaptureFixture[str]
) -> None:
    written.epoch(("a", 10, 1))
    written.epoch_without_the_state()
    show()
    assert json.loads(capsys.readouterr().out) == []


def test_the_connection_of_the_store_can_be_named_where_records_are_not_signed(
    written: WrittenState, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws"}))
    written.spec = {"storage_conn_id": "lake"}
    written.epoch(("a", 10, 1))
    with pytest.raises(SystemExit, match=r"'lake'(.|\n)*--storage-conn-id"):
        show()
    show(storage_conn_id="lake")
    assert json.loads(capsys.readouterr().out)[0]["keys"] == 1


def test_a_watermark_before_the_calendar_begins_is_shown_as_a_number(
    written: WrittenState, capsys: pytest.CaptureFixture[str]
) -> None:
    written.epoch(("a", 10, 1), watermarks=(-(10**11), None))
    show()
    assert json.loads(capsys.readouterr().out)[0]["watermark"] == f"{mark(-(10**11))} us"
