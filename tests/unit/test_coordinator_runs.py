"""What the tasks of one run make of another run, another DAG, a broken promise; and what is cleared away when."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest

from airflow_epochs import codes
from airflow_epochs.coordinator import staging
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.runs import series
from airflow_epochs.errors import BadArgument, Corrupt, EpochError, Fenced, NotApplied, OutcomeUnknown, Refused
from airflow_epochs.ledger.run_ids import nth
from airflow_epochs.model import Checkpoint, Run, WaivedRecord
from airflow_epochs.protocol import State
from airflow_epochs.testing import (
    Crash,
    MemorySink,
    MemorySource,
    MemoryWorld,
    Observed,
    memory_coordinator,
    memory_pipeline,
    run_epoch,
)
from tests.support.scenario import BOTH, Scenario, crashes, in_doubt, nested, newest, run, staged

# -- out of order -----------------------------------------------------------------------------------------------


def test_a_task_of_a_run_that_opened_nothing_says_to_clear_open() -> None:
    scenario = Scenario()
    scenario.coordinator().task.ledger.register("dag", at="now", writer="w")
    for task in ("stage", "complete"):
        with pytest.raises(Refused, match=r"(?s)has not opened an epoch.*Clear the open task with its downstream"):
            getattr(scenario.coordinator(), task)(run(1))


def test_a_commit_without_global_commit_is_refused_and_nothing_is_shown() -> None:
    scenario = Scenario()
    coordinator = scenario.coordinator()
    staged(scenario, coordinator)
    with pytest.raises(Refused, match=r"(?s)no GLOBAL_COMMIT.*Clear the stage task with its downstream"):
        coordinator.commit(run(1), "orders")
    assert scenario.world.tables == {}


def test_a_commit_after_global_abort_is_refused_also_for_the_sink_that_voted_commit() -> None:
    scenario = Scenario(BOTH)
    coordinator = scenario.coordinator()
    report = staged(scenario, coordinator)
    scenario.world.refusals["audit"] = "not yet"
    with pytest.raises(Refused, match=r"GLOBAL_ABORT.*Sink audit voted against it: not yet\."):
        coordinator.vote(run(1), report)
    for sink in BOTH:
        with pytest.raises(Refused, match="no GLOBAL_COMMIT: it is aborted"):
            coordinator.commit(run(1), sink)
    assert scenario.world.tables == {}


def test_complete_without_every_receipt_is_refused_and_names_the_sink() -> None:
    scenario = Scenario(BOTH)
    coordinator = in_doubt(scenario)
    coordinator.commit(run(1), "orders")
    with pytest.raises(Refused, match=r"(?s)no receipt of: audit.*Type `airflow epochs retry"):
        coordinator.complete(run(1))
    assert scenario.ledger.newest_complete() == 0


def test_complete_asks_every_sink_again_before_it_closes_the_epoch() -> None:
    scenario = Scenario(BOTH)
    coordinator = in_doubt(scenario)
    for sink in BOTH:
        coordinator.commit(run(1), sink)
    (commit,) = scenario.world.tables["audit"]
    scenario.world.tables["audit"] = (commit._replace(txn_id=commit.txn_id.with_nonce("f" * 32)),)
    with pytest.raises(Corrupt, match=r"(?s)Two ledgers with this pipeline name.*sink audit"):
        coordinator.complete(run(1))
    assert scenario.ledger.newest_complete() == 0


def test_a_vote_without_a_report_says_to_clear_stage_and_decides_nothing() -> None:
    scenario = Scenario()
    coordinator = scenario.coordinator()
    staged(scenario, coordinator)
    with pytest.raises(Refused, match=r"(?s)No rows are staged.*Clear the stage task"):
        coordinator.vote(run(1), None)
    assert newest(scenario).decision is None


# -- other runs, other DAGs ---------------------------------------------------------------------------------------


def test_a_run_that_finds_an_epoch_in_doubt_finishes_it_and_passes_it_on_though_there_is_new_data() -> None:
    scenario = Scenario(BOTH)
    in_doubt(scenario)
    scenario.produce(2)
    assert passed_on(scenario, run(2)).epoch == 1
    record = scenario.ledger.complete_record(1)
    assert record and record.opened_by == run(1) and record.completed_by == run(2)
    assert newest(scenario).state is State.NEW
    assert scenario.coordinator().open(run(3)).txn_id.epoch == 2


def test_a_run_that_finds_an_epoch_in_doubt_and_no_new_data_passes_it_on() -> None:
    scenario = Scenario(BOTH)
    in_doubt(scenario)
    assert passed_on(scenario, run(2)).epoch == 1


def passed_on(scenario: Scenario, which: Run) -> Checkpoint:
    """What ``complete`` of the run returns, after tasks that find nothing to do but to pass an epoch on."""
    opened = scenario.coordinator().open(which)
    records, tables, places = (
        dict(d) for d in (scenario.world.store.values, scenario.world.tables, scenario.world.places)
    )
    checkpoints = [scenario.coordinator().stage(which), scenario.coordinator().vote(which, None)]
    checkpoints += [scenario.coordinator().commit(which, sink) for sink in scenario.sinks]
    checkpoints.append(scenario.coordinator().complete(which))
    assert {(c.state, c.txn_id) for c in checkpoints} == {("complete", opened.txn_id)}
    assert (scenario.world.store.values, scenario.world.tables, scenario.world.places) == (records, tables, places)
    return checkpoints[-1]


@pytest.mark.proof
def test_a_run_that_dies_at_any_moment_of_a_roll_forward_passes_that_epoch_on_when_it_is_repeated() -> None:
    scenario = Scenario(BOTH)
    in_doubt(scenario)
    observer = Observed()
    scenario.world.observe(observer)
    scenario.coordinator(observer=observer).open(run(2))
    owned = 0
    for at in range(len(observer.seen)):
        scenario = Scenario(BOTH)
        in_doubt(scenario)
        scenario.produce(2)
        observer = Observed(at=at)
        scenario.world.observe(observer)
        assert crashes(partial(scenario.coordinator(observer=observer).open, run(2)))
        scenario.world.observe(lambda moment: None)
        if scenario.ledger.epoch_of(run(2)):
            owned += 1
            scenario.airflow_run(run(1))  # whoever finishes it meanwhile
        assert passed_on(scenario, run(2)).epoch == 1
        scenario.settle()
        scenario.check_every_row()
    assert owned > 3


@pytest.mark.parametrize(
    ("moment", "epoch"),
    [("commit.audit", 2), ("committed.audit", 2), ("complete.put", 1)],
    ids=lambda value: str(value),
)
def test_an_epoch_that_another_actor_finishes_first_is_that_ones_and_new_data_is_taken(moment: str, epoch: int) -> None:
    """Unless this run had said already that the epoch is its own: then both tell of it."""
    scenario = Scenario(BOTH)
    in_doubt(scenario)
    scenario.produce(2)
    finish = nested(scenario, lambda: scenario.airflow_run(run(3)))
    opener = scenario.coordinator(observer=lambda reached: finish() if reached == moment else None)
    assert opener.open(run(2)).txn_id.epoch == epoch
    assert scenario.told == [1]
    scenario.settle()
    scenario.check_every_row()


def test_a_roll_forward_that_fails_is_gone_on_with_by_the_same_run() -> None:
    scenario = Scenario(BOTH)
    in_doubt(scenario)

    def down(moment: str) -> None:
        if moment.startswith("before publish audit"):
            raise NotApplied("The table cannot be reached.", remedy="wait.")

    scenario.world.observe(down)
    with pytest.raises(
        NotApplied,
        match=r"(?s)The epoch is in doubt: it waits for sink audit.*Where: pipeline orders, epoch 1, attempt 1",
    ):
        scenario.coordinator().open(run(2))
    scenario.world.observe(lambda moment: None)
    scenario.produce(2)
    assert passed_on(scenario, run(2)).epoch == 1


def test_a_sink_that_was_removed_from_the_dag_in_doubt_is_committed_by_complete_of_the_same_run() -> None:
    scenario = Scenario(BOTH)
    in_doubt(scenario)
    today = scenario.with_sinks("orders")
    assert today.airflow_run(run(1)) is None
    assert len(today.world.table("audit").visible) == len(today.world.table("orders").visible) == 10


def test_an_epoch_in_doubt_is_rolled_forward_as_the_ledger_specifies_it_though_the_dag_dropped_the_sink() -> None:
    scenario = Scenario(BOTH)
    in_doubt(scenario)
    today = scenario.with_sinks("orders")
    today.produce(2)
    assert today.airflow_run(run(2)) is None
    assert today.airflow_run(run(3)) is None
    assert len(today.world.table("audit").visible) == 10
    assert len(today.world.table("orders").visible) == 12


def test_a_cleared_run_whose_epoch_another_run_completed_passes_it_on_and_says_who_completed_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scenario = Scenario()
    in_doubt(scenario)
    scenario.airflow_run(run(2))
    scenario.produce(2)
    caplog.set_level("INFO")
    assert passed_on(scenario, run(1)).epoch == 1
    assert "epoch 1 is complete already, by run run 2 of DAG dag (process " in caplog.text
    assert newest(scenario).state is State.NEW


def test_a_cleared_run_whose_epoch_another_run_opened_again_and_completed_passes_it_on() -> None:
    scenario = Scenario()
    scenario.world.refusals["orders"] = "not yet"
    scenario.airflow_run(run(1))
    scenario.world.refusals.clear()
    assert scenario.airflow_run(run(2)) is None
    assert scenario.coordinator().stage(run(1)).state == "complete", "as after clear failed tasks"
    assert passed_on(scenario, run(1)).epoch == 1


def test_a_cleared_run_of_an_old_epoch_passes_that_epoch_on_and_tells_of_the_newest() -> None:
    scenario = Scenario()
    for number in range(1, 4):
        scenario.airflow_run(run(number))
        scenario.produce(2)
    assert passed_on(scenario, run(1)).epoch == 1
    assert scenario.coordinator().newest_complete().txn_id.epoch == 3


def killed_after_open_landed(scenario: Scenario) -> None:
    """Run 1 has an open record, but died before it could note which epoch is its own."""
    phases = Observed(at=1)
    assert crashes(lambda: scenario.coordinator(observer=phases).open(run(1)))
    assert phases.seen == ["open.put", "open.landed"] and scenario.ledger.epoch_of(run(1)) is None


def test_a_run_that_died_right_after_open_passes_its_epoch_on_once_another_run_completed_it() -> None:
    scenario = Scenario()
    killed_after_open_landed(scenario)
    scenario.airflow_run(run(2))
    scenario.produce(2)
    assert passed_on(scenario, run(1)).epoch == 1


def test_a_run_whose_open_was_marked_successful_by_hand_passes_its_epoch_on_once_another_run_completed_it() -> None:
    scenario = Scenario()
    killed_after_open_landed(scenario)
    coordinator = scenario.coordinator()
    coordinator.vote(run(1), coordinator.stage(run(1)).stage)
    scenario.airflow_run(run(2))
    scenario.produce(2)
    assert passed_on(scenario, run(1)).epoch == 1


def test_a_cleared_run_that_finishes_its_epoch_for_the_run_in_charge_opens_no_other() -> None:
    scenario = Scenario()
    scenario.world.refusals["orders"] = "not yet"
    scenario.airflow_run(run(1))
    scenario.world.refusals.clear()
    in_doubt(scenario, 2)
    scenario.produce(2)
    assert passed_on(scenario, run(1)).epoch == 1
    assert scenario.ledger.newest_complete() == 1 and newest(scenario).state is State.NEW


@pytest.mark.parametrize("task", ["stage", "vote", "commit", "complete"])
def test_a_task_of_a_run_whose_epoch_another_run_took_is_fenced_and_names_that_run(task: str) -> None:
    scenario = Scenario()
    report = staged(scenario, scenario.coordinator())
    scenario.coordinator().open(run(2))
    arguments = {"vote": (report,), "commit": ("orders",)}.get(task, ())
    before = dict(scenario.world.store.values)
    with pytest.raises(Fenced, match=r"now belongs to run run 2 of DAG dag") as fenced:
        getattr(scenario.coordinator(), task)(run(1), *arguments)
    assert (fenced.value.pipeline, fenced.value.epoch, fenced.value.attempt) == ("orders", 1, 2)
    assert scenario.world.store.values == before


def test_a_sink_added_to_the_dag_begins_with_the_next_epoch() -> None:
    scenario = Scenario()
    in_doubt(scenario)
    today = scenario.with_sinks(*BOTH)
    today.coordinator().commit(run(1), "audit")  # a new task in an old run
    assert "audit" not in today.world.tables
    today.produce(2)
    assert today.airflow_run(run(2)) is None
    assert today.airflow_run(run(3)) is None
    assert len(today.world.table("audit").visible) == 2
    assert len(today.world.table("orders").visible) == 12


def test_a_sink_removed_and_added_again_goes_on_from_its_own_last_epoch() -> None:
    scenario = Scenario(BOTH)
    scenario.airflow_run(run(1))
    without = scenario.with_sinks("orders")
    without.produce(2)
    assert without.airflow_run(run(2)) is None
    again = without.with_sinks(*BOTH)
    again.produce(2)
    assert again.airflow_run(run(3)) is None
    assert len(again.world.table("audit").visible) == 12
    record = again.ledger.complete_record(2)
    assert record and record.markers["audit"].startswith("orders/1/")


def test_another_dag_with_the_same_pipeline_name_is_refused_until_a_takeover_is_recorded() -> None:
    scenario = Scenario()
    scenario.airflow_run(run(1))
    scenario.produce(2)
    coordinator = scenario.coordinator()
    coordinator.task.pipeline = replace(coordinator.task.pipeline, dag_id="other")
    with pytest.raises(Refused, match="belongs to DAG 'dag'"):
        coordinator.open(run(2))
    scenario.ledger.take_over("other", who="me", why="renamed", at="now", writer="w")
    assert coordinator.open(run(2)).txn_id.epoch == 2
    with pytest.raises(Refused, match="belongs to DAG 'other'"):
        scenario.coordinator().open(run(3))


@pytest.mark.parametrize("task", ["stage", "vote"])
def test_after_a_takeover_no_task_of_the_old_dag_opens_the_aborted_epoch_again(task: str) -> None:
    """``open`` succeeded before the takeover, so "clear failed tasks" leaves it as it is."""
    scenario = Scenario()
    scenario.airflow_run(run(1))
    scenario.produce(2)
    coordinator = scenario.coordinator()
    coordinator.open(run(2))
    coordinator.abort(run(2), "a task failed")
    scenario.ledger.take_over("other", who="me", why="moved", at="now", writer="w")
    with pytest.raises(Refused, match="belongs to DAG 'other'"):
        coordinator.stage(run(2)) if task == "stage" else coordinator.vote(run(2), None)
    assert scenario.ledger.view(2).epoch.attempt == 1
    coordinator.task.pipeline = replace(coordinator.task.pipeline, dag_id="other")
    assert coordinator.open(run(3)).txn_id.attempt == 2


def left_aborted(scenario: Scenario) -> None:
    coordinator = scenario.coordinator()
    coordinator.open(run(1))
    coordinator.abort(run(1), "a task failed")


@pytest.mark.parametrize(
    "left",
    [lambda scenario: staged(scenario, scenario.coordinator()), left_aborted, in_doubt],
    ids=["undecided", "aborted", "in doubt"],
)
def test_a_pipeline_that_blocks_lets_runs_of_the_dag_that_took_it_over_finish_the_epoch(
    left: Callable[[Scenario], object],
) -> None:
    scenario = Scenario(BOTH)
    left(scenario)
    coordinator = scenario.coordinator()
    coordinator.task.pipeline = replace(coordinator.task.pipeline, on_failed_epoch="block")
    with pytest.raises(Refused, match="belongs to run run 1 of DAG dag"):
        coordinator.open(run(2))
    scenario.ledger.take_over("other", who="me", why="renamed", at="now", writer="w")
    coordinator.task.pipeline = replace(coordinator.task.pipeline, dag_id="other")
    assert scenario.airflow_run(Run("other", "run 3"), coordinator) is None
    assert scenario.ledger.newest_complete() == 1
    scenario.check_every_row()


@pytest.mark.parametrize("then", ["a late try ends the run", "the task dies", "the task goes on"])
def test_where_pipelines_block_the_next_run_takes_an_epoch_that_its_own_run_cannot_find_any_more(then: str) -> None:
    scenario, second = Scenario(), nth(run(1), 2)
    scenario.airflow_run(run(1))
    scenario.produce(2)

    def meanwhile(phase: str) -> None:
        """What happens between the open record and the index of the run's second epoch."""
        if phase == "open.landed" and then == "a late try ends the run":
            series.put_end(scenario.ledger, run(1), 1, 1)
        elif phase == "open.landed" and then == "the task dies":
            raise Crash(phase)

    with suppress(Crash):
        scenario.coordinator(observer=meanwhile).open(second)
    following = scenario.coordinator()
    following.task.pipeline = replace(following.task.pipeline, on_failed_epoch="block")
    if then == "a late try ends the run":
        assert series.has_ended(scenario.ledger, run(1), 2), "cleared, it is green without the epoch"
        assert scenario.airflow_run(run(2), following) is None
        assert scenario.ledger.newest_complete() == 2
        scenario.check_every_row()
    else:
        with pytest.raises(Refused, match="belongs to run run 1 of DAG dag"):
            following.open(run(2))


