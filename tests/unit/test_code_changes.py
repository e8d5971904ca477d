"""A changed transform is seen in the ledger, and a pipeline can stop until somebody has acknowledged it."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect, codes
from airflow_epochs.contracts import Move, Position
from airflow_epochs.coordinator import code_changes
from airflow_epochs.coordinator.admin import savepoints
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.orders import orders
from airflow_epochs.coordinator.orders.orders import Restoration
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import EpochRow, newest_epochs
from airflow_epochs.ledger.signing import Keys
from airflow_epochs.model import DecisionKind
from airflow_epochs.operators.epoch import EpochOperator
from airflow_epochs.protocol import State
from tests.support.faults_world import DiskWorld
from tests.support.remedies import assert_all_rows, ordered, typed
from tests.support.scenario import Coded, Scenario, abort, newest, run, staged

ME = Account(who="me", why="the new rates", host="here")
OLD, NEW = "0" * 64, "1" * 64


@pytest.fixture
def stopping() -> Coded:
    """One epoch of the old code; the DAG has new code, of which nobody knows."""
    scenario = Coded(on_code_change="stop")
    assert scenario.airflow_run(run(1)) is None
    scenario.produce(2)
    scenario.code = "new"
    return scenario


def acknowledge(scenario: Scenario, code: str) -> None:
    code_changes.acknowledge(scenario.ledger, "orders", code, by=ME)


def refused(scenario: Scenario, number: int) -> Refused:
    """A run that opens nothing and writes nothing, because of the code."""
    before = dict(scenario.world.store.values)
    with pytest.raises(Refused) as caught:
        scenario.coordinator().open(run(number))
    assert caught.value.code is codes.CODE_NOT_ACKNOWLEDGED
    assert scenario.world.store.values == before
    return caught.value


def listed(scenario: Scenario) -> list[tuple[int, str | None, bool]]:
    ledger = scenario.ledger
    rows = [EpochRow.of(ledger, view, ledger.complete_record(view.number - 1)) for view in newest_epochs(ledger, 20)]
    return [(row.number, row.code, row.code_changed) for row in rows]


def test_what_the_dag_says_of_changed_code_is_what_every_task_does() -> None:
    with DAG("orders", schedule=None, max_active_runs=1) as dag:
        EpochPipeline(
            "orders",
            source=KafkaSource(topics=["orders"]),
            transform="orders.py:orders",
            sinks=[DeltaSink("orders", "/lake/orders")],
            spark=SparkConnect(),
            on_code_change="stop",
        )
    task = dag.get_task("orders.complete")
    assert isinstance(task, EpochOperator) and task.definition(dag).on_code_change == "stop"
    task.on_code_change = "ask"
    with pytest.raises(Refused, match=r"`on_code_change` is 'ask'"):
        task.definition(dag)


def test_each_epoch_tells_its_code_and_whether_that_has_changed_also_after_it_was_pruned() -> None:
    scenario = Coded(keep_epochs=0)
    for number, code in enumerate(["old", "old", "new", "old"], start=1):
        scenario.code = code
        assert scenario.airflow_run(run(number)) is None
        scenario.produce(2)
    assert listed(scenario) == [(4, "old", True), (3, "new", True), (2, "old", False), (1, "old", False)]


def test_a_pipeline_that_warns_opens_an_epoch_with_changed_code_and_says_so(
    stopping: Coded, caplog: pytest.LogCaptureFixture
) -> None:
    stopping.on_code_change = "warn"
    with caplog.at_level(logging.WARNING):
        assert stopping.airflow_run(run(2)) is None
    assert "epoch 2: The code of the transform has changed since epoch 1: old then, new now." in caplog.messages


def test_changed_code_opens_no_epoch_until_it_is_acknowledged_and_who_and_why_stay_when_it_is_pruned(
    stopping: Coded,
) -> None:
    assert "has changed since epoch 1: old then, new now. No epoch was opened" in refused(stopping, 2).what
    acknowledge(stopping, "new")
    stopping.keep_epochs = 0
    assert stopping.airflow_run(run(2)) is None
    assert stopping.ledger.open_record(2, 1) is None
    complete = stopping.ledger.complete_record(2)
    assert complete and complete.code == "new"
    assert [(each.name, each.who, each.why) for each in complete.commands] == [
        ("acknowledge-code", "me", "the new rates")
    ]
    stopping.produce(2)
    assert stopping.airflow_run(run(3)) is None, "the same code needs no second word"
    assert (complete := stopping.ledger.complete_record(3)) and complete.commands == ()


@pytest.mark.proof
def test_another_function_of_the_same_file_is_changed_code_too(tmp_path: Path) -> None:
    world = DiskWorld(tmp_path, code=OLD, on_code_change="stop")
    world.produce(4)
    assert world.run(1) is None
    ordered(world.ledger_root, "epochs", "acknowledge-code", "orders", "--why", "so", "--yes", "--code", NEW)
    world.produce(2)
    world = replace(world, code=NEW)
    assert world.run(2) is None
    error: object = None
    for number, function in enumerate(("v2", "v3"), start=3):
        world.produce(2)
        then, world = world.function, replace(world, function=function)
        error = world.run(number)
        assert isinstance(error, Refused) and error.code is codes.CODE_NOT_ACKNOWLEDGED
        assert f"has changed since epoch {number - 1}: the function {then} then, {function} now" in error.what
        screen = typed(world.ledger_root, error, "acknowledge-code")
        assert f"in its newest complete epoch  {NEW}:{then}" in screen
        assert f"from the next attempt on      {NEW}:{function}" in screen
        assert world.run(number) is None
    assert isinstance(error, Refused) and "Nothing to do" in typed(world.ledger_root, error, "acknowledge-code")
    assert_all_rows(world, "orders", "audit")


def test_a_try_with_another_function_than_its_attempt_is_told_of_and_stages_nothing_where_the_pipeline_stops(
    stopping: Coded,
) -> None:
    stopping.code = "old"
    stopping.coordinator().open(run(2))
    stopping.function = "v2"
    with pytest.raises(Refused, match=r"the function keep_all then, v2 now\. Nothing was staged"):
        stopping.coordinator().stage(run(2))
    stopping.on_code_change = "warn"
    report = stopping.coordinator().stage(run(2)).stage
    assert report and "the function keep_all then, v2 now. These rows are of the new code" in report.warnings[0]
    assert [record.function for record in stopping.ledger.tries(2)] == ["v2"]


def test_an_acknowledgement_holds_for_one_code_and_until_the_next_one(stopping: Coded) -> None:
    acknowledge(stopping, "another")
    refused(stopping, 2)
    acknowledge(stopping, "new")
    assert stopping.airflow_run(run(2)) is None
    stopping.produce(2)
    stopping.code = "another"
    refused(stopping, 3)
    stopping.code = "new"
    assert stopping.airflow_run(run(3)) is None
    assert [record.before for record in stopping.ledger.acknowledgements()] == ["old", "old"]


def test_the_first_epoch_needs_no_acknowledgement_nor_does_an_epoch_after_one_of_unknown_code() -> None:
    scenario = Coded(on_code_change="stop", code=None)
    for number, code in enumerate([None, "old", None, "new"], start=1):
        scenario.code = code
        assert scenario.airflow_run(run(number)) is None
        scenario.produce(2)
    assert [code for _, code, _ in listed(scenario)] == ["new", None, "old", None]


def test_an_aborted_epoch_is_opened_again_with_changed_code_only_once_that_is_acknowledged(stopping: Coded) -> None:
    stopping.code = "old"
    first = stopping.coordinator().open(run(2))
    abort(stopping.coordinator(), run(2))
    stopping.code = "new"
    refused(stopping, 2)
    acknowledge(stopping, "new")
    again = stopping.coordinator().open(run(2))
    assert (again.ranges, again.txn_id.attempt) == (first.ranges, 2)


def test_a_try_with_other_code_than_its_attempt_is_told_everywhere_and_its_code_goes_on_record() -> None:
    scenario = Coded()
    task = scenario.coordinator()
    task.open(run(1))
    scenario.code = "new"
    report = scenario.coordinator().stage(run(1)).stage
    assert report and report.warnings == (
        "The code of the transform has changed since the epoch was opened: old then, new now. These rows are of the "
        "new code.",
    )
    assert [record.code for record in scenario.ledger.tries(1)] == ["new"]
    task.vote(run(1), report)
    task.commit(run(1), "orders")
    task.complete(run(1))
    record = scenario.ledger.complete_record(1)
    assert record and record.code == "new"
    assert savepoints.make(scenario.ledger, "orders", "upgrade", 1, ME).code == "new"


def test_a_try_with_other_code_than_its_attempt_stages_nothing_until_it_is_acknowledged(stopping: Coded) -> None:
    stopping.code = "old"
    stopping.coordinator().open(run(2))
    stopping.code = "new"
    places = set(stopping.world.places)
    with pytest.raises(Refused, match=r"since the epoch was opened: old then, new now\. Nothing was staged"):
        stopping.coordinator().stage(run(2))
    assert set(stopping.world.places) == places and stopping.ledger.tries(2) == []
    acknowledge(stopping, "new")
    stopping.coordinator().vote(run(2), staged(stopping, stopping.coordinator(), 2))
    assert newest(stopping).state is State.IN_DOUBT
    decision = newest(stopping).decision
    assert decision and (decision.decision, decision.code) == (DecisionKind.GLOBAL_COMMIT, "new")


def test_an_epoch_that_brings_tables_back_runs_no_code_and_has_that_of_the_epoch_that_comes_back(
    stopping: Coded,
) -> None:
    acknowledge(stopping, "new")
    assert stopping.airflow_run(run(2)) is None
    at, back = orders.standing(stopping.ledger, "orders"), Position.after(stopping.ledger.complete_record(1))
    assert back
    orders.put(stopping.ledger, at, "rewind", ME, Move(position=back), restoration=Restoration(epoch=1, points={}))
    stopping.code = "newest"
    task = stopping.coordinator()
    report = staged(stopping, task, 3)
    assert report.warnings == ()
    task.vote(run(3), report)
    task.commit(run(3), "orders")
    task.complete(run(3))
    record = stopping.ledger.complete_record(3)
    assert record and (record.code, [each.name for each in record.commands]) == ("old", ["rewind"])
    stopping.produce(2)
    refused(stopping, 4)
    stopping.code = "old"
    assert stopping.coordinator().open(run(4))


def test_the_code_of_an_epoch_of_an_older_version_is_that_of_its_open_record(stopping: Coded) -> None:
    record = stopping.ledger.complete_record(1)
    assert record
    as_before = replace(record, code=None)
    assert code_changes.code_of(stopping.ledger, as_before) == "old"
    stopping.ledger.pruning.prune(1)
    assert code_changes.code_of(stopping.ledger, as_before) is None


def test_of_two_acknowledgements_at_once_one_is_told_that_it_lost(stopping: Coded) -> None:
    store = stopping.world.store

    def other_first(moment: str) -> None:
        if moment.startswith("before put orders/acknowledged"):
            store.observer = lambda moment: None
            acknowledge(stopping, "another")

    store.observer = other_first
    with pytest.raises(Refused, match="me acknowledged the code another at the same moment"):
        acknowledge(stopping, "new")
    assert [record.code for record in stopping.ledger.acknowledgements()] == ["another"]


def test_an_acknowledgement_from_before_the_ledger_was_signed_counts_and_one_that_is_forged_does_not(
    stopping: Coded,
) -> None:
    acknowledge(stopping, "another")
    acknowledge(stopping, "new")
    store, keys = stopping.world.store, Keys.parse("k" * 32)
    Ledger(store, "orders", keys).register("dag", at="now", writer="w")
    assert [each.code for each in Ledger(store, "orders", keys).acknowledgements()] == ["another", "new"]
    forged = store.values["orders/acknowledged/0000000002.json"].replace(b'"number":2', b'"number":3')
    store.values["orders/acknowledged/0000000003.json"] = forged
    with pytest.raises(Corrupt):
        Ledger(store, "orders", keys).acknowledgements()


def printed(world: DiskWorld, command: str) -> list[dict[str, Any]]:
    """What a command prints as JSON."""
    rows: list[dict[str, Any]] = json.loads(ordered(world.ledger_root, "epochs", command, "orders", "--output", "json"))
    return rows


@pytest.mark.proof
def test_the_command_of_the_error_lets_the_pipeline_go_on_and_both_lists_tell(tmp_path: Path) -> None:
    world = DiskWorld(tmp_path, code=OLD, on_code_change="stop")
    world.produce(4)
    assert world.run(1) is None
    world.produce(2)
    world = replace(world, code=NEW)
    error = world.run(2)
    assert isinstance(error, Refused)
    screen = typed(world.ledger_root, error, "acknowledge-code")
    assert f"in its newest complete epoch  {OLD}" in screen and f"from the next attempt on      {NEW}" in screen
    assert world.run(2) is None
    assert_all_rows(world, "orders", "audit")
    assert [(row["code"], row["commands"]) for row in printed(world, "list")] == [
        ("111111111111*", ["acknowledge-code"]),
        ("000000000000", []),
    ]
    [deed] = printed(world, "history")
    assert (deed["command"], deed["why"]) == ("acknowledge-code 111111111111", "the remedy says so")


def test_there_is_nothing_to_acknowledge_in_the_code_of_the_newest_epoch_nor_in_what_is_no_digest(
    tmp_path: Path,
) -> None:
    world = DiskWorld(tmp_path, code=OLD)
    world.produce(2)
    assert world.run(1) is None
    command = ("epochs", "acknowledge-code", "orders", "--why", "so", "--code")
    assert "Nothing to do" in ordered(world.ledger_root, *command, OLD)
    with pytest.raises(SystemExit, match=r"EPOCHS-COMMAND-OPTIONS: '1' is not a digest"):
        ordered(world.ledger_root, *command, "1")
    assert world.ledger.acknowledgements() == []
