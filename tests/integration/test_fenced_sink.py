"""A commit that hangs lands after its epoch was waived and brought under another name: no row comes twice."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, ClassVar
from unittest.mock import patch

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Environment
from airflow_epochs.coordinator.inspection.verifying import FindingVerdict, verify
from airflow_epochs.errors import Corrupt, Fenced
from airflow_epochs.model import JsonDict, Marker, TransactionId, WaivedRecord
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.sql.sink import SqlSink
from airflow_epochs.testing import Crash, MemoryEnvironment, MemorySink, memory_coordinator
from tests.support.faults_world import DiskWorld, crash, on_disk
from tests.support.remedies import assert_all_rows, ordered, seen_by_duckdb
from tests.support.scenario import Scenario
from tests.support.scenario import run as run_of
from tests.support.sql_pipeline import COLUMNS, Related
from tests.support.sql_world import SqliteDb

WITHIN_S = 60


@pytest.fixture
def database(tmp_path: Path) -> Related:
    """One sink in SQLite, whose table takes a row twice; no epoch, and input for the first."""
    db = SqliteDb(tmp_path / "db.sqlite")
    db.run(f"CREATE TABLE orders ({COLUMNS})")
    database = Related(tmp_path, db, names=("orders",))
    database.source.produce(4)
    return database


def under_gold(world: DiskWorld, first: int = 2) -> DiskWorld:
    return replace(world, sinks=("gold",), tables={"gold": "orders"}, backfill={"gold": first})


def waived(world: DiskWorld, number: int = 2) -> None:
    """The epoch is completed without the sink, and there is input for the next one."""
    ordered(world.ledger_root, "epochs", "waive", "orders", str(number), "orders", "--why", "it hangs")
    assert world.run(number) is None
    world.produce(2)


def hangs(world: DiskWorld, phase: str, meanwhile: Callable[[], None], number: int = 2) -> None:
    """The sink's commit pauses at a phase. Then it finds that it is late."""
    error = world.run(number, world.coordinator({phase: meanwhile}))
    assert isinstance(error, Fenced) and error.code is codes.EPOCH_COMPLETED_BY_OTHER


def txn_of(world: DiskWorld | Related, epoch: int) -> TransactionId:
    txn = world.ledger.view(epoch).epoch.txn
    assert txn
    return txn


def marker_of(world: DiskWorld, sink: str = "orders") -> Marker | None:
    return DeltaSink(sink, str(world.table("orders"))).last_committed("orders", on_disk())


