from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Environment
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Corrupt, NotApplied
from airflow_epochs.model import Marker, Run, WaivedRecord
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.testing import MemorySink, MemoryWorld, memory_coordinator, memory_pipeline, run_epoch
from tests.support.faults_world import DiskWorld, start
from tests.support.remedies import assert_all_rows, ordered


class Lab:
    """Two sinks; epoch 1 is complete, epoch 2 was completed with `audit` waived."""

    def __init__(self, *, backfilled: bool = False) -> None:
        """``backfilled``: `audit` is new in epoch 2, and begins with epoch 1."""
        self.world, self.backfill = MemoryWorld(), {"audit": 1} if backfilled else {}
        self.world.produce("orders", 0, ["one"])
        run_epoch(self.without_audit() if backfilled else self.task(), Run("dag", "r1"))
        self.world.produce("orders", 0, ["two"])
        run = Run("dag", "r2")
        self.task().open(run)
        self.task().vote(run, self.task().stage(run).stage)
        self.view = self.task().task.ledger.view(2)
        self.task().commit(run, "orders")
        self.waive(2)
        self.task().complete(run)

    def task(self) -> Coordinator:
        pipeline = memory_pipeline(self.world, ("orders", "audit"))
        return memory_coordinator(self.world, replace(pipeline, backfill=self.backfill))

    def without_audit(self) -> Coordinator:
        return memory_coordinator(self.world, memory_pipeline(self.world, ("orders",)))

    def waive(self, epoch: int) -> None:
        ledger = self.task().task.ledger
        txn_id = ledger.view(epoch).opened.txn_id
        ledger.put(WaivedRecord(txn_id=txn_id, sink="audit", who="me", why="gone", at="now"))

    def next_epoch(self) -> list[list[object]]:
        self.world.produce("orders", 0, ["three"])
        run_epoch(self.task(), Run("dag", "r3"))
        return [self.world.table(sink).values() for sink in ("orders", "audit")]


def test_a_waived_sink_whose_table_is_as_it_was_lacks_only_the_waived_epoch() -> None:
    assert Lab().next_epoch() == [["one", "two", "three"], ["one", "three"]]


def test_a_waived_sink_whose_table_is_gone_starts_anew() -> None:
    lab = Lab()
    del lab.world.tables["audit"]
    assert lab.next_epoch() == [["one", "two", "three"], ["three"]]
    assert lab.task().newest_complete().waived == ()


