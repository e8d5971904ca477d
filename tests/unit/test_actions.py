"""Actions of operators: each does what it has told, or nothing."""

from __future__ import annotations

import re

import pytest

from airflow_epochs import codes
from airflow_epochs.coordinator.admin.actions import Abort, Action, Pause, TakeOver, Unpause, Waive
from airflow_epochs.coordinator.admin.admin import Account, owner_of
from airflow_epochs.coordinator.admin.savepoint_actions import DisposeSavepoint, MakeSavepoint
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import DecisionKind
from airflow_epochs.names import no_dag_of
from tests.support.scenario import Scenario, nested, run, staged

ME = Account(who="me", why="it hangs")


def test_an_abort_that_comes_at_the_moment_of_the_commit_changes_nothing_and_says_so() -> None:
    scenario = Scenario()
    coordinator = scenario.coordinator()
    report = staged(scenario, coordinator)
    action = Abort.of(scenario.ledger, "orders")
    vote = nested(scenario, lambda: coordinator.vote(run(1), report))

    def decide(moment: str) -> None:
        if moment.startswith("before put") and "decision" in moment:
            vote()

    scenario.world.observe(decide)
    with pytest.raises(Refused, match="decided at the same moment: GLOBAL_COMMIT") as refused:
        action.do(scenario.ledger, ME)
    scenario.world.observe(lambda moment: None)
    assert refused.value.code is codes.COMMAND_RACE
    scenario.settle()
    scenario.check_every_row()


def test_an_abort_is_for_the_attempt_that_it_has_told_and_for_no_later_one() -> None:
    scenario = Scenario()
    scenario.coordinator().open(run(1))
    first = Abort.of(scenario.ledger, "orders")
    first.do(scenario.ledger, ME)
    scenario.coordinator().open(run(2))
    with pytest.raises(Refused, match="is not undecided any more") as refused:
        first.do(scenario.ledger, ME)
    assert refused.value.code is codes.ATTEMPT_NOT_OPEN
    assert scenario.ledger.decision_record(1, 2) is None
    scenario.settle()
    scenario.check_every_row()


@pytest.mark.parametrize("between", ["open and stage", "stage and vote"])
def test_a_run_that_is_still_at_work_goes_on_with_a_new_attempt_as_the_abort_tells(between: str) -> None:
    scenario = Scenario()
    coordinator = scenario.coordinator()
    coordinator.open(run(1))
    report = coordinator.stage(run(1)).stage if between == "stage and vote" else None
    action = Abort.of(scenario.ledger, "orders")
    [told] = [line for line in action.told(scenario.ledger) if "still at work" in line]
    assert "it goes on with a new attempt. To stop it, first mark the run as failed in Airflow" in told
    action.do(scenario.ledger, ME)
    coordinator.vote(run(1), report or coordinator.stage(run(1)).stage)
    coordinator.commit(run(1), "orders")
    coordinator.complete(run(1))
    complete = scenario.ledger.complete_record(1)
    assert complete and (complete.txn_id.attempt, complete.opened_by) == (2, run(1))
    scenario.settle()
    scenario.check_every_row()


def test_what_an_action_tells_before_it_is_done_has_not_happened_yet() -> None:
    scenario = Scenario()
    coordinator, ledger = scenario.coordinator(), scenario.ledger
    coordinator.open(run(1))
    report = coordinator.stage(run(1)).stage
    owner = owner_of(ledger, "orders")
    assert foretold(ledger, Abort.of(ledger, "orders"), Pause.of(ledger, "orders"))
    assert foretold(ledger, TakeOver("orders", "new", owner), TakeOver("orders", no_dag_of("orders"), owner))
    Pause.of(ledger, "orders").do(ledger, ME)
    assert foretold(ledger, Unpause.of(ledger, "orders"))
    coordinator.vote(run(1), report)
    assert foretold(ledger, Waive("orders", 1, "orders"))
    coordinator.commit(run(1), "orders")
    coordinator.complete(run(1))
    assert foretold(ledger, MakeSavepoint("orders", "first", 1))
    MakeSavepoint("orders", "first", 1).do(ledger, ME)
    assert foretold(ledger, DisposeSavepoint("orders", "first"))


def test_a_pipeline_is_not_handed_to_the_dag_that_has_it() -> None:
    scenario = Scenario()
    scenario.coordinator().open(run(1))
    owner = owner_of(scenario.ledger, "orders")
    with pytest.raises(Refused, match=f"belongs to DAG {owner} already. Nothing was changed"):
        TakeOver("orders", owner, owner).told(scenario.ledger)


def foretold(ledger: Ledger, *actions: Action) -> bool:
    """Whether each says first what will be. It may be refused or cancelled: then nothing of it is so."""
    return all(re.search(r"\bwill (?:not )?\w+", action.told(ledger)[0]) for action in actions)


def test_what_is_decided_or_not_there_cannot_be_aborted() -> None:
    scenario = Scenario()
    with pytest.raises(Refused, match="No epoch is unfinished"):
        Abort.of(scenario.ledger, "orders")
    coordinator = scenario.coordinator()
    coordinator.vote(run(1), staged(scenario, coordinator))
    with pytest.raises(Refused, match="Epoch 1 is in doubt: waits for orders"):
        Abort.of(scenario.ledger, "orders")
    decision = scenario.ledger.decision_record(1, 1)
    assert decision and decision.decision is DecisionKind.GLOBAL_COMMIT