def lying(monkeypatch: pytest.MonkeyPatch, outer: str, inner: str) -> None:
    monkeypatch.setattr(staging, "_folders", lambda *of: iter([("orders", outer), ("audit", inner)]))


@pytest.mark.parametrize("outer", ["/lake/orders", "s3://lake/orders"])
def test_a_new_sink_whose_table_is_inside_that_of_another_is_refused_before_anything_is_staged(
    monkeypatch: pytest.MonkeyPatch, outer: str
) -> None:
    scenario = Scenario(BOTH)
    scenario.produce(2)
    lying(monkeypatch, outer, f"{outer}/rejected")
    error = scenario.airflow_run(run(1))
    assert isinstance(error, Refused) and error.code is codes.TABLE_IN_TABLE
    told = f"sink 'audit', {outer}/rejected, lies inside the table of the sink 'orders', {outer}. A VACUUM"
    assert told in str(error)
    assert scenario.ledger.tries(1) == []
    lying(monkeypatch, outer, f"{outer}_rejected")
    assert scenario.airflow_run(run(2)) is None
    scenario.check_every_row()


def test_a_pipeline_whose_tables_have_always_been_one_inside_the_other_goes_on_and_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scenario = Scenario(BOTH)
    scenario.airflow_run(run(1))
    scenario.produce(2)
    lying(monkeypatch, "/lake/orders", "/lake/orders/rejected")
    assert scenario.airflow_run(run(2)) is None
    assert "/lake/orders/rejected, lies inside" in caplog.text
    scenario.check_every_row()


