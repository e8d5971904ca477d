"""Each task of an epoch: what it does, that a repeat does nothing, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable
from dataclasses import replace

import pytest

from airflow_epochs import codes
from airflow_epochs.contracts import Environment, Limits, SinkAttempt, SparkJob
from airflow_epochs.coordinator.admin import admin
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Fenced, NoNewData, NotApplied, Refused
from airflow_epochs.ledger.codec import to_json
from airflow_epochs.model import Backlog, DecisionKind, JsonDict, OffsetRange, OpenRecord, Receipt, Staged, VoteKind
from airflow_epochs.protocol import State
from airflow_epochs.testing import MemorySink, MemorySource, MemorySpark, Row
from airflow_epochs.testing.environment import MemoryEpoch
from airflow_epochs.testing.stores import FaultyStore
from tests.support.scenario import BOTH, Scenario, abort, in_doubt, newest, run, staged

# -- the way it should go ---------------------------------------------------------------------------------------


def test_a_run_shows_every_record_of_its_epoch_once_in_every_sink() -> None:
    scenario = Scenario(BOTH)
    assert scenario.airflow_run(run(1)) is None
    scenario.check()
    scenario.check_every_row()


def test_the_next_epoch_begins_where_the_last_complete_one_ended() -> None:
    scenario = Scenario()
    scenario.airflow_run(run(1))
    scenario.produce(3)
    opened = scenario.coordinator().open(run(2))
    assert opened.ranges == {"orders": (OffsetRange(0, 5, 7), OffsetRange(1, 5, 6))}
    assert opened.txn_id.epoch == 2 and opened.txn_id.attempt == 1


def test_an_epoch_knows_which_columns_its_sink_stored_in_its_last_epoch_also_after_a_waived_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def storing(sink: MemorySink, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
        return replace(commit(sink, attempt, staged, env), detail={"stored": ["id", "qty"]})

    commit = MemorySink.commit
    monkeypatch.setattr(MemorySink, "commit", storing)
    scenario = Scenario()
    scenario.coordinator().open(run(1))
    assert newest(scenario).opened.sinks["orders"].stored == ()
    assert scenario.airflow_run(run(1)) is None
    monkeypatch.undo()
    scenario.produce(3)
    in_doubt(scenario, 2)
    assert SinkAttempt.of(newest(scenario).opened, "orders").stored == ("id", "qty")
    admin.waive(scenario.ledger, 2, "orders", by=admin.Account(who="me", why="a test"))
    scenario.coordinator().complete(run(2))
    scenario.produce(3)
    scenario.coordinator().open(run(3))
    opened = newest(scenario).opened
    assert (opened.txn_id.epoch, opened.sinks["orders"].stored) == (3, ("id", "qty"))


def test_limits_of_a_run_narrow_the_epoch() -> None:
    scenario = Scenario()
    opened = scenario.coordinator().open(run(1), Limits(max_records=2))
    assert opened.ranges == {"orders": (OffsetRange(0, 0, 2), OffsetRange(1, 0, 2))}


def test_what_an_epoch_leaves_unread_is_on_record_with_every_attempt_and_with_its_end() -> None:
    scenario = Scenario()
    scenario.coordinator().open(run(1), Limits(max_records=2))
    scenario.produce(4)
    scenario.coordinator().abort(run(1), "a test")
    assert scenario.airflow_run(run(1)) is None
    ledger = scenario.coordinator().task.ledger
    assert [opened.backlog for n in (1, 2) if (opened := ledger.open_record(1, n))] == 2 * [Backlog(offsets=6)]
    complete = ledger.complete_record(1)
    assert complete and complete.backlog == Backlog(offsets=6)


def test_without_new_data_nothing_is_opened() -> None:
    scenario = Scenario()
    scenario.airflow_run(run(1))
    before = dict(scenario.world.store.values)
    with pytest.raises(NoNewData, match="no new data"):
        scenario.coordinator().open(run(2))
    assert scenario.world.store.values == before


class HeldUp(MemorySource):
    def why_nothing(self, env: Environment) -> str:
        return "1,000 records wait"


def test_what_keeps_data_from_being_read_is_told_instead_of_no_new_data() -> None:
    scenario = Scenario()
    scenario.airflow_run(run(1))
    coordinator = scenario.coordinator()
    held_up = HeldUp(world=scenario.world.name, topics=("orders",))
    coordinator.task.pipeline = replace(coordinator.task.pipeline, source=held_up)
    with pytest.raises(NoNewData, match=r"(?s)may be read: 1,000 records wait\.\n.*airflow epochs in-doubt orders"):
        coordinator.open(run(2))


def test_the_checkpoint_record_shows_ranges_votes_decision_and_receipts_as_they_come() -> None:
    scenario = Scenario(BOTH)
    coordinator = scenario.coordinator()
    report = staged(scenario, coordinator)
    voted = coordinator.vote(run(1), report)
    assert voted.state == "in doubt" and voted.decision is DecisionKind.GLOBAL_COMMIT
    assert {vote.vote for vote in voted.votes.values()} == {VoteKind.VOTE_COMMIT}
    assert list(coordinator.commit(run(1), "audit").receipts) == ["audit"]
    coordinator.commit(run(1), "orders")
    completed = coordinator.complete(run(1), {"rows_in": 10})
    assert completed.state == "complete" and set(completed.receipts) == set(BOTH)
    assert completed.metrics == {"rows_in": 10}
    json.loads(to_json(completed))


def test_the_consumer_position_is_told_and_never_asked_for() -> None:
    scenario = Scenario()
    scenario.airflow_run(run(1))
    assert [ranges["orders"][0].end for ranges in scenario.world.acknowledged] == [5]
    scenario.world.acknowledged.clear()
    scenario.produce(2)
    assert scenario.coordinator().open(run(2)).ranges["orders"][0].start == 5


def test_a_source_that_cannot_be_told_its_position_does_not_hold_the_epoch_up() -> None:
    scenario = Scenario()
    pipeline = scenario.pipeline

    class Deaf(MemorySource):
        def acknowledge(self, *args: object, **kwargs: object) -> None:
            raise ConnectionError("the broker is away")

    coordinator = scenario.coordinator()
    coordinator.task.pipeline = replace(pipeline, source=Deaf(world=scenario.world.name, topics=("orders",)))
    assert scenario.airflow_run(run(1), coordinator) is None
    scenario.check()


# -- repeats ----------------------------------------------------------------------------------------------------


def test_every_task_of_a_complete_epoch_repeats_without_changing_anything() -> None:
    scenario = Scenario(BOTH)
    coordinator = scenario.coordinator()
    report = staged(scenario, coordinator)
    coordinator.vote(run(1), report)
    for sink in BOTH:
        coordinator.commit(run(1), sink)
    coordinator.complete(run(1))
    ledger, tables, places = (
        dict(d) for d in (scenario.world.store.values, scenario.world.tables, scenario.world.places)
    )
    tasks: list[Callable[[Coordinator], object]] = [
        lambda c: c.stage(run(1)),
        lambda c: c.vote(run(1), report),
        lambda c: c.vote(run(1), None),
        lambda c: c.commit(run(1), "orders"),
        lambda c: c.commit(run(1), "audit"),
        lambda c: c.complete(run(1)),
    ]
    for task in [*tasks, *reversed(tasks), *tasks]:
        task(scenario.coordinator())
    for _ in range(2):
        assert scenario.coordinator().open(run(1)) == scenario.ledger.complete_record(1)
        with pytest.raises(NoNewData):
            scenario.coordinator().abort(run(1), "cleared")
    assert (scenario.world.store.values, scenario.world.tables, scenario.world.places) == (ledger, tables, places)


def test_a_task_repeated_within_its_epoch_repeats_its_answer_and_one_row_of_each_record_is_shown() -> None:
    scenario = Scenario(BOTH)
    report = staged(scenario, scenario.coordinator())
    votes = [scenario.coordinator().vote(run(1), report) for _ in range(3)]
    assert len({str(replace(vote, stage=None)) for vote in votes}) == 1
    for sink in BOTH:
        receipts = [scenario.coordinator().commit(run(1), sink).receipts[sink] for _ in range(3)]
        assert len({str(receipt) for receipt in receipts}) == 1
    for _ in range(3):
        scenario.coordinator().complete(run(1))
    scenario.check()
    scenario.check_every_row()


def test_a_repeated_stage_never_writes_into_the_place_of_an_earlier_try() -> None:
    scenario = Scenario()
    coordinator = scenario.coordinator()
    coordinator.open(run(1))
    reports = [coordinator.stage(run(1)).stage for _ in range(3)]
    places = {report.claims["orders"].place for report in reports if report}
    assert len(places) == len(scenario.world.places) == 3
    assert len(scenario.ledger.tries(1)) == 3


def test_a_repeated_stage_stops_the_sessions_of_earlier_tries_first() -> None:
    scenario, spark = Scenario(), MemorySpark()
    coordinator = scenario.coordinator(spark=spark)
    coordinator.open(run(1))
    coordinator.stage(run(1))
    assert spark.stopped == []
    coordinator.stage(run(1))
    assert spark.stopped == [{"session": 1}]


@pytest.mark.proof
def test_an_epoch_that_keeps_failing_costs_a_run_no_more_with_every_attempt() -> None:
    def fails(batch: list[Row], epoch: MemoryEpoch) -> list[Row]:
        raise ValueError("no memory left")

    scenario, costs = Scenario(), []
    for number in range(1, 21):
        spark, store = MemorySpark(fails), FaultyStore(scenario.world.store)
        assert scenario.airflow_run(run(number), scenario.coordinator(spark=spark, store=store))
        costs.append((len(spark.stopped), len(store.calls)))
    assert costs[-1][0] == costs[2][0] == 4, "two tries before it was staged, and two before it was aborted"
    assert costs[-1][1] <= costs[2][1] + 20, "the newest attempt is found by doubling"
    scenario.settle()


def test_a_try_that_still_runs_is_stopped_also_if_the_attempts_since_then_never_began_to_stage() -> None:
    scenario, spark = Scenario(), MemorySpark()
    staged(scenario, scenario.coordinator())
    for number in (2, 3, 4):
        scenario.coordinator().open(run(number))
    assert newest(scenario).opened.txn_id.attempt == 4
    scenario.coordinator(spark=spark).stage(run(4))
    assert len(spark.stopped) == 1


def test_an_open_repeated_before_the_decision_fences_the_attempt_it_finds() -> None:
    scenario = Scenario()
    report = staged(scenario, scenario.coordinator())
    again = scenario.coordinator().open(run(1))
    assert again.txn_id.attempt == 2
    with pytest.raises(Refused, match=r"(?s)The staged rows belong to orders/1/1/.*Clear the stage task"):
        scenario.coordinator().vote(run(1), report)


@pytest.mark.parametrize(("task", "moment"), [("vote", "decision.put"), ("stage", "open.put"), ("open", "open.put")])
def test_a_task_whose_run_opens_another_attempt_meanwhile_says_so_and_names_no_other_run(
    task: str, moment: str
) -> None:
    """Somebody clears `open` alone while the task runs. The remedy is followed to the letter."""
    scenario = Scenario(BOTH)
    arguments = (staged(scenario, scenario.coordinator()),) if task == "vote" else ()
    if task == "stage":
        staged(scenario, scenario.coordinator())
        abort(scenario.coordinator(), run(1))

    def cleared(reached: str) -> None:
        if reached == moment:
            scenario.coordinator().open(run(1))

    with pytest.raises(Fenced) as fenced:
        getattr(scenario.coordinator(observer=cleared), task)(run(1), *arguments)
    assert fenced.value.code is codes.EPOCH_HELD_BY_OTHER
    process = f"(process {os.getpid()} on host {socket.gethostname()})"
    assert f"Another task of this run, or another try {process}, went on with the epoch" in fenced.value.what
    assert fenced.value.remedy == "Clear the open task with its downstream tasks."
    abort(scenario.coordinator(), run(1))
    assert scenario.airflow_run(run(1)) is None, "all tasks of the run, from `open` on"
    scenario.settle()
    scenario.check_every_row()


def test_an_open_repeated_in_doubt_goes_on_with_the_same_attempt() -> None:
    scenario = Scenario()
    in_doubt(scenario)
    assert scenario.coordinator().open(run(1)).txn_id.attempt == 1
    scenario.settle()
    scenario.check_every_row()


# -- votes and aborts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objector", BOTH)
def test_one_sink_that_votes_abort_keeps_every_sink_from_showing_a_row(objector: str) -> None:
    scenario = Scenario(BOTH)
    scenario.world.refusals[objector] = "the schema does not match"
    error = scenario.airflow_run(run(1))
    assert isinstance(error, Refused) and f"Sink {objector} voted against it: the schema does not match" in str(error)
    assert scenario.world.tables == {} and scenario.world.litter() == set()
    assert newest(scenario).state is State.ABORTED


def test_an_abort_tells_every_sinks_reason_and_each_remedy_once() -> None:
    scenario = Scenario(BOTH)
    scenario.world.refusals["orders"] = "column x is a STRING, not an INT. What to do: Cast it in the transform."
    scenario.world.refusals["audit"] = "column y is a STRING, not an INT. What to do: Cast it in the transform."
    error = scenario.airflow_run(run(1))
    assert str(error).splitlines() == [
        "EPOCHS-GLOBAL-ABORT: The attempt was aborted (GLOBAL_ABORT), and no sink shows its rows. "
        "Sink orders voted against it: column x is a STRING, not an INT. "
        "Sink audit voted against it: column y is a STRING, not an INT.",
        "Where: pipeline orders, epoch 1, attempt 1",
        "What to do: Cast it in the transform. Then type `airflow epochs retry orders --why …`, or let the next run "
        "take the same offsets.",
    ]
    aborted = scenario.coordinator().abort(run(1), "a task failed")
    assert (type(aborted), str(aborted)) == (Refused, str(error))


AGAIN = "ype `airflow epochs retry orders --why …`, or let the next run take the same offsets."
"""How the remedy of an abort ends, after its first letter."""


@pytest.mark.parametrize(
    ("of_the_vote", "of_the_abort"),
    [
        (codes.BAD_RECORD.remedy, f"'Records that no table takes'. Then t{AGAIN}"),
        (codes.STATE_KEYS.remedy, f"let it return each changed key once. Then t{AGAIN}"),
        (codes.MARKER_TOPIC_SETTINGS.remedy, f"as the message says. Never delete the marker topic. Then t{AGAIN}"),
        (codes.MARKER_CHANGED.remedy, f"'The marker topic'. Then t{AGAIN}"),
        (codes.DELTA_DELETIONS_GONE.remedy, f"'upsert', has the command. Then t{AGAIN}"),
        (codes.STAGED_INCOMPLETE.remedy, f"What to do: T{AGAIN}"),
        (codes.DELTA_TABLE_ALTERED.remedy, f"What to do: T{AGAIN}"),
        (
            "Put it back, and clear the failed task. Else see docs/a.md.",
            f"Put it back. Else see docs/a.md. Then t{AGAIN}",
        ),
        (codes.SQL_MARKER_CHANGED.remedy, codes.SQL_MARKER_CHANGED.remedy),
        (codes.DELTA_MARKER_CHANGED.remedy, codes.DELTA_MARKER_CHANGED.remedy),
    ],
    ids=range(10),
)
def test_the_remedy_of_an_abort_says_once_what_to_clear(of_the_vote: str, of_the_abort: str) -> None:
    scenario = Scenario()
    scenario.world.refusals["orders"] = f"X. What to do: {of_the_vote}"
    error = str(scenario.airflow_run(run(1)))
    assert error.endswith(of_the_abort)
    assert len(re.findall("clear the|epochs retry", error, re.I)) == 1


def test_the_remedy_of_an_abort_names_open_last_if_a_sink_asks_for_it() -> None:
    """Whoever clears `open` with its downstream tasks clears those that failed too."""
    scenario = Scenario(BOTH)
    scenario.world.refusals["audit"] = f"X. What to do: {codes.DELTA_MARKER_CHANGED.remedy}"
    scenario.world.refusals["orders"] = "Y. What to do: Correct the transform. Then clear the stage task."
    error = scenario.airflow_run(run(1))
    assert isinstance(error, Refused)
    assert error.remedy == f"Correct the transform. {codes.DELTA_MARKER_CHANGED.remedy}"


def test_an_error_that_names_a_run_names_its_process_too() -> None:
    scenario = Scenario()
    scenario.coordinator().open(run(1))
    place = f"run 1 of DAG dag (process {os.getpid()} on host {socket.gethostname()})."
    with pytest.raises(Fenced) as fenced:
        scenario.coordinator().stage(run(2))
    assert place in str(fenced.value)


def test_an_error_about_a_run_of_version_0_1_names_the_run_alone() -> None:
    scenario = Scenario()
    coordinator = scenario.coordinator()
    coordinator.task.writer = "0123456789abcdef0123456789abcdef"
    coordinator.open(run(1))
    with pytest.raises(Fenced, match=r"now belongs to run run 1 of DAG dag\.\n"):
        scenario.coordinator().stage(run(2))


@pytest.mark.parametrize("who", [1, 2], ids=["the same run", "another run"])
def test_an_aborted_epoch_is_opened_again_with_the_same_ranges_now_and_seed(who: int) -> None:
    scenario = Scenario(BOTH)
    scenario.world.refusals["audit"] = "not yet"
    scenario.airflow_run(run(1))
    first = scenario.ledger.open_record(1, 1)
    assert first
    scenario.produce(6)
    scenario.world.refusals.clear()
    second = scenario.coordinator().open(run(who))
    assert second.txn_id.attempt == 2 and second.txn_id.nonce != first.txn_id.nonce
    assert isinstance(second, OpenRecord)
    assert (second.ranges, second.now, second.seed) == (first.ranges, first.now, first.seed)
    scenario.settle()
    scenario.check_every_row()


def test_a_stage_cleared_after_an_abort_opens_the_next_attempt_itself() -> None:
    scenario = Scenario(BOTH)
    scenario.world.refusals["audit"] = "not yet"
    scenario.airflow_run(run(1))
    scenario.world.refusals.clear()
    coordinator = scenario.coordinator()
    checkpoint = coordinator.stage(run(1))
    assert checkpoint.attempt == 2 and checkpoint.stage and checkpoint.stage.txn_id == checkpoint.txn_id
    coordinator.vote(run(1), checkpoint.stage)
    for sink in BOTH:
        coordinator.commit(run(1), sink)
    coordinator.complete(run(1))
    scenario.settle()
    scenario.check_every_row()


def test_a_stage_cleared_after_another_run_took_the_epoch_over_names_that_run() -> None:
    scenario = Scenario()
    scenario.world.refusals["orders"] = "not yet"
    scenario.airflow_run(run(1))
    scenario.coordinator().open(run(2))
    with pytest.raises(Fenced, match="now belongs to run run 2 of DAG dag"):
        scenario.coordinator().stage(run(1))
    assert newest(scenario).epoch.attempt == 2


def test_rows_that_spark_could_not_stage_are_a_vote_to_abort_with_its_reason() -> None:
    def transform(batch: list[Row], epoch: object) -> dict[str, list[Row] | str]:
        return {"orders": batch, "audit": "column price is missing"}

    scenario = Scenario(BOTH)
    error = scenario.airflow_run(run(1), scenario.coordinator(spark=MemorySpark(transform)))
    assert isinstance(error, Refused) and error.code is codes.GLOBAL_ABORT
    assert "Sink audit voted against it: EPOCHS-ROWS-UNFIT: column price is missing" in error.what
    assert error.remedy == (
        "Correct the transform or the table. "
        "Then type `airflow epochs retry PIPELINE --why …`, or let the next run take the same offsets."
    )
    assert scenario.world.tables == {}


def test_a_sink_that_spark_did_not_report_votes_abort_and_names_the_versions_to_compare() -> None:
    scenario = Scenario(BOTH)
    coordinator = scenario.coordinator()
    report = staged(scenario, coordinator)
    partial = replace(report, claims={"orders": report.claims["orders"]})
    with pytest.raises(Refused, match="Sink audit voted against it: EPOCHS-SPARK-SINK-UNREPORTED: ") as refused:
        coordinator.vote(run(1), partial)
    assert "Spark reported nothing for this sink" in refused.value.what
    assert refused.value.remedy.startswith("Install the same version for tasks and for Spark")
    assert refused.value.remedy.endswith(
        "Then type `airflow epochs retry PIPELINE --why …`, or let the next run take the same offsets."
    )
    assert scenario.world.tables == {}


class PlacedSpark(MemorySpark):
    def ran_as(self) -> JsonDict:
        return {"id": "application_1_0001", "url": "http://rm/proxy/1"}


def test_the_application_that_staged_an_epoch_is_on_record_with_its_decision_and_its_end() -> None:
    scenario = Scenario()
    assert scenario.airflow_run(run(1), scenario.coordinator(spark=PlacedSpark())) is None
    ledger = scenario.coordinator().task.ledger
    records = ledger.decision_record(1, 1), ledger.complete_record(1)
    assert [record and record.metrics["spark"] for record in records] == 2 * [PlacedSpark().ran_as()]


class OtherSpark(MemorySpark):
    """Stages as the other one, and reports it as another version would."""

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        return {**super().run(job, session), "durations": {}}


def test_a_report_of_another_version_names_the_attempt_and_shows_nothing() -> None:
    scenario = Scenario()
    error = scenario.airflow_run(run(1), scenario.coordinator(spark=OtherSpark()))
    assert isinstance(error, Refused) and error.code is codes.SPARK_REPORT_UNFIT
    assert "report of the Spark job 'stage'. This is no StageOutcome: durations is unknown." in error.what
    assert (error.pipeline, error.epoch, error.attempt) == ("orders", 1, 1)
    assert newest(scenario).state is State.ABORTED and scenario.world.tables == {}
    scenario.settle()
    scenario.check_every_row()


def test_a_vote_believes_what_is_staged_and_not_what_spark_claims() -> None:
    scenario = Scenario()
    coordinator = scenario.coordinator()
    report = staged(scenario, coordinator)
    scenario.world.places.clear()
    with pytest.raises(Refused, match="Sink orders voted against it: no rows are staged at the claimed place"):
        coordinator.vote(run(1), report)


def test_a_transform_that_fails_changes_nothing_and_the_run_can_be_repeated() -> None:
    def broken(batch: list[Row], epoch: object) -> list[Row]:
        raise KeyError("price")

    scenario = Scenario()
    error = scenario.airflow_run(run(1), scenario.coordinator(spark=MemorySpark(broken)))
    assert isinstance(error, NotApplied) and "price" in str(error)
    assert newest(scenario).state is State.ABORTED, "the abort task has run"
    scenario.settle()
    scenario.check_every_row()


def test_the_transform_sees_the_same_now_and_seed_in_every_attempt() -> None:
    seen: list[MemoryEpoch] = []

    def spy(batch: list[Row], epoch: MemoryEpoch) -> list[Row]:
        seen.append(epoch)
        return batch

    scenario = Scenario()
    scenario.world.refusals["orders"] = "not yet"
    scenario.airflow_run(run(1), scenario.coordinator(spark=MemorySpark(spy)))
    scenario.world.refusals.clear()
    scenario.airflow_run(run(2), scenario.coordinator(spark=MemorySpark(spy)))
    first, second = seen
    assert second == replace(first, attempt=2)


def test_an_abort_of_an_undecided_attempt_clears_its_places_and_nothing_else() -> None:
    scenario = Scenario()
    scenario.airflow_run(run(1))
    scenario.produce(2)
    coordinator = scenario.coordinator()
    coordinator.open(run(2))
    coordinator.stage(run(2))
    assert "The reason: stage was killed." in coordinator.abort(run(2), "stage was killed").what
    assert len(scenario.world.table("orders").visible) == 10
    assert scenario.world.litter() == set()


@pytest.mark.parametrize("after", ["nothing opened", "GLOBAL_COMMIT", "another run's"])
def test_an_abort_with_nothing_to_abort_is_skipped(after: str) -> None:
    scenario = Scenario()
    if after == "GLOBAL_COMMIT":
        in_doubt(scenario)
    if after == "another run's":
        scenario.coordinator().open(run(2))
    before, places = dict(scenario.world.store.values), dict(scenario.world.places)
    with pytest.raises(NoNewData):
        scenario.coordinator().abort(run(1), "a task failed")
    assert (scenario.world.store.values, scenario.world.places) == (before, places)
