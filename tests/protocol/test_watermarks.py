"""Watermarks in the protocol: facts of the open record, moved by decisions, the same for every attempt."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_epochs import EventTime, KafkaSource, codes
from airflow_epochs.contracts import Move, PlannedEpoch, Position
from airflow_epochs.coordinator import staging
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.orders.orders import standing
from airflow_epochs.coordinator.orders.outlook import outlook
from airflow_epochs.coordinator.orders.wording import told
from airflow_epochs.errors import NoNewData
from airflow_epochs.event_time import micros
from airflow_epochs.model import CompleteRecord, OffsetRange, OpenRecord, Ranges, Run
from airflow_epochs.testing import MemorySource
from tests.support.scenario import Scenario, abort, run

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)
SECOND = 1_000_000


def at(seconds: float) -> int:
    return micros(NOON) + int(seconds * SECOND)


def coordinator(scenario: Scenario, event_time: EventTime | None, *, clock: float = 0) -> Coordinator:
    """A task process whose clock stands so many seconds after noon."""
    task = scenario.coordinator().task
    task.pipeline = replace(task.pipeline, event_time=event_time)
    task.clock = lambda: NOON + timedelta(seconds=clock)
    return Coordinator(task)


def finish(task: Coordinator, which: Run, *newest: float) -> CompleteRecord:
    """The rest of a run, whose rows had these newest event times in partitions 0, 1 …"""
    report = task.stage(which).stage
    assert report
    times = {"orders": {str(partition): at(seconds) for partition, seconds in enumerate(newest)}} if newest else {}
    task.vote(which, replace(report, event_times=times))
    task.commit(which, "orders")
    task.complete(which)
    record = task.task.ledger.complete_record(task.task.ledger.newest_complete())
    assert record
    return record


def opened(task: Coordinator, which: Run) -> OpenRecord:
    found = task.open(which)
    assert isinstance(found, OpenRecord)
    return found


def test_an_epoch_has_the_watermark_of_the_epochs_before_and_not_of_its_own_rows() -> None:
    scenario, event_time = Scenario(), EventTime("10 s")
    task = coordinator(scenario, event_time)
    assert opened(task, run(1)).watermarks == (None, None)
    assert finish(task, run(1), 50, 40).watermarks == (None, None)
    scenario.produce(2)
    task = coordinator(scenario, event_time)
    assert opened(task, run(2)).watermarks == (at(30) - 1, None)
    record = finish(task, run(2), 90, 90)
    assert record.watermarks == (at(30) - 1, None)
    assert {partition: seen.newest for partition, seen in record.event_times["orders"].items()} == {
        "0": at(90),
        "1": at(90),
    }


def test_reading_again_tells_that_the_watermark_stays_and_what_that_means() -> None:
    scenario, event_time = Scenario(), EventTime("10 s")
    task = coordinator(scenario, event_time)
    opened(task, run(1))
    finish(task, run(1), 50, 40)
    scenario.produce(2)
    opened(coordinator(scenario, event_time), run(2))
    finish(coordinator(scenario, event_time), run(2), 90, 90)
    now = standing(scenario.ledger, "orders")
    here = Position.after(now.before) or Position(ranges={}, state={})
    begin = Position(ranges={"orders": (OffsetRange(0, 0, 0),)}, state={})
    back = Move(position=begin, again={"orders": (OffsetRange(0, 0, 1),)})

    def words_of(move: Move) -> str:
        return "\n".join(
            told(scenario.ledger, now, outlook(scenario.ledger, now, MemorySource(world="", topics=()), move))
        )

    words = words_of(back)
    assert "The watermark does not go back. Rows up to it, at least to 2026-01-01T12:00:29.999999+00:00, are" in words
    assert "watermark" not in words_of(Move(position=here))


def test_an_epochs_now_is_the_time_after_the_source_has_waited_for_data(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, plan, seconds = Scenario(), MemorySource.plan, [0]
    task = coordinator(scenario, None)
    task.task.clock = lambda: NOON + timedelta(seconds=seconds[0])

    def waits(*given: Any) -> PlannedEpoch | None:
        seconds[0] = 30
        return plan(*given)

    monkeypatch.setattr(MemorySource, "plan", waits)
    record = opened(task, run(1))
    assert (record.now, record.opened_at) == ((NOON + timedelta(seconds=30)).isoformat(),) * 2


def test_every_attempt_of_an_epoch_has_the_same_watermarks_whatever_the_clock_says_by_then() -> None:
    scenario, event_time = Scenario(), EventTime("0 s", idle_after="60 s")
    task = coordinator(scenario, event_time)
    task.open(run(1))
    finish(task, run(1), 50, 5)
    scenario.produce(1)
    task = coordinator(scenario, event_time, clock=40)
    task.open(run(2))
    finish(task, run(2), 70)
    scenario.produce(2)
    task = coordinator(scenario, event_time, clock=50)
    first = opened(task, run(3))
    abort(task, run(3))
    again = opened(coordinator(scenario, event_time, clock=80), run(4))
    assert (again.txn_id.attempt, again.watermarks) == (2, first.watermarks)
    assert first.watermarks == (at(5) - 1, at(5) - 1)


def test_event_times_of_an_aborted_attempt_move_nothing() -> None:
    scenario, event_time = Scenario(), EventTime("0 s", tick=False)
    scenario.world.refusals["orders"] = "no"
    task = coordinator(scenario, event_time)
    task.open(run(1))
    with pytest.raises(Exception, match="GLOBAL_ABORT"):
        finish(task, run(1), 900, 900)
    scenario.world.refusals.clear()
    task = coordinator(scenario, event_time)
    task.open(run(2))
    finish(task, run(2), 50, 40)
    scenario.produce(2)
    assert opened(coordinator(scenario, event_time), run(3)).watermarks == (at(40) - 1, None)


@pytest.mark.parametrize(("depth", "ticks"), [(1, 1), (2, 2), (3, 3)])
def test_without_new_data_empty_epochs_close_what_is_open_and_then_there_is_nothing_to_do(
    depth: int, ticks: int
) -> None:
    scenario, event_time = Scenario(), EventTime("0 s", depth=depth)
    task = coordinator(scenario, event_time)
    task.open(run(1))
    ends = {r.partition: r.end for r in finish(task, run(1), 50, 40).ranges["orders"]}
    for number in range(ticks):
        task = coordinator(scenario, event_time)
        tick = opened(task, run(2 + number))
        assert [(r.start, r.end) for r in tick.ranges["orders"]] == [(end, end) for end in ends.values()]
        assert tick.watermarks[: number + 1] == (at(40) - 1,) * (number + 1)
        finish(task, run(2 + number))
    with pytest.raises(NoNewData):
        coordinator(scenario, event_time).open(run(9))


@pytest.mark.parametrize("event_time", [None, EventTime("0 s", tick=False)])
def test_there_are_no_empty_epochs_where_nobody_asked_for_them(event_time: EventTime | None) -> None:
    scenario = Scenario()
    task = coordinator(scenario, event_time)
    task.open(run(1))
    finish(task, run(1), 50, 40)
    with pytest.raises(NoNewData):
        coordinator(scenario, event_time).open(run(2))


def test_a_partition_that_falls_idle_lets_an_empty_epoch_move_the_watermark() -> None:
    scenario, event_time = Scenario(), EventTime("0 s", idle_after="60 s")
    task = coordinator(scenario, event_time)
    task.open(run(1))
    finish(task, run(1), 50, 5)
    scenario.produce(1)
    task = coordinator(scenario, event_time, clock=50)
    assert opened(task, run(2)).watermarks[0] == at(5) - 1
    finish(task, run(2), 70)
    task = coordinator(scenario, event_time, clock=90)
    assert opened(task, run(3)).watermarks[0] == at(70) - 1


class Covered(MemorySource):
    """A source whose data interval earlier epochs have read."""

    def plan_paced(self, *_: object) -> PlannedEpoch | None:
        raise NoNewData("read already", code=codes.INTERVAL_COVERED)


def test_a_run_whose_interval_was_read_opens_no_epoch_even_if_windows_could_close() -> None:
    scenario, event_time = Scenario(), EventTime("0 s")
    task = coordinator(scenario, event_time)
    opened(task, run(1))
    finish(task, run(1), 40, 40)
    source = task.task.pipeline.source
    assert isinstance(source, MemorySource)
    task.task.pipeline = replace(task.task.pipeline, source=Covered(**source.__dict__))
    with pytest.raises(NoNewData, match="read already"):
        task.open(run(2))
    task.task.pipeline = replace(task.task.pipeline, source=source)
    assert opened(task, run(2)).watermarks[0] == at(40) - 1, "without the interval, it is a tick"


@pytest.mark.parametrize(
    ("earlier", "watched"),
    [(0, ["clicks_v2"]), (1, ["clicks", "clicks_v2"])],
    ids=["has no record in the epoch", "has one"],
)
def test_a_topic_that_is_read_no_longer_counts_only_in_an_epoch_that_has_records_of_it(
    earlier: int, watched: list[str]
) -> None:
    scenario = Scenario()
    task = coordinator(scenario, EventTime("10 s"))
    ranges: Ranges = {"clicks": (OffsetRange(0, 5 - earlier, 5),), "clicks_v2": (OffsetRange(0, 0, 2),)}
    attempt = replace(opened(task, run(1)), ranges=ranges)
    task.task.pipeline = replace(task.task.pipeline, source=KafkaSource(topics=["clicks_v2"]))
    plan = staging._event_time_plan(task.task, attempt)
    assert plan and sorted(plan.partitions) == watched


def test_an_epoch_of_only_topics_that_are_read_no_longer_has_them_all() -> None:
    scenario = Scenario()
    task = coordinator(scenario, EventTime("10 s"))
    attempt = replace(opened(task, run(1)), ranges={"clicks": (OffsetRange(0, 5, 5),)})
    task.task.pipeline = replace(task.task.pipeline, source=KafkaSource(topics=["clicks_v2"]))
    plan = staging._event_time_plan(task.task, attempt)
    assert plan and sorted(plan.partitions) == ["clicks"]
