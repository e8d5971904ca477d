from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from socket import create_server, socket
from types import SimpleNamespace

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Environment, Sink
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Corrupt, NotApplied
from airflow_epochs.hooks import informed_actions
from airflow_epochs.model import Marker, Run, WaivedRecord
from airflow_epochs.operators import definitions
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.sql.sink import SqlSink
from airflow_epochs.testing import Crash, MemorySink, MemoryWorld, memory_coordinator, memory_pipeline, run_epoch
from tests.support.faults_world import DiskWorld, crash
from tests.support.remedies import assert_all_rows, in_the_environment, ordered
from tests.support.sql_pipeline import COLUMNS, Related
from tests.support.sql_world import new_sqlite


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


def told(world: DiskWorld) -> str:
    """What the command says before it asks; it is told no."""
    return ordered(world.ledger_root, "epochs", "waive", "orders", "2", "orders", "--why", "a test", answer="n")


@pytest.mark.proof
def test_a_waiver_of_rows_that_the_sink_shows_says_so_and_how_the_epoch_is_completed_with_them(
    one_sink: DiskWorld,
) -> None:
    one_sink.crash_at("delta.commit.after")
    said = told(one_sink)
    assert "Sink orders shows the 5 rows of the epoch: its commit has landed" in said and "loses" not in said
    assert "clear the failed task, or start a run" in said
    assert one_sink.run(3) is None
    complete = one_sink.ledger.complete_record(2)
    assert complete and complete.receipts.keys() == {"orders"}
    assert_all_rows(one_sink, "orders")


@pytest.mark.proof
def test_a_waiver_says_that_it_does_not_stop_a_commit_that_has_begun(one_sink: DiskWorld) -> None:
    one_sink.crash_at("delta.commit.before")
    said = told(one_sink)
    assert "Rows that sink orders loses for good: 5, staged at" in said
    assert "A commit that has begun is not stopped by the waiver" in said and "`backfill`" in said


@pytest.mark.proof
def test_a_waiver_of_a_sink_that_does_not_answer_says_that_its_rows_may_be_there(
    one_sink: DiskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_sink.crash_at("delta.commit.after")

    def down(self: DeltaSink, pipeline: str, env: Environment) -> Marker | None:
        raise NotApplied("It is down.", code=codes.CONNECTION_MISSING)

    monkeypatch.setattr(DeltaSink, "last_committed", down)
    assert "loses for good, unless it shows them already (it could not be asked): 5, staged at" in told(one_sink)


# -- a database, of which the ledger names the connection ------------------------------------------------------------


@pytest.fixture
def of_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Related:
    """Epoch 1 is in doubt: the sink has committed it, and has no receipt. Airflow has the connection."""
    world = Related(tmp_path, new_sqlite(tmp_path), names=("orders",))
    world.db.run(f"CREATE TABLE orders ({COLUMNS})")
    world.source.produce(3)
    with pytest.raises(Crash):
        world.run(1, {"sql.commit.after": crash})
    for name, value in in_the_environment(*world.known.values()).items():
        monkeypatch.setenv(name, value)
    return world


def in_dags(monkeypatch: pytest.MonkeyPatch, *sinks: Sink) -> None:
    """The DAG of this installation has these sinks."""
    found = SimpleNamespace(pipeline=SimpleNamespace(sinks=sinks))
    monkeypatch.setattr(definitions, "find", lambda *asked, **named: found)


def told_first(world: Related, answer: str = "n") -> str:
    """What the command says before it asks."""
    ledger = world.folder / "ledger"
    return ordered(ledger, "epochs", "waive", "orders", "1", "orders", "--why", "a test", answer=answer)


def test_a_sink_whose_connection_the_dag_names_is_asked_by_the_command_also_if_the_ledger_is_not_signed(
    of_database: Related, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_dags(monkeypatch, of_database.sink("orders"))
    assert len(of_database.shown("orders")[0]) == 3
    assert "Sink orders shows the 3 rows of the epoch: its commit has landed" in told_first(of_database)


@pytest.mark.parametrize("way", ["another connection in the DAG", "no DAG", "page"])
def test_an_unsigned_record_leads_to_no_connection_that_no_dag_is_known_to_use_and_the_waiver_says_why(
    of_database: Related, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    asked = []
    monkeypatch.setattr(SqlSink, "last_committed", lambda self, *about: asked.append(self.name))
    if way == "another connection in the DAG":
        in_dags(monkeypatch, SqlSink("orders", "other", "orders", staging="/staging"))
    if way == "page":
        said = " ".join(informed_actions.InformedWaive("orders", 1, "orders").told(of_database.ledger))
    else:
        said = told_first(of_database)
    assert "unless it shows them already (the ledger is not signed, so the sink was not asked): 3, staged at" in said
    [why] = [line for line in caplog.messages if line.startswith("Sink orders was not asked")]
    assert "EPOCHS-RECORD-CONNECTION-FOREIGN" in why and "forged" not in why and "Undo" not in why
    assert not asked


@pytest.fixture
def silent() -> Iterator[socket]:
    """A server that takes connections, and says nothing."""
    with create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server


def connections_to(server: socket) -> int:
    """How many have connected since it was last asked."""
    number = 0
    with suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            number += 1
    return number


@pytest.mark.proof
def test_a_sink_that_hangs_is_waived_after_one_question_which_the_command_does_not_wait_for(
    of_database: Related, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, silent: socket
) -> None:
    in_dags(monkeypatch, of_database.sink("orders"))
    monkeypatch.setenv("AIRFLOW_CONN_DB", f"postgres://me@127.0.0.1:{silent.getsockname()[1]}/db")
    monkeypatch.setattr(informed_actions, "ANSWERS_WITHIN_S", 0.5)
    before = set(threading.enumerate())
    said = told_first(of_database, answer="y")
    assert "unless it shows them already (it could not be asked): 3, staged at" in said
    assert "TimeoutError: It has not answered within 0.5 s." in caplog.text
    assert all(thread.daemon for thread in set(threading.enumerate()) - before), "the process can end"
    assert of_database.ledger.waiver(1, "orders")
    assert connections_to(silent) == 1
