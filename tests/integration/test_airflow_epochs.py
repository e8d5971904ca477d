"""The task shape in Airflow's own scheduling code: run states, clears, reruns. All around the tasks is in memory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, TaskGroup, TriggerRule

from airflow_epochs import DeltaSource
from airflow_epochs.coordinator.admin import savepoints
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.model import WaivedRecord
from airflow_epochs.operators.epoch import (
    CommitSinkOperator,
    CompleteEpochOperator,
    OpenEpochOperator,
    StageEpochOperator,
    VoteEpochOperator,
)
from airflow_epochs.operators.single import EpochsOperator
from airflow_epochs.page import run_notes
from airflow_epochs.pipeline import EpochPipeline
from airflow_epochs.protocol import State
from airflow_epochs.testing import MemorySink, MemorySource
from tests.support.airflow_harness import Harness
from tests.support.lanes import long_but
from tests.support.layout_lab import Lab, broken_commit, in_state, short

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]
SUCCESS = {"open", "stage", "vote", "commit.orders", "commit.audit", "complete"}


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    yield Lab(tmp_path, monkeypatch)


def test_a_run_with_new_data_is_green_and_every_sink_shows_the_epoch_once(lab: Lab) -> None:
    lab.produce("a", "b")
    outcome = lab.run("r1")
    assert outcome.state == "success"
    assert in_state(outcome, "success") == SUCCESS | {"mine"}
    assert in_state(outcome, "skipped") == {"abort"}
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    assert lab.after == [1]


def test_every_task_returns_the_checkpoint_record_as_xcom(lab: Lab) -> None:
    lab.produce("a", "b")
    xcoms = lab.run("r1").xcoms
    assert set(xcoms) >= SUCCESS
    final = xcoms["complete"]
    assert (final["epoch"], final["attempt"], final["decision"], final["state"]) == (1, 1, "GLOBAL_COMMIT", "complete")
    assert final["ranges"] == {"orders": [[0, 0, 2]]}
    assert {sink: receipt["rows"] for sink, receipt in final["receipts"].items()} == {"orders": 2, "audit": 2}
    assert {vote["vote"] for vote in xcoms["vote"]["votes"].values()} == {"VOTE_COMMIT"}
    assert set(final["seconds"]) == SUCCESS
    assert final["metrics"]["rows_in"] == 2


@pytest.mark.few(1)
@pytest.mark.parametrize("value", ["s3://bucket/xcom/123", {"epoch": 1}, [[5]]], ids=["text", "object", "list"])
def test_an_xcom_that_is_no_checkpoint_stops_no_decided_epoch(
    lab: Lab, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody has changed it, or an XCom backend of the user's own gives something else."""
    lab.produce("a")
    with broken_commit("audit"):
        lab.run("r1")
    lab.harness.set_xcom("r1", "orders.vote", value)
    outcome = lab.clear("r1", only_failed=True)
    assert outcome.state == "success"
    assert set(outcome.xcoms["complete"]["seconds"]) >= {"commit.orders", "commit.audit", "complete"}
    assert (lab.shown(), lab.ledger.newest_complete()) == ([["a"], ["a"]], 1)
    assert "an XCom of a task before is no checkpoint" in caplog.text


