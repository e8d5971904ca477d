"""``airflow epochs retry`` where Airflow starts no run of a backfill any more, and where a new run has no interval.

Airflow's own code cancels, pauses and creates the backfills, and chooses the runs that it starts.
"""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest
from airflow.sdk import (
    DAG,
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
)

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect, codes
from airflow_epochs.contracts import Environment, Interval, Move, Position, SinkAttempt
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.orders import orders, rewinding
from airflow_epochs.errors import Refused
from airflow_epochs.hooks import backfills, next_intervals, passed_on, retrying
from airflow_epochs.hooks.retrying import Retry
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.overview import pipeline_row
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import JsonDict, OffsetRange, Ranges, RestorePoint, Run
from airflow_epochs.page.airflow_runs import AirflowRuns
from airflow_epochs.testing import MemoryEnvironment, MemorySink, MemoryWorld
from airflow_epochs.testing.world import Place
from tests.support.airflow_harness import Harness
from tests.support.hourly import HOUR, MIDNIGHT, Hourly, moved_back
from tests.support.layout_lab import Lab, broken_commit, short
from tests.support.page_lab import ORDERS, Browser
from tests.support.waiting import wait_until

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]
ME = Account(who="ana", why="the disk has room again")
EVERY_HOUR = CronDataIntervalTimetable("@hourly", timezone="UTC")
PARTITIONS = CronPartitionTimetable("@hourly", timezone="UTC", run_offset=-1)
SWISS = CronPartitionTimetable("@hourly", timezone="Europe/Zurich", run_offset=-1)
SYDNEY = CronPartitionTimetable("@hourly", timezone="Australia/Sydney", run_offset=-1)
EACH_HOUR = DeltaDataIntervalTimetable(HOUR)
BY_HAND = "by_hand__11:00+00:00"
AFTER_THE_HOUR = CronTriggerTimetable("@hourly", timezone="UTC", interval=HOUR)


class Backfilled(Lab):
    """A pipeline whose runs are those of backfills."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **layout: Any) -> None:
        monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
        super().__init__(folder, monkeypatch, **{"schedule": EVERY_HOUR, "on_failed_epoch": "block", **layout})
        self.pause_dag(paused=False)

    @property
    def fresh(self) -> Ledger:
        return Ledger(LocalStore(Path(self.ledger.root)), "orders")

    def condition(self) -> tuple[str, str]:
        """What the page says."""
        row = pipeline_row("orders", self.fresh)
        return AirflowRuns.of([row]).condition(row)

    def retried(self) -> str:
        return Retry.of(self.fresh, "orders").do(self.fresh, ME)

    def refused(self) -> Refused:
        with pytest.raises(Refused) as refused:
            Retry.of(self.fresh, "orders")
        assert not self.fresh.retries()
        return refused.value

    def typed(self, remedy: str) -> None:
        """Type the command of a remedy, as a shell and Airflow's own parser read it."""
        from airflow.cli.cli_parser import get_parser

        (command,) = re.findall(r"`(airflow backfill create [^`]*)`", remedy)
        args = get_parser().parse_args(shlex.split(command)[1:])
        assert (args.dag_id, args.max_active_runs) == (self.harness.dag.dag_id, 1)
        self._create(args)

    def to_start(self) -> list[str]:
        """The queued runs that Airflow's scheduler would start now."""
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session

        with create_session() as session:
            found = DagRun.get_queued_dag_runs_to_set_running(session)
            return [run.run_id for run in found if run.dag_id == self.harness.dag.dag_id]

    def started(self, *, ends: bool = True) -> str:
        """The scheduler starts the run that it would start first, which is driven to its end."""
        wait_until(self.to_start, what="a run may start")  # SQLite counts the time of a new run in whole seconds
        run_id, *_ = self.to_start()
        assert short(self.harness.drive(run_id)).state == ("success" if ends else "failed")
        return run_id

    def clear_only(self, run_id: str) -> None:
        """Clear all tasks of a run, as a user would: the scheduler is to start it."""
        from airflow.models.dagbag import DBDagBag
        from airflow.utils.session import create_session

        with create_session() as session:
            dag = DBDagBag().get_latest_version_of_dag(self.harness.dag.dag_id, session=session)
            assert dag
            dag.clear(run_id=run_id, session=session)

    def pause_dag(self, *, paused: bool) -> None:
        from airflow.models.dag import DagModel
        from airflow.utils.session import create_session

        with create_session() as session:
            session.query(DagModel).filter_by(dag_id=self.harness.dag.dag_id).update({"is_paused": paused})

    def backfilled(self, hour: int, hours: int = 1) -> int:
        """A backfill of so many hours; its number."""
        return self._create(Namespace(from_date=at(hour), to_date=at(hour + hours - 1), reprocess_behavior="none"))

    def _create(self, args: Namespace) -> int:
        """What ``airflow backfill create`` does, which SQLite is too slow for."""
        from airflow.models.backfill import ReprocessBehavior, _create_backfill

        made = _create_backfill(
            dag_id=self.harness.dag.dag_id,
            from_date=args.from_date,
            to_date=args.to_date,
            max_active_runs=1,
            reverse=False,
            dag_run_conf=None,
            triggering_user_name="me",
            reprocess_behavior=ReprocessBehavior(args.reprocess_behavior),
        )
        return int(made.id)

    def mark_as_failed(self, run_id: str) -> None:
        from airflow.api.common.mark_tasks import set_dag_run_state_to_failed
        from airflow.serialization.serialized_objects import DagSerialization
        from airflow.utils.session import create_session

        stored = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(self.harness.dag))
        with create_session() as session:
            set_dag_run_state_to_failed(dag=stored, run_id=run_id, commit=True, session=session)

    def failed(self, hours: int = 1) -> tuple[int, str]:
        """A backfill, and its first run, which failed while it staged."""
        self.produce("a", "b")
        number = self.backfilled(9, hours)
        self.spark.failures = 1
        return number, self.started(ends=False)

    def asked(self, method: str, path: str, body: JsonDict | None = None) -> Any:
        browser = Browser("ADMIN")
        with browser.client:
            return browser.client.request(method, f"/api/v2/dags/{self.harness.dag.dag_id}/dagRuns{path}", json=body)

    def deleted(self, run_id: str) -> None:
        assert self.asked("DELETE", f"/{quote(run_id, safe='')}").status_code == 204

    def cancelled(self) -> str:
        """The run of a backfill, which failed, and whose backfill was cancelled then."""
        number, run_id = self.failed()
        told("cancel", number)
        return run_id


