"""Ledger and tables do not agree: each accident is told from the others, and its remedy, to the letter, works."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from airflow_epochs.errors import Corrupt
from tests.support.faults_history import require_exactly_once
from tests.support.faults_world import DiskWorld
from tests.support.pages import blocks, filled, printed
from tests.support.rebuilt import typed_rebuild
from tests.support.remedies import assert_all_rows, renamed, stopped


def anchor_of(error: Corrupt) -> str:
    """The chapter of the docs that the error names, which must be there."""
    named = re.search(r"docs/failures\.md#([a-z-]+)", error.remedy)
    assert named
    page = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()
    titles = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    assert named[1] in [title.lower().replace(" ", "-") for title in titles]
    return named[1]


@pytest.fixture
def two_epochs(world: DiskWorld) -> DiskWorld:
    """Complete, and input for a third one."""
    assert world.run(2) is None
    world.produce(3)
    return world


# -- the table -------------------------------------------------------------------------------------------------------


def test_a_table_that_is_gone_is_put_back(two_epochs: DiskWorld) -> None:
    world = two_epochs
    table = world.table("orders")
    kept = table.rename(table.with_name("dropped"))
    error = stopped(world)
    assert error.what == f"The table {table} is gone, but epoch 2 was committed to it. Nothing was written."
    assert anchor_of(error) == "the-table-is-gone"
    assert error.remedy.startswith(
        "Put the table back. If somebody renamed or moved it, give it its old name and place;"
    )
    kept.rename(table)
    assert world.run(81) is None
    assert_all_rows(world, "orders", "audit")


def test_a_table_that_is_gone_for_good_is_filled_again_under_another_name(two_epochs: DiskWorld) -> None:
    shutil.rmtree(two_epochs.table("orders"))
    assert 'backfill={"<the new name>": 1}' in stopped(two_epochs).remedy
    world = renamed(two_epochs, orders_2=1)
    assert world.run(81) is None
    assert_all_rows(world, "orders", "audit")


def test_a_sink_that_points_elsewhere_is_pointed_back(two_epochs: DiskWorld) -> None:
    error = stopped(replace(two_epochs, tables={"orders": "elsewhere"}))
    table = two_epochs.table("orders")
    assert error.what == (
        f"The sink points to {two_epochs.folder}/elsewhere, but epoch 2 was committed to {table}. Nothing was written."
    )
    assert anchor_of(error) == "the-sink-points-elsewhere"
    assert f"Point the sink back to {table}" in error.remedy
    assert two_epochs.run(81) is None
    assert_all_rows(two_epochs, "orders", "audit")


def test_a_sink_that_is_to_go_on_elsewhere_gets_another_name(two_epochs: DiskWorld) -> None:
    world = renamed(two_epochs, "elsewhere")
    assert world.run(81) is None
    assert world.run(82) is None
    assert len(DeltaTable(str(world.folder / "elsewhere")).to_pyarrow_table()) == 3
    assert_all_rows(world, "audit")


def another_table(at: Path) -> Path:
    kept = at.rename(at.with_name("old"))
    write_deltalake(str(at), pa.table({"source": ["x"], "partition": [1], "offset": [1], "payload": ["x"]}))
    return kept


def test_a_table_that_was_replaced_is_put_back(two_epochs: DiskWorld) -> None:
    world, table = two_epochs, two_epochs.table("orders")
    kept = another_table(table)
    error = stopped(world)
    ids = [str(DeltaTable(str(each)).metadata().id) for each in (table, kept)]
    assert f"Another table stands at {table}: its id is {ids[0]}" in error.what and ids[1] in error.what
    assert anchor_of(error) == "the-table-was-replaced"
    shutil.rmtree(table)
    kept.rename(table)
    assert world.run(81) is None
    assert_all_rows(world, "orders", "audit")


def test_a_table_that_was_replaced_on_purpose_is_gone_on_with_under_another_name(two_epochs: DiskWorld) -> None:
    another_table(two_epochs.table("orders"))
    stopped(two_epochs)
    world = renamed(two_epochs)
    assert world.run(81) is None
    assert len(DeltaTable(str(world.table("orders_2"))).to_pyarrow_table()) == 1 + 3


def without_markers(table: Path) -> None:
    for entry in table.glob("_delta_log/*.json"):
        lines = [line for line in entry.read_text().splitlines() if "txn" not in json.loads(line)]
        entry.write_text("\n".join(lines))


def test_a_table_that_has_lost_its_markers_goes_on_under_another_name(two_epochs: DiskWorld) -> None:
    without_markers(two_epochs.table("orders"))
    error = stopped(two_epochs)
    assert "has lost its epoch markers" in error.what
    assert anchor_of(error) == "the-markers-are-gone"
    world = renamed(two_epochs)
    assert world.run(81) is None
    assert_all_rows(world, "orders", "audit")


@pytest.fixture
def behind(two_epochs: DiskWorld) -> tuple[DiskWorld, Path]:
    """A table put back from a copy that lacks epochs 3 and 4, and the newer one."""
    world, table = two_epochs, two_epochs.table("orders")
    backup = shutil.copytree(table, world.folder / "backup")
    for number in (3, 4):
        assert world.run(number) is None
        world.produce(3)
    newer = table.rename(world.folder / "newer")
    backup.rename(table)
    return world, newer


def test_a_table_that_is_behind_is_put_back_from_a_newer_copy(behind: tuple[DiskWorld, Path]) -> None:
    world, newer = behind
    error = stopped(world)
    assert "is behind the ledger: it shows epoch 2, and epoch 4 was committed to it" in error.what
    assert anchor_of(error) == "the-table-is-behind"
    shutil.rmtree(world.table("orders"))
    newer.rename(world.table("orders"))
    assert world.run(81) is None
    assert_all_rows(world, "orders", "audit")


def test_a_table_that_is_behind_for_good_gets_the_missing_epochs_under_another_name(
    behind: tuple[DiskWorld, Path],
) -> None:
    world = behind[0]
    assert 'backfill={"<the new name>": 3}' in stopped(world).remedy
    world = renamed(world, orders_2=3)
    assert world.run(81) is None
    assert_all_rows(world, "orders", "audit")


@pytest.mark.parametrize("drop", [shutil.rmtree, lambda table: another_table(table)], ids=["dropped", "replaced"])
def test_a_table_gone_in_doubt_is_put_back_or_waived(world: DiskWorld, drop: Callable[[Path], object]) -> None:
    world.crash_at("decision.landed")
    drop(world.table("orders"))
    error = world.run(80)
    assert isinstance(error, Corrupt)
    assert "Put " in error.remedy and "back from a backup" in error.remedy
    assert "airflow epochs waive orders 2 orders --why" in error.remedy
    assert "RESTORE" not in str(error)


# -- the ledger ------------------------------------------------------------------------------------------------------


def lost(ledger: Path, backup: Path) -> None:
    shutil.rmtree(ledger)


def put_back(ledger: Path, backup: Path) -> None:
    shutil.rmtree(ledger)
    backup.rename(ledger)


@pytest.mark.parametrize("accident", [lost, put_back], ids=["lost", "restored"])
def test_a_ledger_that_is_behind_and_cannot_be_had_again_is_rebuilt_by_the_command_in_the_error(
    two_epochs: DiskWorld, accident: Callable[[Path, Path], None]
) -> None:
    world = two_epochs
    backup = shutil.copytree(world.ledger_root, world.folder / "ledger.backup")
    assert world.run(3) is None
    world.produce(5)
    accident(world.ledger_root, backup)
    error = stopped(world)
    assert "The ledger is behind the table" in error.what
    assert anchor_of(error) == "the-ledger-is-behind"
    typed_rebuild(lambda: world.coordinator().task, error, ledger_root=world.ledger_root)
    assert world.run(81) is None
    assert_all_rows(world, "orders", "audit")
    world.one_more_epoch()
    require_exactly_once(world)


def test_the_offsets_of_a_lost_ledger_stand_in_the_tables_history(two_epochs: DiskWorld) -> None:
    """By the command of the docs, after somebody else's change to the table."""
    ends = {r.partition: r.end for r in two_epochs.coordinator().newest_complete().ranges["orders"]}
    note = CommitProperties(custom_metadata={"userMetadata": "see the wiki"})
    command = blocks("operations.md", "Where the offsets are", "python")[0]
    for sink in two_epochs.sinks:
        table = str(two_epochs.table(sink))
        DeltaTable(table).alter.set_table_description("Orders", commit_properties=note)
        told = json.loads(printed(filled(command, {"orders/orders": f"orders/{sink}", "/lake/orders": table})))
        assert {int(partition): end for partition, end in told["orders"].items()} == ends