def test_vote_says_what_to_clear_if_the_xcom_of_stage_is_no_checkpoint(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.produce("a")
    told = StageEpochOperator._told
    with monkeypatch.context() as patched:
        patched.setattr(StageEpochOperator, "_told", lambda *args: told(*args) and "s3://bucket/xcom/123")
        assert in_state(lab.run("r1"), "failed") == {"vote", "abort"}
    decision = lab.ledger.view_of_next().decision
    assert decision and "EPOCHS-NOTHING-STAGED" in decision.reason
    behind = set(lab.harness.dag.task_ids) - {"orders.open"}
    assert lab.harness.clear("r1", *behind).state == "success"
    assert lab.shown() == [["a"], ["a"]]


def with_mapped_commits(lab: Lab, sinks: list[str], outputs: Callable[[Any], Any]) -> DAG:
    """A DAG whose commit is mapped by the sinks. ``outputs``: what ``complete`` gets of the mapped task."""
    shared: dict[str, Any] = {
        "pipeline": "orders",
        "source": MemorySource(world=lab.world.name, topics=("orders",)),
        "transform": lab.transform,
        "sinks": [MemorySink(name=name, world=lab.world.name) for name in sinks],
        "spark": lab.spark,
        "retries": 0,
    }
    with DAG(f"{lab.harness.dag.dag_id}_mapped", schedule=None, max_active_runs=1) as dag:
        opened = OpenEpochOperator(task_id="open", **shared)
        staged = StageEpochOperator(task_id="stage", checkpoint=opened.output, **shared)
        voted = VoteEpochOperator(task_id="vote", checkpoint=staged.output, **shared)
        commits = CommitSinkOperator.partial(task_id="commit", checkpoint=voted.output, **shared).expand(sink=sinks)
        CompleteEpochOperator(task_id="complete", checkpoint=outputs(commits), **shared)
    return dag


@pytest.mark.few(1)
@pytest.mark.parametrize("listed", [False, True])
def test_mapped_commit_tasks_pass_their_measurements_on(lab: Lab, listed: bool) -> None:
    """Airflow gives the XComs of a mapped task as a lazy sequence."""
    dag = with_mapped_commits(lab, ["orders", "audit"], lambda commits: [commits.output] if listed else commits.output)
    lab.produce("a")
    outcome = Harness(dag).run("r1")
    assert outcome.state == "success"
    assert set(outcome.xcoms["complete"]["seconds"]) == SUCCESS
    assert lab.shown() == [["a"], ["a"]]


def test_a_run_without_new_data_is_green_and_everything_is_skipped(lab: Lab) -> None:
    lab.produce("a")
    lab.run("r1")
    outcome = lab.run("r2")
    assert outcome.state == "success"
    assert in_state(outcome, "skipped") == set(outcome.tasks)
    assert lab.after == [1], "the user's task runs when, and only when, an epoch is complete"


JOIN = TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS
"""As README and docs/protocol.md say."""


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("produced", "fails", "rule", "joined"),
    [
        (("orders",), False, TriggerRule.ALL_SUCCESS, "skipped"),
        (("orders", "refunds"), False, JOIN, "success"),
        ((), False, JOIN, "skipped"),
        (("orders",), True, JOIN, "upstream_failed"),
        (("orders",), False, JOIN, "success"),
    ],
    ids=["as tasks are", "both have one", "none has one", "one fails", "one has an epoch"],
)
def test_a_task_behind_two_pipelines_runs_as_its_rule_says(
    lab: Lab, tmp_path: Path, produced: tuple[str, ...], fails: bool, rule: TriggerRule, joined: str
) -> None:
    with DAG(f"join_{abs(hash(tmp_path))}", schedule=None, max_active_runs=1) as dag:
        with TaskGroup("both") as both:
            for topic in ("orders", "refunds"):
                EpochPipeline(
                    topic,
                    source=MemorySource(world=lab.world.name, topics=(topic,)),
                    transform=lab.transform,
                    sinks=[MemorySink(name=topic, world=lab.world.name)],
                    spark=lab.spark,  # type: ignore[arg-type]  # the double has the runner's methods itself
                    operator_args={"retries": 0},
                )
        both >> PythonOperator(task_id="join", python_callable=print, trigger_rule=rule)
    for topic in produced:
        lab.world.produce(topic, 0, [1])
    lab.spark.failures = int(fails)
    assert Harness(dag).run("r1").tasks["join"] == joined