@pytest.mark.parametrize("knows", [True, False], ids=["told whose", "whose is forgotten"])
def test_a_waived_sink_that_committed_late_after_all_goes_on_from_there(
    monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    lab, told = Lab(), MemorySink.last_committed

    def without_token(self: MemorySink, pipeline: str, env: Environment) -> Marker | None:
        """As a table of Spark's shows it, once its log has been cleaned up."""
        found = told(self, pipeline, env)
        return found and replace(found, token=None)

    lab.task()._commit_sink(lab.view, "audit")
    if not knows:
        monkeypatch.setattr(MemorySink, "last_committed", without_token)
    assert lab.next_epoch() == [["one", "two", "three"], ["one", "two", "three"]]


@pytest.mark.parametrize("run", ["r3", "r4"], ids=["of the run", "of the next run"])
def test_a_waived_commit_that_lands_after_the_next_epoch_was_opened_does_not_stop_an_open(run: str) -> None:
    lab = Lab()
    lab.world.produce("orders", 0, ["three"])
    lab.task().open(Run("dag", "r3"))
    lab.task()._commit_sink(lab.view, "audit")
    run_epoch(lab.task(), Run("dag", run))
    assert lab.world.table("audit").values() == ["one", "two", "three"]


def test_a_waived_commit_that_lands_after_the_next_decision_does_not_stop_a_commit() -> None:
    lab, run = Lab(), Run("dag", "r3")
    lab.world.produce("orders", 0, ["three"])
    lab.task().open(run)
    lab.task().vote(run, lab.task().stage(run).stage)
    lab.task()._commit_sink(lab.view, "audit")
    for sink in ("orders", "audit"):
        lab.task().commit(run, sink)
    assert lab.task().complete(run).receipts.keys() == {"orders", "audit"}
    assert lab.world.table("audit").values() == ["one", "two", "three"]


def test_a_waived_backfill_that_lands_after_the_decision_of_the_next_backfill_comes_once() -> None:
    lab, run = Lab(backfilled=True), Run("dag", "r3")
    lab.world.produce("orders", 0, ["three"])
    lab.task().open(run)
    lab.task().vote(run, lab.task().stage(run).stage)
    lab.task()._commit_sink(lab.view, "audit")
    lab.task().commit(run, "orders")
    with pytest.raises(Corrupt, match="commit of epoch 2 landed in the sink late") as told:
        lab.task().commit(run, "audit")
    assert told.value.code is codes.BACKFILL_OVERTAKEN
    assert told.value.remedy.startswith("Type `airflow epochs waive orders 3 audit --why …`")
    assert lab.world.table("audit").values() == ["one", "two"]
    lab.waive(3)
    lab.task().complete(run)
    lab.world.produce("orders", 0, ["four"])
    run_epoch(lab.task(), Run("dag", "r4"))
    assert lab.world.table("audit").values() == ["one", "two", "four"], "epoch 3 was waived"


def test_a_sink_that_nobody_waived_may_not_lose_its_table() -> None:
    lab = Lab()
    del lab.world.tables["orders"]
    with pytest.raises(Corrupt, match="no epoch of this pipeline"):
        lab.next_epoch()


@pytest.mark.parametrize("late", [False, True], ids=["never committed", "committed late"])
@pytest.mark.parametrize("without", [1, 3])
def test_a_waived_sink_that_was_removed_for_some_epochs_and_put_back_goes_on(late: bool, without: int) -> None:
    lab = Lab()
    if late:
        lab.task()._commit_sink(lab.view, "audit")
    for number in range(without):
        lab.world.produce("orders", 0, [f"removed {number}"])
        run_epoch(lab.without_audit(), Run("dag", f"without {number}"))
    shown = lab.next_epoch()[1]
    assert shown == (["one", "two", "three"] if late else ["one", "three"])
    assert lab.task().newest_complete().waived_ids == {}


@pytest.fixture
def in_doubt(tmp_path: Path) -> DiskWorld:
    """The commit of epoch 2 ended before or after it landed: the test says when."""
    return start(DiskWorld(tmp_path, sinks=("orders",)))


def told(world: DiskWorld) -> str:
    """What the command says before it asks; it is told no."""
    return ordered(world.ledger_root, "epochs", "waive", "orders", "2", "orders", "--why", "a test", answer="n")


def test_a_waiver_of_rows_that_the_sink_shows_says_so_and_how_the_epoch_is_completed_with_them(
    in_doubt: DiskWorld,
) -> None:
    in_doubt.crash_at("delta.commit.after")
    said = told(in_doubt)
    assert "Sink orders shows the 5 rows of the epoch: its commit has landed" in said and "loses" not in said
    assert "clear the failed task, or start a run" in said
    assert in_doubt.run(3) is None
    complete = in_doubt.ledger.complete_record(2)
    assert complete and complete.receipts.keys() == {"orders"}
    assert_all_rows(in_doubt, "orders")


def test_a_waiver_says_that_it_does_not_stop_a_commit_that_has_begun(in_doubt: DiskWorld) -> None:
    in_doubt.crash_at("delta.commit.before")
    said = told(in_doubt)
    assert "Rows that sink orders loses for good: 5, staged at" in said
    assert "A commit that has begun is not stopped by the waiver" in said and "`backfill`" in said


def test_a_waiver_of_a_sink_that_does_not_answer_says_that_its_rows_may_be_there(
    in_doubt: DiskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_doubt.crash_at("delta.commit.after")

    def down(self: DeltaSink, pipeline: str, env: Environment) -> Marker | None:
        raise NotApplied("It is down.", code=codes.CONNECTION_MISSING)

    monkeypatch.setattr(DeltaSink, "last_committed", down)
    assert "loses for good, unless it shows them already: it could not be asked: 5, staged at" in told(in_doubt)
