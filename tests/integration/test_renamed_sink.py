"""A sink that gets another name, or another sink's table: ``backfill`` writes no row twice without a word."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_epochs import codes
from airflow_epochs.contracts import Environment, Move, Position, Sink
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.former_names import recorded_places
from airflow_epochs.coordinator.orders import orders, rewinding
from airflow_epochs.errors import Corrupt, EpochError
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import Marker
from airflow_epochs.sinks import from_spec
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.sql.sink import SqlSink
from airflow_epochs.testing import Crash, MemoryEnvironment, MemorySink, MemoryWorld, memory_coordinator
from airflow_epochs.testing.world import marker_of
from tests.integration.test_renamed import refused, stopped
from tests.support.faults_world import DiskWorld, crash, on_disk, start
from tests.support.forging import alter
from tests.support.remedies import assert_all_rows, ordered, seen_by_duckdb, typed
from tests.support.scenario import Scenario
from tests.support.scenario import run as run_of
from tests.support.sql_pipeline import COLUMNS, Related
from tests.support.sql_world import SqliteDb
from tests.unit.test_intervals_in_one_task import MovedFile


@pytest.fixture
def database(tmp_path: Path) -> Related:
    """Two sinks in SQLite, whose tables take a row twice; two complete epochs, and input for the third."""
    db = SqliteDb(tmp_path / "db.sqlite")
    db.run(*(f"CREATE TABLE {table} ({COLUMNS})" for table in ("orders", "lines", "orders_b")))
    world = Related(tmp_path, db)
    for number in (1, 2):
        world.source.produce(4)
        assert world.run(number) is None
    world.source.produce(6)
    return world


def epoch_in(error: EpochError) -> int:
    """The epoch that the error lets the backfill begin with."""
    named = re.search(r"Let `backfill` name epoch (\d+)", error.remedy)
    assert named, error.remedy
    return int(named[1])


# -- another name, on the same table ----------------------------------------------------------------------------------


def with_gold(world: DiskWorld, **changes: Any) -> DiskWorld:
    """The sink `orders` has another name, and `backfill`, on its own table."""
    usual = {"sinks": ("gold", "audit"), "tables": {"gold": "orders"}, "backfill": {"gold": 1}}
    return replace(world, **{**usual, **changes})


@pytest.mark.parametrize("first", [1, 2])
def test_a_renamed_sink_is_not_backfilled_with_the_rows_that_its_table_has(two_epochs: DiskWorld, first: int) -> None:
    error = stopped(with_gold(two_epochs, backfill={"gold": first}), codes.SINK_RENAMED)
    assert error.sink == "gold" and "under the name 'orders'" in error.what
    assert two_epochs.run(4) is None, "under its old name"
    assert_all_rows(two_epochs, "orders", "audit")


def test_a_renamed_sink_goes_on_in_its_table_without_backfill(two_epochs: DiskWorld) -> None:
    error = stopped(with_gold(two_epochs), codes.SINK_RENAMED)
    assert "remove the sink from `backfill`: it then begins with epoch 3" in error.remedy
    today = with_gold(two_epochs, backfill={})
    assert today.run(4) is None
    today.one_more_epoch()
    assert_all_rows(today, "orders", "audit")


def test_a_renamed_sink_fills_another_table(two_epochs: DiskWorld) -> None:
    stopped(with_gold(two_epochs), codes.SINK_RENAMED)
    today = with_gold(two_epochs, tables={})
    assert today.run(4) is None
    assert_all_rows(today, "gold", "audit")


def test_a_sink_that_left_the_dag_for_an_epoch_is_backfilled_from_there_under_a_new_name(two_epochs: DiskWorld) -> None:
    assert replace(two_epochs, sinks=("audit",)).run(3) is None
    two_epochs.produce(4)
    error = stopped(with_gold(two_epochs), codes.SINK_RENAMED, 4)
    today = with_gold(two_epochs, backfill={"gold": epoch_in(error)})
    assert today.run(4) is None
    assert_all_rows(today, "orders", "audit")


def test_the_table_tells_where_the_records_of_the_old_name_were_pruned(two_epochs: DiskWorld) -> None:
    for record in two_epochs.records.glob("epochs/*/*.open.json"):
        record.unlink()
    refused(with_gold(two_epochs).run(3), codes.SINK_RENAMED)


def test_a_link_to_the_table_is_the_table(two_epochs: DiskWorld) -> None:
    two_epochs.table("link").symlink_to(two_epochs.table("orders"))
    stopped(with_gold(two_epochs, tables={"gold": "link"}), codes.SINK_RENAMED)


def test_a_sink_whose_table_is_lost_is_filled_again_under_another_name(two_epochs: DiskWorld) -> None:
    shutil.rmtree(two_epochs.table("orders"))
    today = with_gold(two_epochs)
    assert today.run(3) is None
    assert_all_rows(today, "orders", "audit")


def test_a_sink_whose_table_went_back_gets_the_later_epochs_under_another_name(tmp_path: Path) -> None:
    world = start(DiskWorld(tmp_path))
    backup = shutil.copytree(world.table("orders"), tmp_path / "backup")
    assert world.run(2) is None
    shutil.rmtree(world.table("orders"))
    shutil.copytree(backup, world.table("orders"))
    today = with_gold(world, backfill={"gold": 2})
    world.produce(2)
    assert today.run(3) is None
    assert_all_rows(today, "orders", "audit")


def test_an_aborted_attempt_is_not_opened_again_with_a_backfill_of_rows_that_are_there(two_epochs: DiskWorld) -> None:
    two_epochs.crash_at("stage.done", 3)
    refused(with_gold(two_epochs).run(4), codes.SINK_RENAMED)
    assert with_gold(two_epochs, backfill={}).run(4) is None
    assert_all_rows(two_epochs, "orders", "audit")


def in_database(world: Related, table: str = "orders", **backfill: int) -> Related:
    return replace(world, names=("gold", "lines"), tables={"gold": table}, backfill=backfill)


def test_a_renamed_sink_of_a_database_is_not_backfilled_with_the_rows_of_its_table(database: Related) -> None:
    error = refused(in_database(database, gold=1).run(3), codes.SINK_RENAMED)
    assert "remove the sink from `backfill`" in error.remedy
    assert in_database(database).run(3) is None
    database.require_all_shown("orders", "lines")


def test_a_renamed_sink_of_a_database_goes_on_under_its_old_name(database: Related) -> None:
    refused(in_database(database, '"ORDERS"', gold=1).run(3), codes.SINK_RENAMED)
    assert database.run(3) is None
    database.require_all_shown("orders", "lines")


@pytest.mark.parametrize("how", ["emptied", "another"])
def test_an_empty_table_of_a_database_is_filled_under_another_name(database: Related, how: str) -> None:
    table = "orders" if how == "emptied" else "orders_2"
    database.db.run(
        "DELETE FROM orders" if how == "emptied" else "CREATE TABLE orders_2 AS SELECT * FROM lines LIMIT 0"
    )
    assert in_database(database, table, gold=1).run(3) is None
    database.require_all_shown(table, "lines")


def test_the_name_that_wrote_last_tells_where_a_backfill_may_begin(database: Related) -> None:
    """The table had two other names before: `orders` up to epoch 2, and `silver` in epoch 3."""
    silver = replace(database, names=("silver", "lines"), tables={"silver": "orders"})
    assert silver.run(3) is None
    database.source.produce(2)
    assert replace(database, names=("lines",)).run(4) is None
    database.source.produce(2)
    error = refused(in_database(database, gold=1).run(5), codes.SINK_RENAMED)
    assert "under the name 'silver'" in error.what and "up to epoch 3" in error.what
    assert in_database(database, gold=epoch_in(error)).run(5) is None
    database.require_all_shown("orders", "lines")


# -- the table that a sink of the DAG has left ------------------------------------------------------------------------


def on_the_table_left(database: Related, table: str = "orders", **backfill: int) -> Related:
    """The sink `orders` has another table now, and `gold` is new, on the one that `orders` had."""
    tables = {"orders": "orders_b", "gold": table}
    return replace(database, names=("orders", "gold", "lines"), tables=tables, backfill=backfill)


def test_a_new_sink_does_not_fill_again_the_table_that_another_sink_of_the_dag_has_left(database: Related) -> None:
    before = database.shown("orders")
    error = refused(on_the_table_left(database, gold=1).run(3), codes.SINK_RENAMED)
    assert error.sink == "gold" and "under the name 'orders'" in error.what
    assert "old name" not in error.remedy, "it is another sink's today"
    assert database.shown("orders") == before
    assert on_the_table_left(database).run(3) is None
    database.require_all_shown("orders", "lines")
    assert database.shown("orders_b") == [sorted(set(database.shown("lines")[0]) - set(before[0]))]


def test_a_new_sink_fills_a_table_of_its_own_if_another_sink_has_left_the_one_it_was_given(database: Related) -> None:
    error = refused(on_the_table_left(database, gold=1).run(3), codes.SINK_RENAMED)
    assert "For a second copy of the rows, give the sink another table" in error.remedy
    database.db.run(f"CREATE TABLE copy ({COLUMNS})")
    assert on_the_table_left(database, "copy", gold=1).run(3) is None
    database.require_all_shown("copy", "lines")


def adopted(world: DiskWorld, sink: str) -> None:
    """``adopt-sink --new-table``, as the command puts it on record. (It knows no source that is a file.)"""
    at = orders.standing(world.ledger, world.name)
    taken(world.ledger, at, orders.adopt(world.ledger, at, sink, on_disk(), new_table=True))


def taken(ledger: Ledger, at: orders.BetweenEpochs, adoption: orders.Adoption | None) -> None:
    position = Position.after(at.before)
    assert position and adoption
    by = Account(who="me", why="a test", host="here")
    orders.put(ledger, at, "adopt-sink", by, Move(position=position), adoption=adoption)


def test_a_new_sink_does_not_fill_a_delta_table_again_that_another_sink_has_left_by_adopt_sink(
    two_epochs: DiskWorld,
) -> None:
    tables = {"orders": "orders_b", "gold": "orders"}
    today = with_gold(two_epochs, sinks=("orders", "gold", "audit"), tables=tables)
    error = today.run(3)
    assert isinstance(error, EpochError) and "adopt-sink orders orders --new-table" in error.remedy
    adopted(today, "orders")
    assert "old name" not in refused(today.run(4), codes.SINK_RENAMED).remedy
    assert replace(today, backfill={}).run(5) is None
    assert_all_rows(two_epochs, "orders", "audit")
    assert len(seen_by_duckdb(two_epochs.folder / "orders_b")) == 6, "those of epoch 3"


def test_a_new_sink_beside_others_in_the_database_is_filled_and_few_tables_are_asked(database: Related) -> None:
    for number in (3, 4, 5):
        assert database.run(number) is None
        database.source.produce(1)
    today = replace(database, names=("orders", "lines", "gold"), tables={"gold": "orders_b"}, backfill={"gold": 1})
    with patch.object(SqlSink, "may_hold", autospec=True, side_effect=SqlSink.may_hold) as asked:
        assert today.run(6) is None
    assert sorted(call.args[1].sink for call in asked.call_args_list) == ["lines", "orders"]
    database.require_all_shown("orders", "lines", "orders_b")


@dataclass(frozen=True)
class Mixed(Related):
    """Some of its sinks write to Delta tables."""

    delta: tuple[str, ...] = ()

    def sink(self, name: str) -> Sink:  # type: ignore[override]
        return DeltaSink(name, str(self.folder / name)) if name in self.delta else super().sink(name)


def test_a_new_sink_of_a_database_beside_delta_tables_is_filled_and_no_record_is_read_for_them(tmp_path: Path) -> None:
    db = SqliteDb(tmp_path / "db.sqlite")
    db.run(f"CREATE TABLE gold ({COLUMNS})")
    world = Mixed(tmp_path, db, delta=("orders", "lines"))
    for number in range(1, 6):
        world.source.produce(1)
        assert world.run(number) is None
    world.source.produce(1)
    today = replace(world, names=("orders", "gold"), backfill={"gold": 1})
    with patch.object(Ledger, "complete_record", autospec=True, side_effect=Ledger.complete_record) as read:
        assert today.run(6) is None
    assert {2, 3}.isdisjoint(call.args[1] for call in read.call_args_list)
    world.require_all_shown("gold")


def test_a_table_of_a_database_is_not_filled_again_if_its_sink_writes_to_a_delta_table_since(
    database: Related,
) -> None:
    today = Mixed(database.folder, database.db, delta=("orders",))
    assert today.run(3)
    at = orders.standing(database.ledger, "orders")
    taken(database.ledger, at, orders.adopt(database.ledger, at, "orders", on_disk(), new_table=True))
    assert today.run(4) is None
    database.source.produce(2)
    gold = replace(
        today,
        names=("orders", "gold"),
        tables={"gold": "orders"},
        backfill={"gold": 1},
        options={"marker_table": "others"},
    )
    assert "up to epoch 2" in refused(gold.run(5), codes.SINK_RENAMED).what


# -- a table that the other name has left since -----------------------------------------------------------------------


def test_a_table_that_its_sink_left_for_another_one_is_not_filled_again_under_a_new_name(database: Related) -> None:
    assert replace(database, tables={"orders": "orders_b"}).run(3) is None
    database.source.produce(2)
    error = refused(in_database(database, gold=1).run(4), codes.SINK_RENAMED)
    assert "up to epoch 2" in error.what
    assert in_database(database, gold=epoch_in(error)).run(4) is None
    database.require_all_shown("orders", "lines")


@pytest.mark.parametrize("pruned", [False, True])
def test_a_delta_table_that_its_sink_left_for_another_one_is_not_filled_again_under_a_new_name(
    two_epochs: DiskWorld, pruned: bool
) -> None:
    moved = replace(two_epochs, tables={"orders": "orders_b"})
    assert moved.run(3)
    adopted(moved, "orders")
    assert moved.run(4) is None
    for record in two_epochs.records.glob("epochs/*/*.open.json") if pruned else ():
        record.unlink()
    two_epochs.produce(2)
    error = stopped(with_gold(two_epochs), codes.SINK_RENAMED, 5)
    assert "up to epoch 2" in error.what
    assert with_gold(two_epochs, backfill={"gold": epoch_in(error)}).run(6) is None
    assert_all_rows(two_epochs, "orders", "audit")


# -- modes in which later rows replace earlier ones -------------------------------------------------------------------


def test_an_upsert_may_write_the_rows_of_its_table_again_under_another_name(tmp_path: Path) -> None:
    db = SqliteDb(tmp_path / "db.sqlite")
    db.run(*(f'CREATE TABLE {each} ({COLUMNS}, PRIMARY KEY (partition, "offset"))' for each in ("orders", "lines")))
    world = Related(tmp_path, db, options={"mode": "upsert", "keys": ["partition", "offset"]})
    for number in (1, 2):
        world.source.produce(4)
        assert world.run(number) is None
    world.source.produce(2)
    db.run("DELETE FROM orders WHERE partition = 0")
    assert in_database(world, gold=1).run(3) is None
    world.require_all_shown("orders", "lines")


@pytest.mark.parametrize(
    "mode", [{"mode": "overwrite"}, {"mode": "merge", "keys": ["offset"], "merge": "WHEN NOT MATCHED THEN INSERT *"}]
)
def test_a_mode_that_takes_each_epoch_by_itself_is_refused_by_what_it_would_do(
    two_epochs: DiskWorld, mode: Mapping[str, Any]
) -> None:
    today = with_gold(two_epochs, sink_options=mode)
    error = stopped(today, codes.SINK_RENAMED)
    assert "come twice" not in str(error) and "an overwrite would bring back rows" in error.what
    replace(today, backfill={}).coordinator().open(today.run_of(4))
    opened = two_epochs.ledger.open_record(3, 1)
    assert opened and opened.sinks["gold"].ranges is None, "it begins with the epoch"


# -- a sink of the user's own, which cannot tell whose rows are there -------------------------------------------------


class Beside(MemorySink):
    """Its marker stands beside the rows of all its tables."""

    def last_committed(self, pipeline: str, env: Environment) -> Marker | None:
        world = MemoryWorld.named(self.world)
        found = (marker_of(world.marker(table, self._app(pipeline))) for table in world.tables)
        return next(filter(None, found), None)


def of_ones_own(scenario: Scenario, kind: type[MemorySink], *backfilled: str, **tables: str) -> Coordinator:
    """The pipeline with sinks in memory. ``tables``: sink -> table."""
    sinks = tuple(kind(name=name, world=scenario.world.name, table=table) for name, table in tables.items())
    pipeline = replace(scenario.pipeline, sinks=sinks, backfill=dict.fromkeys(backfilled, 1))
    return memory_coordinator(scenario.world, pipeline)


def test_the_ledger_tells_whether_a_sink_of_ones_own_ever_wrote_to_the_place_of_a_new_one() -> None:
    scenario = Scenario()
    assert scenario.airflow_run(run_of(1), of_ones_own(scenario, MemorySink, orders="a")) is None
    at = orders.standing(scenario.ledger, "orders")
    taken(scenario.ledger, at, orders.adopt(scenario.ledger, at, "orders", MemoryEnvironment(), new_table=True))
    for number, today in ((2, {"orders": "b"}), (3, {"audit": "c"})):
        scenario.produce(2)
        assert scenario.airflow_run(run_of(number), of_ones_own(scenario, MemorySink, **today)) is None
    scenario.produce(2)
    again = of_ones_own(scenario, MemorySink, "gold", gold="a")
    assert "name epoch 2" in refused(scenario.airflow_run(run_of(4), again), codes.SINK_RENAMED).remedy


@pytest.mark.parametrize("kind_is_gone", [False, True])
def test_a_new_sink_of_ones_own_is_filled_beside_another_one_with_a_marker_in_the_same_place(
    kind_is_gone: bool,
) -> None:
    scenario = Scenario()
    assert scenario.airflow_run(run_of(1), of_ones_own(scenario, Beside, orders="a")) is None
    scenario.produce(2)
    raised = KeyError("its kind") if kind_is_gone else None
    with patch.object(recorded_places, "from_spec", side_effect=raised, wraps=from_spec):
        today = of_ones_own(scenario, Beside, "gold", orders="a", gold="d")
        assert scenario.airflow_run(run_of(2), today) is None
    assert Counter(scenario.world.table("d").values()) == Counter(range(scenario.produced))


# -- an epoch that was waived under the old name ----------------------------------------------------------------------


def landed_unseen(folder: Path) -> DiskWorld:
    """The commit of epoch 2 landed, its task died before the receipt, and the epoch was completed without the sink."""
    world = start(DiskWorld(folder, sinks=("orders",)))
    world.crash_at("delta.commit.after")
    ordered(world.ledger_root, "epochs", "waive", "orders", "2", "orders", "--why", "nobody looked")
    assert world.run(3) is None
    world.produce(2)
    return world


def under_gold(world: DiskWorld, first: int) -> DiskWorld:
    return replace(world, sinks=("gold",), tables={"gold": "orders"}, backfill={"gold": first})


def test_a_waived_epoch_that_landed_is_not_written_again_under_another_name(tmp_path: Path) -> None:
    world = landed_unseen(tmp_path)
    error = refused(under_gold(world, 2).run(4), codes.SINK_RENAMED)
    assert "up to epoch 2" in error.what and "Epoch 2 was waived there, but its commit landed" in error.what
    assert "Give the sink its old name 'orders' again" in error.remedy
    assert world.run(4) is None
    assert_all_rows(world, "orders")


def test_a_sink_that_landed_a_waived_epoch_goes_on_under_another_name_where_the_refusal_says(tmp_path: Path) -> None:
    world = landed_unseen(tmp_path)
    assert replace(world, sinks=("audit",)).run(4) is None
    world.produce(3)
    error = refused(under_gold(world, 1).run(5), codes.SINK_RENAMED)
    assert under_gold(world, epoch_in(error)).run(5) is None
    assert_all_rows(world, "orders")


def test_a_first_epoch_that_was_waived_and_landed_is_not_written_again_under_another_name(tmp_path: Path) -> None:
    world = DiskWorld(tmp_path, sinks=("orders",))
    world.produce(4)
    world.crash_at("delta.commit.after", number=1)
    ordered(world.ledger_root, "epochs", "waive", "orders", "1", "orders", "--why", "nobody looked")
    assert world.run(2) is None
    world.produce(2)
    refused(under_gold(world, 1).run(3), codes.SINK_RENAMED)
    assert under_gold(world, 2).run(3) is None
    assert_all_rows(world, "orders")


def test_a_waived_epoch_that_never_landed_is_filled_in_under_another_name_and_the_log_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = start(DiskWorld(tmp_path, sinks=("orders",)))
    world.crash_at("delta.commit.before")
    ordered(world.ledger_root, "epochs", "waive", "orders", "2", "orders", "--why", "it hangs")
    assert world.run(3) is None
    world.produce(2)
    assert under_gold(world, 2).run(4) is None
    assert "has the rows of epoch 2, which was waived under the name orders in the same place" in caplog.text
    assert_all_rows(world, "orders")


@pytest.mark.parametrize("opened_by", ["this version", "an earlier version"])
def test_a_waived_commit_that_lands_while_its_epoch_is_backfilled_under_another_name_comes_once(
    tmp_path: Path, opened_by: str
) -> None:
    world = start(DiskWorld(tmp_path, sinks=("orders",)))
    today = under_gold(world, 2)

    def meanwhile() -> None:
        ordered(world.ledger_root, "epochs", "waive", "orders", "2", "orders", "--why", "it hangs")
        assert world.run(3) is None
        world.produce(2)
        today.crash_at("decision.landed", number=4)
        if opened_by == "an earlier version":
            (opened,) = world.records.glob("epochs/*3/*.open.json")
            alter(opened, '"backfilled_from":2,', "")

    assert world.run(2, world.coordinator({"delta.commit.before": meanwhile})) is None
    error = today.run(5)
    assert isinstance(error, Corrupt) and error.code is codes.BACKFILL_OVERTAKEN and error.sink == "gold"
    assert "under the name 'orders'" in error.what
    typed(world.ledger_root, error, "waive")
    world.produce(1)
    assert today.run(5) is None, "the failed task, cleared"
    error = refused(today.run(6), codes.SINK_RENAMED)
    assert under_gold(world, epoch_in(error)).run(6) is None
    assert_all_rows(world, "orders")


def restored(table: DeltaTable) -> None:
    table.restore(0)


def rewritten(table: DeltaTable) -> None:
    write_deltalake(table, table.to_pyarrow_table(), mode="overwrite")


@pytest.mark.parametrize("steps", [(restored,), (rewritten, restored)])
def test_a_waived_epoch_that_landed_and_was_taken_back_by_restore_is_filled_in_under_another_name(
    tmp_path: Path, steps: tuple[Callable[[DeltaTable], None], ...]
) -> None:
    world = landed_unseen(tmp_path)
    for step in steps:
        step(DeltaTable(str(world.table("orders"))))
    assert under_gold(world, 2).run(4) is None
    assert_all_rows(world, "orders")


def test_a_waived_epoch_that_landed_and_was_deleted_with_all_rows_is_filled_in_under_another_name(
    tmp_path: Path,
) -> None:
    world = landed_unseen(tmp_path)
    DeltaTable(str(world.table("orders"))).delete()
    assert under_gold(world, 2).run(4) is None
    assert len(seen_by_duckdb(world.table("orders"))) == 7, "all but the four rows of epoch 1"


@pytest.mark.parametrize("steps", [(rewritten,), (restored, rewritten)])
def test_a_waived_epoch_that_landed_is_not_written_again_if_the_table_was_overwritten_since(
    tmp_path: Path, steps: tuple[Callable[[DeltaTable], None], ...]
) -> None:
    """The overwrite may have kept its rows."""
    world = landed_unseen(tmp_path)
    for step in steps:
        step(DeltaTable(str(world.table("orders"))))
    refused(under_gold(world, 2).run(4), codes.SINK_RENAMED)


def test_a_backfill_under_another_name_after_a_waived_epoch_that_landed_is_committed_once_its_record_is_pruned(
    tmp_path: Path,
) -> None:
    world = landed_unseen(tmp_path)
    assert replace(world, sinks=("audit",)).run(4) is None
    world.produce(3)
    for record in world.records.glob("epochs/*/*.open.json"):
        record.unlink()
    assert under_gold(world, 3).run(5) is None
    assert_all_rows(world, "orders")


@dataclass(frozen=True)
class Rewindable(DiskWorld):
    @property
    def source(self) -> MovedFile:
        return MovedFile(folder=super().source.folder)

    def rewind(self, epoch: int) -> None:
        """``rewind``, as the command puts it on record. (It knows no source that is a file.)"""
        at = orders.standing(self.ledger, self.name)
        source = self.source
        move = rewinding.to_epoch(self.ledger, at, source, epoch, on_disk())  # type: ignore[arg-type]
        orders.put(self.ledger, at, "rewind", Account(who="me", why="a test", host="here"), move)


def test_a_backfill_under_another_name_may_read_the_input_of_a_waived_epoch_that_landed_before_a_rewind(
    tmp_path: Path,
) -> None:
    landed = landed_unseen(tmp_path)
    world = Rewindable(tmp_path, sinks=("audit",))
    world.rewind(1)
    assert world.run(4) is None, "epoch 3 reads the input of epoch 2 again"
    world.produce(3)
    assert replace(world, sinks=("gold",), tables={"gold": "orders"}, backfill={"gold": 3}).run(5) is None
    shown = Counter(world.rows("orders"))
    twice = {row for row, times in shown.items() if times > 1}
    assert len(shown) == 14 and set(shown.values()) == {1, 2} and len(twice) == 5, "those of epoch 2, as was ordered"
    assert landed.ledger.newest_complete() == 4


def test_a_table_of_a_database_does_not_get_a_waived_epoch_again_that_landed(database: Related) -> None:
    """Also if the new name has markers of its own."""
    database = replace(database, names=("orders",))
    with pytest.raises(Crash):
        database.run(3, {"sql.commit.after": crash})
    database.waive("orders", 3)
    assert database.run(3) is None
    database.source.produce(2)
    for options in ({}, {"marker_table": "others"}):
        today = replace(database, names=("gold",), tables={"gold": "orders"}, backfill={"gold": 3}, options=options)
        refused(today.run(4), codes.SINK_RENAMED)
    database.db.run(f"CREATE TABLE copy ({COLUMNS})")
    copy = replace(database, names=("gold",), tables={"gold": "copy"}, backfill={"gold": 1})
    assert copy.run(5) is None, "another table beside the same markers"
    copy.require_all_shown("copy")


# -- markers that are not where the new name looks --------------------------------------------------------------------


@pytest.mark.parametrize("how", ["others", "dropped"])
def test_a_table_whose_markers_are_elsewhere_or_gone_is_not_filled_again_under_a_new_name(
    database: Related, how: str
) -> None:
    database = replace(database, names=("orders",))
    options = {"marker_table": "others"} if how == "others" else {}
    if how == "dropped":
        database.db.run("DROP TABLE epoch_markers")
    today = replace(database, names=("gold",), tables={"gold": "orders"}, backfill={"gold": 1}, options=options)
    error = refused(today.run(3), codes.SINK_RENAMED)
    assert "up to epoch 2" in error.what
    assert replace(today, backfill={}).run(3) is None
    database.require_all_shown("orders")


def test_a_table_is_not_filled_again_whose_marker_alone_is_gone(database: Related) -> None:
    database.db.run("DELETE FROM epoch_markers WHERE sink = 'orders'")
    refused(in_database(database, gold=2).run(3), codes.SINK_RENAMED)
    assert in_database(database).run(3) is None
    database.require_all_shown("orders", "lines")


@pytest.mark.parametrize("in_dag", ["orders", "lines"])
def test_a_table_whose_marker_alone_is_gone_is_not_filled_again_if_the_marker_of_another_sink_is_older(
    database: Related, in_dag: str
) -> None:
    """The other sink has left the DAG, or took no part in the newest epoch."""
    alone = replace(database, names=("orders",))
    assert alone.run(3) is None
    database.db.run("DELETE FROM epoch_markers WHERE sink = 'orders'")
    database.source.produce(2)
    names = ("gold",) if in_dag == "orders" else ("gold", "lines")
    gold = replace(database, names=names, tables={"gold": "orders"})
    for first in (1, 3):
        error = refused(replace(gold, backfill={"gold": first}).run(4), codes.SINK_RENAMED)
        assert "up to epoch 3" in error.what and "remove the sink from `backfill`" in error.remedy
    assert gold.run(4) is None
    database.require_all_shown("orders")


def test_a_database_that_went_back_to_before_the_last_name_gets_its_epochs_under_another_one(database: Related) -> None:
    backup = shutil.copy(database.db.run("PRAGMA database_list")[0][2], database.folder / "backup")
    silver = replace(database, names=("silver",), tables={"silver": "orders"})
    assert silver.run(3) is None
    shutil.copy(backup, database.folder / "db.sqlite")
    database.source.produce(2)
    gold = replace(database, names=("gold",), tables={"gold": "orders"}, backfill={"gold": 3})
    assert gold.run(4) is None
    database.require_all_shown("orders")


def test_a_table_that_lost_its_marker_and_rows_gets_them_once_its_old_marker_is_back(database: Related) -> None:
    database = replace(database, names=("orders",))
    database.db.run("DROP TABLE epoch_markers", 'DELETE FROM orders WHERE "offset" > 1')
    today = replace(database, names=("gold",), tables={"gold": "orders"}, backfill={"gold": 2})
    remedy = refused(today.run(3), codes.SINK_RENAMED).remedy
    assert "put the marker of the newest epoch that it has back, under the old name" in remedy
    gone = str(database.run(4))
    statements = re.search(r"put the marker back: (CREATE TABLE .*?;) (INSERT .*?;)", gone)
    first, second = (database.ledger.complete_record(number) for number in (1, 2))
    assert statements and first and second
    put = statements[2].replace(second.txn_id, first.txn_id).replace("'orders', 2,", "'orders', 1,")
    database.db.run(statements[1], put)
    assert today.run(5) is None
    database.require_all_shown("orders")


def test_a_database_that_went_back_to_before_the_first_epoch_is_filled_in_a_new_table(tmp_path: Path) -> None:
    db = SqliteDb(tmp_path / "db.sqlite")
    db.run(f"CREATE TABLE orders ({COLUMNS})", "INSERT INTO orders VALUES ('theirs', 9, 999, 'other')")
    backup = shutil.copy(db.path, tmp_path / "backup")
    world = Related(tmp_path, db, names=("orders",))
    for number in (1, 2):
        world.source.produce(2)
        assert world.run(number) is None
    shutil.copy(backup, db.path)
    world.source.produce(2)
    today = replace(world, names=("gold",), tables={"gold": "orders"}, backfill={"gold": 1})
    remedy = refused(today.run(3), codes.SINK_RENAMED).remedy
    assert "give the sink a new table or topic, and move there what else the old one has" in remedy
    db.run(f"CREATE TABLE gold ({COLUMNS})", "INSERT INTO gold SELECT * FROM orders")
    assert replace(today, tables={}).run(4) is None
    other = (9, 999, "other")
    assert world.shown("gold") == [sorted([*world.source.all_rows(), other])]


@pytest.mark.parametrize("options", [{}, {"marker_table": "others"}], ids=["the same markers", "other markers"])
def test_a_database_that_went_back_gets_the_later_epochs_under_a_new_name(
    tmp_path: Path, options: Mapping[str, Any]
) -> None:
    db = SqliteDb(tmp_path / "db.sqlite")
    db.run(f"CREATE TABLE orders ({COLUMNS})")
    world = Related(tmp_path, db, names=("orders",))
    world.source.produce(4)
    assert world.run(1) is None
    backup = shutil.copy(db.path, tmp_path / "backup")
    world.source.produce(4)
    assert world.run(2) is None
    shutil.copy(backup, db.path)
    world.source.produce(2)
    today = replace(world, names=("gold",), tables={"gold": "orders"}, options=options)
    error = refused(replace(today, backfill={"gold": 1}).run(3), codes.SINK_RENAMED)
    assert replace(today, backfill={"gold": epoch_in(error)}).run(3) is None
    world.require_all_shown("orders")