@pytest.mark.long
def test_a_failed_stage_makes_the_run_red_and_clearing_the_failed_tasks_finishes_the_same_epoch(lab: Lab) -> None:
    lab.produce("a", "b")
    lab.spark.failures = 1
    failed = lab.run("r1")
    assert failed.state == "failed"
    assert in_state(failed, "failed") == {"stage", "abort"}
    assert lab.shown() == [[], []]
    assert not lab.after
    lab.produce("c")
    cleared = lab.clear("r1", only_failed=True)
    assert cleared.state == "success"
    assert cleared.xcoms["complete"]["attempt"] == 2
    assert lab.shown() == [["a", "b"], ["a", "b"]], "the same offsets, not the newer ones"
    assert lab.after == [1]


def test_the_next_run_takes_a_failed_epoch_over_and_the_cleared_run_then_passes_it_on(lab: Lab) -> None:
    lab.produce("a")
    lab.spark.failures = 1
    lab.run("r1")
    assert lab.run("r2").state == "success"
    assert lab.shown() == [["a"], ["a"]]
    cleared = lab.clear("r1", only_failed=True)
    assert cleared.state == "success"
    assert lab.shown() == [["a"], ["a"]]
    assert lab.after == [1, 1], "red or green, a run tells the tasks behind it once its epoch is complete"


@pytest.mark.long
def test_a_cleared_run_whose_epoch_is_in_the_hands_of_another_run_fails_and_names_it(lab: Lab) -> None:
    lab.produce("a")
    lab.spark.failures = 2
    lab.run("r1")
    lab.run("r2")
    assert lab.clear("r1", "stage").state == "failed"
    assert lab.after == []


def test_a_vote_abort_is_red_with_nothing_visible_and_names_the_reason(lab: Lab) -> None:
    lab.produce("a")
    lab.world.refusals["audit"] = "column x is a STRING, not an INT"
    outcome = lab.run("r1")
    assert outcome.state == "failed"
    assert in_state(outcome, "failed") == {"vote", "abort"}
    assert lab.shown() == [[], []]
    decision = lab.ledger.decision_record(1, 1)
    assert decision and "audit: column x is a STRING" in decision.reason
    lab.world.refusals.clear()
    assert lab.clear("r1", only_failed=True).state == "success", "though this leaves the green stage alone"
    assert lab.shown() == [["a"], ["a"]]


@pytest.mark.few(1)
@pytest.mark.proof
@pytest.mark.parametrize("task", ["open", "stage", "vote", "commit.orders", "commit.audit", "complete", "abort"])
def test_clearing_any_single_task_of_a_complete_run_changes_nothing(lab: Lab, task: str) -> None:
    lab.produce("a", "b")
    lab.run("r1")
    outcome = lab.clear("r1", task)
    assert outcome.state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    assert lab.ledger.newest_complete() == 1


def test_clearing_a_whole_complete_run_passes_its_epoch_on_and_takes_no_new_data(lab: Lab) -> None:
    lab.produce("a")
    lab.run("r1")
    lab.produce("b")
    outcome = lab.clear("r1")
    assert outcome.state == "success"
    assert in_state(outcome, "success") == SUCCESS | {"mine"}
    assert outcome.xcoms["open"]["state"] == "complete"
    assert lab.shown() == [["a"], ["a"]]
    assert lab.after == [1, 1]


@pytest.mark.long
def test_a_whole_run_cleared_because_the_users_own_task_failed_runs_that_task_again(lab: Lab) -> None:
    lab.produce("a")
    lab.mine_fails = True
    failed = lab.run("r1")
    assert failed.state == "failed"
    assert in_state(failed, "failed") == {"mine"}
    lab.mine_fails = False
    assert lab.clear("r1").state == "success"
    assert (lab.after, lab.shown()) == ([1], [["a"], ["a"]])


@pytest.mark.long
def test_a_cleared_old_run_passes_its_own_epoch_on_and_its_asset_events_tell_of_the_newest(lab: Lab) -> None:
    for run_id, value in (("r1", "a"), ("r2", "b"), ("r3", "c")):
        lab.produce(value)
        lab.run(run_id)
    assert lab.clear("r1").state == "success"
    assert lab.after == [1, 2, 3, 1]
    assert [event["epoch"] for event in lab.harness.asset_events("r1")] == [1, 1, 3, 3]


