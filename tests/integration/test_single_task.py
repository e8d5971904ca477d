"""The layout with one task, in Airflow's own scheduling code. All around the task is in memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_epochs.coordinator import code_changes
from airflow_epochs.coordinator.admin import savepoints
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.runs import series
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.hooks import cleared_tasks
from airflow_epochs.hooks.epochs import AirflowEnvironment
from airflow_epochs.hooks.retrying import Retry
from airflow_epochs.ledger import run_ids
from airflow_epochs.model import Run
from airflow_epochs.operators.base import EpochOperator
from airflow_epochs.operators.single import EpochsOperator
from airflow_epochs.testing import Crash, MemorySink
from tests.support.layout_lab import Lab, broken_commit, in_state

# What Airflow's own modules warn about among themselves is not ours to mend; our own warnings stay errors.
pytestmark = [pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?")]
ONE_BY_ONE = {"max_records": 1}
PHASES = ("open.landed", "stage.done", "decision.landed", "committed.audit", "complete.put", "complete.landed")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    return Lab(tmp_path, monkeypatch, layout="single")


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> list[EpochsOperator]:
    """The tasks that Airflow has started."""
    started: list[EpochsOperator] = []
    executed = EpochsOperator.execute

    def execute(operator: EpochsOperator, context: Context) -> Any:
        started.append(operator)
        return executed(operator, context)

    monkeypatch.setattr(EpochsOperator, "execute", execute)
    return started


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the failed tasks said."""
    texts: list[str] = []
    told = EpochOperator._told

    def tell(operator: EpochOperator, context: Context) -> Any:
        try:
            return told(operator, context)
        except Exception as error:
            texts.append(str(error))
            raise

    monkeypatch.setattr(EpochOperator, "_told", tell)
    return texts


@contextmanager
def at(phase: str, time: int, happens: Callable[[], object]) -> Iterator[None]:
    """The n-th time that a task in the block reaches a phase, this happens."""
    seen = 0

    def reached(_: AirflowEnvironment, now: str) -> None:
        nonlocal seen
        seen += now == phase
        if now == phase and seen == time:
            happens()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(AirflowEnvironment, "reached", reached)
        yield
    assert seen >= time, f"{phase} was not reached"


def die() -> None:
    raise Crash


def opened_by(lab: Lab) -> list[str]:
    """The run of each complete epoch, as the ledger has it."""
    records = map(lab.ledger.complete_record, range(1, lab.ledger.newest_complete() + 1))
    return [record.opened_by.run_id for record in records if record]


def test_a_run_whose_id_was_used_before_says_that_it_takes_no_new_data(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """The DAG was deleted and made again."""
    lab.produce("a")
    lab.run("scheduled")
    lab.harness.forget()
    lab.produce("b")
    caplog.clear()
    caplog.set_level("INFO", "airflow_epochs")
    assert lab.run("scheduled").state == "success"
    assert lab.shown() == [["a"], ["a"]]
    run = Run(lab.harness.dag.dag_id, "scheduled")
    assert f"{run} had epoch 1 already, and takes no new data: the next run does" in caplog.messages
    assert lab.run("next").state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]


def test_one_task_works_on_one_epoch_after_another_until_it_has_caught_up(lab: Lab) -> None:
    lab.produce("a", "b", "c")
    outcome = lab.run("r1", ONE_BY_ONE)
    assert (outcome.state, outcome.tasks) == ("success", {"epochs": "success", "mine": "success"})
    assert lab.shown() == [["a", "b", "c"], ["a", "b", "c"]]
    assert opened_by(lab) == ["r1", "r1 #2", "r1 #3"]
    last = outcome.xcoms["epochs"]
    assert (last["epoch"], last["state"], last["metrics"]["rows_in"]) == (3, "complete", 1)
    assert set(last["seconds"]) == {"open", "stage", "vote", "commit.orders", "commit.audit", "complete", "epochs"}
    events = lab.harness.asset_events("r1")
    assert {(each["sink"], each["first_epoch"], each["epoch"], each["rows"]) for each in events} == {
        ("orders", 1, 3, 1),
        ("audit", 1, 3, 1),
    }
    assert lab.harness.note("r1") == "epochs 1 to 3: audit@2, orders@2"
    assert lab.after == [3]


def test_a_run_without_new_data_is_skipped_and_so_is_what_is_behind_it(lab: Lab) -> None:
    outcome = lab.run("r1")
    assert (outcome.state, in_state(outcome, "skipped")) == ("success", {"epochs", "mine"})
    lab.produce("a")
    assert lab.clear("r1").state == "success"
    assert lab.shown() == [["a"], ["a"]]