@pytest.mark.parametrize("inner", ["/lake/orders/_rejected", "/lake/orders/.rejected"])
def test_a_table_in_a_folder_that_vacuum_skips_may_lie_inside_another(
    monkeypatch: pytest.MonkeyPatch, inner: str
) -> None:
    scenario = Scenario(BOTH)
    scenario.produce(2)
    lying(monkeypatch, "/lake/orders", inner)
    assert scenario.airflow_run(run(1)) is None


def test_two_sinks_whose_staging_places_are_in_one_table_are_refused_before_anything_is_staged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = Scenario(BOTH)
    scenario.airflow_run(run(1))
    scenario.produce(2)
    monkeypatch.setattr(MemorySink, "table_of", lambda sink, attempt, place, env: "the same", raising=False)
    error = scenario.airflow_run(run(2))
    assert isinstance(error, Refused)
    assert "The sinks 'orders' and 'audit' write to the same place: the same." in str(error)
    assert scenario.ledger.tries(2) == []
    monkeypatch.undo()
    assert scenario.airflow_run(run(2)) is None
    scenario.check_every_row()


def test_a_sink_alone_is_not_asked_for_its_table_since_a_database_might_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def table_of(*of: object) -> str:
        raise AssertionError("it is asked")

    monkeypatch.setattr(MemorySink, "table_of", table_of, raising=False)
    scenario = Scenario(("orders",))
    assert scenario.airflow_run(run(1)) is None