def at(hour: int) -> datetime:
    return MIDNIGHT + hour * HOUR


def told(what: str, number: int) -> None:
    """Airflow's own API is told to cancel, pause or unpause a backfill."""
    browser = Browser("ADMIN")
    with browser.client:
        answer = browser.client.put(f"/api/v2/backfills/{number}/{what}")
    assert answer.status_code == 200, answer.text


@pytest.mark.few(1)
@pytest.mark.parametrize("schedule", [EVERY_HOUR, AFTER_THE_HOUR], ids=["interval", "after the hour"])
def test_a_run_of_a_cancelled_backfill_goes_on_by_the_command_that_the_refusal_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Any
) -> None:
    lab = Backfilled(tmp_path, monkeypatch, schedule=schedule)
    run_id = lab.cancelled()
    lab.backfilled(10)
    later = lab.started(ends=False)
    assert lab.condition()[0] == "blocked"
    error = lab.refused()
    assert error.code is codes.RETRY_NEEDS_BACKFILL
    assert f"{run_id} of DAG" in error.what and "which was cancelled" in error.what
    lab.harness.ended_backfills()
    lab.typed(error.remedy)
    assert lab.started() == run_id
    assert (lab.fresh.newest_complete(), lab.shown()) == (1, [["a", "b"]] * 2)
    assert lab.clear(later).state == "success"


def test_a_queued_run_of_a_cancelled_backfill_is_not_at_work_and_the_refusals_lead_to_its_complete_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Backfilled(tmp_path, monkeypatch)
    lab.produce("a", "b")
    number = lab.backfilled(9)
    with broken_commit("audit"):
        run_id = lab.started(ends=False)
    told("cancel", number)
    lab.clear_only(run_id)
    assert lab.to_start() == []
    condition, why = lab.condition()
    assert condition == "in doubt" and f"run {run_id} is queued, and does not start: it is of backfill" in why
    error = lab.refused()
    assert (error.code, error.remedy.startswith("Mark the run as failed in Airflow")) == (codes.RUN_AT_WORK, True)
    lab.mark_as_failed(run_id)
    lab.typed(lab.refused().remedy)
    assert lab.condition()[0] == "running"
    assert lab.started() == run_id
    assert lab.shown() == [["a", "b"]] * 2


