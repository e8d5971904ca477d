"""``airflow epochs export``: what DuckDB and json read is what the ledger has."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import duckdb
import pytest

from airflow_epochs.commands.export import export
from airflow_epochs.coordinator.admin import admin
from airflow_epochs.coordinator.admin.admin import Account
from tests.support.faults_world import DiskWorld, start

pytestmark = pytest.mark.proof


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DiskWorld:
    """Two complete epochs, the second without the sink ``audit``; and one in doubt."""
    world = start(DiskWorld(tmp_path))
    world.crash_at("commit.audit")
    admin.waive(world.ledger, 2, "audit", by=Account(who="ann", why="a test"))
    assert world.run(3) is None
    world.produce(2)
    world.crash_at("commit.audit", 4)
    described = {"conn_type": "epochs", "extra": {"ledger_root": str(world.ledger_root)}}
    monkeypatch.setenv("AIRFLOW_CONN_EPOCHS_DEFAULT", json.dumps(described))
    return world


def typed(file: Path, epochs: int | None = None, pipeline: str = "orders") -> None:
    export(Namespace(pipeline=pipeline, file=str(file), epochs=epochs, ledger_conn_id="epochs_default"))


def test_duckdb_reads_a_row_for_each_epoch(
    world: DiskWorld, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "epochs.parquet"
    typed(file)
    assert capsys.readouterr().out == f"{file} has 3 epochs of pipeline orders.\n"
    found = duckdb.sql(f"SELECT epoch, state, rows, transaction, len(ranges) FROM '{file}' ORDER BY ALL").fetchall()
    assert [row[:2] for row in found] == [(1, "complete"), (2, "complete"), (3, "in doubt")]
    for number, _, rows, transaction, ranges in found[:2]:
        record = world.ledger.complete_record(number)
        assert record and transaction == record.txn_id
        assert rows == sum(receipt.rows for receipt in record.receipts.values())
        assert ranges == sum(len(of) for of in record.ranges.values())
    sinks = f"SELECT s.sink, s.version, s.waived FROM (SELECT unnest(sinks) s FROM '{file}' WHERE epoch = 2) ORDER BY 1"
    assert duckdb.sql(sinks).fetchall() == [("audit", None, True), ("orders", 1, False)]


def test_json_lines_have_all_records(world: DiskWorld, tmp_path: Path) -> None:
    file = tmp_path / "epochs.jsonl"
    typed(file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["pipeline"], line["number"]) for line in lines] == [("orders", 1), ("orders", 2), ("orders", 3)]
    assert lines[1]["waived"]["audit"]["why"] == "a test"
    assert lines[0]["attempts"][0]["tries"] and lines[2]["state"] == "in doubt"


def test_only_so_many_of_the_newest_epochs_are_written(world: DiskWorld, tmp_path: Path) -> None:
    typed(tmp_path / "two.jsonl", 2)
    lines = [json.loads(line) for line in (tmp_path / "two.jsonl").read_text().splitlines()]
    assert [line["number"] for line in lines] == [2, 3]
    assert world.run(5) is None
    typed(tmp_path / "newest.jsonl", 1)
    [line] = (tmp_path / "newest.jsonl").read_text().splitlines()
    assert (json.loads(line)["number"], json.loads(line)["state"]) == (3, "complete")


@pytest.mark.parametrize("name", ["epochs.csv", "epochs"])
def test_a_file_of_another_kind_is_refused(world: DiskWorld, tmp_path: Path, name: str) -> None:
    with pytest.raises(SystemExit, match="has another ending than"):
        typed(tmp_path / name)
    assert not (tmp_path / name).exists()


def test_a_file_that_is_there_stays(world: DiskWorld, tmp_path: Path) -> None:
    (tmp_path / "epochs.jsonl").write_text("mine")
    with pytest.raises(SystemExit, match="exists already"):
        typed(tmp_path / "epochs.jsonl")
    assert (tmp_path / "epochs.jsonl").read_text() == "mine"


def test_a_folder_that_is_not_there_is_told(world: DiskWorld, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="cannot be written: No such file or directory"):
        typed(tmp_path / "no" / "epochs.jsonl")


def test_an_unknown_pipeline_ends_with_exit_code_2(world: DiskWorld, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        typed(tmp_path / "epochs.jsonl", pipeline="ordres")
    assert ended.value.code == 2