def test_a_sink_that_fails_after_the_decision_leaves_the_run_red_and_the_next_run_rolls_forward(lab: Lab) -> None:
    lab.produce("a")
    with broken_commit("audit"):
        failed = lab.run("r1")
    assert failed.state == "failed"
    assert in_state(failed, "failed") == {"commit.audit"}
    assert failed.tasks["abort"] == "skipped"
    assert lab.shown() == [["a"], []], "in doubt: decided, one sink missing"
    lab.produce("b")
    assert lab.run("r2").state == "success"
    assert (lab.shown(), lab.after) == ([["a"], ["a"]], [1]), "a run works through one epoch"
    assert lab.run("r3").state == "success"
    assert (lab.shown(), lab.after) == ([["a", "b"], ["a", "b"]], [1, 2])
    assert lab.clear("r1", only_failed=True).state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]


def test_a_roll_forward_without_new_data_tells_the_tasks_behind_and_emits_the_asset_events(lab: Lab) -> None:
    lab.produce("a")
    with broken_commit("audit"):
        lab.run("r1")
    assert (lab.after, lab.harness.asset_events("r1")) == ([], [])
    outcome = lab.run("r2")
    assert outcome.state == "success"
    assert in_state(outcome, "success") == SUCCESS | {"mine"}
    assert lab.after == [1]
    events = lab.harness.asset_events("r2")
    assert {(event["sink"], event["epoch"]) for event in events} == {("orders", 1), ("audit", 1)}


@pytest.mark.long
def test_a_run_whose_roll_forward_failed_takes_new_data_once_the_first_run_has_finished_the_epoch(lab: Lab) -> None:
    lab.produce("a")
    with broken_commit("audit"):
        lab.run("r1")
        assert lab.run("r2").tasks["open"] == "failed"
    assert lab.clear("r1", only_failed=True).state == "success"
    lab.produce("b")
    assert lab.clear("r2", only_failed=True).state == "success"
    assert (lab.after, lab.shown()) == ([1, 2], [["a", "b"], ["a", "b"]])


@pytest.mark.long
def test_clearing_the_failed_commit_finishes_the_epoch_in_its_own_run(lab: Lab) -> None:
    lab.produce("a")
    with broken_commit("audit"):
        lab.run("r1")
    outcome = lab.clear("r1", only_failed=True)
    assert outcome.state == "success"
    assert outcome.xcoms["complete"]["attempt"] == 1
    assert lab.shown() == [["a"], ["a"]]
    assert lab.after == [1]


AROUND_THE_DECISION = (("stage", "vote"), ("vote", "commit.audit"), ("vote", "complete"))


@pytest.mark.few(1)
@pytest.mark.proof
@pytest.mark.parametrize(
    "tasks",
    long_but(AROUND_THE_DECISION, itertools.combinations(("open", "stage", "vote", "commit.audit", "complete"), 2)),
    ids="+".join,
)
def test_clearing_any_two_tasks_of_an_in_doubt_run_never_loses_or_doubles_a_row(
    lab: Lab, tasks: tuple[str, str]
) -> None:
    lab.produce("a")
    with broken_commit("audit"):
        lab.run("r1")
    lab.clear("r1", *tasks)
    lab.clear("r1", only_failed=True)
    lab.run("r2")
    assert lab.shown() == [["a"], ["a"]]


@pytest.mark.long
def test_a_vote_of_the_users_function_aborts_the_epoch_and_the_next_run_takes_its_rows(lab: Lab) -> None:
    lab.produce("a")
    lab.against = "too few"
    outcome = lab.run("r1")
    assert (outcome.state, outcome.tasks["vote"], outcome.tasks["abort"]) == ("failed", "failed", "failed")
    assert lab.shown() == [[], []]
    lab.against = None
    assert lab.run("r2").state == "success"
    assert lab.shown() == [["a"], ["a"]]