def test_a_run_of_a_paused_backfill_is_cleared_and_starts_once_the_backfill_is_unpaused_as_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Backfilled(tmp_path, monkeypatch)
    number, run_id = lab.failed(hours=2)
    told("pause", number)
    says = f"`PUT /api/v2/backfills/{number}/unpause`"
    assert says in Retry.of(lab.fresh, "orders").told(lab.fresh)[-1]
    assert says in lab.retried()
    assert lab.to_start() == [] and lab.condition()[0] == "failed"
    with pytest.raises(Refused, match="which is paused") as refused:
        Retry.of(lab.fresh, "orders")
    assert refused.value.code is codes.RUN_AT_WORK and says in refused.value.remedy
    told("unpause", number)
    assert lab.started() == run_id
    assert lab.fresh.epoch_of(Run(lab.harness.dag.dag_id, run_id)) == lab.fresh.newest_complete() == 1
    assert lab.shown() == [["a", "b"]] * 2


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", ["take_over", "block"])
def test_a_new_run_is_started_in_place_of_one_of_a_cancelled_backfill_if_it_may_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    lab = Backfilled(tmp_path, monkeypatch, on_failed_epoch=policy)
    if policy == "take_over":
        lab.cancelled()
    else:
        lab.produce("a")
        assert lab.run("by_hand").state == "success"
        lab.produce("b")
        told("cancel", lab.backfilled(9, hours=2))
    lab.retried()
    assert lab.started().startswith("retry__")
    assert lab.shown() == [["a", "b"]] * 2


@pytest.mark.long
def test_no_backfill_is_named_that_would_only_make_another_run_which_may_not_have_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Backfilled(tmp_path, monkeypatch, schedule=PARTITIONS)
    lab.cancelled()
    remedy = lab.refused().remedy
    assert "backfill create" not in remedy and 'Set `on_failed_epoch="take_over"` in the DAG' in remedy
    lab.laid_out(on_failed_epoch="take_over", schedule=PARTITIONS)
    lab.retried()
    assert lab.started().startswith("retry__")
    assert lab.shown() == [["a", "b"]] * 2


