"""A ledger in the folder of a table: a VACUUM of the table would take it for files that no version has."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.storage import vacuum
from tests.support.faults_world import SINKS, DiskWorld, start
from tests.support.remedies import assert_all_rows, doomed_in

LIES_INSIDE = "lies inside the table of the sink 'orders'"


@pytest.fixture
def lake(tmp_path: Path) -> DiskWorld:
    """The ledger's root is the folder of the tables, and the pipeline is called as one of them, which is there."""
    other = DiskWorld(tmp_path, name="other", ledger_folder=tmp_path / "ledgers")
    other.produce(2)
    assert other.run(1) is None
    for sink in other.sinks:
        DeltaTable(str(other.table(sink))).delete()
    world = DiskWorld(tmp_path, name="orders", ledger_folder=tmp_path)
    world.produce(4)
    return world


def refusal(world: DiskWorld, number: int, epoch: int) -> Refused:
    """A run is red before it has staged anything, because of the ledger."""
    error = world.run(number)
    assert isinstance(error, Refused) and error.code is codes.LEDGER_IN_TABLE
    assert world.ledger.tries(epoch) == [] and world.rows("orders") == []
    return error


def test_the_first_epoch_of_a_pipeline_whose_ledger_lies_in_a_table_is_refused_before_anything_is_staged(
    lake: DiskWorld, tmp_path: Path
) -> None:
    error = refusal(lake, 1, epoch=1)
    assert f"The ledger of this pipeline, {lake.records}, lies inside the Delta table {tmp_path}/orders." in error.what
    assert "if the pipeline has no complete epoch" in error.remedy
    mended = replace(lake, ledger_folder=lake.folder / "ledgers")
    assert mended.run(2) is None
    assert_all_rows(mended, "orders", "audit")


@pytest.mark.parametrize("around", ["", "lake", "lake/bronze"])
def test_a_new_ledger_in_the_folder_of_a_strangers_table_is_refused_until_its_root_is_outside(
    tmp_path: Path, around: str
) -> None:
    stranger = tmp_path / around
    write_deltalake(str(stranger), pa.table({"id": [1]}))
    (tmp_path / "_own").mkdir()
    world = DiskWorld(tmp_path / "_own", ledger_folder=tmp_path / "lake/bronze/ledgers")
    world.produce(4)
    error = refusal(world, 1, epoch=1)
    assert f"{tmp_path}/lake/bronze/ledgers/orders, lies inside the Delta table {stranger}." in error.what
    assert "/orders/pipeline.json" in " ".join(doomed_in(stranger))
    mended = replace(world, ledger_folder=tmp_path / "_own" / "ledgers")
    assert mended.run(2) is None
    DeltaTable(str(stranger)).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    mended.one_more_epoch()
    assert_all_rows(mended, "orders", "audit")


def test_a_new_sink_whose_table_has_the_ledger_in_it_is_refused_before_anything_is_staged(tmp_path: Path) -> None:
    one = start(DiskWorld(tmp_path, name="orders", ledger_folder=tmp_path, sinks=("audit",)))
    write_deltalake(str(tmp_path / "orders"), DeltaTable(str(one.table("audit"))).to_pyarrow_table().slice(0, 0))
    world = replace(one, sinks=SINKS, backfill={"orders": 1})
    error = refusal(world, 2, epoch=2)
    assert f"The ledger of this pipeline, {tmp_path}/orders, {LIES_INSIDE}, {tmp_path}/orders." in error.what
    assert "give the sink in the DAG a table that does not contain the ledger" in error.remedy
    mended = replace(world, tables={"orders": "all_orders"})
    assert mended.run(3) is None
    assert_all_rows(mended, "all_orders", "audit")


def test_a_ledger_that_has_epochs_costs_no_look_at_the_folders_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(vacuum, "_is_table", lambda folder, options: looked.append(folder))  # none is a table
    world = start(DiskWorld(tmp_path))
    assert {f"{tmp_path}/ledger", str(tmp_path), "/"} <= set(looked)
    looked.clear()
    assert world.run(2) is None and looked == []


def test_a_ledger_in_a_folder_that_vacuum_leaves_alone_may_lie_in_a_table(lake: DiskWorld) -> None:
    world = replace(lake, ledger_folder=lake.table("orders") / "_ledgers")
    assert world.run(1) is None
    assert_all_rows(world, "orders", "audit")


def test_a_pipeline_whose_ledger_has_always_been_in_a_table_goes_on_and_its_ledger_can_be_moved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = start(DiskWorld(tmp_path, name="orders", ledger_folder=tmp_path / "ledgers"))
    shutil.copytree(elsewhere.records, tmp_path / "orders", dirs_exist_ok=True)
    inside = replace(elsewhere, ledger_folder=tmp_path)
    assert inside.run(2) is None
    assert LIES_INSIDE in caplog.text
    caplog.clear()
    table = DeltaTable(str(tmp_path / "orders"))
    assert any(path.endswith("/complete.json") for path in doomed_in(tmp_path / "orders"))
    moved = replace(elsewhere, ledger_folder=tmp_path / "new root")
    shutil.copytree(inside.records, moved.records, ignore=shutil.ignore_patterns("_delta_log", "*.parquet"))
    table.vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    moved.one_more_epoch()
    assert LIES_INSIDE not in caplog.text
    assert_all_rows(moved, "orders", "audit")
