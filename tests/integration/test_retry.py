"""``airflow epochs retry``, and the same on the page: which run Airflow runs again, and what it does then."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import BranchPythonOperator
from airflow.sdk import DAG, CronDataIntervalTimetable, CronPartitionTimetable

from airflow_epochs import cli, codes
from airflow_epochs.contracts import Interval, Move, Position
from airflow_epochs.coordinator.admin import admin
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.orders import orders
from airflow_epochs.coordinator.runs import series
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.hooks.cleared_tasks import not_green
from airflow_epochs.hooks.known_runs import newest_run
from airflow_epochs.hooks.passed_on import interval_of_run
from airflow_epochs.hooks.retrying import Retry
from airflow_epochs.ledger.deeds import deeds
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.overview import pipeline_row
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import OffsetRange, Run
from airflow_epochs.page.airflow_runs import AirflowRuns
from airflow_epochs.testing import MemorySource
from tests.support.airflow_harness import Harness
from tests.support.layout_lab import Lab, TwoPipelines, broken_commit, short
from tests.support.page_lab import ORDERS, Browser, fields_of

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]
ME = Account(who="ana", why="the disk has room again")
NINE, HOUR = datetime(2026, 1, 31, 9, tzinfo=timezone.utc), timedelta(hours=1)
EVERY_HOUR = CronDataIntervalTimetable("@hourly", timezone="UTC")
PARTITIONS = CronPartitionTimetable("@hourly", timezone="UTC", run_offset=-1)
RETRY = f"{ORDERS}/actions/retry"
BOTH_LAYOUTS = pytest.mark.parametrize("layout", [{}, {"layout": "single"}], ids=["per step", "single"])


@pytest.fixture
def lab(api_server: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch)


def in_doubt(lab: Lab) -> None:
    lab.produce("a", "b")
    with broken_commit("audit"):
        assert lab.run("r1").state == "failed"


def aborted(lab: Lab) -> None:
    lab.produce("a", "b")
    lab.spark.failures = 1
    assert lab.run("r1").state == "failed"


def fresh(lab: Lab) -> Ledger:
    return Ledger(LocalStore(Path(lab.ledger.root)), "orders")


def retried(lab: Lab) -> Retry:
    action = Retry.of(fresh(lab), "orders")
    action.do(fresh(lab), Account(who="ana", why="the disk has room again"))
    return action


@pytest.mark.few(2)
@BOTH_LAYOUTS
@pytest.mark.parametrize("policy", ["take_over", "block"])
def test_an_epoch_in_doubt_is_rolled_forward_by_the_run_in_charge_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, str], policy: str
) -> None:
    lab = Lab(tmp_path, monkeypatch, on_failed_epoch=policy, **layout)
    in_doubt(lab)
    told = Retry.of(fresh(lab), "orders").told(fresh(lab))
    assert told[0].startswith("Of run r1 of DAG") and "It will be rolled forward" in told[1]
    assert retried(lab).run_id == "r1"
    assert short(lab.harness.drive("r1")).state == "success"
    assert fresh(lab).newest_complete() == 1
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    [deed] = deeds(fresh(lab), 5)
    assert (deed.what, deed.epoch, deed.who) == ("retry: run r1 tasks cleared", 1, "ana")


class Killed(BaseException):
    """Ends what ``airflow dags test`` does, as the death of its process does: Airflow notes nothing."""


def dags_tested_until_killed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> str:
    """``airflow dags test``, which is killed when it begins to stage; the id of its run."""
    from airflow.sdk.definitions import dag as tested

    runs_task = tested._run_task

    def runs_first_task(*, ti: Any, **options: Any) -> Any:
        if ti.task_id == "orders.stage":
            raise Killed
        return runs_task(ti=ti, **options)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(tested, "_run_task", runs_first_task)
        lab.harness.dag.test()
    newest = newest_run(lab.harness.dag.dag_id)
    assert newest and newest[1] == "running"
    return newest[0].run_id


@pytest.mark.parametrize("policy", ["take_over", pytest.param("block", marks=pytest.mark.long)])
def test_the_run_of_a_killed_dags_test_is_at_work_until_it_is_marked_as_failed_and_goes_on_by_a_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    lab = Lab(tmp_path, monkeypatch, on_failed_epoch=policy)
    lab.produce("a", "b")
    run_id = dags_tested_until_killed(lab, monkeypatch)
    with pytest.raises(Refused, match="is running") as refused:
        Retry.of(fresh(lab), "orders")
    assert refused.value.code is codes.RUN_AT_WORK and "mark it as failed in Airflow" in refused.value.remedy
    browser = Browser("ADMIN")
    with browser.client:
        path = f"/api/v2/dags/{lab.harness.dag.dag_id}/dagRuns/{run_id}"
        assert browser.client.patch(path, json={"state": "failed"}).status_code == 200
    assert retried(lab).run_id == run_id
    assert short(lab.harness.drive(run_id)).state == "success"
    assert lab.shown() == [["a", "b"]] * 2


@pytest.mark.few(1)
@BOTH_LAYOUTS
def test_after_a_takeover_a_retry_finishes_the_epoch_of_the_old_dag_though_the_pipeline_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, str]
) -> None:
    lab = Lab(tmp_path, monkeypatch, on_failed_epoch="block", **layout)
    in_doubt(lab)
    old = lab.harness.dag.dag_id
    lab.renamed(on_failed_epoch="block", **layout)
    lab.behind = "epochs" if layout else "complete"
    admin.take_over(fresh(lab), "orders", lab.harness.dag.dag_id, owner=old, by=ME)
    retried(lab)
    assert short(lab.harness.drive(fresh(lab).retries()[0].run_id)).state == "success"
    assert fresh(lab).newest_complete() == 1
    assert lab.shown() == [["a", "b"], ["a", "b"]]


@pytest.mark.few(2)
@pytest.mark.parametrize(("configured", "newest"), [(None, True), ("True", True), ("False", False)])
def test_a_run_is_retried_with_the_newest_version_of_its_dag_unless_airflow_is_set_up_otherwise(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, configured: str | None, newest: bool
) -> None:
    """What was mended is in the newest version of the bundle; the failed run has an older one."""
    from airflow.serialization.definitions.dag import SerializedDAG

    if configured:
        monkeypatch.setenv("AIRFLOW__CORE__RERUN_WITH_LATEST_VERSION", configured)
    in_doubt(lab)
    clear, given = SerializedDAG.clear, []

    def spy(dag: Any, **options: Any) -> Any:
        given.append(options["run_on_latest_version"])
        return clear(dag, **options)

    monkeypatch.setattr(SerializedDAG, "clear", spy)
    retried(lab)
    assert given == [newest]


def stopped_by_airflow(lab: Lab, run_id: str, *, by_hand: bool, works: str = "") -> None:
    """The tasks that failed were to be tried again, when somebody marks the run as failed, or its time is over.

    ``works``: a task that is running then.
    """
    from airflow.api.common.mark_tasks import set_dag_run_state_to_failed
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.serialization.serialized_objects import DagSerialization
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState

    dag = lab.harness.dag
    with create_session() as session:
        session.query(DagRun).filter_by(dag_id=dag.dag_id, run_id=run_id).one().set_state(DagRunState.RUNNING)
        tasks = session.query(TaskInstance).filter_by(dag_id=dag.dag_id, run_id=run_id)
        tasks.filter_by(state="failed").update({"state": "up_for_retry"})
        tasks.filter_by(state="upstream_failed").update({"state": None})
        tasks.filter_by(task_id=f"orders.{works}").update({"state": "running"})
    with create_session() as session:
        if by_hand:
            stored = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
            set_dag_run_state_to_failed(dag=stored, run_id=run_id, commit=True, session=session)
        else:  # as SchedulerJobRunner does at the end of dagrun_timeout
            session.query(DagRun).filter_by(dag_id=dag.dag_id, run_id=run_id).one().set_state(DagRunState.FAILED)
            tasks = session.query(TaskInstance).filter_by(dag_id=dag.dag_id, run_id=run_id)
            waiting = tasks.filter((TaskInstance.state == "up_for_retry") | TaskInstance.state.is_(None))
            waiting.update({"state": "skipped"})


def tries(lab: Lab, run_id: str) -> dict[str, int]:
    """Task -> how often Airflow has started it in this run."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    with create_session() as session:
        rows = session.query(TaskInstance.task_id, TaskInstance.try_number)
        found = rows.filter_by(dag_id=lab.harness.dag.dag_id, run_id=run_id).all()
        return {task_id.removeprefix("orders."): number for task_id, number in found}


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "layout, by_hand",
    [({}, True), ({}, False), ({"layout": "single"}, True)],
    ids=["marked as failed", "timed out", "marked as failed, single"],
)
def test_tasks_that_airflow_skipped_when_it_ended_the_run_run_again_and_those_that_are_green_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, str], by_hand: bool
) -> None:
    lab = Lab(tmp_path, monkeypatch, **layout)
    in_doubt(lab)
    stopped_by_airflow(lab, "r1", by_hand=by_hand)
    before = tries(lab, "r1")
    assert "the tasks that failed or were skipped will be cleared" in Retry.of(fresh(lab), "orders").told(fresh(lab))[0]
    assert retried(lab).run_id == "r1"
    outcome = short(lab.harness.drive("r1"))
    assert outcome.state == "success" and outcome.tasks["mine"] == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    again = {"epochs", "mine"} if layout else {"commit.audit", "complete", "mine"}
    assert {task for task, number in tries(lab, "r1").items() if number > before[task]} == again


