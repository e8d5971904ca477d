"""A ledger in the folder of a table: a VACUUM of the table would take it for files that no version has."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from tests.support.faults_world import DiskWorld, start
from tests.support.remedies import assert_all_rows

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


@pytest.mark.parametrize(
    "remedy",
    [
        lambda lake: replace(lake, tables={"orders": "all_orders"}),
        lambda lake: replace(lake, ledger_folder=lake.folder / "ledgers"),
    ],
    ids=["table", "ledger"],
)
def test_a_new_sink_whose_table_has_the_ledger_in_it_is_refused_before_anything_is_staged(
    lake: DiskWorld, tmp_path: Path, remedy: Callable[[DiskWorld], DiskWorld]
) -> None:
    error = lake.run(1)
    assert isinstance(error, Refused) and error.code is codes.LEDGER_IN_TABLE
    assert f"The ledger of this pipeline, {tmp_path}/orders, {LIES_INSIDE}, {tmp_path}/orders." in error.what
    assert lake.ledger.tries(1) == [] and lake.rows("orders") == []
    mended = remedy(lake)
    assert mended.run(2) is None
    assert_all_rows(mended, *(mended.table(sink).name for sink in mended.sinks))


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
    doomed = table.vacuum(0, enforce_retention_duration=False, dry_run=True, full=True)
    assert any(path.endswith("/complete.json") for path in doomed)
    moved = replace(elsewhere, ledger_folder=tmp_path / "new root")
    shutil.copytree(inside.records, moved.records, ignore=shutil.ignore_patterns("_delta_log", "*.parquet"))
    table.vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)
    moved.one_more_epoch()
    assert LIES_INSIDE not in caplog.text
    assert_all_rows(moved, "orders", "audit")
