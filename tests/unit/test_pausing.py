"""A paused pipeline takes no new epoch, and finishes what is begun."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, cast

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowSkipException, TaskDeferred

from airflow_epochs import codes
from airflow_epochs.coordinator.admin import admin, pausing
from airflow_epochs.coordinator.admin.actions import Pause, Unpause
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.errors import Corrupt, NoNewData, Refused
from airflow_epochs.ledger.deeds import deeds
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.overview import Condition, pipeline_row
from airflow_epochs.ledger.signing import Keys
from airflow_epochs.operators.deferral import REST_S, TRIGGER_FAILED
from airflow_epochs.operators.epoch import OpenEpochOperator
from airflow_epochs.operators.single import EpochsOperator
from airflow_epochs.protocol import State
from airflow_epochs.testing import Observed
from tests.support.scenario import BOTH, Scenario, abort, crashes, in_doubt, moments, nested, newest, observed_run, run
from tests.unit.test_backing_off import TaskInstance, context_of
from tests.unit.test_operator_errors import operator
from tests.unit.test_orders import replanned

ME = Account(who="ana", why="the disk of the lake is changed", host="desk")


def pause(scenario: Scenario, by: Account = ME) -> None:
    Pause.of(scenario.ledger, "orders").do(scenario.ledger, by)


def unpause(scenario: Scenario) -> None:
    by = Account(who="ana", why="it is done", host="desk")
    Unpause.of(scenario.ledger, "orders").do(scenario.ledger, by)


def skipped(scenario: Scenario, number: int) -> NoNewData:
    with pytest.raises(NoNewData) as skip:
        scenario.coordinator().open(run(number))
    return skip.value


@pytest.fixture
def scenario() -> Scenario:
    """One complete epoch of ten records; four more wait."""
    scenario = Scenario(BOTH)
    scenario.airflow_run(run(1))
    scenario.produce(4)
    return scenario


def test_during_a_pause_runs_are_skipped_and_say_who_paused_it_why_and_how_to_go_on(scenario: Scenario) -> None:
    pause(scenario)
    skip = skipped(scenario, 2)
    assert skip.code is codes.PIPELINE_PAUSED
    assert "ana has paused the pipeline at 20" in skip.what and "the disk of the lake is changed" in skip.what
    assert "`airflow epochs unpause orders --why …`" in str(skip)
    assert newest(scenario).state is State.NEW
    unpause(scenario)
    scenario.settle()
    scenario.check_every_row()


def test_a_pipeline_can_be_paused_before_its_first_epoch() -> None:
    scenario = Scenario()
    scenario.ledger.register("dag", at="now", writer="me")
    pause(scenario)
    skipped(scenario, 1)
    unpause(scenario)
    scenario.settle()


def test_a_paused_pipeline_does_not_ask_its_source(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    pause(scenario)
    coordinator = scenario.coordinator()
    monkeypatch.setattr(type(coordinator.task.pipeline.source), "plan", None)
    with pytest.raises(NoNewData, match="has paused"):
        coordinator.open(run(2))


def test_a_run_at_work_when_the_pipeline_is_paused_goes_on_with_its_epoch(scenario: Scenario) -> None:
    coordinator = scenario.coordinator()
    coordinator.open(run(2))
    pause(scenario)
    assert scenario.airflow_run(run(2)) is None
    assert scenario.ledger.newest_complete() == 2
    scenario.produce(1)
    skipped(scenario, 3)


@pytest.mark.proof
def test_a_pause_at_any_moment_of_a_run_lets_it_end_and_the_next_one_open_nothing() -> None:
    for at in range(len(moments(BOTH))):
        scenario = Scenario(BOTH)
        observed_run(scenario, 1, Observed(at=at, then=nested(scenario, partial(pause, scenario))))
        scenario.produce(1)
        skipped(scenario, 2)
        assert newest(scenario).state is State.NEW
        assert scenario.ledger.newest_complete() == len(scenario.told), "begun, it was completed"
        unpause(scenario)
        scenario.settle()
        scenario.check_every_row()


def paused(scenario: Scenario) -> bool:
    return scenario.ledger.pause_in_force() is not None


def test_an_epoch_in_doubt_is_finished_by_the_next_run_during_a_pause(scenario: Scenario) -> None:
    in_doubt(scenario, 2)
    pause(scenario)
    assert scenario.airflow_run(run(3)) is None
    assert scenario.ledger.newest_complete() == 2 and newest(scenario).state is State.NEW
    skipped(scenario, 4)


def test_an_undecided_attempt_of_an_earlier_run_is_aborted_during_a_pause_and_not_opened_again(
    scenario: Scenario,
) -> None:
    scenario.coordinator().open(run(2))
    pause(scenario)
    skipped(scenario, 3)
    view = newest(scenario)
    assert (view.state, view.opened.txn_id.attempt) == (State.ABORTED, 1)
    unpause(scenario)
    scenario.settle()
    scenario.check_every_row()


def test_a_run_opens_its_own_aborted_epoch_again_during_a_pause(scenario: Scenario) -> None:
    scenario.coordinator().open(run(2))
    abort(scenario.coordinator(), run(2))
    pause(scenario)
    assert scenario.airflow_run(run(2)) is None, "cleared"
    assert scenario.ledger.newest_complete() == 2


def test_a_late_stage_does_not_obey_a_command_during_a_pause(scenario: Scenario) -> None:
    scenario.coordinator().open(run(2))
    abort(scenario.coordinator(), run(2))
    replanned(scenario)
    pause(scenario)
    with pytest.raises(NoNewData, match="has paused"):
        scenario.coordinator().stage(run(2))
    assert newest(scenario).opened.command


@pytest.mark.proof
def test_a_run_dies_at_every_moment_and_a_run_during_the_pause_leaves_nothing_undecided() -> None:
    for at in range(len(moments(("orders",)))):
        scenario = Scenario()
        assert crashes(partial(observed_run, scenario, 1, Observed(at=at)))
        pause(scenario)
        assert scenario.airflow_run(run(2)) is None
        assert newest(scenario).state in (State.NEW, State.ABORTED)
        unpause(scenario)
        scenario.settle()
        scenario.check_every_row()


# -- two operators ------------------------------------------------------------------------------------------------


def test_a_pipeline_that_is_paused_is_not_paused_again_and_says_by_whom(scenario: Scenario) -> None:
    pause(scenario)
    with pytest.raises(Refused, match="ana has paused the pipeline") as refused:
        pause(scenario)
    assert refused.value.code is codes.NOTHING_TO_PAUSE
    unpause(scenario)
    with pytest.raises(Refused, match="is not paused"):
        unpause(scenario)


def test_two_operators_who_pause_at_once_both_have_what_they_want(scenario: Scenario) -> None:
    mine, his = Pause.of(scenario.ledger, "orders"), Pause.of(scenario.ledger, "orders")
    his.do(scenario.ledger, Account(who="bob", why="he was faster"))
    mine.do(scenario.ledger, ME)
    assert [each.who for each in scenario.ledger.pauses()] == ["bob"]


def test_a_pause_that_was_ended_while_the_question_stood_is_refused(scenario: Scenario) -> None:
    mine = Pause.of(scenario.ledger, "orders")
    pause(scenario, Account(who="bob", why="he was faster"))
    unpause(scenario)
    with pytest.raises(Refused, match="ana has unpaused the pipeline before") as refused:
        mine.do(scenario.ledger, ME)
    assert refused.value.code is codes.COMMAND_RACE
    assert not paused(scenario) and len(scenario.ledger.pauses()) == 2


def test_before_a_pause_it_is_told_what_becomes_of_the_epoch_at_work(scenario: Scenario) -> None:
    scenario.coordinator().open(run(2))
    lines = Pause.of(scenario.ledger, "orders").told(scenario.ledger)
    assert "will take no new epoch" in lines[0] and "Its run goes on with it" in lines[1]
    abort(scenario.coordinator(), run(2))
    assert "only its own run opens it again" in Pause.of(scenario.ledger, "orders").told(scenario.ledger)[1]
    replanned(scenario)
    told = Pause.of(scenario.ledger, "orders").told(scenario.ledger)[1]
    assert told.endswith("It waits for the end of the pause.") and "run opens it" not in told, "no run has a command"


# -- the record -----------------------------------------------------------------------------------------------------


def test_every_pause_stays_on_record_with_who_and_why_and_the_list_shows_it(scenario: Scenario) -> None:
    scenario.keep_epochs = 1
    pause(scenario)
    row = pipeline_row("orders", scenario.ledger)
    assert row.condition is Condition.PAUSED and row.pause and row.pause.who == "ana"
    unpause(scenario)
    assert pipeline_row("orders", scenario.ledger).condition is Condition.IDLE
    for number in range(2, 5):
        scenario.airflow_run(run(number))
        scenario.produce(2)
    told = [(deed.what, deed.who, deed.host, deed.why) for deed in deeds(scenario.ledger, 1)]
    assert told == [("unpause", "ana", "desk", "it is done"), ("pause", "ana", "desk", ME.why)]


def test_a_pause_does_not_hide_that_an_epoch_is_in_doubt(scenario: Scenario) -> None:
    in_doubt(scenario, 2)
    pause(scenario)
    row = pipeline_row("orders", scenario.ledger)
    assert row.condition is Condition.IN_DOUBT and row.pause


def test_a_pause_of_a_signed_ledger_counts_only_with_a_signature(scenario: Scenario) -> None:
    admin.sign(keyed(scenario), by=ME)
    forger = Ledger(scenario.world.store, "orders", checked=False)
    pausing.put(forger, "orders", 1, paused=True, by=ME)
    with pytest.raises(Corrupt, match="does not trust"):
        keyed(scenario).pause_in_force()


def test_a_pause_from_before_the_first_signature_still_counts(scenario: Scenario) -> None:
    pause(scenario)
    keyed(scenario).register("dag", at="now", writer="me")
    assert keyed(scenario).pause_in_force()


def keyed(scenario: Scenario) -> Ledger:
    return Ledger(scenario.world.store, "orders", Keys.parse("k" * 32))


# -- Airflow ----------------------------------------------------------------------------------------------------------


def meets_pause(monkeypatch: pytest.MonkeyPatch, kind: Any = OpenEpochOperator) -> Any:
    step = operator(kind)

    def fail(context: Context) -> None:
        raise NoNewData("ana has paused the pipeline.", code=codes.PIPELINE_PAUSED)

    monkeypatch.setattr(step, "_coordinator", fail)
    return step


@pytest.mark.parametrize("kind", [OpenEpochOperator, EpochsOperator])
def test_a_run_of_a_paused_continuous_dag_rests_in_the_triggerer_and_is_then_skipped(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_of(TaskInstance([]))
    step = meets_pause(monkeypatch, kind)
    with pytest.raises(TaskDeferred) as deferred:
        step.execute(context)
    moment = cast(Any, deferred.value.trigger).moment
    assert timedelta(0) < moment - datetime.now(timezone.utc) <= timedelta(seconds=REST_S)
    step = meets_pause(monkeypatch, kind)
    with pytest.raises(AirflowSkipException, match="airflow epochs unpause orders"):
        step.resume_execution(deferred.value.method_name, {"event": None}, context)


@pytest.mark.parametrize("kind", [OpenEpochOperator, EpochsOperator])
def test_a_rest_is_over_long_before_the_dagrun_timeout_would_make_the_run_red(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        meets_pause(monkeypatch, kind).execute(context_of(TaskInstance([]), timeout=timedelta(seconds=50)))
    assert cast(Any, deferred.value.trigger).moment - datetime.now(timezone.utc) <= timedelta(seconds=5)


def test_a_rest_that_nothing_ended_is_over_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    step = meets_pause(monkeypatch, EpochsOperator)
    with pytest.raises(AirflowSkipException):
        step.resume_execution(TRIGGER_FAILED, {"error": "Trigger/execution timeout"}, context_of(TaskInstance([])))


@pytest.mark.parametrize("how", [{"schedule": "@hourly"}, {"run_type": "manual"}], ids=str)
def test_other_runs_of_a_paused_pipeline_are_skipped_at_once(
    how: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AirflowSkipException, match="ana has paused the pipeline"):
        meets_pause(monkeypatch).execute(context_of(TaskInstance([]), **how))


def test_a_run_without_new_data_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    step = operator(OpenEpochOperator)

    def fail(context: Context) -> None:
        raise NoNewData("nothing", code=codes.NO_NEW_DATA)

    monkeypatch.setattr(step, "_coordinator", fail)
    with pytest.raises(AirflowSkipException):
        step.execute(context_of(TaskInstance([])))
