"""A table restored, altered, deleted or replaced after GLOBAL_COMMIT: committed to where it may be, else waited for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType

from airflow_epochs.errors import Corrupt, OutcomeUnknown
from airflow_epochs.model import WaivedRecord
from tests.support.cells import fired
from tests.support.faults_history import finished
from tests.support.faults_world import DiskWorld

DECIDED = 8


def add_column(table: str) -> None:
    DeltaTable(table).alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])


def set_property(table: str) -> None:
    DeltaTable(table).alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})


@pytest.mark.parametrize("alter", [add_column, set_property])
def test_a_table_with_a_new_nullable_column_or_property_is_committed_to_as_it_is(
    world: DiskWorld, alter: Callable[[str], None]
) -> None:
    left = world.crash_at("decision.landed")
    alter(str(world.table("orders")))
    assert world.run(3) is None
    fired("F14", DECIDED, finished(world, left))


def test_a_table_restored_by_its_owner_to_an_older_version_gets_the_epoch_on_top(world: DiskWorld) -> None:
    assert world.run(2) is None
    world.produce(3)
    world.crash_at("decision.landed", number=3)
    DeltaTable(str(world.table("orders"))).restore(0)
    assert world.run(4) is None
    first, third = 4, 3
    assert len(world.rows("orders")) == first + third, "what the owner took back stays away, what was promised is there"
    assert world.rows("audit") == world.source.all_rows()


Change = tuple[Callable[[str], None], Callable[[str], None]]


def constrain(table: str) -> None:
    DeltaTable(table).alter.add_constraint({"positive": "offset >= 0"})


def unconstrain(table: str) -> None:
    DeltaTable(table).alter.drop_constraint("positive")


def drop_column(table: str) -> None:
    rest = DeltaTable(table).to_pyarrow_table().drop_columns(["payload"])
    write_deltalake(table, rest, mode="overwrite", schema_mode="overwrite")


def undo(table: str) -> None:
    """Back to the version before the change, its schema included."""
    before = DeltaTable(table, version=DeltaTable(table).version() - 1).to_pyarrow_table()
    write_deltalake(table, before, mode="overwrite", schema_mode="overwrite")


@pytest.mark.parametrize(
    ("change", "back"), [(constrain, unconstrain), (drop_column, undo)], ids=["constraint", "column dropped"]
)
def test_a_table_that_needs_spark_since_it_was_altered_waits_for_it_or_for_the_change_to_be_undone(
    world: DiskWorld, change: Callable[[str], None], back: Callable[[str], None]
) -> None:
    left, table = world.crash_at("decision.landed"), str(world.table("orders"))
    change(table)
    shown = len(DeltaTable(table).to_pyarrow_table())
    for number in (2, 3):
        error = world.run(number)
        assert isinstance(error, OutcomeUnknown), error
        assert "undo that change" in error.remedy
        assert len(DeltaTable(table).to_pyarrow_table()) == shown
    back(table)
    assert world.run(2) is None
    fired("F14", DECIDED, finished(world, left))


def delete(table: Path) -> Path:
    return table.rename(table.with_name("deleted"))


def recreate(table: Path) -> Path:
    kept = delete(table)
    write_deltalake(str(table), pa.table({"source": ["x"], "partition": [1], "offset": [1], "payload": ["x"]}))
    return kept


@pytest.mark.parametrize("replace", [delete, recreate])
def test_a_table_gone_or_replaced_after_the_decision_is_not_written_to_until_it_is_back(
    world: DiskWorld, replace: Callable[[Path], Path]
) -> None:
    left, table = world.crash_at("decision.landed"), world.table("orders")
    kept = replace(table)
    before = world.snapshot_of_tables()
    for number in (2, 3):
        error = world.run(number)
        assert isinstance(error, Corrupt), error
        assert of_orders(world.snapshot_of_tables()) == of_orders(before)
    shutil.rmtree(table, ignore_errors=True)
    kept.rename(table)
    assert world.run(2) is None
    finished(world, left)
    fired("F14", DECIDED, "X")


def of_orders(snapshot: dict[str, str]) -> dict[str, str]:
    return {path: digest for path, digest in snapshot.items() if "/orders/" in path}


def test_a_table_replaced_within_its_own_log_keeps_its_markers_and_is_not_written_to_all_the_same(
    world: DiskWorld,
) -> None:
    left, table = world.crash_at("decision.landed"), str(world.table("orders"))
    schema = DeltaTable(table).schema()
    kept = shutil.copytree(table, f"{table}.kept")
    DeltaTable.create(table, schema, mode="overwrite")
    version = DeltaTable(table).version()
    for number in (2, 3):
        error = world.run(number)
        assert isinstance(error, Corrupt)
        assert "was replaced after the decision" in error.what
        assert DeltaTable(table).version() == version
    shutil.rmtree(table)
    Path(kept).rename(table)
    assert world.run(2) is None
    finished(world, left)
    fired("F14", DECIDED, "X")


def test_a_promise_that_cannot_be_kept_any_more_can_be_waived_and_the_pipeline_goes_on(world: DiskWorld) -> None:
    left, table = world.crash_at("decision.landed"), world.table("orders")
    shutil.rmtree(table)
    assert isinstance(world.run(3), Corrupt)
    assert left.txn
    world.ledger.put(WaivedRecord(txn_id=left.txn, sink="orders", who="me", why="the table is gone", at="now"))
    assert world.run(3) is None
    assert world.rows("audit") == world.source.all_rows()
    world.produce(2)
    assert world.run(4) is None
    assert len(world.rows("orders")) == 2
    assert world.rows("audit") == world.source.all_rows()
