"""Runs of data intervals, and runs without one, in the layout with one task: with which epoch they end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_epochs import DeltaSink, codes
from airflow_epochs.config import BLOCK, TAKE_OVER
from airflow_epochs.contracts import Environment, Interval, Limits, Move, Past, PlannedEpoch, Position
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.orders import orders, rewinding
from airflow_epochs.model import JsonDict, OffsetRange, Ranges, Run, ends_of
from airflow_epochs.sources.kafka import interval as by_interval
from airflow_epochs.testing import Crash, run_epoch
from tests.support.environment import Action
from tests.support.faults_disk import PARTITIONS, TOPIC, FileSource
from tests.support.faults_world import DiskWorld, crash
from tests.support.hourly import HOUR, MIDNIGHT, ByTheHour, moved_back
from tests.support.one_task import run_in_one_task

pytestmark = pytest.mark.proof

ME = Account(who="me", why="a mistake in the transform", host="here")


@dataclass(frozen=True, kw_only=True)
class MovedFile(FileSource):
    """Commands can move the input back."""

    def before(self, base: Position | None, ranges: Ranges, state: JsonDict) -> Position:
        assert base, "commands come after an epoch"
        return base

    def to_offsets(self, position: Position, offsets: Mapping[str, Mapping[int, int]], env: Environment) -> Move:
        return moved_back(position, offsets)


@dataclass(frozen=True, kw_only=True)
class HourlyFile(ByTheHour, MovedFile):
    """Plans as KafkaSource does with ``missed="refuse"``."""

    def plan_paced(self, position: Position | None, limits: Limits, past: Past, env: Environment) -> PlannedEpoch:
        at, state = by_interval.require_interval(past.interval), position.state if position else {}
        covered = by_interval.coverage_of(state)
        by_interval.require_unread(at, covered, past.epochs())
        known = ends_of(position.ranges) if position else {}
        first, behind = ({(TOPIC, p): self.hour_of(time) for p in PARTITIONS} for time in (at.start, at.end))
        begins = {p: known.get((TOPIC, p), first[TOPIC, p]) for p in PARTITIONS}
        full: Ranges = {TOPIC: tuple(OffsetRange(p, begin, len(self._records(p))) for p, begin in begins.items())}
        ranges, _ = by_interval.plan(at, covered, full, first, behind, refuse_missed=True)
        interval = by_interval.recorded(at, covered, by_interval.began_of(state))
        return PlannedEpoch(ranges=ranges, state={by_interval.KEY: interval})


def of_hour(hour: int) -> Interval:
    return Interval(MIDNIGHT + hour * HOUR, MIDNIGHT + (hour + 1) * HOUR)


@dataclass(frozen=True)
class Hours(DiskWorld):
    """Each run is one task. The run of an hour is named by it."""

    on_failed_epoch: str = BLOCK
    intervals: bool = True

    @property
    def source(self) -> MovedFile:
        kind = HourlyFile if self.intervals else MovedFile
        return kind(folder=str(self.folder / "input"))

    def at(self, hour: int | None, happens: Mapping[str, Action] | None = None) -> Coordinator:
        found = self.coordinator(happens)
        pipeline = replace(found.task.pipeline, on_failed_epoch=self.on_failed_epoch)
        at = None if hour is None else of_hour(hour)
        return Coordinator(replace(found.task, pipeline=pipeline, interval=lambda: at))

    def drive(
        self, name: str, hour: int | None, happens: Mapping[str, Action] | None = None, **params: object
    ) -> int | None:
        """What Airflow does with the task; the last epoch of the run."""
        sinks = [DeltaSink(sink, str(self.table(sink))) for sink in self.sinks]
        done = run_in_one_task(Run("dag", name), sinks, lambda: self.at(hour, happens), **params)
        epoch: int = done["epoch"]
        return epoch

    def hours(self) -> list[int]:
        """The hours whose records a reader of the first table sees."""
        return [offset for partition, offset, _ in self.rows(self.sinks[0]) if partition == PARTITIONS[0]]

    def restore(self, epoch: int) -> None:
        """As ``rewind --to-epoch N --restore-tables`` puts it."""
        ledger, env = self.ledger, self.at(None).task.env
        at = orders.standing(ledger, self.name)
        move = rewinding.to_epoch(ledger, at, self.source, epoch, env)  # type: ignore[arg-type]  # moves as it needs to
        back = orders.restoration(ledger, at, epoch, env)
        orders.put(ledger, at, "rewind", ME, move, restoration=back)


@pytest.fixture
def world(tmp_path: Path) -> Hours:
    """Hours 0 to 5 have records; the runs of hours 0, 1 and 2 are complete."""
    world = Hours(tmp_path, sinks=("orders",))
    world.produce(12)
    assert [world.drive(str(hour), hour) for hour in (0, 1, 2)] == [1, 2, 3]
    return world


def test_a_run_by_hand_that_brings_tables_back_is_green_and_each_interval_is_read_once_more(world: Hours) -> None:
    world.restore(1)
    assert world.drive("by hand", None) == 4
    assert (world.hours(), world.ledger.newest_complete()) == ([0], 4)
    assert world.drive("by hand", None) == 4, "cleared, it passes its epoch on"
    for hour in (1, 2, 3):
        assert world.drive(str(hour), hour) == 4 + hour
    assert world.hours() == [0, 1, 2, 3]


def test_a_run_by_hand_whose_task_died_after_the_tables_were_back_is_green_when_it_is_cleared(world: Hours) -> None:
    world.restore(1)
    with pytest.raises(Crash):
        world.drive("by hand", None, {"complete.landed": crash})
    assert world.drive("by hand", None) == 4
    assert (world.hours(), world.ledger.newest_complete()) == ([0], 4)


def test_a_run_of_a_later_interval_that_brings_tables_back_reads_nothing_until_it_is_cleared(world: Hours) -> None:
    """The interval before its own is missing, too: only when that is read may this run read its own."""
    world.restore(1)
    assert world.drive("2", 2) == 4
    assert world.hours() == [0]
    for hour in (1, 2):
        assert world.drive(str(hour), hour) == 4 + hour
    assert world.drive("2", 2) == 6, "cleared once more, it passes its epoch on"
    assert world.hours() == [0, 1, 2]


@pytest.mark.parametrize("moment", ["stage.done", "committed.orders"])
def test_a_run_by_hand_that_finishes_an_epoch_of_another_run_is_green(tmp_path: Path, moment: str) -> None:
    world = Hours(tmp_path, sinks=("orders",), on_failed_epoch=TAKE_OVER)
    world.produce(12)
    with pytest.raises(Crash):
        run_epoch(world.at(0, {moment: crash}), Run("dag", "0"))
    assert world.drive("by hand", None) == 1
    assert (world.hours(), world.ledger.newest_complete()) == ([0], 1)
    assert world.drive("1", 1) == 2
    assert world.hours() == [0, 1]


def test_a_run_that_took_another_epoch_over_reads_its_own_interval_too(tmp_path: Path) -> None:
    world = Hours(tmp_path, sinks=("orders",), on_failed_epoch=TAKE_OVER)
    world.produce(12)
    with pytest.raises(Crash):
        run_epoch(world.at(0, {"committed.orders": crash}), Run("dag", "0"))
    assert world.drive("1", 1) == 2
    assert world.hours() == [0, 1]


def test_a_run_that_has_read_its_interval_is_green_though_the_next_run_is_at_work(world: Hours) -> None:
    def next_run() -> None:
        world.at(4).open(Run("dag", "4"))

    assert world.drive("3", 3, {"complete.landed": next_run}) == 4
    run_epoch(world.at(4), Run("dag", "4"))
    assert world.hours() == [0, 1, 2, 3, 4]


def test_a_run_without_an_interval_and_without_an_epoch_fails_and_opens_nothing(world: Hours) -> None:
    with pytest.raises(AirflowFailException, match=codes.INTERVAL_MISSING.name):
        world.drive("by hand", None)
    assert world.ledger.open_record(4, 1) is None


@pytest.fixture
def plain(tmp_path: Path) -> Hours:
    """A pipeline without intervals: each of its first runs has had an epoch."""
    world = Hours(tmp_path, sinks=("orders",), intervals=False)
    for number in (1, 2, 3):
        world.produce(2)
        assert world.drive(f"run {number}", None) == number
    return world


def test_without_intervals_too_the_run_that_brings_tables_back_reads_nothing_and_the_next_one_reads_on(
    plain: Hours,
) -> None:
    plain.restore(1)
    assert plain.drive("run 4", None) == 4
    assert plain.hours() == [0]
    assert plain.drive("run 5", None) == 5
    assert plain.hours() == [0, 1, 2]


def test_a_run_that_has_had_an_epoch_is_green_though_the_next_one_belongs_to_another_run(plain: Hours) -> None:
    def next_run() -> None:
        plain.produce(2)
        plain.at(None).open(Run("dag", "run 5"))

    plain.produce(2)
    assert plain.drive("run 4", None, {"complete.landed": next_run}) == 4
    run_epoch(plain.at(None), Run("dag", "run 5"))
    assert plain.hours() == [0, 1, 2, 3, 4]