def test_a_run_that_had_caught_up_takes_no_new_data_when_it_is_cleared(lab: Lab) -> None:
    lab.produce("a", "b")
    lab.run("r1", ONE_BY_ONE)
    lab.produce("c")
    for _ in range(2):
        outcome = lab.clear("r1")
        assert (outcome.state, outcome.xcoms["epochs"]["epoch"]) == ("success", 2)
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    assert lab.after == [2, 2, 2]
    lab.run("r2")
    assert lab.clear("r1").state == "success"
    assert {event["epoch"] for event in lab.harness.asset_events("r1")} == {2, 3}
    assert opened_by(lab) == ["r1", "r1 #2", "r2"]


@pytest.mark.few(1)
@pytest.mark.parametrize("bound", [{"max_epochs": 2}, {"for_seconds": 1e-9}], ids=["by epochs", "by time"])
def test_a_run_ends_at_its_bound_and_the_next_one_goes_on(lab: Lab, bound: dict[str, Any]) -> None:
    lab.laid_out(layout="single", **bound)
    lab.produce("a", "b", "c", "d")
    lab.run("r1", ONE_BY_ONE)
    taken = {"max_epochs": 2, "for_seconds": 1}[next(iter(bound))]
    assert lab.ledger.newest_complete() == taken
    assert lab.clear("r1").state == "success"
    assert lab.ledger.newest_complete() == taken, "it had ended"
    lab.run("r2", {**ONE_BY_ONE, "max_epochs": 1, "for_seconds": 60})
    assert lab.ledger.newest_complete() == taken + 1, "the params of the run come first"


def test_a_task_that_is_stopped_finishes_its_epoch_begins_no_other_and_goes_on_when_it_is_cleared(
    lab: Lab, running: list[EpochsOperator]
) -> None:
    lab.produce("a", "b", "c")
    with at("committed.orders", 2, lambda: running[-1].on_kill()):  # as Airflow does at SIGTERM
        outcome = lab.run("r1", ONE_BY_ONE)
    assert (outcome.state, lab.shown()) == ("success", [["a", "b"], ["a", "b"]])
    assert lab.clear("r1").state == "success"
    assert opened_by(lab) == ["r1", "r1 #2", "r1 #3"]


@pytest.mark.long
@pytest.mark.parametrize(
    "by",
    ["the same run, cleared", "the next run", "the next run, with a task per step"],
)
def test_a_run_that_dies_anywhere_in_its_second_epoch_is_continued(lab: Lab, by: str) -> None:
    sent: list[object] = []
    for number, phase in enumerate(PHASES):
        more = [f"{phase} 1", f"{phase} 2"]
        sent += more
        lab.produce(*more)
        with at(phase, 2, die):
            assert lab.run(f"r{number}", ONE_BY_ONE).state == "failed"
        if by == "the same run, cleared":
            assert lab.clear(f"r{number}").state == "success"
        else:
            if "task per step" in by:
                lab.laid_out()
            lab.run(f"r{number}.next")
            lab.laid_out(layout="single")
        assert lab.shown() == [sent, sent], phase
        assert lab.ledger.newest_complete() == len(sent), phase
    lab.produce("last")
    assert lab.run("last").state == "success"
    assert lab.world.litter() == set()