def test_a_run_that_was_stopped_while_it_staged_aborts_the_attempt_if_it_fails_once_more(lab: Lab) -> None:
    lab.produce("a")
    lab.spark.failures = 2
    assert lab.run("r1").state == "failed"
    stopped_by_airflow(lab, "r1", by_hand=True)
    retried(lab)
    assert short(lab.harness.drive("r1")).tasks["abort"] == "failed", "as a task that found something to abort"
    retried(lab)
    assert short(lab.harness.drive("r1")).state == "success"
    assert lab.shown() == [["a"], ["a"]]


@pytest.mark.few(1)
@BOTH_LAYOUTS
@pytest.mark.parametrize(
    "remedy",
    [
        '`airflow epochs retry PIPELINE --why "…"`',
        pytest.param("clear the run with all its tasks", marks=pytest.mark.long),
    ],
)
def test_what_the_guide_says_of_a_run_that_was_marked_as_failed_finishes_the_epoch_and_tells_the_tasks_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, str], remedy: str
) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "failures.md").read_text()
    assert remedy in guide.partition("## A run is red")[2].partition("\n## ")[0].replace("\n", " ")
    lab = Lab(tmp_path, monkeypatch, **layout)
    in_doubt(lab)
    stopped_by_airflow(lab, "r1", by_hand=True, works="epochs" if layout else "commit.audit")
    if "retry" in remedy:
        retried(lab)
        outcome = short(lab.harness.drive("r1"))
    else:
        outcome = lab.clear("r1")
    assert outcome.state == outcome.tasks["epochs" if layout else "complete"] == "success"
    assert lab.after == [1] and fresh(lab).newest_complete() == 1
    assert lab.shown() == [["a", "b"], ["a", "b"]]