@pytest.mark.long
def test_a_wiped_metadata_database_loses_nothing(lab: Lab) -> None:
    lab.produce("a")
    with broken_commit("audit"):
        lab.run("r1")
    lab.harness.forget()
    lab.produce("b")
    assert lab.run("r1").state == "success", "a new run may even have the old one's id"
    lab.run("r2")
    assert lab.shown() == [["a", "b"], ["a", "b"]]


def test_an_older_metadata_database_brings_runs_back_that_take_no_new_data_and_red_ones_that_a_clear_makes_green(
    lab: Lab,
) -> None:
    """What docs/operations.md says of it."""
    lab.produce("a")
    lab.run("r1")
    lab.harness.forget()
    lab.produce("b")
    assert lab.run("r1").state == "success"
    assert lab.shown() == [["a"], ["a"]]
    lab.run("r2")
    lab.harness.put_back("r2", {"open": "success", "stage": "failed", "abort": "skipped"}, others="upstream_failed")
    assert lab.clear("r2").state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    lab.produce("c")
    lab.run("r3")
    assert lab.shown() == [["a", "b", "c"], ["a", "b", "c"]]


def test_a_continuous_dag_without_a_start_date_goes_on_after_its_first_run(lab: Lab) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    with DAG("continuous", schedule="@continuous", max_active_runs=1, catchup=False) as dag:
        EpochPipeline(
            "orders",
            source=MemorySource(world=lab.world.name, topics=("orders",)),
            transform=lab.transform,
            sinks=[MemorySink(name="orders", world=lab.world.name)],
            spark=lab.spark,  # type: ignore[arg-type]  # the double has the runner's methods itself
        )
    stored = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag))
    first = stored.next_dagrun_info(last_automated_run_info=None)
    second = stored.next_dagrun_info(last_automated_run_info=first)
    assert first and second and first.logical_date != second.logical_date


def test_the_param_max_records_limits_one_run(lab: Lab) -> None:
    lab.produce("a", "b", "c")
    lab.run("r1", {"max_records": 1})
    assert lab.shown() == [["a"], ["a"]]


@pytest.mark.long
def test_the_param_savepoint_names_the_epoch_of_a_run_also_when_it_is_cleared(lab: Lab) -> None:
    lab.produce("a")
    lab.run("r1", {"savepoint": "first"})
    lab.produce("b")
    taken = lab.run("r2", {"savepoint": "first"})
    assert taken.tasks["open"] == "failed" and lab.ledger.newest_complete() == 1, "nothing was opened"
    lab.run("r3", {"savepoint": "second"})
    assert [(each.name, each.epoch) for each in lab.ledger.savepoints()] == [("first", 1), ("second", 2)]
    [first, _] = lab.ledger.savepoints()
    assert (first.who, first.why.startswith("the DAG param of run r1")) == ("", True)
    savepoints.dispose(lab.ledger, "orders", "second", Account(who="me", why="done"))
    for run in ("r1", "r3"):
        assert lab.clear(run, "open", "complete").state == "success"
    assert [each.name for each in lab.ledger.savepoints()] == ["first"]


def test_complete_emits_an_asset_event_per_sink_with_epoch_rows_and_version(lab: Lab) -> None:
    lab.produce("a", "b")
    lab.run("r1")
    events = lab.harness.asset_events("r1")
    assert {event["sink"] for event in events} == {"orders", "audit"}
    assert all((event["epoch"], event["rows"], event["version"]) == (1, 2, 0) for event in events)


@pytest.mark.long
def test_a_run_has_a_note_that_says_what_it_did(lab: Lab) -> None:
    lab.produce("a", "b")
    lab.run("r1")
    assert lab.harness.note("r1") == "epoch 1: 4 rows, audit@0, orders@0"
    lab.run("r2")
    assert lab.harness.note("r2") is None, "it had no new data"