@pytest.mark.long
@pytest.mark.parametrize("phase", ["open.landed", "stage.done", "decision.landed"])
def test_a_run_that_blocks_with_its_second_epoch_is_cleared_and_finishes_it_with_a_task_per_step(
    lab: Lab, failures: list[str], monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")  # for the command
    lab.laid_out(layout="single", on_failed_epoch="block")
    lab.produce("a", "b")
    with at(phase, 2, die):
        assert lab.run("r1", ONE_BY_ONE).state == "failed"
    lab.laid_out(on_failed_epoch="block")
    assert lab.run("r2").state == "failed"
    assert "belongs to run r1 of DAG" in "".join(failures)
    Retry.of(lab.ledger, "orders").do(lab.ledger, Account(who="me", why="another layout"))
    assert lab.harness.drive("r1").state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    assert (opened_by(lab), lab.after) == (["r1", "r1 #2"], [2])
    lab.produce("c")
    assert lab.clear("r2").state == "success"
    assert lab.shown() == [["a", "b", "c"], ["a", "b", "c"]]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("policy", "phase", "said"),
    [
        ("take_over", "open.landed", "Its attempt will be aborted"),
        ("take_over", "stage.done", "Its attempt will be aborted"),
        ("block", "open.landed", "Its attempt will be aborted"),
        ("block", "decision.landed", "It will be rolled forward"),
        ("take_over", "decision.landed", "It will be rolled forward"),
    ],
)
def test_a_retry_lets_the_run_finish_its_second_epoch_though_the_dag_has_a_task_per_step_since(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, policy: str, phase: str, said: str
) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")  # for the command
    lab.laid_out(layout="single", on_failed_epoch=policy)
    lab.produce("a", "b")
    with at(phase, 2, die):
        assert lab.run("r1", ONE_BY_ONE).state == "failed"
    lab.produce("later")
    lab.laid_out(on_failed_epoch=policy)
    action = Retry.of(lab.ledger, "orders")
    assert said in action.told(lab.ledger)[1]
    action.do(lab.ledger, Account(who="me", why="another layout"))
    assert lab.harness.drive("r1").state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    assert (opened_by(lab), lab.after) == (["r1", "r1 #2"], [2])
    assert {each["epoch"] for each in lab.harness.asset_events("r1")} == {2}
    assert lab.run("r2").state == "success"
    assert lab.shown() == [["a", "b", "later"], ["a", "b", "later"]]


def test_a_run_with_a_task_per_step_asks_the_ledger_for_further_epochs_only_if_it_is_cleared_after_its_first_one(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Run] = []

    def as_known(task: TaskTry, run: Run, *, begins: bool = False) -> Run:
        asked.append(run)
        return run

    monkeypatch.setattr(series, "as_known", as_known)
    lab.laid_out()
    lab.produce("a")
    assert lab.run("r1").state == "success"
    assert asked == []
    assert lab.harness.clear("r1").state == "success"
    assert asked == [Run(lab.harness.dag.dag_id, "r1")]
    assert lab.shown() == [["a"], ["a"]]


@pytest.mark.parametrize("others", ["completed it", pytest.param("opened it again", marks=pytest.mark.long)])
def test_a_run_cleared_in_the_other_layout_has_its_last_epoch_whichever_run_went_on_with_it(
    lab: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")  # to clear
    lab.produce("a", "b")
    with at("stage.done", 2, die):
        assert lab.run("r1", ONE_BY_ONE).state == "failed"
    lab.laid_out()
    with at("stage.done", 1, die) if others == "opened it again" else nullcontext():
        lab.run("r2")
    lab.produce("later")
    caplog.set_level("INFO", "airflow_epochs")
    run = Run(lab.harness.dag.dag_id, "r1")
    cleared_tasks.clear(lab.ledger, "orders", run)  # gives the run the tasks of the new layout, as the scheduler does
    assert lab.harness.drive("r1").state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    assert lab.after[-1] == 2
    passed_on = "epoch 2 is complete already, by run r2 of DAG" in caplog.text
    assert passed_on == (others == "completed it")


@pytest.mark.few(1)
@pytest.mark.parametrize("phase", ["stage.done", "decision.landed"])
def test_an_epoch_that_was_opened_with_a_task_per_step_is_finished_in_one_task(lab: Lab, phase: str) -> None:
    lab.laid_out()
    lab.produce("a", "b")
    with at(phase, 1, die):
        assert lab.run("r1", ONE_BY_ONE).state == "failed"
    lab.laid_out(layout="single")
    assert lab.run("r2", ONE_BY_ONE).state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    assert lab.after == [2]


def test_a_failed_stage_aborts_its_attempt_and_the_cleared_task_takes_the_same_offsets(
    lab: Lab, failures: list[str]
) -> None:
    lab.produce("a")
    lab.spark.failures = 1
    assert lab.run("r1").state == "failed"
    decision = lab.ledger.decision_record(1, 1)
    assert decision and decision.reason.startswith(f"run r1 of DAG {decision.dag_id} failed before a decision. ")
    assert "Spark fell over." in decision.reason
    assert "Spark fell over." in failures[0]
    lab.produce("b")
    assert lab.clear("r1", only_failed=True).xcoms["epochs"]["epoch"] == 2
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    record = lab.ledger.complete_record(1)
    assert record and (record.txn_id.attempt, record.ranges["orders"][0].end) == (2, 1)


@pytest.mark.few(1)
@pytest.mark.parametrize("layout", [{}, {"layout": "single"}], ids=["per step", "single"])
def test_a_stage_that_airflow_ends_by_its_execution_timeout_is_aborted_and_the_reason_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, str]
) -> None:
    lab = Lab(tmp_path, monkeypatch, **layout)
    lab.produce("a")
    task = "orders.epochs" if layout else "orders.stage"
    lab.harness.dag.get_task(task).execution_timeout = timedelta(seconds=8)

    def slow(*of: Any) -> None:
        raise AirflowTaskTimeout("Timeout, PID: 1")

    with monkeypatch.context() as patched:
        patched.setattr(lab.spark, "run", slow)
        assert lab.run("r1").state == "failed"
    decision = lab.ledger.decision_record(1, 1)
    assert decision and decision.decision.value == "GLOBAL_ABORT"
    assert f"The task {task} was ended by its execution_timeout (8 s). Give it more time in the DAG" in decision.reason
    lab.harness.dag.get_task(task).execution_timeout = None  # as the reason says
    assert lab.run("r2").state == "success"
    assert lab.shown() == [["a"], ["a"]]