def marked_as_success(lab: Lab, *marked: str) -> None:
    """Somebody marks tasks of run r1 as success, and the tasks behind them run."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState

    dag_id = lab.harness.dag.dag_id
    with create_session() as session:
        session.query(DagRun).filter_by(dag_id=dag_id, run_id="r1").one().set_state(DagRunState.RUNNING)
        tasks = session.query(TaskInstance).filter_by(dag_id=dag_id, run_id="r1")
        tasks.filter(TaskInstance.state.in_(("failed", "upstream_failed", "skipped"))).update({"state": None})
        for task in marked:
            tasks.filter_by(task_id=f"{lab.prefix}{task}").update({"state": "success"})
    assert short(lab.harness.drive("r1")).state == "failed"


def goes_on_after_one_retry(lab: Lab, *marked: str) -> None:
    told = Retry.of(fresh(lab), "orders").told(fresh(lab))[0]
    assert f"marked as success though they are not done ({', '.join(f'{lab.prefix}{task}' for task in marked)})" in told
    retried(lab)
    assert short(lab.harness.drive("r1")).state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]] and lab.after == [1]


@pytest.mark.few(1)
@pytest.mark.parametrize("policy", ["take_over", pytest.param("block", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "marked", [("vote",), ("stage", "vote"), pytest.param(("commit.audit", "vote"), marks=pytest.mark.long)], ids=str
)
def test_a_vote_that_somebody_marked_as_success_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, marked: tuple[str, ...]
) -> None:
    lab = Lab(tmp_path, monkeypatch, on_failed_epoch=policy)
    lab.produce("a", "b")
    lab.spark.failures = 1
    assert lab.run("r1").state == "failed"
    marked_as_success(lab, *marked)
    goes_on_after_one_retry(lab, *(task for task in marked if task != "stage"))


def undecided(lab: Lab, monkeypatch: pytest.MonkeyPatch, *, stages: bool) -> None:
    """Run r1 leaves its attempt open: its stage, or its vote, fails, and so does what would abort the attempt."""

    def fails(*_: Any, **__: Any) -> Any:
        raise NotApplied("The ledger's store does not answer.", remedy="wait.")

    lab.produce("a", "b")
    with monkeypatch.context() as patched:
        patched.setattr(Coordinator, "_presume_abort", fails)
        patched.setattr(Coordinator, "_decide", fails)
        lab.spark.failures = 0 if stages else 1
        assert lab.run("r1").state == "failed"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("stages", "layout", "forgotten", "told", "attempt"),
    [
        (True, {}, False, "Its attempt goes on: the rows that are staged will be voted on again.", 1),
        (False, {}, False, "Its attempt goes on: the same offsets will be staged again, and voted on.", 1),
        (
            True,
            {"layout": "single"},
            False,
            "Its attempt will be aborted, and the same offsets will be taken again.",
            2,
        ),
        (True, {}, True, "Its attempt will be aborted, and the same offsets will be taken again.", 2),
    ],
    ids=["vote", "stage", "single", "new run"],
)
def test_a_retry_says_whether_the_open_attempt_goes_on_or_is_aborted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stages: bool,
    layout: dict[str, str],
    forgotten: bool,
    told: str,
    attempt: int,
) -> None:
    lab = Lab(tmp_path, monkeypatch, **layout)
    undecided(lab, monkeypatch, stages=stages)
    if forgotten:
        lab.harness.forget()
    assert Retry.of(fresh(lab), "orders").told(fresh(lab))[1].endswith(f"). {told}")
    retried(lab)
    run_id = fresh(lab).retries()[0].run_id
    assert short(lab.harness.drive(run_id)).state == "success"
    complete = fresh(lab).complete_record(1)
    assert complete and complete.txn_id.attempt == attempt
    assert lab.shown() == [["a", "b"], ["a", "b"]]


def test_a_retry_says_that_the_open_attempt_is_aborted_if_the_dag_has_one_task_for_all_steps_since(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    undecided(lab, monkeypatch, stages=True)
    lab.laid_out(layout="single")
    told = Retry.of(fresh(lab), "orders").told(fresh(lab))[1]
    assert told.endswith("). Its attempt will be aborted, and the same offsets will be taken again.")
    retried(lab)
    assert short(lab.harness.drive("r1")).state == "success"
    complete = fresh(lab).complete_record(1)
    assert complete and complete.txn_id.attempt == 2
    assert lab.shown() == [["a", "b"], ["a", "b"]]


@pytest.mark.long
@pytest.mark.parametrize("policy", [pytest.param("take_over", marks=pytest.mark.long), "block"])
def test_an_open_that_somebody_marked_as_success_opens_the_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    lab = Lab(tmp_path, monkeypatch, on_failed_epoch=policy)
    lab.produce("a", "b")

    def fails(source: MemorySource, *of: Any) -> Any:
        raise NotApplied("No broker answers.", remedy="wait.")

    with monkeypatch.context() as patched:
        patched.setattr(MemorySource, "plan", fails)
        assert lab.run("r1").state == "failed"
    marked_as_success(lab, "open")
    goes_on_after_one_retry(lab, "open")


@pytest.mark.long
def test_tasks_whose_ids_lack_the_pipelines_name_are_found_if_somebody_marked_them_as_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with prefix_group_id=False, or of operators without an EpochPipeline."""
    lab = Lab(tmp_path, monkeypatch, prefix_group_id=False)
    in_doubt(lab)
    marked_as_success(lab, "commit.audit")
    goes_on_after_one_retry(lab, "commit.audit")