class Intervals(Backfilled):
    """A pipeline that reads data intervals. Its n-th record is of hour n."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        schedule: Any = EVERY_HOUR,
        layout: str = "tasks",
        source: Any = Hourly,
    ) -> None:
        super().__init__(folder, monkeypatch, source=source, schedule=schedule, on_failed_epoch=None, layout=layout)
        for module in (retrying, next_intervals, passed_on):
            monkeypatch.setattr(module, "source_in", lambda spec: self.source)
        self.produce(*range(24))

    def by_hand(self, date: datetime, run_id: str = BY_HAND) -> None:
        answer = self.asked("POST", "", {"dag_run_id": run_id, "logical_date": date.isoformat()})
        assert answer.status_code == 200, answer.text

    def deleted_in_doubt(self, hour: int = 9) -> str:
        """The run of an hour has left its epoch in doubt, and somebody deletes it in Airflow."""
        self.backfilled(hour)
        with broken_commit("audit"):
            run_id = self.started(ends=False)
        self.harness.ended_backfills()
        self.deleted(run_id)
        return run_id

    def has_read(self) -> list[Any]:
        return self.shown()[0]

    def rewound(self, hour: int, minutes: int | None = 0) -> None:
        """Go back to the record of an hour, by a time; by its offset without ``minutes``."""
        newest = self.fresh.complete_record(self.fresh.newest_complete())
        assert newest
        again: Ranges = {"orders": (OffsetRange(0, hour, newest.ranges["orders"][0].end),)}
        move = Move(
            position=Position(ranges={"orders": (OffsetRange(0, hour, hour),)}, state={}),
            again=again,
            ahead=again,
            back_to="" if minutes is None else (at(hour) + timedelta(minutes=minutes)).isoformat(),
        )
        orders.put(self.fresh, orders.standing(self.fresh, "orders"), "rewind", ME, move)


SCHEDULES = pytest.mark.parametrize(
    "schedule", [EVERY_HOUR, AFTER_THE_HOUR, PARTITIONS, SWISS], ids=["interval", "after the hour", "UTC", "Zurich"]
)


@pytest.mark.few(2)
@SCHEDULES
def test_an_idle_pipeline_of_intervals_names_the_backfill_that_takes_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Any
) -> None:
    lab = Intervals(tmp_path, monkeypatch, schedule)
    lab.backfilled(9)
    lab.started()
    (first,) = lab.has_read()
    error = lab.refused()
    assert error.code is codes.RETRY_NEEDS_BACKFILL and "has no data interval, so it would fail" in error.what
    lab.harness.ended_backfills()
    lab.typed(error.remedy)
    lab.started()
    assert lab.has_read() == [first, first + 1]


@pytest.mark.few(2)
@SCHEDULES
def test_the_run_of_an_interval_whose_backfill_was_cancelled_is_finished_by_the_backfill_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Any
) -> None:
    lab = Intervals(tmp_path, monkeypatch, schedule)
    lab.cancelled()
    lab.typed(lab.refused().remedy)
    lab.started()
    assert (lab.fresh.newest_complete(), len(lab.has_read())) == (1, 1)


@pytest.mark.few(2)
@SCHEDULES
def test_an_epoch_whose_run_somebody_deleted_is_finished_by_the_backfill_that_is_named_and_no_run_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Any
) -> None:
    lab = Intervals(tmp_path, monkeypatch, schedule)
    run_id = lab.deleted_in_doubt()
    lab.backfilled(10)
    later = lab.started(ends=False)
    lab.harness.ended_backfills()
    error = lab.refused()
    assert error.code is codes.RETRY_NEEDS_BACKFILL
    assert f"Airflow no longer has run {run_id} of DAG" in error.what
    lab.typed(error.remedy)
    assert lab.started() != later
    (first,) = lab.has_read()
    assert lab.fresh.newest_complete() == 1 and lab.shown() == [[first]] * 2
    assert (lab.clear(later).state, lab.has_read()) == ("success", [first, first + 1])


@pytest.mark.parametrize("layout", ["tasks", pytest.param("single", marks=pytest.mark.long)])
def test_a_run_that_fails_to_finish_the_epoch_of_a_deleted_run_of_its_interval_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    lab = Intervals(tmp_path, monkeypatch, PARTITIONS, layout)
    lab.deleted_in_doubt()
    lab.backfilled(9)
    with broken_commit("audit"):
        second = lab.started(ends=False)
    lab.harness.ended_backfills()
    lab.backfilled(10)
    lab.started(ends=False)
    lab.harness.ended_backfills()
    which, becomes = Retry.of(lab.fresh, "orders").told(lab.fresh)
    assert which.startswith(f"Of run {second} of DAG") and "It will be rolled forward" in becomes
    assert "marked as success" not in which
    lab.retried()
    assert lab.started() == second
    assert lab.fresh.newest_complete() == 1 and lab.shown()[0] == lab.shown()[1]


@pytest.mark.parametrize("taken_over", [False, True], ids=["by hand", "taken over"])
def test_an_epoch_of_a_deleted_run_whose_interval_the_timetable_lacks_is_finished_as_the_refusal_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken_over: bool
) -> None:
    lab = Intervals(tmp_path, monkeypatch, AFTER_THE_HOUR)
    date = at(10) + HOUR / 2
    lab.by_hand(date)
    with broken_commit("audit"):
        assert lab.started(ends=False) == BY_HAND
    lab.deleted(BY_HAND)
    error = lab.refused()
    assert str(Interval(date - HOUR, date)) in error.remedy and "docs/intervals.md#runs-by-hand" in error.remedy
    assert backfills.COMMAND not in error.remedy and 'Set `on_failed_epoch="take_over"`' in error.remedy
    if taken_over:
        lab.laid_out(schedule=AFTER_THE_HOUR, on_failed_epoch="take_over")
        lab.backfilled(11)
    else:
        lab.by_hand(date, "again")
    lab.started()
    assert lab.fresh.newest_complete() == 1 and lab.shown() == [[9]] * 2


@pytest.mark.long
def test_an_epoch_of_a_deleted_run_that_has_no_interval_is_taken_over_as_is_said_though_epochs_have_one_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Backfilled(tmp_path, monkeypatch)
    lab.produce("a")
    with broken_commit("audit"):
        lab.run("r1")
    lab.deleted("r1")
    hourly = Hourly(world=lab.world.name, topics=("orders",))
    monkeypatch.setattr(retrying, "source_in", lambda _: hourly)
    assert 'Set `on_failed_epoch="take_over"` in the DAG' in Retry.of(lab.fresh, "orders").told(lab.fresh)[1]
    lab.laid_out(schedule=EVERY_HOUR, on_failed_epoch="take_over")
    lab.retried()
    lab.started()
    assert lab.shown() == [["a"]] * 2


def test_the_runs_that_a_cancelled_backfill_left_are_not_cleared_and_the_next_interval_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Intervals(tmp_path, monkeypatch)
    number = lab.backfilled(9, hours=3)
    lab.started()
    told("cancel", number)
    error = lab.refused()
    assert "which was cancelled" in error.what and "has no data interval" in error.what
    lab.typed(error.remedy)
    lab.started()
    assert lab.has_read() == [9, 10]


class Refusing(Intervals):
    """It refuses intervals if earlier ones are missed, and has read hour 9."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, schedule: Any = EVERY_HOUR) -> None:
        super().__init__(folder, monkeypatch, schedule, source=partial(Hourly, missed="refuse"))
        self.one(9)

    def one(self, hour: int, *, ends: bool = True) -> None:
        """A backfill of one hour, which is over when its run is."""
        self.backfilled(hour)
        self.started(ends=ends)
        self.harness.ended_backfills()

    def one_behind_which_a_task_fails(self, hour: int) -> None:
        self.mine_fails = True
        self.one(hour, ends=False)
        self.mine_fails = False

    def cleared(self, *read: int) -> None:
        """A retry clears a run, which then ends. ``read``: as in ``require_read``."""
        self.retried()
        self.started()
        self.require_read(*read)

    def deleted_as_told(self, remedy: str) -> None:
        """The call of Airflow's API that a remedy names, as it stands there."""
        (path,) = re.findall(r"`DELETE (/api/v2/[^`]*)`", remedy)
        browser = Browser("ADMIN")
        with browser.client:
            assert browser.client.delete(path).status_code == 204

    def backfilled_as_told(self, *read: int) -> None:
        """A retry names a backfill, whose run then ends."""
        self.typed(self.refused().remedy)
        self.started()
        self.harness.ended_backfills()
        self.require_read(*read)

    def require_read(self, *read: int) -> None:
        """The hours of all rows, in order, counted from the first one."""
        first, *others = self.has_read()
        assert [0, *(record - first for record in others)] == list(read)


