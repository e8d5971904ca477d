"""A new pipeline takes over from another reader, at every moment at which runs and commands can meet. No broker."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Move, Position
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.orders import adopting
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.ledger.deeds import deeds
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import newest_epochs
from airflow_epochs.ledger.signing import Keys
from airflow_epochs.model import OffsetRange, OpenRecord, TransactionId
from airflow_epochs.testing import DictStore, Observed, memory_coordinator
from tests.support.scenario import Scenario, abort, crashes, observed_run, run

ME = Account(who="me", why="we move", host="here")
FIRST_LEFT = 4
"""The other reader has read the records 0 to 3: two in each partition."""


def begin(at: int) -> Move:
    """The other reader has read so many records of each partition."""
    there = tuple(OffsetRange(partition, at, at) for partition in (0, 1))
    return Move(position=Position(ranges={"orders": there}, state={}), ahead={"orders": there})


def adopt(coordinator: Coordinator, at: int = FIRST_LEFT // 2) -> OpenRecord:
    """As the commands do, with nobody to ask."""
    attempt = adopting.require_new(coordinator.task)
    return adopting.adopt(coordinator.task, attempt, "adopt-group", ME, begin(at))


def shown(scenario: Scenario) -> list[Any]:
    """The records in the sink, after runs without faults and two more records."""
    scenario.produce(2)
    for number in range(100, 103):
        assert scenario.airflow_run(run(number)) is None
    rows: list[Any] = [*scenario.world.table("orders").values()]
    return sorted(rows)


def left(scenario: Scenario, first: int = FIRST_LEFT) -> list[int]:
    return list(range(first, scenario.produced))


def observed_command(scenario: Scenario, observer: Observed) -> None:
    scenario.world.observe(observer)
    try:
        adopt(scenario.coordinator(observer=observer))
    finally:
        scenario.world.observe(lambda moment: None)


@pytest.mark.proof
def test_a_first_run_that_dies_at_any_moment_begins_where_the_other_reader_ended() -> None:
    scenario = Scenario()
    adopt(scenario.coordinator())
    observed_run(scenario, 1, undisturbed := Observed())
    for at in range(len(undisturbed.seen)):
        scenario = Scenario()
        adopt(scenario.coordinator())
        assert crashes(partial(observed_run, scenario, 1, Observed(at=at)))
        assert shown(scenario) == left(scenario)


@pytest.mark.proof
@pytest.mark.parametrize("then", ["typed again", "a run"])
def test_a_command_that_dies_at_any_moment_has_landed_or_has_changed_nothing(then: str) -> None:
    scenario = Scenario()
    observed_command(scenario, undisturbed := Observed())
    landings = []
    for at in range(len(undisturbed.seen)):
        scenario = Scenario()
        assert crashes(partial(observed_command, scenario, Observed(at=at)))
        landings.append(scenario.ledger.open_record(1, 1) is not None)
        if then == "typed again":
            adopt(scenario.coordinator())
        assert shown(scenario) == left(scenario, FIRST_LEFT if landings[-1] or then == "typed again" else 0)
    assert {*landings} == {False, True}


def test_an_aborted_first_epoch_keeps_its_beginning_and_no_second_command_is_taken(scenario: Scenario) -> None:
    adopt(scenario.coordinator())
    for number in (1, 2):
        opened = scenario.coordinator().open(run(number))
        assert isinstance(opened, OpenRecord)
        assert [r.start for r in opened.ranges["orders"]] == [2, 2]
        abort(scenario.coordinator(), run(number))
    with pytest.raises(Refused, match="EPOCHS-PIPELINE-NOT-NEW"):
        adopt(scenario.coordinator(), 0)
    assert shown(scenario) == left(scenario)


def test_the_newest_of_two_commands_counts_and_both_stay_on_record(scenario: Scenario) -> None:
    adopt(scenario.coordinator(), 1)
    adopt(scenario.coordinator())
    assert shown(scenario) == left(scenario)
    assert [deed.what for deed in deeds(scenario.ledger, 100)] == ["adopt-group", "adopt-group"]


@pytest.mark.parametrize("first", ["run", "command"])
def test_a_command_is_refused_if_a_run_or_another_command_came_first(scenario: Scenario, first: str) -> None:
    late = scenario.coordinator()
    attempt = adopting.require_new(late.task)
    if first == "run":
        scenario.coordinator().open(run(1))
    else:
        adopt(scenario.coordinator())
    with pytest.raises(Refused) as refused:
        adopting.adopt(late.task, attempt, "adopt-group", ME, begin(5))
    assert refused.value.code is codes.COMMAND_RACE
    assert shown(scenario) == left(scenario, 0 if first == "run" else FIRST_LEFT)


def test_who_and_why_are_told_before_the_first_run_and_after_the_epoch_was_pruned(scenario: Scenario) -> None:
    adopt(scenario.coordinator())
    expected = [("adopt-group", 1, "me", "we move")]
    assert told(scenario) == expected
    [row] = newest_epochs(scenario.ledger, 10)
    assert row.opened.command and row.opened.ranges == begin(2).position.ranges
    scenario.keep_epochs = 1
    for number in (1, 2, 3):
        assert scenario.airflow_run(run(number)) is None
        scenario.produce(2)
    assert scenario.ledger.open_record(1, 1) is None, "the command's own record was pruned"
    assert told(scenario) == expected


def told(scenario: Scenario) -> list[tuple[str, int | None, str, str]]:
    return [(deed.what, deed.epoch, deed.who, deed.why) for deed in deeds(scenario.ledger, 100)]


def test_a_sink_that_shows_an_epoch_of_the_pipeline_says_that_the_ledger_was_lost(scenario: Scenario) -> None:
    assert scenario.airflow_run(run(1)) is None
    store = DictStore()
    task = memory_coordinator(scenario.world, scenario.pipeline, store=store)
    with pytest.raises(Corrupt, match="airflow epochs rebuild"):
        adopting.require_new(task.task)
    assert not store.list("")


def test_a_pipeline_of_another_dag_is_not_taken(scenario: Scenario) -> None:
    adopt(scenario.coordinator())
    task = scenario.coordinator().task
    other = Coordinator(replace(task, pipeline=replace(task.pipeline, dag_id="other")))
    with pytest.raises(Refused, match="airflow epochs takeover"):
        adopting.require_new(other.task)


def test_in_a_signed_ledger_the_command_is_signed_and_a_forged_one_is_not_obeyed() -> None:
    scenario, store, keys = Scenario(), DictStore(), Keys.parse("k" * 32)

    def signed() -> Coordinator:
        task = memory_coordinator(scenario.world, scenario.pipeline, store=store).task
        return Coordinator(replace(task, ledger=Ledger(store, "orders", keys)))

    order = adopt(signed())
    forged = replace(order, txn_id=TransactionId("orders", 1, 2, order.txn_id.nonce), obeys=2, format=1)
    Ledger(store, "orders", checked=False).put(forged)
    with pytest.raises(Corrupt, match="EPOCHS-LEDGER-RECORD-FORGED"):
        signed().open(run(1))


@pytest.fixture
def scenario() -> Scenario:
    """Ten records, and no epoch."""
    return Scenario()