# -- a ledger with a hole -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep_epochs", [1000, 0], ids=["kept", "pruned"])
@pytest.mark.parametrize("lost", [1, 2, 3, 4, 5])
def test_a_lost_completion_record_of_an_older_epoch_is_named_wherever_it_is_missed(lost: int, keep_epochs: int) -> None:
    scenario = Scenario(keep_epochs=keep_epochs)
    for number in range(1, 7):
        assert scenario.airflow_run(run(number)) is None
        scenario.produce(2)
    key = f"orders/epochs/{lost:020d}/complete.json"
    record = scenario.world.store.values.pop(key)
    before = dict(scenario.world.store.values)
    missed = scenario.ledger.newest_complete() < 6
    named = pytest.raises(
        Corrupt, match=f"The ledger has lost the file {key}: epoch 6, which is later, has a completion record"
    )
    if missed:
        with named as corrupt:
            scenario.coordinator().open(run(7))
        assert "`airflow epochs rebuild orders --why …`" in corrupt.value.remedy
    if keep_epochs:
        with named:
            scenario.coordinator().complete(run(lost))
    assert missed or keep_epochs or lost != 4
    assert {k: v for k, v in scenario.world.store.values.items() if "/epochs/" in k} == {
        k: v for k, v in before.items() if "/epochs/" in k
    }
    scenario.world.store.values[key] = record  # as the remedy says
    assert scenario.airflow_run(run(8)) is None
    scenario.check_every_row()


