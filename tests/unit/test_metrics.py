"""What a StatsD server gets of the steps of an epoch: real UDP packets, real records, real Delta tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout, TaskDeferred
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

from airflow_epochs import codes
from airflow_epochs.contracts import Unread
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.inspection import lag as lags
from airflow_epochs.coordinator.inspection.lag import Lag
from airflow_epochs.errors import EpochError, Fenced, NoNewData, NotApplied
from airflow_epochs.model import Vote, VoteKind, WaivedRecord
from airflow_epochs.operators import metrics
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.testing import run_epoch
from tests.support.faults_disk import DiskSpark
from tests.support.faults_world import DiskWorld, phases_of
from tests.support.one_task import run_in_one_task
from tests.support.statsd import StatsdServer
from tests.support.waiting import wait_until


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsdServer]:
    """Airflow's stats send to it, without tags."""
    clients: list[Any] = []

    def client() -> Any:
        clients.append(get_stats_factory()())
        return clients[-1]

    with StatsdServer() as listener:
        for name, value in listener.env.items():
            monkeypatch.setenv(name, value)
        stats.initialize(factory=client, export_legacy_names=False)
        yield listener
    for each in clients:
        each.statsd.close()
    monkeypatch.undo()
    stats.initialize(factory=get_stats_factory(), export_legacy_names=False)


def got(server: StatsdServer) -> Mapping[str, float]:
    """What the server got since the last look."""
    stats.incr("epochs.that_is_all")
    wait_until(lambda: "that_is_all" in server.told(), 10)
    told = {name: value for name, value in server.told().items() if name != "that_is_all"}
    server.forget()
    return told


def step(coordinator: Coordinator, name: str, work: Callable[[], Any], try_number: int = 1) -> Any:
    with metrics.measured(coordinator.task, name, phases_of(coordinator), try_number):
        return work()


def run(world: DiskWorld, number: int = 1) -> None:
    """A run in which every step is a task of its own."""
    of = world.run_of(number)
    step(world.coordinator(), "open", lambda: None)
    c = world.coordinator()
    step(c, "open", lambda: c.open(of))
    report = step(c, "stage", lambda: c.stage(of)).stage
    step(c, "vote", lambda: c.vote(of, report))
    for sink in world.sinks:
        step(c, f"commit.{sink}", partial(c.commit, of, sink))
    step(c, "complete", lambda: c.complete(of))


def test_an_epoch_tells_its_phases_rows_commits_and_that_it_is_the_newest(
    no_epoch: DiskWorld, server: StatsdServer
) -> None:
    run(no_epoch)
    told = got(server)
    assert {name for name in told if "phase.duration" in name} == {
        f"orders.phase.duration.{of}"
        for of in ("open.all", "stage.all", "vote.all", "commit.orders", "commit.audit", "complete.all")
    }
    assert told["orders.commits.orders.committed"] == told["orders.commits.audit.committed"] == 1
    assert told["orders.rows.orders"] == len(no_epoch.rows("orders")) > 0
    assert (told["orders.completed"], told["orders.last_complete.epoch"]) == (1, 1)
    assert told["orders.last_complete.age"] == told["orders.in_doubt.count"] == told["orders.in_doubt.age"] == 0
    assert told["orders.last_complete.time"] > 1_700_000_000
    assert not [name for name in told if "aborts" in name]


def test_durations_are_in_milliseconds(no_epoch: DiskWorld, server: StatsdServer) -> None:
    begun = time.monotonic()
    run(no_epoch)
    elapsed_ms = (time.monotonic() - begun) * 1000
    total = sum(value for name, value in got(server).items() if "phase.duration" in name)
    assert elapsed_ms / 10 < total <= elapsed_ms