class DateTaken(Refusing):
    """A run by hand has read one more hour. Its logical date is that of the run of the hour after."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, schedule: Any = EVERY_HOUR) -> None:
        super().__init__(folder, monkeypatch, schedule)
        self.by_hand(at(self.has_read()[0] + 2))
        self.started()
        self.require_read(0, 1)

    def runs(self) -> list[str]:
        return [run["dag_run_id"] for run in self.asked("GET", "").json()["dag_runs"]]

    def catches_up(self, date: datetime) -> None:
        """The DAG file has ``catchup=True``, and the schedule has come to this date."""
        from airflow.models.dag import DagModel
        from airflow.utils.session import create_session

        self.laid_out(schedule=EVERY_HOUR, catchup=True)
        ends: dict[Any, Any] = {"next_dagrun_data_interval_end": date + HOUR, "next_dagrun_create_after": date + HOUR}
        with create_session() as session:
            model = session.query(DagModel).filter_by(dag_id=self.harness.dag.dag_id)
            model.update({"next_dagrun": date, "next_dagrun_data_interval_start": date, **ends})

    def scheduled(self) -> None:
        """Airflow's scheduler makes the run that is due next."""
        from airflow.jobs.job import Job
        from airflow.jobs.scheduler_job_runner import SchedulerJobRunner
        from airflow.models.dag import DagModel
        from airflow.utils.session import create_session

        with create_session() as session:
            due = session.query(DagModel).filter_by(dag_id=self.harness.dag.dag_id)
            due.update({"exceeds_max_non_backfill": False})  # as at the end of a run
            SchedulerJobRunner(job=Job())._create_dag_runs(due.all(), session)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "schedule", [EVERY_HOUR, AFTER_THE_HOUR, EACH_HOUR], ids=["interval", "after the hour", "delta"]
)
def test_a_run_by_hand_that_holds_the_date_of_the_next_interval_is_deleted_as_told_and_each_interval_is_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Any
) -> None:
    lab = DateTaken(tmp_path, monkeypatch, schedule)
    lab.one(12, ends=False)
    remedy = lab.refused().remedy
    assert remedy.startswith(f"Delete run {BY_HAND} of DAG {lab.harness.dag.dag_id} in Airflow")
    lab.deleted_as_told(remedy)
    assert BY_HAND not in lab.runs()
    assert lab.fresh.epoch_of(Run(lab.harness.dag.dag_id, BY_HAND)) == 2
    lab.backfilled_as_told(0, 1, 2)
    lab.cleared(0, 1, 2, 3)