def test_every_other_record_of_complete_epochs_may_be_lost_and_nothing_is_stopped_lost_or_doubled() -> None:
    scenario = Scenario(BOTH)
    values = scenario.world.store.values

    def others(epoch: int) -> list[str]:
        folder = f"orders/epochs/{epoch:020d}/"
        return sorted(key for key in values if key.startswith(folder) and not key.endswith("/complete.json"))

    for number in range(1, 6):
        assert scenario.airflow_run(run(number)) is None
        scenario.produce(2)
        newest = others(number)
        assert len(newest) == len(("open", "try", "decision", *BOTH))
        del values[newest[number - 1]]  # another one each time
    for key in [key for number in range(1, 6) for key in others(number)]:
        del values[key]
    assert scenario.airflow_run(run(6)) is None
    assert [passed_on(scenario, run(number)).epoch for number in range(1, 7)] == [1, 2, 3, 4, 5, 6]
    scenario.check_every_row()


def test_a_hole_that_nobody_missed_is_not_blamed_for_what_another_cause_has_done() -> None:
    scenario = Scenario()
    for number in range(1, 7):
        assert scenario.airflow_run(run(number)) is None
        scenario.produce(2)
    del scenario.world.store.values["orders/epochs/00000000000000000005/complete.json"]
    assert scenario.ledger.newest_complete() == 6
    del scenario.world.tables["orders"]
    with pytest.raises(Corrupt, match="The sink shows no epoch of this pipeline"):
        scenario.coordinator().open(run(7))


