"""The ledger is lost after a sink was fenced. A fence has no rows: `rebuild` never takes it for an epoch that has."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import LastEpoch
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.rebuilding import planning, recording, wording
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import Ranges
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.testing import Crash
from tests.support.faults_world import DiskWorld, crash, on_disk, start
from tests.support.remedies import assert_all_rows, ordered
from tests.support.sql_pipeline import COLUMNS, Related
from tests.support.sql_world import SqliteDb

BY = Account(who="ann", why="the disk is gone")


def ends_of(ranges: Ranges) -> dict[str, dict[str, int]]:
    return {topic: {str(r.partition): r.end for r in per_topic} for topic, per_topic in ranges.items()}


def rebuild(world: DiskWorld | Related, *without: str) -> str:
    """What the command prints; it has done what it says."""
    plan = planning.plan(world.coordinator().task, without)
    assert plan, "nothing to rebuild"
    recording.carry_out(world.coordinator().task, plan, by=BY)
    return "\n".join(wording.announced(plan))


# -- Delta ------------------------------------------------------------------------------------------------------------


def fenced(folder: Path, *others: str) -> DiskWorld:
    """`orders` was waived in its second epoch, and fenced. Then the task died, and the ledger was lost."""
    world = start(DiskWorld(folder, sinks=("orders", *others)))
    world.crash_at("commit.orders")
    ordered(world.ledger_root, "epochs", "waive", "orders", "2", "orders", "--why", "it hangs")
    assert world.run(2) is None
    world.produce(2)
    today = replace(world, sinks=("gold", *others), tables={"gold": "orders"}, backfill={"gold": 2})
    today.crash_at("delta.commit.before", 3)
    shown = last_of(world)
    assert shown.marker.is_fence and shown.ends == ends_of(record_ranges(world, 1))
    shutil.rmtree(world.ledger_root)
    return world


def last_of(world: DiskWorld) -> LastEpoch:
    last = DeltaSink("orders", str(world.table("orders"))).last_epoch("orders", on_disk())
    assert last
    return last


def record_ranges(world: DiskWorld | Related, epoch: int) -> Ranges:
    record = world.ledger.complete_record(epoch)
    assert record
    return record.ranges


def test_a_pipeline_whose_sinks_show_a_fence_reads_the_waived_epoch_again(tmp_path: Path) -> None:
    world = fenced(tmp_path)
    said = rebuild(world)
    assert "sink orders: the fence of epoch 2" in said
    assert "Epoch 2 was waived, and has no rows. The next epoch reads its input again" in said
    world.one_more_epoch()
    assert_all_rows(world, "orders")


def test_a_sink_that_shows_a_fence_is_left_out_beside_one_that_has_the_epoch(tmp_path: Path) -> None:
    world = fenced(tmp_path, "audit")
    with pytest.raises(Refused) as error:
        rebuild(world)
    assert error.value.code is codes.SINKS_DISAGREE
    assert "Sink orders shows the fence of epoch 2, which was waived, and has no row of that epoch." in error.value.what
    assert "--without orders" in error.value.remedy
    assert "left out: sink orders: the fence of epoch 2" in rebuild(world, "orders")
    today = replace(world, sinks=("orders_2", "audit"), tables={"orders_2": "orders"}, backfill={"orders_2": 2})
    today.one_more_epoch()
    assert_all_rows(today, "orders", "audit")


# -- a database -------------------------------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Related:
    """As ``fenced``, in SQLite, with `audit`, and with `orders` in the DAG, which has another table now."""
    db = SqliteDb(tmp_path / "db.sqlite")
    for table in ("orders", "audit", "elsewhere"):
        db.run(f"CREATE TABLE {table} ({COLUMNS})")
    database = Related(tmp_path, db, names=("orders", "audit"))
    database.source.produce(4)
    assert database.run(1) is None
    database.source.produce(4)
    with pytest.raises(Crash):
        database.run(2, {"commit.orders": crash})
    database.waive("orders", 2)
    assert database.run(2) is None
    database.source.produce(2)
    tables = {"gold": "orders", "orders": "elsewhere"}
    today = replace(database, names=("gold", "orders", "audit"), tables=tables, backfill={"gold": 2})
    with pytest.raises(Crash):
        today.run(3, {"sql.copied": crash})
    ends = ends_of(record_ranges(database, 1))
    shutil.rmtree(tmp_path / "ledger")
    last = database.sink("orders").last_epoch("orders", on_disk(None, database.known))
    assert last and last.marker.is_fence and last.ends == ends
    return today


def test_a_marker_that_shows_a_fence_goes_on_to_tell_whose_table_it_is(database: Related) -> None:
    """`orders` points to another table than the rows are in."""
    last = database.sink("orders").last_epoch("orders", on_disk(None, database.known))
    assert last and last.elsewhere and "'orders'" in last.elsewhere.there
    with pytest.raises(Corrupt) as error:
        planning.plan(replace(database, names=("orders",), backfill={}).coordinator().task)
    assert error.value.code is codes.TABLE_ELSEWHERE


def test_all_that_lack_the_epoch_can_be_left_out(database: Related) -> None:
    with pytest.raises(Corrupt):
        rebuild(database)
    assert "left out: sink orders: no epoch" in rebuild(database, "gold", "orders")


def test_sinks_of_a_database_agree_once_the_fenced_one_is_left_out(database: Related) -> None:
    with pytest.raises(Refused, match="take those that show no epoch out of the DAG"):
        rebuild(replace(database, tables={"gold": "elsewhere"}), "gold", "orders")
    then = replace(database, names=("orders", "audit"), tables={}, backfill={})
    rebuild(then, "orders")
    today = replace(then, names=("silver", "audit"), tables={"silver": "orders"}, backfill={"silver": 2})
    assert today.run(4) is None
    today.require_all_shown("orders", "audit")