@pytest.mark.few(1)
@pytest.mark.parametrize("again", ["none", "failed", "completed"])
def test_while_a_run_by_hand_holds_the_date_of_an_interval_no_backfill_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    lab = DateTaken(tmp_path, monkeypatch)
    lab._create(Namespace(from_date=at(11), to_date=at(11), reprocess_behavior=again))
    for run_id in lab.to_start():
        assert (run_id, lab.started()) == (BY_HAND, BY_HAND)
    lab.require_read(0, 1)


def test_the_schedule_stands_still_at_a_date_that_a_run_by_hand_holds_until_it_is_deleted_as_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = DateTaken(tmp_path, monkeypatch)
    lab.catches_up(at(11))
    for _ in range(3):
        lab.scheduled()
    assert BY_HAND in lab.runs() and len(lab.runs()) == 2
    lab.deleted_as_told(lab.refused().remedy)
    for read in ([0, 1, 2], [0, 1, 2, 3]):
        lab.scheduled()
        assert lab.started().startswith("scheduled__")
        lab.require_read(*read)


def test_the_date_of_an_interval_that_is_not_over_is_freed_for_the_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = DateTaken(tmp_path, monkeypatch)
    ends = datetime.now(timezone.utc) + HOUR
    monkeypatch.setattr(backfills, "next_interval", lambda *of: Interval(at(11), ends))
    remedy = lab.refused().remedy
    assert remedy.startswith(f"Delete run {BY_HAND}") and "Wait: the next data interval" in remedy
    lab.deleted_as_told(remedy)
    assert lab.refused().remedy.startswith("Wait: the next data interval")


@pytest.mark.long
def test_a_run_by_hand_whose_backfill_was_cancelled_leaves_its_epoch_to_another_run_of_its_interval_as_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Refusing(tmp_path, monkeypatch)
    lab.by_hand(at(10))
    lab.started()
    lab.by_hand(at(11), "second")
    lab.spark.failures = 1
    assert lab.started(ends=False) == "second"
    number = lab._create(Namespace(from_date=at(11), to_date=at(11), reprocess_behavior="failed"))
    told("cancel", number)
    lab.mark_as_failed("second")
    remedy = lab.refused().remedy
    assert remedy.startswith(f"Delete run {BY_HAND}") and "a new run for the same interval finishes the epoch" in remedy
    lab.deleted_as_told(remedy)
    lab.backfilled_as_told(0, 1)


@pytest.mark.few(2)
@SCHEDULES
def test_where_missed_intervals_are_refused_the_failed_run_of_the_next_one_is_cleared_and_not_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Any
) -> None:
    lab = Refusing(tmp_path, monkeypatch, schedule)
    lab.backfilled(10)
    wait_until(lab.to_start, what="the run of hour 10 is queued")
    (tenth,) = lab.to_start()
    lab.mark_as_failed(tenth)
    lab.harness.ended_backfills()
    lab.one(11, ends=False)
    lab.cleared(0, 1)
    lab.cleared(0, 1, 2)


@pytest.mark.few(2)
@SCHEDULES
def test_where_missed_intervals_are_refused_and_the_next_one_has_no_run_its_backfill_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Any
) -> None:
    lab = Refusing(tmp_path, monkeypatch, schedule)
    lab.one(11, ends=False)
    lab.backfilled_as_told(0, 1)
    lab.cleared(0, 1, 2)


@pytest.mark.few(1)
@SCHEDULES
def test_after_a_rewind_the_remedy_of_a_run_that_comes_too_early_ends_in_an_epoch_for_each_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: Any
) -> None:
    lab = Refusing(tmp_path, monkeypatch, schedule)
    lab.one(10)
    first = lab.has_read()[0]
    lab.rewound(first)
    lab.one(11, ends=False)
    assert "`airflow epochs retry PIPELINE --why …`" in codes.INTERVAL_MISSED.remedy
    lab.backfilled_as_told(0, 0, 1)
    lab.backfilled_as_told(0, 0, 1, 1)
    lab.cleared(0, 0, 1, 1, 2)


@pytest.mark.few(2)
@pytest.mark.parametrize("minutes", [None, 0, -5 * 24 * 60], ids=["by offsets", "by time", "to long before"])
def test_where_missed_intervals_are_refused_a_repeated_run_that_fails_after_a_rewind_is_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int | None
) -> None:
    lab = Refusing(tmp_path, monkeypatch)
    lab.rewound(lab.has_read()[0], minutes=minutes)
    lab._create(Namespace(from_date=at(9), to_date=at(9), reprocess_behavior="completed"))
    wait_until(lab.to_start, what="the run of hour 9 is queued again")
    lab.mark_as_failed(lab.to_start()[0])
    lab.harness.ended_backfills()
    lab.cleared(0, 0)


