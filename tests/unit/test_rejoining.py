"""A stage job that outlives its task: later tries go on with it, and no try goes on with what it must not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import TaskDeferred

from airflow_epochs import KafkaSource, SparkConnect
from airflow_epochs.contracts import Following, RunsOn, SparkJob
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline
from airflow_epochs.coordinator.inspection import unpublished
from airflow_epochs.coordinator.inspection.preview import preview
from airflow_epochs.errors import NotApplied
from airflow_epochs.model import JsonDict
from airflow_epochs.operators.deferral import LOOK_AGAIN_S, TRIGGER_FAILED
from airflow_epochs.operators.epoch import StageEpochOperator
from airflow_epochs.pipeline import EpochPipeline
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.testing import Crash, MemorySpark
from airflow_epochs.triggers.application import ApplicationTrigger
from tests.support.scenario import BOTH, Scenario, abort, run

CONTEXT = cast(Context, {"dag": SimpleNamespace(dag_id="dag"), "run_id": "run 1", "params": {}})


class OutlivingSpark(MemorySpark):
    """If the task waits elsewhere, jobs run on until ``finish``, or until ``fail``: then they leave no report."""

    def __init__(self) -> None:
        super().__init__()
        self.running: dict[int, SparkJob] = {}
        self.told: dict[int, JsonDict] = {}
        self.failed: set[int] = set()
        self.following = Following(elsewhere=True)
        self.lasting = True

    def follow(self, following: Following) -> None:
        self.following = following

    def outlives(self) -> bool:
        return self.lasting

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        if not self.following.elsewhere:
            return super().run(job, session)
        assert session
        self.running[session["session"]] = job
        raise RunsOn("a job", str(session["session"]), ["here"])

    def rejoin(self, session: JsonDict) -> JsonDict | None:
        number = session["session"]
        if number in self.running:
            raise RunsOn("a job", str(number), ["here"])
        if number in self.failed and str(number) == self.following.awaited:
            raise NotApplied("The job failed.", remedy="Look why.")
        return self.told.get(number)

    def release(self, session: JsonDict) -> None:
        self.told.pop(session["session"], None)

    def end(self, session: JsonDict) -> None:
        self.running.pop(session["session"], None)

    def finish(self) -> None:
        for number, job in self.running.items():
            self.told[number] = super().run(job)
        self.running.clear()

    def fail(self) -> None:
        self.failed |= self.running.keys()
        self.running.clear()


def submitted(scenario: Scenario, spark: OutlivingSpark) -> str:
    """What the stage task of run 1 now waits for."""
    with pytest.raises(RunsOn) as gone:
        task(scenario, spark).stage(run(1))
    return gone.value.job


def task(scenario: Scenario, spark: OutlivingSpark) -> Coordinator:
    """A new task process."""
    return scenario.coordinator(spark=spark)


@pytest.fixture
def spark() -> OutlivingSpark:
    return OutlivingSpark()


@pytest.fixture
def scenario(spark: OutlivingSpark) -> Scenario:
    scenario = Scenario(BOTH)
    task(scenario, spark).open(run(1))
    return scenario


def finished(scenario: Scenario, spark: OutlivingSpark) -> None:
    """The rest of run 1; then every record is shown once."""
    coordinator = task(scenario, spark)
    report = coordinator.stage(run(1)).stage
    assert report and report.try_id in {each.try_id for each in scenario.ledger.tries(1)}
    coordinator.vote(run(1), report)
    for sink in BOTH:
        coordinator.commit(run(1), sink)
    coordinator.complete(run(1))
    scenario.check_every_row()


def tries(scenario: Scenario) -> int:
    return len(scenario.ledger.tries(1))


def test_every_later_try_goes_on_with_the_job_that_was_submitted(scenario: Scenario, spark: OutlivingSpark) -> None:
    assert submitted(scenario, spark) == submitted(scenario, spark)
    assert not spark.stopped, "the job that it waits for is not stopped"
    spark.finish()
    finished(scenario, spark)
    assert tries(scenario) == 1 and len(spark.jobs) == 1


def test_a_task_that_dies_after_it_has_read_the_report_loses_nothing(scenario: Scenario, spark: OutlivingSpark) -> None:
    submitted(scenario, spark)
    spark.finish()

    def die(moment: str) -> None:
        if moment == "stage.done":
            raise Crash(moment)

    with pytest.raises(Crash):
        scenario.coordinator(observer=die, spark=spark).stage(run(1))
    finished(scenario, spark)
    assert tries(scenario) == 1 and spark.told == {}, "at the end no report is left"


@pytest.mark.parametrize("late", [False, True])
def test_the_report_of_an_aborted_attempt_is_forgotten(scenario: Scenario, spark: OutlivingSpark, late: bool) -> None:
    submitted(scenario, spark)
    if not late:
        spark.finish()
    task(scenario, spark).abort(run(1), "a test")
    if late:
        spark.finish()
        submitted(scenario, spark)
    assert spark.told == {}


def test_an_attempt_is_aborted_also_if_nobody_knows_whether_its_job_runs_on(
    scenario: Scenario, spark: OutlivingSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted(scenario, spark)
    spark.finish()
    assert scenario.world.litter()

    def unknown() -> bool:
        raise NotApplied("There is no such connection.", remedy="Add it.")

    monkeypatch.setattr(spark, "outlives", unknown)
    task(scenario, spark).abort(run(1), "a test")
    assert not scenario.world.litter() and spark.told


def test_a_job_that_failed_while_the_task_waited_fails_the_task_and_the_next_try_submits_anew(
    scenario: Scenario, spark: OutlivingSpark
) -> None:
    spark.follow(Following(elsewhere=True, awaited=submitted(scenario, spark)))
    spark.fail()
    with pytest.raises(NotApplied, match="The job failed"):
        task(scenario, spark).stage(run(1))
    spark.follow(Following(elsewhere=True))
    submitted(scenario, spark)
    spark.finish()
    finished(scenario, spark)
    assert tries(scenario) == 2


def test_a_job_that_is_gone_is_stopped_before_another_one_is_submitted(
    scenario: Scenario, spark: OutlivingSpark
) -> None:
    first = submitted(scenario, spark)
    spark.fail()
    assert submitted(scenario, spark) != first
    assert [str(session["session"]) for session in spark.stopped] == [first]


@pytest.mark.parametrize("other", [{"digest": "0" * 64}, {"function": "another"}], ids=["file", "function"])
def test_rows_of_other_code_are_not_gone_on_with(
    scenario: Scenario, spark: OutlivingSpark, monkeypatch: pytest.MonkeyPatch, other: dict[str, str]
) -> None:
    first = submitted(scenario, spark)
    spark.finish()
    coordinator = task(scenario, spark)
    pipeline = coordinator.task.pipeline
    changed = replace(pipeline, transform=replace(pipeline.transform, **other))
    monkeypatch.setattr(coordinator.task, "pipeline", changed)
    with pytest.raises(RunsOn) as gone:
        coordinator.stage(run(1))
    assert gone.value.job != first


def test_the_job_of_an_aborted_attempt_is_stopped_and_never_gone_on_with(
    scenario: Scenario, spark: OutlivingSpark
) -> None:
    first = submitted(scenario, spark)
    task(scenario, spark).abort(run(1), "somebody wants it")
    assert [str(session["session"]) for session in spark.stopped] == [first]
    spark.finish()
    second = submitted(scenario, spark)
    assert second != first
    spark.finish()
    finished(scenario, spark)


def test_what_an_unsigned_record_says_of_another_connection_is_not_gone_on_with(
    scenario: Scenario, spark: OutlivingSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = submitted(scenario, spark)
    spark.finish()
    drawn = spark.new_session
    monkeypatch.setattr(spark, "new_session", lambda: {**drawn(), "conn_id": "another"})
    assert submitted(scenario, spark) != first


def test_if_spark_has_changed_so_that_jobs_end_with_their_task_the_earlier_job_is_stopped(
    scenario: Scenario, spark: OutlivingSpark
) -> None:
    first = submitted(scenario, spark)
    spark.lasting = False
    spark.follow(Following())
    finished(scenario, spark)
    assert first in [str(session["session"]) for session in spark.stopped]
    assert tries(scenario) == 2


def test_promised_rows_that_are_lost_are_staged_by_a_new_job(spark: OutlivingSpark) -> None:
    one = Scenario(("orders",))
    task(one, spark).open(run(1))
    submitted(one, spark)
    spark.finish()
    coordinator = task(one, spark)
    coordinator.vote(run(1), coordinator.stage(run(1)).stage)
    asked: list[JsonDict] = []
    spark.rejoin = lambda session: asked.append(session)  # type: ignore[method-assign]
    spark.follow(Following())
    for place in list(one.world.places):
        one.world.vacuum(place)
    coordinator.commit(run(1), "orders")
    coordinator.complete(run(1))
    one.check_every_row()
    assert asked == [] and len(spark.jobs) == 2


class Backfilling(Scenario):
    """The sink ``audit`` is new, and begins with epoch 1: its rows come from a job of their own."""

    @property
    def pipeline(self) -> Pipeline:
        return replace(super().pipeline, backfill={"audit": 1})


def test_each_job_of_a_stage_is_gone_on_with_for_its_own_sinks(spark: OutlivingSpark) -> None:
    one = Scenario(("orders",))
    assert one.airflow_run(run(1)) is None
    both = Backfilling(BOTH, world=one.world, records=2, produced=one.produced)
    task(both, spark).open(run(2))
    for _ in range(2):  # the second job is submitted when the first has ended
        with pytest.raises(RunsOn):
            task(both, spark).stage(run(2))
        spark.finish()
    coordinator = task(both, spark)
    coordinator.vote(run(2), coordinator.stage(run(2)).stage)
    for sink in BOTH:
        coordinator.commit(run(2), sink)
    coordinator.complete(run(2))
    assert len(spark.jobs) == 2
    assert sorted(sorted(each.places) for each in both.ledger.tries(2)) == [["audit"], ["orders"]]
    values = sorted(map(str, range(both.produced)))
    assert sorted(map(str, both.world.table("orders").values())) == values
    assert sorted(map(str, both.world.table("audit").values())) == values


# -- the operator ----------------------------------------------------------------------------------------------------


def stage_task(scenario: Scenario, spark: OutlivingSpark, *, deferrable: bool = True) -> StageEpochOperator:
    """The stage task of run 1, whose work is that of the scenario."""
    with DAG("dag", schedule=None, max_active_runs=1):
        step = StageEpochOperator(
            task_id="stage",
            pipeline="orders",
            source=KafkaSource(topics=["t"]),
            transform="a.py:f",
            sinks=[DeltaSink("gold", "/lake/gold")],
            spark=SparkConnect(),
            deferrable=deferrable,
        )
    step.__dict__["environment"] = SimpleNamespace(spark=spark, phases=[])
    step.__dict__["_coordinator"] = lambda context: task(scenario, spark)
    return step


def deferred(act: Callable[[], object]) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as waits:
        act()
    return waits.value


def test_a_deferrable_stage_leaves_its_worker_slot_and_goes_on_when_the_trigger_fires(
    scenario: Scenario, spark: OutlivingSpark
) -> None:
    step = stage_task(scenario, spark)
    waits = deferred(lambda: step.execute(CONTEXT))
    assert isinstance(waits.trigger, ApplicationTrigger)
    assert (waits.trigger.addresses, waits.trigger.tag) == (["here"], str(*spark.running))
    assert waits.timeout == timedelta(seconds=LOOK_AGAIN_S)
    event = {"why": "ended", "job": waits.trigger.tag}
    deferred(lambda: step.resume_execution(waits.method_name, {"event": event}, CONTEXT))  # in vain: it waits on
    spark.finish()
    assert step.resume_execution(waits.method_name, {"event": event}, CONTEXT)["epoch"] == 1
    assert tries(scenario) == 1


def test_the_failure_of_a_job_fails_the_task_that_the_trigger_wakes_and_a_retry_submits_anew(
    scenario: Scenario, spark: OutlivingSpark
) -> None:
    step = stage_task(scenario, spark)
    event = {"why": "ended", "job": getattr(deferred(lambda: step.execute(CONTEXT)).trigger, "tag", None)}
    spark.fail()
    with pytest.raises(NotApplied, match="The job failed"):
        step.look_again(CONTEXT, event)
    deferred(lambda: step.execute(CONTEXT))
    assert tries(scenario) == 2


@pytest.mark.parametrize(("error", "elsewhere"), [("Trigger failure", False), ("Trigger timeout", True)])
def test_if_its_trigger_fails_a_stage_waits_in_its_worker_slot_and_if_nothing_fired_it_defers_again(
    scenario: Scenario, spark: OutlivingSpark, error: str, elsewhere: bool
) -> None:
    step = stage_task(scenario, spark)
    deferred(lambda: step.execute(CONTEXT))
    deferred(lambda: step.resume_execution(TRIGGER_FAILED, {"error": error}, CONTEXT))
    assert spark.following.elsewhere is elsewhere


def test_without_deferrable_a_stage_holds_its_worker_slot(scenario: Scenario, spark: OutlivingSpark) -> None:
    assert stage_task(scenario, spark, deferrable=False).execute(CONTEXT)["epoch"] == 1


def test_deferrable_is_an_option_of_the_pipeline_for_open_and_stage() -> None:
    with DAG("deferrable", schedule=None, max_active_runs=1) as dag:
        EpochPipeline(
            "orders",
            source=KafkaSource(topics=["t"]),
            transform="a.py:f",
            sinks=[DeltaSink("gold", "/lake/gold")],
            spark=SparkConnect(),
            deferrable=True,
        )
    assert {task_id for task_id, each in dag.task_dict.items() if getattr(each, "deferrable", False)} == {
        "orders.open",
        "orders.stage",
    }


@pytest.mark.parametrize("ends", [True, False], ids=["the job has ended", "the job runs"])
def test_a_preview_leaves_neither_a_job_nor_a_report(scenario: Scenario, spark: OutlivingSpark, ends: bool) -> None:
    abort(task(scenario, spark), run(1))
    with pytest.raises(RunsOn), pytest.MonkeyPatch.context() as context:
        context.setattr(unpublished, "_clear", lambda *_: None)  # it is killed
        preview(task(scenario, spark).task, 100, 1)
    if ends:
        spark.finish()
    assert spark.told or spark.running
    with pytest.MonkeyPatch.context() as context:
        context.setattr(unpublished, "_is_over", lambda *_: True)
        unpublished.clear_away(task(scenario, spark).task)
    assert not spark.told and not spark.running