@pytest.mark.few(1)
@pytest.mark.parametrize("layout", [{"layout": "single"}, {}], ids=["single", "per step"])
@pytest.mark.parametrize("step", ["stage", "vote", "commit", "complete"])
def test_an_error_of_a_step_names_the_epoch_and_the_attempt_whoever_raises_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: list[str], layout: dict[str, str], step: str
) -> None:
    lab = Lab(tmp_path, monkeypatch, **layout)
    lab.produce("a")
    assert lab.run("r1").state == "success"
    lab.produce("b")
    raised = Refused("A key is missing.", remedy="Mend it. Then clear the failed task.")

    def fail(*of: Any, **by: Any) -> None:
        raise raised

    def broken() -> None:
        patched.setattr(MemorySink, "last_committed", fail)

    with monkeypatch.context() as patched:
        if step == "complete":
            with at("committed.audit", 1, broken):
                assert lab.run("r2").state == "failed"
        else:
            target = {"stage": (lab.spark, "run"), "vote": (MemorySink, "vote"), "commit": (MemorySink, "commit")}
            patched.setattr(*target[step], fail)
            assert lab.run("r2").state == "failed"
    place = failures[0].splitlines()[1]
    assert place.removesuffix(", sink orders").removesuffix(", sink audit") == (
        "Where: pipeline orders, epoch 2, attempt 1"
    )
    assert lab.clear("r2").state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]


def test_a_vote_against_the_second_epoch_says_to_clear_the_one_task_and_that_helps(
    lab: Lab, failures: list[str]
) -> None:
    lab.produce("a", "b")
    with at("complete.landed", 1, lambda: lab.world.refusals.update(audit="column x is a STRING, not an INT")):
        assert lab.run("r1", ONE_BY_ONE).state == "failed"
    assert lab.shown() == [["a"], ["a"]]
    assert "Sink audit voted against it: column x is a STRING" in failures[0]
    assert "Then clear the task with its downstream tasks, or let the next run take the same offsets." in failures[0]
    lab.world.refusals.clear()
    assert lab.clear("r1", only_failed=True).state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]
    assert opened_by(lab) == ["r1", "r1 #2"]


def test_a_sink_that_fails_after_the_decision_holds_up_no_other_sink_and_the_cleared_task_goes_on(
    lab: Lab, failures: list[str]
) -> None:
    lab.produce("a", "b")
    with broken_commit("orders"):
        assert lab.run("r1", ONE_BY_ONE).state == "failed"
    assert lab.shown() == [[], ["a"]]
    assert "The epoch is in doubt: it waits for sink orders." in failures[0]
    assert lab.clear("r1", only_failed=True).state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]


def test_a_missing_transform_says_to_clear_the_one_task_and_that_helps(lab: Lab, failures: list[str]) -> None:
    lab.produce("a")
    app = Path(lab.transform.partition(":")[0])
    app.rename(app.with_suffix(".away"))
    assert lab.run("r1").state == "failed"
    assert failures[0].endswith("Then clear the task with its downstream tasks.")
    app.with_suffix(".away").rename(app)
    assert lab.clear("r1").state == "success"
    assert lab.shown() == [["a"], ["a"]]