def test_after_a_rewind_the_backfill_is_named_though_a_later_run_failed_behind_its_complete_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Refusing(tmp_path, monkeypatch)
    lab.one_behind_which_a_task_fails(10)
    lab.rewound(lab.has_read()[0])
    lab.backfilled_as_told(0, 0, 1)
    lab.cleared(0, 0, 1, 1)


def test_where_missed_intervals_are_refused_a_run_is_cleared_behind_whose_complete_epoch_a_task_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Refusing(tmp_path, monkeypatch)
    lab.one_behind_which_a_task_fails(10)
    lab.cleared(0, 1)
    assert lab.after[-1] == 2


def test_after_a_rewind_by_offsets_the_backfill_that_is_told_ends_in_an_epoch_for_each_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Refusing(tmp_path, monkeypatch)
    lab.one(10)
    lab.rewound(lab.has_read()[0], minutes=None)
    lab.one(11, ends=False)
    remedy = lab.refused().remedy
    lab.typed(remedy.replace("…", at(9).isoformat(), 1).replace("…", at(10).isoformat(), 1))
    lab.started()
    lab.started()
    lab.harness.ended_backfills()
    lab.require_read(0, 0, 1, 1)
    lab.cleared(0, 0, 1, 1, 2)


def test_a_timetable_with_gaps_is_named_where_missed_intervals_are_refused_and_the_remedy_reads_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd_hours = CronTriggerTimetable("0 1-23/2 * * *", timezone="UTC", interval=HOUR)
    lab = Refusing(tmp_path, monkeypatch, odd_hours)
    lab.one(11, ends=False)
    error = lab.refused()
    assert f"has no run for the time from {at(9)} to {at(10)}" in error.what
    assert error.remedy.startswith('Set `missed="read"`')
    lab.source = replace(lab.source, missed="read")
    lab.laid_out(schedule=odd_hours)
    lab.cleared(0, 1, 2)


def test_a_failed_run_without_an_interval_is_not_run_again_and_the_page_offers_no_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, browser = Intervals(tmp_path, monkeypatch), Browser("USER")
    with browser.client:
        lab.backfilled(9)
        lab.started()
        idle = browser.page(ORDERS)
        assert "actions/retry" not in idle and codes.RETRY_NEEDS_BACKFILL.name not in idle
        assert lab.run("by_hand").state == "failed"
        assert lab.condition()[0] == "failed"
        error = lab.refused()
        assert error.code is codes.RETRY_NEEDS_BACKFILL
        failed = unescape(browser.page(ORDERS))
        assert "actions/retry" not in failed and error.remedy in failed
        lab.harness.ended_backfills()
        lab.backfilled(10)
        lab.spark.failures = 1
        lab.started(ends=False)
        assert "Retry now" in browser.page(ORDERS)
        lab.retried()
        lab.started()
    assert lab.has_read() == [9, 10]


@pytest.mark.long
def test_the_page_looks_for_the_next_interval_only_where_it_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab, browser = Intervals(tmp_path, monkeypatch), Browser("USER")
    looks = Mock(wraps=backfills.next_interval)
    monkeypatch.setattr(backfills, "next_interval", looks)
    with browser.client:
        lab.backfilled(9)
        lab.started()
        assert "actions/retry" not in browser.page(ORDERS)
        assert looks.call_count == 0
        assert lab.run("by_hand").state == "failed"
        assert backfills.COMMAND in browser.page(ORDERS)
        assert looks.call_count == 1


def test_an_interval_that_is_not_over_is_left_to_the_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Intervals(tmp_path, monkeypatch)
    lab.backfilled(9)
    lab.started()
    now = datetime.now(timezone.utc)
    monkeypatch.setattr(backfills, "next_interval", lambda *of: Interval(now - HOUR, now + HOUR))
    assert lab.refused().remedy.startswith("Wait: the next data interval")


def test_a_remedy_says_so_if_the_dag_is_paused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Backfilled(tmp_path, monkeypatch)
    lab.cancelled()
    lab.pause_dag(paused=True)
    assert f"`airflow dags unpause {lab.harness.dag.dag_id}`" in lab.refused().remedy


@pytest.mark.few(1)
@pytest.mark.parametrize("minutes", [0, 30])
def test_a_backfill_runs_a_green_run_of_the_interval_again_into_which_a_rewind_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes: int
) -> None:
    lab = Intervals(tmp_path, monkeypatch)
    lab.backfilled(9)
    lab.started()
    lab.rewound(9, minutes)
    lab.harness.ended_backfills()
    lab.typed(lab.refused().remedy)
    lab.started()
    assert lab.has_read() == [9, 9]