def test_the_lag_is_told_after_an_epoch_and_when_there_is_nothing_new(
    no_epoch: DiskWorld, server: StatsdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lag = Lag((Unread(topic="t", partition=0, start=5, end=15, ms=0),))
    monkeypatch.setattr(lags, "lag_of", lambda *of: lag)
    run(no_epoch)
    told = got(server)
    assert told["orders.lag.records"] == 10 and told["orders.lag.seconds"] > 1_700_000_000
    c = no_epoch.coordinator()
    with pytest.raises(NoNewData):
        step(c, "open", lambda: c.open(no_epoch.run_of(2)))
    assert got(server)["orders.lag.records"] == 10


def test_a_vote_against_an_epoch_is_an_abort(
    no_epoch: DiskWorld, server: StatsdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    c, of = no_epoch.coordinator(), no_epoch.run_of(1)
    c.open(of)
    report = c.stage(of).stage
    monkeypatch.setattr(DeltaSink, "vote", lambda *_: Vote(vote=VoteKind.VOTE_ABORT, reason="A test votes against it."))
    with pytest.raises(EpochError):
        step(c, "vote", lambda: c.vote(of, report))
    assert got(server)["orders.aborts.vote"] == 1


@pytest.mark.parametrize(("fails", "reason"), [("vote", "vote"), ("stage", "STORE-UNREACHABLE")])
def test_an_abort_in_the_layout_with_one_task_is_counted_once(
    no_epoch: DiskWorld, server: StatsdServer, monkeypatch: pytest.MonkeyPatch, fails: str, reason: str
) -> None:
    if fails == "vote":
        against = Vote(vote=VoteKind.VOTE_ABORT, reason="A test votes against it.")
        monkeypatch.setattr(DeltaSink, "vote", lambda *_: against)
    else:
        monkeypatch.setattr(DiskSpark, "run", unreachable)
    with pytest.raises((EpochError, AirflowFailException)):
        run_in_one_task(no_epoch.run_of(1), [DeltaSink("orders", str(no_epoch.table("orders")))], no_epoch.coordinator)
    assert {name: value for name, value in got(server).items() if "aborts" in name} == {f"orders.aborts.{reason}": 1}


def unreachable(*of: object) -> None:
    raise NotApplied("The store does not answer.", code=codes.STORE_UNREACHABLE)


def test_with_tags_the_names_are_the_same_for_all_pipelines(
    no_epoch: DiskWorld, server: StatsdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    run(no_epoch)
    told = got(server)
    assert told["commits,pipeline=orders,sink=audit,outcome=committed"] == 1
    assert "last_complete.epoch,pipeline=orders" in told


def test_a_task_that_finds_its_work_done_counts_it_as_already_done(no_epoch: DiskWorld, server: StatsdServer) -> None:
    run(no_epoch)
    got(server)
    c = no_epoch.coordinator()
    step(c, "commit.orders", lambda: c.commit(no_epoch.run_of(1), "orders"))
    step(c, "complete", lambda: c.complete(no_epoch.run_of(1)))
    told = got(server)
    assert told["orders.commits.orders.already"] == 1
    assert "orders.completed" not in told and "orders.rows.orders" not in told


def test_a_sink_that_is_waived_or_new_is_left_out_and_not_already_done(
    no_epoch: DiskWorld, server: StatsdServer
) -> None:
    c, of = left_in_doubt(no_epoch), no_epoch.run_of(1)
    txn_id = c.task.ledger.view(1).opened.txn_id
    c.task.ledger.put(WaivedRecord(txn_id=txn_id, sink="audit", who="me", why="so", at="now"))
    for sink in ("orders", "audit", "new"):
        step(c, f"commit.{sink}", partial(c.commit, of, sink))
    told = got(server)
    assert told["orders.commits.orders.committed"] == 1
    assert told["orders.commits.audit.left_out"] == told["orders.commits.new.left_out"] == 1
    step(c, "complete", lambda: c.complete(of))
    for sink in ("orders", "audit"):
        step(c, f"commit.{sink}", partial(c.commit, of, sink))
    told = got(server)
    assert told["orders.commits.orders.already"] == told["orders.commits.audit.left_out"] == 1


def left_in_doubt(world: DiskWorld) -> Coordinator:
    c, of = world.coordinator(), world.run_of(1)
    c.open(of)
    c.vote(of, c.stage(of).stage)
    return c


def test_an_epoch_in_doubt_is_told_until_it_is_complete(
    no_epoch: DiskWorld, server: StatsdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = left_in_doubt(no_epoch)

    with monkeypatch.context() as context:
        context.setattr(DeltaSink, "commit", unreachable)
        with pytest.raises(EpochError):
            step(c, "commit.orders", lambda: c.commit(no_epoch.run_of(1), "orders"))
    told = got(server)
    assert told["orders.commits.orders.failed"] == told["orders.in_doubt.count"] == 1
    assert 0 < told["orders.in_doubt.age"] < 60
    step(c, "commit.orders", lambda: c.commit(no_epoch.run_of(1), "orders"), try_number=2)
    assert got(server)["orders.commits.orders.retried"] == 1
    later = no_epoch.coordinator()
    step(later, "open", lambda: later.open(no_epoch.run_of(2)))
    told = got(server)
    assert told["orders.commits.audit.retried"] == told["orders.completed"] == 1
    assert told["orders.in_doubt.count"] == 0


def test_a_commit_that_airflow_ends_by_its_execution_timeout_is_told_and_one_that_waits_in_the_triggerer_is_not(
    no_epoch: DiskWorld, server: StatsdServer
) -> None:
    c = left_in_doubt(no_epoch)

    def raises(error: BaseException) -> None:
        raise error

    with pytest.raises(AirflowTaskTimeout):
        step(c, "commit.orders", lambda: raises(AirflowTaskTimeout("Timeout, PID: 1")))
    told = got(server)
    assert told["orders.commits.orders.failed"] == told["orders.in_doubt.count"] == 1
    with pytest.raises(TaskDeferred):
        step(c, "commit.orders", lambda: raises(TaskDeferred(trigger=None, method_name="execute")))
    assert not got(server)


def test_an_epoch_whose_sinks_all_have_receipts_is_told_while_it_cannot_be_completed(
    no_epoch: DiskWorld, server: StatsdServer
) -> None:
    c = left_in_doubt(no_epoch)
    for sink in no_epoch.sinks:
        c.commit(no_epoch.run_of(1), sink)

    def no_answer() -> None:
        raise NotApplied("The store does not answer.", remedy="Wait.")

    with pytest.raises(NotApplied):
        step(c, "complete", no_answer)
    told = got(server)
    assert told["orders.in_doubt.count"] == 1 and 0 < told["orders.in_doubt.age"] < 60


@pytest.mark.parametrize("next_step", ["complete", "open"])
def test_a_doubt_is_no_longer_told_though_the_task_that_ended_it_died_before_its_metrics(
    no_epoch: DiskWorld, server: StatsdServer, next_step: str
) -> None:
    run_epoch(no_epoch.coordinator(), no_epoch.run_of(1))
    no_epoch.produce(2)
    c = no_epoch.coordinator()
    step(
        c, next_step, lambda: c.complete(no_epoch.run_of(1)) if next_step == "complete" else c.open(no_epoch.run_of(2))
    )
    told = got(server)
    assert told["orders.in_doubt.count"] == told["orders.in_doubt.age"] == 0
    assert "orders.completed" not in told


def test_a_successful_step_does_not_call_a_run_at_work_a_doubt_nor_its_end(
    no_epoch: DiskWorld, server: StatsdServer
) -> None:
    c = left_in_doubt(no_epoch)
    step(c, "open", lambda: c.open(no_epoch.run_of(1)))
    assert "orders.in_doubt.count" not in got(server)


def test_a_fenced_commit_is_counted(no_epoch: DiskWorld, server: StatsdServer) -> None:
    run(no_epoch)
    got(server)
    c = no_epoch.coordinator()

    def late() -> None:
        raise Fenced("Late.", remedy="Do nothing.")

    with pytest.raises(Fenced):
        step(c, "commit.orders", late)
    assert got(server)["orders.commits.orders.fenced"] == 1


def test_an_abort_is_counted_by_the_code_of_its_cause(no_epoch: DiskWorld, server: StatsdServer) -> None:
    c, of = no_epoch.coordinator(), no_epoch.run_of(1)
    c.open(of)

    def abort(cause: str) -> None:
        raise c.abort(of, f"run 1 failed before a decision. {cause}")

    with pytest.raises(EpochError):
        step(c, "abort", lambda: abort(f"{codes.UDF_RAISED.name}: A UDF raised ValueError."))
    assert got(server)["orders.aborts.UDF-RAISED"] == 1


def test_an_attempt_that_another_run_aborts_is_counted_as_taken_over(no_epoch: DiskWorld, server: StatsdServer) -> None:
    no_epoch.coordinator().open(no_epoch.run_of(1))
    c = no_epoch.coordinator()
    step(c, "open", lambda: c.open(no_epoch.run_of(2)))
    assert got(server)["orders.aborts.taken_over"] == 1


def test_a_run_without_new_data_tells_the_age_of_the_newest_epoch(no_epoch: DiskWorld, server: StatsdServer) -> None:
    run(no_epoch)
    got(server)
    c = no_epoch.coordinator()
    with pytest.raises(NoNewData):
        step(c, "open", lambda: c.open(no_epoch.run_of(2)))
    told = got(server)
    assert 0 < told["orders.last_complete.age"] < 60
    assert "orders.phase.duration.open.all" not in told and told["orders.in_doubt.count"] == 0


def test_a_metric_that_cannot_be_sent_fails_nothing(
    no_epoch: DiskWorld, server: StatsdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*of: object, **more: object) -> None:
        raise OSError("no route to host")

    for kind in ("incr", "gauge", "timing"):
        monkeypatch.setattr(stats, kind, broken)
    run(no_epoch)
    assert no_epoch.ledger.newest_complete() == 1


def test_where_airflow_sends_no_metrics_nothing_is_looked_up(
    no_epoch: DiskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_Step", None)
    run(no_epoch)
    assert no_epoch.ledger.newest_complete() == 1


def test_a_task_that_goes_to_wait_in_the_triggerer_sends_nothing(no_epoch: DiskWorld, server: StatsdServer) -> None:
    class Deferred(BaseException):
        """As Airflow's TaskDeferred."""

    def defer() -> None:
        raise Deferred

    with pytest.raises(Deferred):
        step(no_epoch.coordinator(), "open", defer)
    assert got(server) == {}