def test_the_events_of_a_cleared_run_tell_of_all_its_epochs_from_the_first_one_on(lab: Lab) -> None:
    lab.produce("a", "b", "c")
    with at("stage.done", 2, die):
        assert lab.run("r1", ONE_BY_ONE).state == "failed"
    assert lab.harness.asset_events("r1") == []
    assert lab.clear("r1").state == "success"
    events = lab.harness.asset_events("r1")
    assert {(each["first_epoch"], each["epoch"]) for each in events} == {(1, 3)}
    assert lab.harness.note("r1") == "epochs 1 to 3: audit@2, orders@2"


def test_a_retry_that_staged_nothing_does_not_record_how_long_the_epoch_took(lab: Lab) -> None:
    lab.produce("a", "b")
    with at("decision.landed", 1, die):
        assert lab.run("r1", ONE_BY_ONE).state == "failed"
    assert lab.clear("r1").state == "success"
    passed, staged = map(lab.ledger.complete_record, (1, 2))
    assert passed and "seconds" not in passed.metrics and passed.metrics["rows_in"] == 1
    assert staged and {"stage", "vote"} < set(staged.metrics["seconds"])


@pytest.mark.long
def test_a_stage_task_that_is_cleared_after_the_decision_does_not_record_how_long_it_took(lab: Lab) -> None:
    lab.laid_out(layout="tasks")
    lab.produce("a")
    with at("decision.landed", 1, die):
        assert lab.run("r1").state == "failed"
    assert lab.clear("r1").state == "success"
    record = lab.ledger.complete_record(1)
    assert record and "vote" in record.metrics["seconds"] and "stage" not in record.metrics["seconds"]


@pytest.mark.long
def test_changed_code_stops_the_one_task_until_it_is_acknowledged(lab: Lab, failures: list[str]) -> None:
    lab.laid_out(layout="single", on_code_change="stop")
    lab.produce("a")
    assert lab.run("r1").state == "success"
    Path(lab.transform.partition(":")[0]).write_text("def orders(batch, epoch): return batch\n")
    lab.produce("b")
    assert lab.run("r2").state == "failed"
    assert "nobody has acknowledged the new code" in failures[0]
    typed = re.search(r"acknowledge-code orders --code (\w+):orders --why …`, and after it `airflow ep", failures[0])
    assert typed
    code_changes.acknowledge(lab.ledger, "orders", typed[1], by=Account(who="me", why="new rates", host="here"))
    assert lab.clear("r2").state == "success"
    assert lab.shown() == [["a", "b"], ["a", "b"]]


def test_a_savepoint_names_the_last_epoch_of_the_run(lab: Lab) -> None:
    lab.produce("a", "b")
    lab.run("r1", {**ONE_BY_ONE, "savepoint": "first"})
    lab.produce("c")
    assert lab.run("r2", {"savepoint": "first"}).state == "failed"
    assert lab.clear("r1").state == "success"
    assert [(each.name, each.epoch) for each in lab.ledger.savepoints()] == [("first", 2)]


@pytest.mark.long
@pytest.mark.parametrize("layout", [pytest.param("tasks", marks=pytest.mark.long), "single"])
def test_a_savepoint_name_that_is_taken_while_the_run_works_fails_no_run_and_the_log_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, layout: str
) -> None:
    lab, ana = Lab(tmp_path, monkeypatch, layout=layout), Account(who="ana", why="the old rates")
    lab.produce("a")
    lab.run("r1")
    lab.produce("b")
    with at("complete.landed", 1, lambda: savepoints.make(lab.ledger, "orders", "mine", 1, ana)):
        assert lab.run("r2", {"savepoint": "mine"}).state == "success"
    assert {event["epoch"] for event in lab.harness.asset_events("r2")} == {2}
    [told] = [text for text in caplog.messages if "has no savepoint" in text]
    assert "EPOCHS-SAVEPOINT-NAME: The savepoint name 'mine' is taken: it is the name of epoch 1" in told
    assert "Type `airflow epochs savepoint orders ANOTHER-NAME --epoch 2 --why …`" in told
    assert lab.clear("r2").state == "success"
    assert [(each.name, each.epoch) for each in lab.ledger.savepoints()] == [("mine", 1)]


def test_the_newest_epoch_of_a_run_is_found_among_many(lab: Lab) -> None:
    run = Run("dag", "r1")
    assert series.newest(lab.ledger, run) == 1
    for number in range(1, 8):
        lab.ledger.put_run(run_ids.nth(run, number), number)
        assert series.newest(lab.ledger, run) == number
        assert not series.has_ended(lab.ledger, run, number)
    series.put_end(lab.ledger, run, 7, 7)
    assert series.has_ended(lab.ledger, run, series.newest(lab.ledger, run))