@pytest.fixture
def restorable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks in memory stage nothing for an epoch that brings tables back. They keep their rows."""
    plan_stage = MemorySink.plan_stage

    def plan(sink: MemorySink, attempt: SinkAttempt, try_id: str, env: Environment) -> JsonDict:
        if attempt.restore:
            place = sink.place(attempt, try_id, env)
            MemoryWorld.named(sink.world).stage(place, Place(str(attempt.txn), ()))
        return plan_stage(sink, attempt, try_id, env)

    monkeypatch.setattr(MemorySink, "plan_stage", plan)


def restored(lab: Intervals, epoch: int) -> None:
    """As ``rewind --to-epoch N --restore-tables`` puts it. A run by hand obeys."""
    at_rest = orders.standing(lab.fresh, "orders")
    move = rewinding.to_epoch(lab.fresh, at_rest, lab.source, epoch, MemoryEnvironment())
    points = {"orders": RestorePoint(epoch=epoch, version=epoch)}
    orders.put(lab.fresh, at_rest, "rewind", ME, move, restoration=orders.Restoration(epoch=epoch, points=points))
    assert lab.run(f"back_to_{epoch}").state == "success"


@pytest.mark.long
def test_after_tables_came_back_the_backfill_of_the_first_interval_that_they_lack_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restorable: None
) -> None:
    lab = Intervals(tmp_path, monkeypatch, layout="single")
    for run in lab.harness.backfill(at(9), at(10)):
        assert lab.harness.drive(run).state == "success"
    for epoch in (1, 3):  # the second time, to the epoch that has only brought tables back itself
        restored(lab, epoch)
        assert f"the next data interval, {Interval(at(10), at(11))}" in lab.refused().remedy
    lab.typed(lab.refused().remedy)
    lab.started()
    assert lab.has_read() == [9, 10, 10]


@pytest.mark.long
def test_the_first_of_two_hours_that_clocks_show_alike_is_read_by_the_backfill_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On April 5th, clocks in Sydney showed 02:00 twice: 15 and 16 hours after midnight of April 4th in UTC."""
    lab = Intervals(tmp_path, monkeypatch, SYDNEY, layout="single")
    first = (datetime(2026, 4, 4, 15, tzinfo=timezone.utc) - MIDNIGHT) // HOUR
    lab.produce(*range(24, first + 3))
    one_o_clock = (datetime(2026, 4, 5, 1, tzinfo=timezone.utc) - MIDNIGHT) // HOUR
    lab.backfilled(one_o_clock)
    lab.started()
    lab.harness.ended_backfills()
    lab.typed(lab.refused().remedy)
    for hours in ([first - 1, first], [first - 1, first, first + 1]):
        lab.started()
        assert lab.has_read() == hours
    assert lab.to_start() == []
    at_rest = orders.standing(lab.fresh, "orders")
    back = moved_back(at_rest.position(lab.source), {"orders": {0: first}})
    orders.put(lab.fresh, at_rest, "rewind", ME, replace(back, back_to=at(first).isoformat()))
    lab.harness.ended_backfills()
    remedy = lab.refused().remedy
    assert "--reprocess-behavior completed" in remedy
    lab.typed(remedy)
    for hours in ([first - 1, first, first, first + 1], [first - 1, first, first, first + 1, first + 1]):
        lab.started()
        assert lab.has_read() == hours
    assert lab.to_start() == []


@pytest.mark.parametrize("bounds", ["available", "data_interval"])
def test_what_the_dag_says_today_tells_whether_runs_need_an_interval(tmp_path: Path, bounds: str) -> None:
    (tmp_path / "orders.py").write_text("def orders(batch, epoch): ...\n")
    with DAG(f"today_{bounds}", schedule=EVERY_HOUR, start_date=MIDNIGHT, max_active_runs=1) as dag:
        EpochPipeline(
            "orders",
            source=KafkaSource(["orders"], bounds=bounds),
            transform=f"{tmp_path / 'orders.py'}:orders",
            sinks=[DeltaSink("lake", str(tmp_path / "lake"))],
            spark=SparkConnect(),
        )
    Harness(dag)
    retry = Retry("orders", 1, dag.dag_id, "", "")
    assert retry._by_interval(Ledger(LocalStore(tmp_path), "orders")) == (bounds == "data_interval")
