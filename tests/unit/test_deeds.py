"""Who did what to a pipeline, and why, is told for ever: also of epochs whose records were pruned."""

from __future__ import annotations

import pytest

from airflow_epochs.contracts import Before, Move
from airflow_epochs.coordinator import code_changes
from airflow_epochs.coordinator.admin import admin, savepoints
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.orders import orders
from airflow_epochs.ledger.deeds import deeds
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.signing import Keys
from tests.support.scenario import BOTH, Scenario, abort, in_doubt, run, staged


def by(why: str) -> Account:
    """An account whose time is its reason: reasons sort as they come."""
    return Account(who="ana", why=why, host="desk", at=f"2026-01-01T00:00:{why.split()[0]:0>2}")


def replan(scenario: Scenario, account: Account) -> None:
    at, source = orders.standing(scenario.ledger, "orders"), scenario.pipeline.source
    assert isinstance(source, Before)
    orders.put(scenario.ledger, at, "replan", account, orders.replan(at, source))


@pytest.fixture
def scenario() -> Scenario:
    """Epoch 1 was completed without `audit`, epoch 2 was planned anew; both are pruned."""
    scenario = Scenario(BOTH)
    task = in_doubt(scenario)
    task.commit(run(1), "orders")
    admin.waive(scenario.ledger, 1, "audit", by=by("1 no backup"))
    task.complete(run(1))
    scenario.produce(2)
    scenario.coordinator().open(run(2))
    abort(scenario.coordinator(), run(2))
    replan(scenario, by("2 too large"))
    scenario.keep_epochs = 1
    for number in (2, 3):
        assert scenario.airflow_run(run(number)) is None
        scenario.produce(2)
    return scenario


def told(ledger: Ledger, epochs: int = 100) -> list[tuple[str, int | None, str, str]]:
    return [(deed.what, deed.epoch, deed.who, deed.why) for deed in deeds(ledger, epochs)]


def test_who_waived_a_sink_and_who_gave_a_command_is_told_after_their_epochs_were_pruned(scenario: Scenario) -> None:
    assert scenario.ledger.open_record(1, 1) is None and scenario.ledger.open_record(2, 1) is None
    assert told(scenario.ledger) == [("replan", 2, "ana", "2 too large"), ("waive audit", 1, "ana", "1 no backup")]
    assert told(scenario.ledger, 1) == [], "epoch 3 alone"


def test_every_other_deed_is_told_with_its_reason_newest_first(scenario: Scenario) -> None:
    ledger = scenario.ledger
    admin.take_over(ledger, "orders", "other", owner="dag", by=by("3 we move"))
    code_changes.acknowledge(ledger, "orders", "c" * 64, by=by("4 new rates"))
    savepoints.make(ledger, "orders", "upgrade", None, by("5 before it"))
    savepoints.dispose(ledger, "orders", "upgrade", by("6 after it"))
    signed = Ledger(scenario.world.store, "orders", Keys.parse("k" * 32))
    admin.sign(signed, by=by("7 the key was lost"))
    signed = Ledger(scenario.world.store, "orders", Keys.parse("k" * 32))
    assert told(signed) == [
        ("sign", 3, "ana", "7 the key was lost"),
        ("dispose-savepoint upgrade", 3, "ana", "6 after it"),
        ("savepoint upgrade", 3, "ana", "5 before it"),
        ("acknowledge-code cccccccccccc", None, "ana", "4 new rates"),
        ("takeover by DAG other", None, "ana", "3 we move"),
        ("replan", 2, "ana", "2 too large"),
        ("waive audit", 1, "ana", "1 no backup"),
    ]


def test_a_waiver_in_an_epoch_that_is_not_complete_is_told_too(scenario: Scenario) -> None:
    scenario.coordinator().vote(run(4), staged(scenario, scenario.coordinator(), 4))
    admin.waive(scenario.ledger, 4, "audit", by=by("8 again"))
    assert told(scenario.ledger, 1) == [("waive audit", 4, "ana", "8 again")]


def test_a_command_that_waits_for_the_next_run_is_told_too(scenario: Scenario) -> None:
    scenario.coordinator().open(run(4))
    abort(scenario.coordinator(), run(4))
    replan(scenario, by("9 smaller"))
    assert told(scenario.ledger, 1) == [("replan", 4, "ana", "9 smaller")]


def test_all_commands_of_an_epoch_are_told_once_before_a_run_obeys_them_and_after(scenario: Scenario) -> None:
    scenario.coordinator().open(run(4))
    abort(scenario.coordinator(), run(4))
    replan(scenario, by("8 smaller"))
    at, source = orders.standing(scenario.ledger, "orders"), scenario.pipeline.source
    assert isinstance(source, Before)
    orders.put(scenario.ledger, at, "skip", by("9 they are lost"), Move(position=at.position(source)))
    both = [("skip", 4, "ana", "9 they are lost"), ("replan", 4, "ana", "8 smaller")]
    assert told(scenario.ledger, 1) == both
    scenario.coordinator().open(run(4))
    assert told(scenario.ledger, 1) == both, "open"
    abort(scenario.coordinator(), run(4))
    assert told(scenario.ledger, 1) == both, "aborted"
    assert scenario.airflow_run(run(5)) is None
    assert told(scenario.ledger, 2) == both, "complete"