@pytest.mark.parametrize("policy", ["take_over", pytest.param("block", marks=pytest.mark.long)])
def test_a_sink_for_which_the_run_has_no_commit_task_is_committed_by_what_the_error_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    """The task reads the changed DAG file; the scheduler makes the run by the one that it has stored."""
    lab = Lab(tmp_path, monkeypatch, on_failed_epoch=policy)
    lab.produce("a")
    lab.sinks.append("late")
    lab.harness.dag = lab.dag(lab.harness.dag.dag_id, on_failed_epoch=policy)
    ended = lab.run("r1")
    assert ended.state == "failed" and "commit.late" not in ended.tasks
    said = capsys.readouterr().out
    assert "The ledger has no receipt of: late." in said
    assert codes.RECEIPT_MISSING.remedy.replace("PIPELINE", "orders") in said
    assert "first wait until Airflow shows its commit task" in said
    lab.laid_out(on_failed_epoch=policy)
    cli.retry(Namespace(pipeline="orders", ledger_conn_id="epochs_default", why="x", yes=True))
    assert short(lab.harness.drive("r1")).tasks["commit.late"] == "success"
    assert lab.shown() == [["a"]] * 3
    lab.produce("b")
    assert lab.run("r2").state == "success"
    assert lab.shown() == [["a", "b"]] * 3


