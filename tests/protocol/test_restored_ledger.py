"""The ledger is restored from an older copy, taken at any moment; nothing that the sinks show is lost or doubled."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast
from unittest.mock import patch

import pytest

from airflow_epochs.contracts import Before, Move
from airflow_epochs.coordinator.admin.actions import Abort
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.orders import orders
from airflow_epochs.errors import Corrupt, EpochError
from airflow_epochs.model import Marker, Run, StageReport, TransactionId, agree
from airflow_epochs.protocol import State
from airflow_epochs.testing import MemorySink, Row, memory_coordinator, run_epoch
from tests.support.scenario import Scenario, run

SINKS = ("orders", "audit")

Copy = dict[str, bytes]


def copies_of_a_run(scenario: Scenario, which: Run) -> tuple[list[Copy], StageReport]:
    """The run, with a copy of the ledger after each effect on it, and what its ``stage`` put into XCom."""
    copies: list[Copy] = []

    def copy(moment: str) -> None:
        if moment.startswith("after ") and "/probe/" not in moment:
            copies.append(dict(scenario.world.store.values))

    scenario.world.observe(copy)
    coordinator = scenario.coordinator()
    coordinator.open(which)
    report = coordinator.stage(which).stage
    coordinator.vote(which, report)
    for sink in SINKS:
        coordinator.commit(which, sink)
    coordinator.complete(which)
    scenario.world.observe(lambda moment: None)
    assert report
    return copies, report


Task = Callable[[Scenario, StageReport], object]

TASKS: dict[str, Task] = {
    "a new run": lambda s, report: s.coordinator().open(run(9)),
    "open": lambda s, report: s.coordinator().open(run(2)),
    "stage": lambda s, report: s.coordinator().stage(run(2)),
    "vote": lambda s, report: s.coordinator().vote(run(2), report),
    "commit": lambda s, report: s.coordinator().commit(run(2), "orders"),
    "complete": lambda s, report: s.coordinator().complete(run(2)),
    "abort": lambda s, report: s.coordinator().abort(run(2), "a task failed"),
}


def shown(scenario: Scenario) -> dict[str, list[Row]]:
    return {sink: sorted(scenario.world.table(sink).visible) for sink in SINKS}


def decisions(scenario: Scenario) -> set[str]:
    return {key for key in scenario.world.store.values if "/epochs/" in key and ".try." not in key}


@pytest.mark.proof
@pytest.mark.parametrize("later_epochs", [0, 1, 3])
@pytest.mark.parametrize("task", TASKS)
def test_no_task_decides_or_deletes_on_a_ledger_that_was_restored_from_any_older_copy(
    task: str, later_epochs: int
) -> None:
    stopped = 0
    for moment in range(count_of_copies()):
        scenario, report = restored(moment, later_epochs)
        before, records = shown(scenario), decisions(scenario)
        state = scenario.ledger.view(scenario.ledger.newest_complete() + 1).state
        error = None
        try:
            TASKS[task](scenario, report)
        except EpochError as raised:
            error = raised
        assert shown(scenario) == before, "rows were lost or doubled"
        if task == "a new run" and (state is not State.IN_DOUBT or later_epochs):
            assert isinstance(error, Corrupt), f"copy {moment}: the epoch was {state}"
        if isinstance(error, Corrupt):
            stopped += 1
            assert decisions(scenario) == records, "a record was written before the disagreement was found"
    harmless = {"stage"} | ({"commit", "complete"} if later_epochs == 0 else set())
    assert stopped or task in harmless


def restored(moment: int, later_epochs: int) -> tuple[Scenario, StageReport]:
    """Epoch 1, then epoch 2 of which a copy is taken, then later epochs; then the copy is put back."""
    scenario = Scenario(SINKS)
    assert scenario.airflow_run(run(1)) is None
    scenario.produce(4)
    copies, report = copies_of_a_run(scenario, run(2))
    for number in range(later_epochs):
        scenario.produce(4)
        assert scenario.airflow_run(run(3 + number)) is None
    scenario.world.store.values = dict(copies[moment])
    return scenario, report


def count_of_copies() -> int:
    """All but those of after the epoch was complete, which are no older than the sinks."""
    scenario = Scenario(SINKS)
    scenario.airflow_run(run(1))
    scenario.produce(4)
    copies, _ = copies_of_a_run(scenario, run(2))
    return sum(1 for copy in copies if not any("0002/complete" in key for key in copy))


def without_its_first_decision(scenario: Scenario) -> None:
    """The ledger as a backup has it that was taken file by file while the epoch was at work."""
    (lost,) = [key for key in scenario.world.store.values if key.endswith("0000000001.decision.json")]
    del scenario.world.store.values[lost]


@pytest.mark.parametrize("attempts", [2, 3])
@pytest.mark.parametrize("until", ["open", "vote", "commit"])
def test_a_ledger_that_lost_the_abort_of_the_first_attempt_goes_on_with_the_next_run(attempts: int, until: str) -> None:
    scenario, newest = Scenario(SINKS), run(attempts)
    for number in range(1, attempts + 1):
        scenario.coordinator().open(run(number))
    if until != "open":
        scenario.coordinator().vote(newest, scenario.coordinator().stage(newest).stage)
    if until == "commit":
        scenario.coordinator().commit(newest, "orders")
    without_its_first_decision(scenario)
    assert scenario.airflow_run(run(9)) is None
    scenario.produce(2)
    assert scenario.airflow_run(run(10)) is None
    for commits in scenario.world.tables.values():
        assert [each.txn_id.epoch for each in commits] == [1, 2]
    assert {sink: len(rows) for sink, rows in shown(scenario).items()} == dict.fromkeys(SINKS, scenario.produced)


def test_an_undecided_attempt_is_compared_with_its_own_sinks_which_the_dag_need_not_have_any_more() -> None:
    scenario = Scenario(SINKS)
    copies, _ = copies_of_a_run(scenario, run(1))
    undecided = [copy for copy in copies if not any("decision" in key for key in copy)][-1]
    scenario.world.store.values = dict(undecided)
    today = scenario.with_sinks("others")
    with pytest.raises(Corrupt, match=r"The sink shows epoch 1 .*\nWhere: .*, sink (orders|audit)\n"):
        today.coordinator().open(run(2))
    assert today.ledger.decision_record(1, 1) is None, "it was decided; only this copy of the ledger does not know"
    assert len(scenario.world.table("orders").visible) == 10


def test_an_undecided_attempt_is_aborted_though_a_sink_that_left_the_dag_since_is_gone_or_down() -> None:
    for gone in (True, False):
        scenario = Scenario(SINKS)
        scenario.airflow_run(run(1))
        scenario.produce(2)
        scenario.coordinator().open(run(2))
        today = scenario.with_sinks("orders")
        if gone:
            del scenario.world.tables["audit"]
        else:
            asked = MemorySink.last_committed

            def down(sink: MemorySink, *args: Any, asked: Any = asked) -> Marker | None:
                if sink.name == "audit":
                    raise ConnectionError("the table cannot be reached")
                return cast("Marker | None", asked(sink, *args))

            with patch.object(MemorySink, "last_committed", down):
                assert today.airflow_run(run(3)) is None
        assert today.airflow_run(run(4)) is None
        assert len(today.world.table("orders").visible) == 12


def test_a_sink_of_an_undecided_attempt_that_fell_behind_stops_the_pipeline_before_the_attempt_is_aborted() -> None:
    scenario = Scenario(SINKS)
    scenario.airflow_run(run(1))
    scenario.produce(2)
    scenario.coordinator().open(run(2))
    del scenario.world.tables["audit"]
    with pytest.raises(
        Corrupt, match=r"The sink shows no epoch of this pipeline.*\nWhere: .*, sink audit\n"
    ) as stopped:
        scenario.coordinator().open(run(3))
    assert scenario.ledger.decision_record(2, 1) is None
    told = re.findall("`airflow epochs ([a-z-]+) ", stopped.value.remedy)
    assert told == ["abort", "adopt-sink"]
    me, task = Account(who="me", why="dropped"), scenario.coordinator().task
    Abort.of(scenario.ledger, "orders").do(scenario.ledger, me)
    at, source = orders.standing(scenario.ledger, "orders"), task.pipeline.source
    assert isinstance(source, Before)
    move = Move(position=at.position(source))
    orders.put(
        scenario.ledger, at, "adopt-sink", me, move, adoption=orders.adopt(scenario.ledger, at, "audit", task.env)
    )
    assert scenario.airflow_run(run(4)) is None
    assert len(scenario.world.table("audit").visible) == 2


def test_a_ledger_restored_within_its_newest_epoch_after_the_decision_rolls_forward_without_a_second_row() -> None:
    scenario = Scenario(SINKS)
    copies, _ = copies_of_a_run(scenario, run(1))
    decided = next(copy for copy in copies if any(key.endswith("decision.json") for key in copy))
    scenario.world.store.values = dict(decided)
    scenario.settle()
    scenario.check_every_row()


def test_a_lost_ledger_is_not_silently_begun_anew() -> None:
    scenario = Scenario(SINKS)
    scenario.airflow_run(run(1))
    scenario.world.store.values.clear()
    with pytest.raises(Corrupt, match=r"shows epoch 1.*expects no epoch of this pipeline.*\nWhere: .*, sink orders\n"):
        scenario.coordinator().open(run(2))


def test_a_sink_that_shows_the_same_epoch_of_another_history_stops_the_pipeline() -> None:
    scenario = Scenario(SINKS)
    scenario.airflow_run(run(1))
    commit = scenario.world.tables["audit"][0]
    another = commit.txn_id.with_nonce("f" * 32)
    scenario.world.tables["audit"] = (commit._replace(txn_id=another),)
    scenario.produce(4)
    with pytest.raises(
        Corrupt, match=r"shows epoch 1 \(transaction token 9223372036854775807\).*\nWhere: .*, sink audit\n"
    ):
        scenario.coordinator().open(run(2))
    assert scenario.ledger.view(2).open is None


def test_a_sink_that_no_longer_knows_whose_epoch_it_shows_is_believed() -> None:
    mine, other = TransactionId("p", 3, 1, "0" * 32), TransactionId("p", 4, 1, "0" * 32)
    assert agree(Marker(3, None), mine) and not agree(Marker(3, None), other)
    assert agree(None, None) and not agree(None, mine) and not agree(Marker(3, None), None)


def test_a_sink_restored_from_an_older_copy_stops_the_pipeline_before_anything_is_opened() -> None:
    scenario = Scenario(SINKS)
    scenario.airflow_run(run(1))
    older = scenario.world.tables["audit"]
    scenario.produce(4)
    scenario.airflow_run(run(2))
    scenario.world.tables["audit"] = older
    scenario.produce(4)
    with pytest.raises(Corrupt, match=r"shows epoch 1.*expects epoch 2.*\nWhere: .*, sink audit\n"):
        scenario.coordinator().open(run(3))
    assert scenario.ledger.view(3).open is None


def undecided_then_complete() -> tuple[Scenario, Copy]:
    """Epoch 2 is complete; a copy of the ledger of when it was staged and undecided."""
    scenario = Scenario(SINKS)
    assert scenario.airflow_run(run(1)) is None
    scenario.produce(4)
    copies, _ = copies_of_a_run(scenario, run(2))
    staged = [copy for copy in copies if not any(key.endswith("decision.json") and "0002/" in key for key in copy)]
    return scenario, staged[-1]


def test_an_attempt_is_not_aborted_behind_the_back_of_a_sink_that_was_removed() -> None:
    scenario, undecided = undecided_then_complete()
    scenario.world.store.values = dict(undecided)
    scenario.world.tables["orders"] = scenario.world.tables["orders"][:1]
    records = decisions(scenario)
    told = r"has no decision for .*: a newer copy of the ledger, or another ledger .*\nWhere: .*, sink audit\n"
    with pytest.raises(Corrupt, match=told):
        scenario.with_sinks("orders").coordinator().open(run(9))
    assert decisions(scenario) == records
    assert len(scenario.world.table("audit").commits) == 2


def test_a_copy_that_aborts_what_its_original_commits_later_leaves_the_originals_places_alone() -> None:
    """The copy's sinks have the same names, and tables of their own."""
    scenario = Scenario(SINKS)
    assert scenario.airflow_run(run(1)) is None
    scenario.produce(4)
    original = scenario.coordinator()
    original.open(run(2))
    report = original.stage(run(2)).stage
    ledger = dict(scenario.world.store.values)
    elsewhere = tuple(MemorySink(name=sink, world=scenario.world.name, table=f"{sink}_copy") for sink in SINKS)
    for sink in SINKS:
        scenario.world.tables[f"{sink}_copy"] = scenario.world.tables[sink]
    copy = memory_coordinator(scenario.world, replace(scenario.pipeline, sinks=elsewhere))
    run_epoch(copy, run(9))
    scenario.world.store.values = ledger
    original.vote(run(2), report)
    for sink in SINKS:
        original.commit(run(2), sink)
    original.complete(run(2))
    scenario.check_every_row()


def test_an_open_that_asks_the_sinks_of_an_undecided_attempt_names_that_attempt_in_their_errors() -> None:
    scenario = Scenario(SINKS)
    scenario.airflow_run(run(1))
    scenario.produce(4)
    scenario.coordinator().open(run(2))
    scenario.world.tables["audit"] = ()
    with pytest.raises(Corrupt, match=r"shows no epoch .*\nWhere: pipeline \w+, epoch 2, attempt 1, sink audit\n"):
        scenario.coordinator().open(run(3))