# -- it lands after the backfill --------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["commit.orders", "delta.commit.before"])
def test_a_delta_commit_that_hangs_does_not_land_after_its_epoch_was_brought_under_another_name(
    one_sink: DiskWorld, phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    def meanwhile() -> None:
        waived(one_sink)
        assert under_gold(one_sink).run(3) is None

    with not_cleared_away(DeltaSink):
        hangs(one_sink, phase, meanwhile)
    assert "Make sure that no task" not in caplog.text
    assert_all_rows(one_sink, "orders")


def not_cleared_away(kind: type) -> AbstractContextManager[object]:
    """What is staged stays, as where the store does not let it be deleted: so a late commit finds it."""
    return patch.object(kind, "discard")


@pytest.mark.parametrize("options", [{}, {"marker_table": "others"}], ids=["", "the new name has markers of its own"])
@pytest.mark.parametrize("epoch", [1, 2])
def test_a_commit_in_a_database_that_hangs_does_not_land_after_its_epoch_was_brought_under_another_name(
    database: Related, epoch: int, options: dict[str, Any]
) -> None:
    """Also if it is the sink's first one, which expects no marker."""
    if epoch == 2:
        assert database.run(1) is None
        database.source.produce(6)
    gold = replace(database, names=("gold",), tables={"gold": "orders"}, backfill={"gold": epoch}, options=options)
    with not_cleared_away(SqlSink):
        fenced_by(database, gold, epoch)
    database.require_all_shown("orders")


def fenced_by(database: Related, today: Related, epoch: int) -> None:
    """The sink's commit hangs, and ``today``'s run ends before it goes on."""

    def meanwhile() -> None:
        database.waive("orders", epoch)
        assert database.run(epoch) is None
        database.source.produce(2)
        assert today.run(3) is None

    error = database.run(epoch, {"commit.orders": meanwhile})
    assert isinstance(error, Fenced) and error.code is codes.EPOCH_COMPLETED_BY_OTHER


def test_an_upsert_that_hangs_does_not_bring_older_rows_back(tmp_path: Path) -> None:
    db = SqliteDb(tmp_path / "db.sqlite")
    db.run(f"CREATE TABLE orders ({COLUMNS}, PRIMARY KEY (payload))")
    upsert = {"mode": "upsert", "keys": ["payload"]}
    database = Related(tmp_path, db, names=("orders",), options=upsert)
    database.source.produce(4)
    gold = replace(database, names=("gold",), tables={"gold": "orders"}, backfill={"gold": 1})
    seen: list[Any] = []

    def meanwhile() -> None:
        database.waive("orders", 1)
        assert database.run(1) is None
        database.source.produce(2)
        assert gold.run(3) is None
        db.run("UPDATE orders SET source = 'newer'")
        seen.extend(db.run("SELECT * FROM orders"))

    with not_cleared_away(SqlSink):
        assert isinstance(database.run(1, {"commit.orders": meanwhile}), Fenced)
    assert seen and db.run("SELECT * FROM orders") == seen


def test_a_name_that_has_another_table_is_fenced_and_goes_on_there(database: Related) -> None:
    assert database.run(1) is None
    database.source.produce(6)
    database.db.run(f"CREATE TABLE elsewhere ({COLUMNS})")
    tables = {"gold": "orders", "orders": "elsewhere"}
    today = replace(database, names=("gold", "orders"), tables=tables, backfill={"gold": 2})
    with not_cleared_away(SqlSink):
        fenced_by(database, today, 2)
    database.require_all_shown("orders")
    assert today.db.run("SELECT count(*) FROM elsewhere") == [(2,)]


def test_all_commits_of_a_name_that_hang_are_fenced(one_sink: DiskWorld) -> None:
    def later() -> None:
        waived(one_sink, 3)
        assert under_gold(one_sink).run(4) is None

    def meanwhile() -> None:
        waived(one_sink)
        hangs(one_sink, "commit.orders", later, 3)

    with not_cleared_away(DeltaSink):
        hangs(one_sink, "commit.orders", meanwhile)
    assert_all_rows(one_sink, "orders")
    told = [detail for each in verify(under_gold(one_sink).coordinator().task, 10) for detail in each.details]
    assert [detail[:7] for detail in told if detail.endswith("so it lacks the epoch's rows.")] == ["Epoch 3", "Epoch 2"]


def test_a_commit_that_hangs_lands_no_more_if_the_commit_under_the_new_name_died(one_sink: DiskWorld) -> None:
    """The fence stays, and a repeat finds it."""
    today = under_gold(one_sink)

    def meanwhile() -> None:
        waived(one_sink)
        today.crash_at("delta.commit.before", 3)

    with not_cleared_away(DeltaSink):
        hangs(one_sink, "commit.orders", meanwhile)
    assert today.run(3) is None
    assert_all_rows(one_sink, "orders")


# -- it lands before the fence ----------------------------------------------------------------------------------------


def test_a_commit_that_lands_right_before_the_fence_is_found(one_sink: DiskWorld) -> None:
    """The fence comes to nothing, and the marker goes on to tell."""
    paused, free, today = Event(), Event(), under_gold(one_sink)

    def hang() -> None:
        paused.set()
        assert free.wait(WITHIN_S)

    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(one_sink.run, 2, one_sink.coordinator({"delta.commit.before": hang}))
        assert paused.wait(WITHIN_S)
        waived(one_sink)

        def lands() -> None:
            free.set()
            assert late.result() is None

        error = today.run(3, today.coordinator({"delta.fence.before": lands}))
    assert isinstance(error, Corrupt) and error.code is codes.BACKFILL_OVERTAKEN
    assert marker_of(one_sink) == Marker.of(txn_of(one_sink, 2))


def test_what_cannot_be_fenced_is_named_in_the_log(one_sink: DiskWorld, caplog: pytest.LogCaptureFixture) -> None:
    """An older commit has landed. A fence would hide that."""
    one_sink.crash_at("delta.commit.after")
    waived(one_sink)
    one_sink.crash_at("commit.orders", 3)
    waived(one_sink, 3)
    assert under_gold(one_sink, 3).run(4) is None
    assert "Epoch 3 was waived under the name orders, which cannot be fenced." in caplog.text
    assert marker_of(one_sink) == Marker.of(txn_of(one_sink, 2))
    assert_all_rows(one_sink, "orders")


# -- afterwards -------------------------------------------------------------------------------------------------------


def fenced(world: DiskWorld, *, landed: bool = True) -> DiskWorld:
    """Epoch 2 was waived, and brought under the name `gold`. With ``landed=False``, that commit was waived too."""
    world.crash_at("commit.orders")
    waived(world)
    today = under_gold(world)
    if landed:
        assert today.run(3) is None
    else:
        today.crash_at("delta.commit.before", 3)
        ordered(world.ledger_root, "epochs", "waive", "orders", "3", "gold", "--why", "a test")
        assert today.run(3) is None
    world.produce(3)
    assert marker_of(world) == Marker.of(txn_of(world, 2).fence)
    return world


def test_a_fenced_name_goes_on_if_it_comes_back(one_sink: DiskWorld) -> None:
    fenced(one_sink)
    assert one_sink.run(4) is None
    one_sink.one_more_epoch()
    assert_all_rows(one_sink, "orders")


def test_a_fenced_name_that_comes_back_is_waived_and_fenced_again(one_sink: DiskWorld) -> None:
    fenced(one_sink)

    silver = replace(one_sink, sinks=("silver",), tables={"silver": "orders"}, backfill={"silver": 4})

    def again() -> None:
        waived(one_sink, 4)
        assert silver.run(5) is None

    with not_cleared_away(DeltaSink):
        hangs(one_sink, "commit.orders", again, 4)
    assert marker_of(one_sink) == Marker.of(txn_of(one_sink, 4).fence)
    assert_all_rows(one_sink, "orders")


def test_a_fence_is_no_epoch_that_a_third_name_would_write_again(one_sink: DiskWorld) -> None:
    """Neither the old name nor the new one has landed, so a third name may bring the rows."""
    fenced(one_sink, landed=False)
    silver = replace(one_sink, sinks=("silver",), tables={"silver": "orders"}, backfill={"silver": 2})
    assert silver.run(4) is None
    assert_all_rows(one_sink, "orders")


def test_a_fence_that_comes_late_does_not_stop_the_name_that_is_back(one_sink: DiskWorld) -> None:
    """The task that fences hangs, too."""
    one_sink.crash_at("commit.orders")
    waived(one_sink)
    txn = txn_of(one_sink, 2)

    def late() -> None:
        sink = DeltaSink("orders", str(one_sink.table("orders")))
        assert sink.fence("orders", [txn_of(one_sink, 1)], txn.fence, on_disk())

    assert one_sink.run(3, one_sink.coordinator({"commit.orders": late})) is None
    one_sink.one_more_epoch()
    lacking = {(p, o) for p, o, _ in one_sink.source.all_rows()} - {*seen_by_duckdb(one_sink.table("orders"))}
    assert len(lacking) == 5, "the rows of the epoch that was waived"


def test_a_name_whose_only_epoch_was_fenced_is_filled_in_another_table(database: Related) -> None:
    with pytest.raises(Crash):
        database.run(1, {"commit.orders": crash})
    database.waive("orders", 1)
    assert database.run(1) is None
    database.source.produce(2)
    gold = replace(database, names=("gold",), tables={"gold": "orders"}, backfill={"gold": 1})
    assert gold.run(2) is None
    database.source.produce(3)
    database.db.run(f"CREATE TABLE elsewhere ({COLUMNS})")
    today = replace(database, tables={"orders": "elsewhere"}, backfill={"orders": 1})
    assert today.run(3) is None
    today.require_all_shown("elsewhere")


def test_a_fence_that_comes_late_does_not_stop_a_backfill_of_the_name_that_is_back(database: Related) -> None:
    with pytest.raises(Crash):
        database.run(1, {"commit.orders": crash})
    database.waive("orders", 1)
    assert database.run(1) is None
    database.source.produce(2)
    fence = txn_of(database, 1).fence

    def late() -> None:
        assert database.sink("orders").fence("orders", [None], fence, on_disk(None, database.known))

    assert replace(database, backfill={"orders": 1}).run(2, {"commit.orders": late}) is None
    database.require_all_shown("orders")


def test_verify_tells_that_a_fenced_commit_has_not_landed(one_sink: DiskWorld) -> None:
    fenced(one_sink)
    for today in (one_sink, under_gold(one_sink)):
        found = [*verify(today.coordinator().task, 10)]
        assert {each.verdict for each in found} <= {FindingVerdict.OK, FindingVerdict.NOT_CHECKED}, found
        (told,) = [detail for each in found for detail in each.details if "waived" in detail]
        assert told.startswith("Epoch 2: sink orders") and told.endswith("so it lacks the epoch's rows.")


# -- sinks that cannot be fenced --------------------------------------------------------------------------------------


def test_a_sink_of_ones_own_that_cannot_be_fenced_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    scenario = Scenario()
    assert scenario.airflow_run(run_of(1)) is None
    scenario.produce(2)
    with pytest.raises(Crash):
        scenario.airflow_run(run_of(2), scenario.coordinator(observer=dies_at("commit.orders")))
    txn_id = scenario.ledger.view(2).opened.txn_id
    scenario.ledger.put(WaivedRecord(txn_id=txn_id, sink="orders", who="me", why="it hangs", at="now"))
    assert scenario.airflow_run(run_of(3)) is None
    scenario.produce(2)
    sink = MemorySink(name="gold", world=scenario.world.name, table="orders")
    today = replace(scenario.pipeline, sinks=(sink,), backfill={"gold": 2})
    assert scenario.airflow_run(run_of(4), memory_coordinator(scenario.world, today)) is None
    assert "A sink of this kind cannot be fenced." in caplog.text, "from `open`"
    assert "Epoch 2 was waived under the name orders, which cannot be fenced." in caplog.text, "from the commit"


class Recording(MemorySink):
    """It says of each fence that it shows it."""

    asked: ClassVar[list[tuple[list[TransactionId | None], TransactionId]]] = []

    def spec(self) -> JsonDict:
        return {**super().spec(), "kind": f"{__name__}:Recording"}

    def fence(self, pipeline: str, over: Collection[TransactionId | None], by: TransactionId, env: Environment) -> bool:
        self.asked.append(([*over], by))
        return True


def test_each_waived_transaction_gets_its_fence_the_oldest_first() -> None:
    """Delta compares epochs alone, where Spark commits: a fence that skipped one could hide that it has landed."""
    scenario, txns = Scenario(), []
    kind = partial(Recording, world=scenario.world.name, table="orders")
    old = replace(scenario.pipeline, sinks=(kind(name="orders"),))
    assert scenario.airflow_run(run_of(1), memory_coordinator(scenario.world, old)) is None
    for number in (2, 3):
        scenario.produce(2)
        env = MemoryEnvironment(observer=dies_at("commit.orders"))
        with pytest.raises(Crash):
            scenario.airflow_run(run_of(number), memory_coordinator(scenario.world, old, env=env))
        txns.append(scenario.ledger.view(number).opened.txn_id)
        waiver = WaivedRecord(txn_id=txns[-1], sink="orders", who="me", why="it hangs", at="now")
        scenario.ledger.put(waiver)
        assert scenario.airflow_run(run_of(number), memory_coordinator(scenario.world, old)) is None
    scenario.produce(2)
    today = replace(scenario.pipeline, sinks=(kind(name="gold"),), backfill={"gold": 2})
    assert scenario.airflow_run(run_of(4), memory_coordinator(scenario.world, today)) is None
    first = scenario.ledger.complete_record(1)
    assert first and Recording.asked[:2] == [
        ([first.txn_id], txns[0].fence),
        ([first.txn_id, txns[0].fence], txns[1].fence),
    ]


def dies_at(moment: str) -> Callable[[str], None]:
    def observer(effect: str) -> None:
        if effect == moment:
            crash()

    return observer