# -- promises that cannot be kept --------------------------------------------------------------------------------


def waive(scenario: Scenario, sink: str) -> None:
    opened = newest(scenario).open
    assert opened
    scenario.ledger.put(WaivedRecord(txn_id=opened.txn_id, sink=sink, who="me", why="the table was dropped", at="now"))


def test_a_waived_sink_lets_the_epoch_complete_and_is_not_committed_any_more() -> None:
    scenario = Scenario(BOTH)
    coordinator = in_doubt(scenario)
    waive(scenario, "audit")
    for sink in BOTH:
        coordinator.commit(run(1), sink)
    record = coordinator.complete(run(1))
    assert record.state == "complete" and set(record.receipts) == {"orders"}
    assert "audit" not in scenario.world.tables
    completed = scenario.ledger.complete_record(1)
    assert completed and set(completed.markers) == {"orders"}


def test_a_waived_sink_does_not_hold_up_the_next_run_either() -> None:
    scenario = Scenario(BOTH)
    in_doubt(scenario)
    waive(scenario, "audit")
    scenario.produce(2)
    assert scenario.airflow_run(run(2)) is None
    assert scenario.airflow_run(run(3)) is None
    assert scenario.ledger.newest_complete() == 2
    assert [row.offset for row in scenario.world.table("audit").visible] == [5, 5]


def test_offsets_deleted_by_retention_stop_the_pipeline_with_the_missing_range() -> None:
    scenario = Scenario()
    scenario.airflow_run(run(1))
    scenario.produce(6)
    scenario.world.expire("orders", 0, before=7)
    with pytest.raises(Corrupt, match=re.escape("orders-0: offsets [5, 7) are gone")):
        scenario.coordinator().open(run(2))
    assert newest(scenario).state is State.NEW


def test_offsets_deleted_between_two_attempts_stop_the_second_before_it_is_opened() -> None:
    scenario = Scenario()
    scenario.world.refusals["orders"] = "not yet"
    scenario.airflow_run(run(1))
    scenario.world.expire("orders", 1, before=2)
    tasks: list[Callable[[Coordinator], object]] = [lambda c: c.open(run(2)), lambda c: c.stage(run(1))]
    for task in tasks:
        with pytest.raises(Corrupt, match=re.escape("orders-1: offsets [0, 2) are gone")):
            task(scenario.coordinator())
    assert newest(scenario).epoch.attempt == 1


# -- clean-up ---------------------------------------------------------------------------------------------------


