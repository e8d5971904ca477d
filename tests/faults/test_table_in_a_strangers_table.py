"""A new sink's table in the folder of a table that somebody else writes: a VACUUM of that one would delete its rows."""

from __future__ import annotations

import os
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


def written_by_a_stranger(table: Path) -> Path:
    write_deltalake(str(table), pa.table({"id": [1]}))
    return table


def vacuumed(table: Path) -> None:
    DeltaTable(str(table)).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True)


def refused_without_a_try(world: DiskWorld, number: int = 1) -> Refused:
    error = world.run(number)
    assert isinstance(error, Refused) and error.code is codes.TABLE_IN_TABLE
    assert world.ledger.tries(number) == [] and world.rows("orders") == []
    return error


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return written_by_a_stranger(tmp_path / "lake")


@pytest.mark.parametrize(
    "spelling", ["lake/orders", "lake/bronze/orders", "lake/../lake/orders", "alias/orders", "lake/link/orders"]
)
def test_a_new_sink_whose_table_lies_in_a_strangers_is_refused_until_it_gets_one_outside(
    tmp_path: Path, lake: Path, spelling: str
) -> None:
    os.symlink(lake, tmp_path / "alias")
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", lake / "link")
    world = DiskWorld(tmp_path, tables={"orders": spelling})
    world.produce(4)
    error = refused_without_a_try(world)
    assert "The table of the sink 'orders', " in error.what
    assert f"lies inside another Delta table, {lake}. A VACUUM" in error.what
    write_deltalake(str(world.table("orders")), pa.table({"id": [1]}))
    assert any(path.endswith("orders/_delta_log/00000000000000000000.json") for path in doomed_in(lake))
    mended = replace(world, tables={"orders": "outside"})
    assert mended.run(2) is None
    vacuumed(lake)
    mended.one_more_epoch()
    assert_all_rows(mended, "outside", "audit")


def test_a_new_sink_whose_table_lies_in_that_of_another_pipeline_is_refused_until_it_gets_one_outside(
    tmp_path: Path,
) -> None:
    start(DiskWorld(tmp_path, name="other", tables={"orders": "lake"}, sinks=("orders",)))
    world = DiskWorld(tmp_path, tables={"orders": "lake/rejected"})
    world.produce(4)
    assert f"/lake/rejected, lies inside another Delta table, {tmp_path}/lake." in refused_without_a_try(world).what
    mended = replace(world, tables={"orders": "lake_rejected"})
    assert mended.run(2) is None
    assert_all_rows(mended, "lake_rejected", "audit")


def test_a_sink_that_joins_a_pipeline_later_is_looked_at_too(tmp_path: Path, lake: Path) -> None:
    one = start(DiskWorld(tmp_path, sinks=("audit",)))
    world = replace(one, sinks=SINKS, tables={"orders": "lake/orders"}, backfill={"orders": 1})
    refused_without_a_try(world, 2)
    mended = replace(world, tables={"orders": "orders"})
    assert mended.run(3) is None
    assert_all_rows(mended, "orders", "audit")


def test_a_table_in_a_folder_that_vacuum_skips_or_beside_the_strangers_is_accepted(tmp_path: Path, lake: Path) -> None:
    world = DiskWorld(tmp_path, tables={"orders": "lake/_mine/orders", "audit": "lake_audit"})
    world.produce(4)
    assert world.run(1) is None
    vacuumed(lake)
    world.one_more_epoch()
    assert_all_rows(world, "lake/_mine/orders", "lake_audit")


@pytest.mark.parametrize("left", ["orders/_delta_log/0.json", "epochs/other/pipeline.json", "epochs/_delta_log/0.json"])
def test_a_new_table_around_another_one_or_around_ledgers_is_refused_until_it_gets_a_folder_of_its_own(
    tmp_path: Path, left: str
) -> None:
    inside = tmp_path / "lake" / left
    inside.parent.mkdir(parents=True)
    inside.touch()
    world = DiskWorld(tmp_path, tables={"orders": "lake"})
    world.produce(4)
    error = world.run(1)
    assert isinstance(error, Refused) and error.code is codes.DELTA_NOT_A_TABLE
    shown = left.partition("/")[0] if left.startswith("orders") else "/".join(left.split("/")[:2])
    assert f"not empty: it has {shown}." in error.what
    assert world.ledger.tries(1) == []
    mended = replace(world, tables={})
    assert mended.run(2) is None
    assert_all_rows(mended, "orders", "audit")


def test_a_pipeline_that_has_epochs_goes_on_where_somebody_puts_a_table_around_its_own_and_looks_at_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = start(DiskWorld(tmp_path, tables={"orders": "lake/orders"}))
    written_by_a_stranger(tmp_path / "lake")

    def looked(folder: str, options: object) -> bool:
        raise AssertionError(folder)

    monkeypatch.setattr(vacuum, "_is_table", looked)
    assert world.run(2) is None
    assert_all_rows(world, "lake/orders", "audit")