@pytest.mark.long
def test_the_note_of_a_run_follows_its_clears_until_a_person_writes_one(lab: Lab) -> None:
    lab.produce("a", "b")
    with broken_commit("audit"):
        lab.run("r1")
    assert lab.harness.note("r1") is None
    lab.clear("r1", only_failed=True)
    assert lab.harness.note("r1") == "epoch 1: 4 rows, audit@0, orders@0"
    for by_hand in ("looked at it", ""):
        lab.harness.write_note("r1", by_hand)
        lab.clear("r1")
        assert lab.harness.note("r1") == (by_hand or "epoch 1: 4 rows, audit@0, orders@0")


@pytest.mark.long
def test_a_note_that_cannot_be_written_stops_no_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_notes, "_write", None)
    lab.produce("a", "b")
    assert lab.run("r1").state == "success"
    assert lab.harness.note("r1") is None


@pytest.mark.long
def test_the_asset_event_of_a_waived_sink_says_nothing(lab: Lab) -> None:
    lab.produce("a", "b")
    with broken_commit("audit"):
        lab.run("r1")
    opened = lab.ledger.open_record(1, 1)
    assert opened
    lab.ledger.put(WaivedRecord(txn_id=opened.txn_id, sink="audit", who="me", why="gone", at="now"))
    assert lab.clear("r1", only_failed=True).state == "success"
    assert [event.get("sink") for event in lab.harness.asset_events("r1") if event] == ["orders"]
    assert {} in lab.harness.asset_events("r1")


@pytest.mark.long
def test_another_dag_with_the_pipelines_name_is_refused_and_opens_nothing(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.produce("a")
    lab.run("r1")
    thief = Harness(lab.dag("thief"))
    lab.produce("b")
    outcome = short(thief.run("r1"))
    assert outcome.state == "failed"
    assert outcome.tasks["open"] == "failed"
    assert lab.shown() == [["a"], ["a"]]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "outputs", [lambda commits: commits.output, lambda commits: [commits.output]], ids=["one", "list"]
)
def test_commits_that_a_dag_maps_by_their_sinks_show_the_epoch_and_complete_reads_their_outputs(
    lab: Lab, outputs: Callable[[Any], Any]
) -> None:
    names = ["mapped_orders", "mapped_audit"]
    dag = with_mapped_commits(lab, names, outputs)
    lab.produce(1, 2)
    outcome = Harness(dag).run("r1")
    assert outcome.state == "success"
    assert [lab.world.table(name).values() for name in names] == [[1, 2], [1, 2]]
    assert {*outcome.xcoms["complete"]["receipts"]} == {*names}


def test_mapped_instances_with_pipelines_of_their_own_show_all_that_each_of_them_reads(lab: Lab) -> None:
    rows = [
        {
            "pipeline": f"mapped_{name}",
            "source": MemorySource(world=lab.world.name, topics=(name,)),
            "sinks": [MemorySink(name=f"mapped_{name}", world=lab.world.name)],
        }
        for name in ("eu", "us")
    ]
    shared: dict[str, Any] = {"transform": lab.transform, "spark": lab.spark, "retries": 0, "wait_for_others": 0}
    with DAG(f"{lab.harness.dag.dag_id}_mapped", schedule=None, max_active_runs=1) as dag:
        EpochsOperator.partial(task_id="epochs", **shared).expand_kwargs(rows)
    harness = Harness(dag)
    for number in (1, 2):
        lab.world.produce("eu", 0, [f"eu {number}"])
        lab.world.produce("us", 0, [f"us {number}"])
        assert harness.run(f"r{number}").state == "success"
    assert lab.world.table("mapped_eu").values() == ["eu 1", "eu 2"]
    assert lab.world.table("mapped_us").values() == ["us 1", "us 2"]