class Branching(Lab):
    """A branch of the user's may skip a commit."""

    branches = True

    def dag(self, dag_id: str, **layout: Any) -> DAG:
        dag = super().dag(dag_id, **layout)
        with dag:
            branch = BranchPythonOperator(task_id="branch", python_callable=lambda: "other")
            others = [EmptyOperator(task_id="other"), *([dag.get_task("orders.commit.audit")] if self.branches else [])]
            branch >> others
        return dag


@pytest.mark.long
def test_a_commit_that_a_branch_skips_is_done_by_a_retry_once_the_branch_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    lab = Branching(tmp_path, monkeypatch)
    lab.produce("a")
    assert lab.run("r1").tasks["commit.audit"] == "skipped"
    assert "If a branch skipped its commit task, first take the task out of the branch" in capsys.readouterr().out
    retried(lab)
    assert short(lab.harness.drive("r1")).tasks["commit.audit"] == "skipped", "Airflow remembers what a branch skipped"
    lab.branches = False
    lab.laid_out()
    retried(lab)
    assert short(lab.harness.drive("r1")).state == "success"
    assert lab.shown() == [["a"], ["a"]]


@pytest.mark.long
def test_a_commit_that_somebody_marked_as_success_is_done(lab: Lab) -> None:
    in_doubt(lab)
    marked_as_success(lab, "commit.audit")
    goes_on_after_one_retry(lab, "commit.audit")


@pytest.mark.few(1)
@BOTH_LAYOUTS
def test_no_green_task_of_the_pipeline_runs_again_if_the_runs_epoch_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, str]
) -> None:
    """Its last task would repeat the asset events."""
    lab = Lab(tmp_path, monkeypatch, **layout)
    lab.produce("a")
    lab.mine_fails = True
    assert lab.run("r1").state == "failed"
    before, lab.mine_fails = tries(lab, "r1"), False
    retried(lab)
    assert short(lab.harness.drive("r1")).state == "success"
    assert {task for task, number in tries(lab, "r1").items() if number > before[task]} == {"mine"}


@pytest.mark.few(1)
@BOTH_LAYOUTS
def test_a_command_is_obeyed_by_a_new_run_if_the_failed_one_would_pass_its_complete_epoch_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, str]
) -> None:
    lab = Lab(tmp_path, monkeypatch, **layout)
    lab.produce("a", "b")
    lab.mine_fails = True
    assert lab.run("r1").state == "failed"
    move = Move(
        position=Position(ranges={"orders": (OffsetRange(0, 0, 0),)}, state={}),
        again={"orders": (OffsetRange(0, 0, 2),)},
        ahead={"orders": (OffsetRange(0, 0, 2),)},
    )
    orders.put(fresh(lab), orders.standing(fresh(lab), "orders"), "rewind", ME, move)
    told = Retry.of(fresh(lab), "orders").told(fresh(lab))
    assert told[0].startswith("A new run of DAG") and "The next run obeys `rewind`" in told[1]
    before, lab.mine_fails = tries(lab, "r1"), False
    assert retried(lab).run_id == ""
    assert short(lab.harness.drive(fresh(lab).retries()[0].run_id)).state == "success"
    assert lab.shown() == [["a", "a", "b", "b"]] * 2 and fresh(lab).newest_complete() == 2
    assert tries(lab, "r1") == before


def test_all_tasks_run_again_of_a_failed_run_whose_tasks_are_all_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState

    lab = Lab(tmp_path, monkeypatch, layout="single")
    lab.produce("a")
    assert lab.run("r1").state == "success"
    with create_session() as session:
        session.query(DagRun).filter_by(dag_id=lab.harness.dag.dag_id, run_id="r1").one().set_state(DagRunState.FAILED)
    assert Retry.of(fresh(lab), "orders").told(fresh(lab))[0].startswith("All tasks of run r1")
    retried(lab)
    assert short(lab.harness.drive("r1")).state == "success"
    assert lab.after == [1, 1] and fresh(lab).newest_complete() == 1


def tasks_cleaned_away(lab: Lab) -> None:
    """``airflow db clean`` keeps the last scheduled run of a DAG, and deletes its tasks."""
    import pendulum
    from airflow.models.dagrun import DagRun
    from airflow.utils.db_cleanup import run_cleanup
    from airflow.utils.session import create_session
    from airflow.utils.types import DagRunType

    dag_id = lab.harness.dag.dag_id
    with create_session() as session:
        session.query(DagRun).filter_by(dag_id=dag_id).update({"run_type": DagRunType.SCHEDULED})
    run_cleanup(
        clean_before_timestamp=pendulum.now("UTC"),
        table_names=["dag_run", "task_instance", "xcom"],
        dag_ids=[dag_id],
        skip_archive=True,
        confirm=False,
    )
    newest = newest_run(dag_id)
    assert newest == (Run(dag_id, "r1"), "failed") and not not_green(newest[0])