def test_nothing_of_an_undecided_attempt_is_cleared_away_by_a_repeated_stage() -> None:
    scenario = Scenario()
    coordinator = scenario.coordinator()
    coordinator.open(run(1))
    discarded: list[str] = []
    scenario.world.observe(lambda moment: discarded.append(moment) if "discard" in moment else None)
    for _ in range(3):
        coordinator.stage(run(1))
    coordinator.vote(run(1), coordinator.stage(run(1)).stage)
    coordinator.commit(run(1), "orders")
    assert discarded == []


def test_places_of_killed_tries_are_swept_once_the_epoch_is_complete_also_those_that_are_filled_late() -> None:
    scenario = Scenario(BOTH)
    coordinator = scenario.coordinator()
    late = staged(scenario, coordinator).claims["audit"].place
    content = scenario.world.places[late]
    coordinator.vote(run(1), coordinator.stage(run(1)).stage)
    for sink in BOTH:
        coordinator.commit(run(1), sink)
    coordinator.complete(run(1))
    assert scenario.world.litter() == set()
    scenario.world.places[late] = content  # the killed try's JVM ends its write only now
    scenario.produce(2)
    scenario.airflow_run(run(2))
    scenario.check()


def test_old_epochs_are_pruned_down_to_their_completion_record_and_a_cleared_run_still_finds_it() -> None:
    scenario = Scenario(keep_epochs=2)
    for number in range(1, 6):
        scenario.airflow_run(run(number))
        scenario.produce(2)
    keys = [key.split("epochs/")[1] for key in scenario.world.store.list("orders/epochs")]
    assert [key for key in keys if int(key.split("/")[0]) <= 3] == [f"{n:020d}/complete.json" for n in (1, 2, 3)]
    assert passed_on(scenario, run(2)).epoch == 2


def test_an_error_while_clearing_away_does_not_undo_a_complete_epoch() -> None:
    scenario = Scenario()

    def full(moment: str) -> None:
        if moment.startswith("before discard"):
            raise OSError("no space left on device")

    scenario.world.observe(full)
    assert scenario.airflow_run(run(1)) is None
    assert scenario.ledger.newest_complete() == 1
    scenario.world.observe(lambda moment: None)
    scenario.settle()


@pytest.mark.parametrize("sinks", [(), ("orders", "orders")], ids=["none", "two of one name"])
def test_a_pipeline_needs_sinks_with_distinct_names(sinks: tuple[str, ...]) -> None:
    with pytest.raises(BadArgument, match="needs at least one sink, and each sink needs a name of its own"):
        _ = Scenario(sinks).pipeline


def test_a_world_that_is_gone_is_named() -> None:
    with pytest.raises(EpochError, match="no MemoryWorld 'elsewhere'"):
        MemoryWorld.named("elsewhere")


def test_an_unknown_outcome_clears_nothing_away_and_decides_nothing() -> None:
    scenario = Scenario()
    coordinator = in_doubt(scenario)

    def unknown(moment: str) -> None:
        if moment.startswith("after publish"):
            raise OutcomeUnknown("The store did not answer.", remedy="try again.")

    before, places = dict(scenario.world.store.values), dict(scenario.world.places)
    scenario.world.observe(unknown)
    with pytest.raises(OutcomeUnknown):
        coordinator.commit(run(1), "orders")
    scenario.world.observe(lambda moment: None)
    assert (scenario.world.store.values, scenario.world.places) == (before, places)
    scenario.settle()
    scenario.check_every_row()


def test_a_green_run_says_how_to_mend_what_fails_in_every_epoch_and_does_not_say_to_clear_a_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(*asked: object) -> None:
        raise Refused("The user lacks a right.", code=codes.KAFKA_FORBIDDEN)

    monkeypatch.setattr(MemorySource, "acknowledge", forbidden)
    monkeypatch.setattr(MemorySink, "maintain", forbidden, raising=False)
    world = MemoryWorld()
    world.produce("orders", 0, ["one"])
    run_epoch(memory_coordinator(world, memory_pipeline(world, ("orders",))), Run("dag", "r1"))
    told = [line for line in caplog.messages if " failed; " in line]
    assert [line.partition(" failed; ")[0] for line in told] == [
        "committing the consumer group's offsets",
        "maintaining sink orders",
    ]
    assert all("What to do: Grant the user the rights" in line and "lear the" not in line for line in told)