@pytest.mark.few(1)
@pytest.mark.parametrize("layout", ["tasks", "single"])
def test_a_ledger_whose_connection_id_is_a_number_is_found_where_templates_render_to_native_objects(
    lab: Lab, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_123", os.environ["AIRFLOW_CONN_EPOCHS_DEFAULT"])
    with DAG(
        f"{lab.harness.dag.dag_id}_native",
        schedule=None,
        max_active_runs=1,
        render_template_as_native_obj=True,
        params={"ledger": "123"},
    ) as dag:
        EpochPipeline(
            "orders",
            source=MemorySource(world=lab.world.name, topics=("orders",)),
            transform=lab.transform,
            sinks=[MemorySink(name="orders", world=lab.world.name)],
            spark=lab.spark,  # type: ignore[arg-type]  # the double has the runner's methods itself
            ledger_conn_id="{{ params.ledger }}",
            layout=layout,
        )
    lab.produce(1, 2)
    assert Harness(dag).run("r1").state == "success"
    assert lab.world.table("orders").values() == [1, 2]


def test_a_run_with_a_param_that_its_form_does_not_offer_is_red_and_says_so(
    lab: Lab, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with DAG(f"{lab.harness.dag.dag_id}_delta", schedule=None, max_active_runs=1) as dag:
        EpochPipeline(
            "orders",
            source=DeltaSource(str(tmp_path / "bronze")),
            transform=lab.transform,
            sinks=[MemorySink(name="orders", world=lab.world.name)],
            spark=lab.spark,  # type: ignore[arg-type]  # the double has the runner's methods itself
            operator_args={"retries": 0},
        )
    outcome = Harness(dag).run("r1", {"max_records": 5})
    assert outcome.tasks["orders.open"] == "failed"
    assert "the param max_records, which a DeltaSource does not have" in capsys.readouterr().out


def tasks_tested(lab: Lab, task: str) -> None:
    """What ``airflow tasks test`` does."""
    from airflow.cli import cli_parser
    from airflow.cli.commands.task_command import task_test

    dag = lab.harness.dag
    task_test(cli_parser.get_parser().parse_args(["tasks", "test", dag.dag_id, f"orders.{task}"]), dag=dag)


def known_runs(lab: Lab) -> list[str]:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    with create_session() as session:
        return [run.run_id for run in session.query(DagRun).filter_by(dag_id=lab.harness.dag.dag_id)]


def test_airflow_tasks_test_opens_an_attempt_whose_records_the_next_run_takes(lab: Lab) -> None:
    lab.produce(1)
    tasks_tested(lab, "open")
    assert (lab.ledger.view_of_next().state, known_runs(lab), lab.shown()) == (State.OPEN, [], [[], []])
    lab.produce(2)
    assert lab.run("r1").state == "success"
    assert lab.shown() == [[1], [1]]
    assert lab.run("r2").state == "success"
    assert lab.shown() == [[1, 2], [1, 2]]


@pytest.mark.long
def test_after_airflow_tasks_test_the_next_run_fails_if_runs_are_not_to_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, monkeypatch, on_failed_epoch="block")
    lab.produce(1)
    tasks_tested(lab, "open")
    assert lab.run("r1").tasks["open"] == "failed"
    lab.laid_out(on_failed_epoch="take_over")  # as docs/intervals.md says
    assert lab.run("r2").state == "success"
    assert lab.shown() == [[1], [1]]


@pytest.mark.long
def test_airflow_tasks_test_publishes_epochs_in_the_single_task_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(tmp_path, monkeypatch, layout="single")
    lab.produce(1)
    tasks_tested(lab, "epochs")
    assert (lab.shown(), known_runs(lab)) == ([[1], [1]], [])


@pytest.mark.long
def test_airflow_dags_test_makes_a_run_that_stays_and_publishes_an_epoch(lab: Lab) -> None:
    lab.produce(1)
    run = lab.harness.dag.test()
    assert (run.state, known_runs(lab), lab.shown(), lab.after) == ("success", [run.run_id], [[1], [1]], [1])
    lab.produce(2)
    assert lab.run("r1").state == "success"
    assert lab.shown() == [[1, 2], [1, 2]]