@pytest.mark.few(2)
@BOTH_LAYOUTS
@pytest.mark.parametrize("policy", ["block", "take_over"])
@pytest.mark.parametrize("fails", [in_doubt, aborted], ids=["in doubt", "aborted"])
def test_a_run_whose_tasks_airflow_has_deleted_gets_them_again_and_goes_on(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: dict[str, str],
    policy: str,
    fails: Callable[[Lab], None],
) -> None:
    lab = Lab(tmp_path, monkeypatch, on_failed_epoch=policy, **layout)
    fails(lab)
    tasks_cleaned_away(lab)
    assert Retry.of(fresh(lab), "orders").told(fresh(lab))[0].startswith("All tasks of run r1")
    assert retried(lab).run_id == "r1"
    assert short(lab.harness.drive("r1")).state == "success"
    assert fresh(lab).newest_complete() == 1
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    lab.produce("c")
    assert lab.run("r2").state == "success"
    assert lab.shown() == [["a", "b", "c"], ["a", "b", "c"]]


@pytest.mark.few(1)
@pytest.mark.parametrize("fails", [in_doubt, aborted], ids=["in doubt", "aborted"])
def test_a_run_whose_older_tasks_airflow_has_deleted_gets_them_again_and_goes_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, fails: Callable[[Lab], None]
) -> None:
    """``airflow db clean`` goes by the start of each task, and a task that is tried again starts anew."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session

    monkeypatch.setenv("AIRFLOW__CORE__RERUN_WITH_LATEST_VERSION", "False")  # else Airflow adds what the run lacks
    fails(lab)
    with create_session() as session:
        of_run = session.query(TaskInstance).filter_by(dag_id=lab.harness.dag.dag_id, run_id="r1")
        assert of_run.filter(TaskInstance.state == "success").delete()
    retried(lab)
    assert short(lab.harness.drive("r1")).state == "success"
    assert fresh(lab).newest_complete() == 1
    assert lab.shown() == [["a", "b"], ["a", "b"]]


@pytest.mark.parametrize("schedule", [EVERY_HOUR, PARTITIONS], ids=["data interval", "partition"])
def test_a_retry_knows_the_interval_of_a_run_as_its_tasks_do(schedule: Any) -> None:
    with DAG(f"hourly_{schedule.__class__.__name__}", schedule=schedule, start_date=NINE, catchup=False) as dag:
        EmptyOperator(task_id="nothing")
    for hour, run_id in enumerate(Harness(dag).backfill(NINE, NINE + HOUR)):
        at = interval_of_run(Run(dag.dag_id, run_id))
        assert at == Interval(NINE + hour * HOUR, NINE + (hour + 1) * HOUR)
    assert interval_of_run(Run(dag.dag_id, "forgotten")) is None


def test_an_aborted_epoch_takes_the_same_input_again(lab: Lab) -> None:
    lab.produce("a")
    lab.spark.failures = 1
    assert lab.run("r1").state == "failed"
    lab.produce("later")
    assert "The same offsets will be taken again." in Retry.of(fresh(lab), "orders").told(fresh(lab))[1]
    retried(lab)
    assert short(lab.harness.drive("r1")).state == "success"
    assert lab.shown() == [["a"], ["a"]]


@pytest.mark.long
def test_a_new_run_is_started_if_no_epoch_is_unfinished_and_if_airflow_has_forgotten_its_run(lab: Lab) -> None:
    lab.produce("a")
    assert lab.run("r1").state == "success"
    lab.produce("b")
    assert "A new run of DAG" in Retry.of(fresh(lab), "orders").told(fresh(lab))[0]
    retried(lab)
    run_id = fresh(lab).retries()[0].run_id
    assert short(lab.harness.drive(run_id)).state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    lab.produce("c")
    with broken_commit("audit"):
        lab.run("r3")
    lab.harness.forget()
    assert retried(lab).run_id == ""
    assert short(lab.harness.drive(fresh(lab).retries()[1].run_id)).state == "success"
    assert lab.shown() == [["a", "b", "c"], ["a", "b", "c"]]


def test_a_retry_says_so_if_no_other_run_may_finish_an_epoch_whose_run_airflow_has_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, monkeypatch, on_failed_epoch="block")
    in_doubt(lab)
    assert "It will be rolled forward" in Retry.of(fresh(lab), "orders").told(fresh(lab))[1]
    lab.harness.forget()
    said = Retry.of(fresh(lab), "orders").told(fresh(lab))[1]
    assert "another run fails, and leaves the epoch as it is" in said
    assert "rolled forward" not in said
    retried(lab)
    assert short(lab.harness.drive(fresh(lab).retries()[0].run_id)).state == "failed"
    assert 'Set `on_failed_epoch="take_over"` in the DAG until the next run is green' in said
    lab.laid_out(on_failed_epoch="take_over")
    assert "It will be rolled forward" in Retry.of(fresh(lab), "orders").told(fresh(lab))[1]
    retried(lab)
    assert short(lab.harness.drive(fresh(lab).retries()[1].run_id)).state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]


@pytest.mark.long
def test_of_two_pipelines_with_one_name_in_a_dag_the_one_of_the_ledger_tells_what_a_retry_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    lab, browser = TwoPipelines(tmp_path, monkeypatch, "orders", "epochs_second"), Browser("USER")
    in_doubt(lab)
    lab.harness.forget()
    with browser.client:
        for blocks in (True, False):
            lab.second_blocks = not blocks
            lab.laid_out(on_failed_epoch="block" if blocks else "take_over")
            said = Retry.of(fresh(lab), "orders", "epochs_default").told(fresh(lab))[1]
            assert ("another run fails" in said, "rolled forward" in said) == (blocks, not blocks)
            assert said in unescape(browser.page(RETRY))
        form = {**fields_of(browser.page(RETRY)), "why": "room again", "ledger_conn_id": "epochs_second"}
        assert browser.post(RETRY, form).status_code == 303
    assert len(fresh(lab).retries()) == 1


@pytest.mark.few(1)
@BOTH_LAYOUTS
def test_a_run_that_failed_behind_its_complete_epoch_is_said_to_take_no_new_data_and_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, str]
) -> None:
    lab = Lab(tmp_path, monkeypatch, **layout)
    lab.produce("a")
    lab.mine_fails = True
    assert lab.run("r1").state == "failed"
    lab.produce("later")
    assert condition(lab) == ("failed", "run r1 failed, and its epoch 1 is complete")
    told = Retry.of(fresh(lab), "orders").told(fresh(lab))
    assert re.match(r"Epoch 1 of run r1 of DAG lab_\d+ is complete: the run takes no new data\.", told[1])
    lab.mine_fails = False
    retried(lab)
    assert short(lab.harness.drive("r1")).state == "success"
    assert lab.shown() == [["a"], ["a"]] and condition(lab) == ("idle", "")


def test_a_run_that_lost_its_epoch_is_green_once_its_failed_task_is_cleared_with_its_downstream_tasks(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.produce("a")
    lab.spark.failures = 1
    assert lab.run("r1").state == "failed"
    with broken_commit("audit"):
        assert lab.run("r2").state == "failed"
    assert lab.clear("r1", "stage").tasks["stage"] == "failed"
    error = capsys.readouterr().out
    assert codes.EPOCH_HELD_BY_OTHER.name in error and "clear the failed task with its downstream tasks" in error
    assert lab.run("r3").state == "success"
    alone = lab.clear("r1", "stage")
    assert (alone.state, alone.tasks["stage"], alone.tasks["complete"]) == ("failed", "success", "upstream_failed")
    assert (
        lab.clear("r1", *(task for task in alone.tasks if task not in ("open", "mine"))).tasks["complete"] == "success"
    )
    assert lab.shown() == [["a"], ["a"]]


def condition(lab: Lab) -> tuple[str, str]:
    """What the page says."""
    row = pipeline_row("orders", fresh(lab))
    return AirflowRuns.of([row]).condition(row)


@pytest.mark.parametrize("deleted", [False, True], ids=["", "Airflow has deleted its task"])
def test_a_run_of_several_epochs_that_failed_between_two_is_said_to_take_new_data_and_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: bool
) -> None:
    lab = Lab(tmp_path, monkeypatch, layout="single")
    lab.produce("a")
    plan = MemorySource.plan

    def fails_later(source: MemorySource, position: Position | None, *of: Any) -> Any:
        if position:
            raise NotApplied("No broker answers.", remedy="wait.")
        return plan(source, position, *of)

    with monkeypatch.context() as patched:
        patched.setattr(MemorySource, "plan", fails_later)
        assert lab.run("r1").state == "failed"
    assert fresh(lab).newest_complete() == 1
    if deleted:
        tasks_cleaned_away(lab)
    lab.produce("b")
    assert "the run will take the next one" in Retry.of(fresh(lab), "orders").told(fresh(lab))[1]
    retried(lab)
    assert short(lab.harness.drive("r1")).state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]


@pytest.mark.parametrize(("before", "since", "takes"), [("single", "tasks", False), ("tasks", "single", True)])
def test_a_retry_says_whether_the_run_takes_new_data_in_the_layout_that_its_dag_has_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, since: str, takes: bool
) -> None:
    lab = Lab(tmp_path, monkeypatch, layout=before)
    lab.produce("a")
    lab.mine_fails = True
    with monkeypatch.context() as patched:
        patched.setattr(series, "put_end", raises_not_applied)  # the one task fails between two epochs
        assert lab.run("r1").state == "failed"
    lab.mine_fails = False
    lab.produce("later")
    lab.laid_out(layout=since)
    told = Retry.of(fresh(lab), "orders").told(fresh(lab))
    assert told[0].startswith("Of run r1 of DAG") and "marked as success" not in told[0]
    assert ("the run takes no new data" in told[1], "the run will take the next one" in told[1]) == (not takes, takes)
    retried(lab)
    assert short(lab.harness.drive("r1")).state == "success"
    assert fresh(lab).newest_complete() == (2 if takes else 1)


def raises_not_applied(*_: object) -> None:
    raise NotApplied("No broker answers.", remedy="wait.")


@pytest.mark.long
def test_a_run_at_work_is_left_alone_and_two_operators_do_not_retry_at_once(lab: Lab) -> None:
    in_doubt(lab)
    his = Retry.of(fresh(lab), "orders")
    retried(lab)
    with pytest.raises(Refused, match="is queued") as refused:
        his.do(fresh(lab), ME)
    assert refused.value.code is codes.RUN_AT_WORK
    lab.harness.drive("r1")
    with pytest.raises(Refused, match="has moved on") as refused:
        his.do(fresh(lab), ME)
    assert refused.value.code is codes.COMMAND_RACE
    assert len(fresh(lab).retries()) == 1


def test_nothing_is_retried_while_another_run_is_at_work(lab: Lab) -> None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState

    lab.produce("before")
    assert lab.run("r0").state == "success"
    in_doubt(lab)

    def other(state: DagRunState) -> None:
        with create_session() as session:
            session.query(DagRun).filter_by(dag_id=lab.harness.dag.dag_id, run_id="r0").one().set_state(state)

    other(DagRunState.RUNNING)
    with pytest.raises(Refused, match=r"run r0 of DAG .* is running") as refused:
        Retry.of(fresh(lab), "orders")
    assert refused.value.code is codes.RUN_AT_WORK
    other(DagRunState.QUEUED)
    assert Retry.of(fresh(lab), "orders").run_id == "r1", "a run that waits for its turn comes after it"


def test_what_airflow_has_paused_or_does_not_know_is_said(lab: Lab) -> None:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    in_doubt(lab)
    dag_id = lab.harness.dag.dag_id
    with create_session() as session:
        session.query(DagModel).filter_by(dag_id=dag_id).update({"is_paused": True})
    assert f"`airflow dags unpause {dag_id}`" in Retry.of(fresh(lab), "orders").told(fresh(lab))[2]
    admin.take_over(fresh(lab), "orders", "nowhere", owner=dag_id, by=ME)
    with pytest.raises(Refused, match="Airflow has no DAG 'nowhere'") as refused:
        Retry.of(fresh(lab), "orders")
    assert refused.value.code is codes.RETRY_REFUSED
    assert not fresh(lab).retries()


def test_the_command_does_the_same(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    in_doubt(lab)
    cli.retry(Namespace(pipeline="orders", ledger_conn_id="epochs_default", why="room again", yes=True))
    assert "Of run r1 of DAG" in capsys.readouterr().out
    assert short(lab.harness.drive("r1")).state == "success"


def test_the_page_rolls_forward_for_those_who_may_clear_runs_and_for_nobody_else(lab: Lab, ada: Browser) -> None:
    in_doubt(lab)
    assert "Roll epoch 1 forward" in ada.page(ORDERS)
    form: dict[str, Any] = {**fields_of(ada.page(RETRY)), "why": "room <script>again</script>"}
    for user, status in ((Browser("VIEWER"), 403), (Browser(None), 401)):
        with user.client:
            assert (user.status(RETRY), user.post(RETRY, form).status_code) == (status, status)
    assert ada.post(RETRY, form, **{"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert not fresh(lab).retries()
    assert ada.post(RETRY, form).status_code == 303
    assert fresh(lab).retries()[0].who == "ada"
    assert short(lab.harness.drive("r1")).state == "success"
    assert fresh(lab).newest_complete() == 1
