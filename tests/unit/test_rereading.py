"""Runs of data intervals that are cleared after ``rewind``: which of them gets a new epoch. No broker is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from airflow_epochs import codes
from airflow_epochs.config import BLOCK, TAKE_OVER
from airflow_epochs.contracts import Interval, Move, Position
from airflow_epochs.coordinator.admin import savepoints
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.orders import orders
from airflow_epochs.coordinator.orders.orders import Restoration
from airflow_epochs.coordinator.orders.outlook import outlook
from airflow_epochs.coordinator.runs import rereading
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Fenced, NoNewData, Refused
from airflow_epochs.hooks import passed_on
from airflow_epochs.ledger import run_ids
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import commands_obeyed, unfinished
from airflow_epochs.model import Command, OffsetRange, Ranges, RestorePoint, Run, ends_of
from airflow_epochs.operators import phases
from airflow_epochs.testing import (
    MemoryEnvironment,
    MemoryWorld,
    memory_ledger,
    memory_pipeline,
    run_epoch,
)
from tests.support.hourly import HOUR, MIDNIGHT, Hourly, moved_back
from tests.support.scenario import abort

ME = Account(who="me", why="a mistake", host="here")


def hours(start: int, end: int | None = None) -> Interval:
    return Interval(MIDNIGHT + start * HOUR, MIDNIGHT + (start + 1 if end is None else end) * HOUR)


@dataclass
class Hours:
    """Runs of one hour each. The run of an hour is named by it."""

    on_failed_epoch: str = BLOCK

    def __post_init__(self) -> None:
        self.world = MemoryWorld()
        self.world.produce("orders", 0, list(range(24)))
        self.source = Hourly(world=self.world.name, topics=("orders",))
        self.pipeline = replace(memory_pipeline(self.world), source=self.source, on_failed_epoch=self.on_failed_epoch)

    @property
    def ledger(self) -> Ledger:
        return memory_ledger("orders", self.world.store)

    def coordinator(self, at: Interval) -> Coordinator:
        env = MemoryEnvironment()
        return Coordinator(TaskTry(pipeline=self.pipeline, ledger=self.ledger, env=env, interval=lambda: at))

    def run(self, name: str, at: Interval, params: Mapping[str, str] | None = None) -> tuple[str, int, range] | None:
        """Drive a run: its id in the ledger, its epoch, and the hours that this has read; None if it is skipped."""
        coordinator = self.coordinator(at)
        known = rereading.as_known(coordinator.task, Run("dag", name))
        phases.require_free_name(coordinator, known, params or {})
        try:
            done = run_epoch(coordinator, known)
        except NoNewData:
            return None
        phases.name_epoch(coordinator, known, params or {}, done.epoch)
        (read,) = done.ranges["orders"]
        assert rereading.as_known(coordinator.task, Run("dag", name)) == known, "in the tasks behind, too"
        return known.run_id, done.epoch, range(read.start, read.end)

    def fail(self, name: str, at: Interval) -> None:
        coordinator = self.coordinator(at)
        known = rereading.as_known(coordinator.task, Run("dag", name))
        coordinator.open(known)
        abort(self.coordinator(at), known)

    def rewind(self, to: int, back: Restoration | None = None) -> None:
        """As ``rewind --to-timestamp`` puts it. ``back``: the tables that come back, too."""
        at = orders.standing(self.ledger, "orders")
        was = ends_of(at.position(self.source).ranges)["orders", 0]
        there: Ranges = {"orders": (OffsetRange(0, to, to),)}
        again: Ranges = {"orders": (OffsetRange(0, to, was),)}
        back_to = (MIDNIGHT + to * HOUR).isoformat()
        move = Move(position=Position(ranges=there, state={}), again=again, ahead=again, back_to=back_to)
        look = outlook(self.ledger, at, self.source, move, restoration=back)
        orders.put(self.ledger, at, "rewind", ME, look.move, restoration=back)

    def adopt(self, sink: str) -> None:
        """As ``adopt-sink`` puts it."""
        at = orders.standing(self.ledger, "orders")
        newest = at.recorded(sink)
        adoption = orders.Adoption(sink=sink, shown=newest, expected=newest, lacks=(1, at.epoch - 1))
        look = outlook(self.ledger, at, self.source, Move(position=at.position(self.source)), adoption=adoption)
        orders.put(self.ledger, at, "adopt-sink", ME, look.move, adoption=adoption)


@pytest.mark.parametrize("on_failed_epoch", [BLOCK, TAKE_OVER])
def test_a_run_whose_failed_epoch_a_rewind_gave_to_another_interval_reads_its_own(on_failed_epoch: str) -> None:
    world = Hours(on_failed_epoch)
    for hour in (9, 10):
        world.run(str(hour), hours(hour))
    world.fail("11", hours(11))
    world.rewind(9)
    assert world.run("9", hours(9)) == ("9~3", 3, range(9, 10))
    assert world.run("10", hours(10)) == ("10~3", 4, range(10, 11))
    for _ in ("cleared", "cleared once more: it passes its epoch on"):
        assert world.run("11", hours(11)) == ("11~3", 5, range(11, 12))
    known = Run("dag", "11~3")
    assert run_ids.read_again(world.ledger, Run("dag", "11")) == [known]
    assert run_ids.airflow_run(world.ledger, known) == Run("dag", "11")


@pytest.mark.parametrize("disposed", [False, True])
def test_a_run_that_is_read_again_is_not_refused_for_the_name_that_it_gave_its_first_epoch(disposed: bool) -> None:
    world, named = Hours(), {"savepoint": "before-upgrade"}
    world.run("9", hours(9), named)
    world.rewind(9)
    if disposed:
        savepoints.dispose(world.ledger, "orders", "before-upgrade", ME)
    assert world.run("9", hours(9), named) == ("9~2", 2, range(9, 10))
    standing = world.ledger.savepoint("before-upgrade")
    assert (standing and standing.epoch) == (None if disposed else 1)
    with pytest.raises(Refused, match="is taken"):
        world.run("10", hours(10), named)


def test_retry_lets_such_a_run_read_again_once_and_then_leaves_its_green_tasks_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, run = Hours(), Run("dag", "11")
    monkeypatch.setattr(passed_on, "_is_all_in_one", lambda run: False)
    monkeypatch.setattr(passed_on, "source_in", lambda spec: world.source)
    for hour in (9, 10, 11):
        world.run(str(hour), hours(hour))
    assert passed_on.epoch_passed_on(world.ledger, run) == 3
    world.rewind(11)
    assert passed_on.epoch_passed_on(world.ledger, run) is None
    world.run("11", hours(11))
    assert passed_on.epoch_passed_on(world.ledger, run) == 4


def test_retry_leaves_the_green_tasks_of_a_run_alone_whose_interval_no_command_reads_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last task would repeat the asset events, and its first one reads nothing."""
    world = Hours()
    monkeypatch.setattr(passed_on, "_is_all_in_one", lambda run: False)
    monkeypatch.setattr(passed_on, "source_in", lambda spec: world.source)
    for hour in (9, 10, 11):
        world.run(str(hour), hours(hour))
    world.rewind(11)
    assert [passed_on.epoch_passed_on(world.ledger, Run("dag", hour)) for hour in ("9", "10", "11")] == [1, 2, None]
    world.run("11", hours(11))
    assert [passed_on.epoch_passed_on(world.ledger, Run("dag", hour)) for hour in ("9", "10", "11")] == [1, 2, 4]


@pytest.mark.parametrize(("of_other", "passed"), [(hours(8), None), (hours(9, 11), 2)])
def test_retry_clears_the_tasks_of_a_run_whose_failed_epoch_went_to_another_one_if_its_hour_is_not_in_it(
    monkeypatch: pytest.MonkeyPatch, of_other: Interval, passed: int | None
) -> None:
    world = Hours()
    monkeypatch.setattr(passed_on, "_is_all_in_one", lambda run: False)
    monkeypatch.setattr(passed_on, "source_in", lambda spec: world.source)
    monkeypatch.setattr(passed_on, "interval_of_run", lambda run: hours(9), raising=False)
    world.run("8", hours(8))
    world.fail("9", hours(9))
    world.rewind(8)
    world.run("8 again", of_other)
    assert passed_on.epoch_passed_on(world.ledger, Run("dag", "9")) == passed
    assert world.run("9", hours(9)) == (("9~2", 3, range(9, 10)) if passed is None else ("9", 2, range(8, 11)))
    assert passed_on.epoch_passed_on(world.ledger, Run("dag", "9")) == (passed or 3)


def test_of_runs_at_work_at_once_one_takes_earlier_intervals_and_the_others_fail_until_its_epoch_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then those whose intervals were read are skipped, and later ones read on."""
    world = Hours()
    world.run("8", hours(8))
    late = world.coordinator(hours(10))
    first = world.coordinator(hours(11))

    def overtaken(moment: str) -> None:
        if moment == "open.put":
            first.open(Run("dag", "11"))

    monkeypatch.setattr(late.task.env, "reached", overtaken)
    with pytest.raises(Fenced) as held:
        late.open(Run("dag", "10"))
    assert held.value.code is codes.EPOCH_HELD_BY_OTHER
    for hour in (9, 12):
        with pytest.raises(Refused) as blocked:
            world.coordinator(hours(hour)).open(Run("dag", str(hour)))
        assert blocked.value.code is codes.EPOCH_BLOCKED
    assert world.run("11", hours(11)) == ("11", 2, range(9, 12))
    assert [world.run(str(hour), hours(hour)) for hour in (9, 10)] == [None, None]
    assert world.run("12", hours(12)) == ("12", 3, range(12, 13))


def test_such_a_run_is_read_again_once_more_after_another_rewind() -> None:
    world = Hours()
    world.run("9", hours(9))
    world.fail("10", hours(10))
    world.rewind(9)
    world.run("9", hours(9))
    world.fail("10", hours(10))
    world.rewind(9)
    assert world.run("9", hours(9)) == ("9~3", 3, range(9, 10))
    assert world.run("10", hours(10)) == ("10~2~3", 4, range(10, 11))
    world.rewind(10)
    assert world.run("10", hours(10)) == ("10~5", 5, range(10, 11))
    assert world.run("9", hours(9)) == ("9~3", 3, range(9, 10)), "over at the time that the command went back to"
    for known in run_ids.read_again(world.ledger, Run("dag", "10")):
        assert run_ids.airflow_run(world.ledger, known) == Run("dag", "10")


def test_a_run_that_was_read_again_and_failed_gives_its_epoch_to_an_earlier_interval_too() -> None:
    world = Hours()
    for hour in (8, 9):
        world.run(str(hour), hours(hour))
    world.rewind(9)
    world.fail("9", hours(9))
    world.rewind(8)
    assert world.run("8", hours(8)) == ("8~3", 3, range(8, 9))
    for _ in ("cleared", "cleared once more"):
        assert world.run("9", hours(9)) == ("9~3~3", 4, range(9, 10))
    assert run_ids.airflow_run(world.ledger, Run("dag", "9~3~3")) == Run("dag", "9")


def test_a_run_whose_failed_epoch_another_one_completed_passes_it_on_if_its_hour_is_in_it() -> None:
    for name, of_other in (("9 by hand", hours(9)), ("9 to 10", hours(9, 11))):
        world = Hours()
        world.run("8", hours(8))
        world.fail("9", hours(9))
        world.rewind(8)
        assert world.run(name, of_other) == (name, 2, range(8, Hourly.hour_of(of_other.end)))
        assert world.run("9", hours(9)) == ("9", 2, range(8, Hourly.hour_of(of_other.end)))


def test_a_run_whose_failed_epoch_was_taken_over_without_a_command_passes_it_on() -> None:
    world = Hours(TAKE_OVER)
    world.fail("9", hours(9))
    assert world.run("10", hours(10)) == ("10", 1, range(9, 10))
    assert world.run("9", hours(9)) == ("9", 1, range(9, 10))


def test_a_run_that_finishes_the_epoch_of_a_run_that_obeyed_a_rewind_does_so_in_all_its_tasks() -> None:
    world = Hours(TAKE_OVER)
    for hour in (9, 10, 11):
        world.run(str(hour), hours(hour))
    world.rewind(9)
    died = world.coordinator(hours(9))
    known = rereading.as_known(died.task, Run("dag", "9"))
    died.open(known)
    died.vote(known, died.stage(known).stage)

    def of_hour_12() -> tuple[Coordinator, Run]:
        coordinator = world.coordinator(hours(12))
        return coordinator, rereading.as_known(coordinator.task, Run("dag", "12"))

    opened, run = of_hour_12()
    epoch = opened.open(run).txn_id.epoch
    for step in (Coordinator.stage, Coordinator.complete):
        task, run = of_hour_12()
        step(task, run)
        assert run == Run("dag", "12")
    record = world.ledger.complete_record(epoch)
    assert record and record.completed_by == run


def test_a_run_reads_its_interval_if_the_only_table_that_was_to_come_back_stays_as_it_is() -> None:
    world = Hours()
    for hour in (9, 10, 11):
        world.run(str(hour), hours(hour))
    world.rewind(10, Restoration(epoch=1, points={"orders": RestorePoint(epoch=1, version=0)}))
    world.adopt("orders")
    assert world.run("10", hours(10)) == ("10~4", 4, range(10, 11))
    record = world.ledger.complete_record(4)
    assert record and not record.only_restored
    assert world.run("11", hours(11)) == ("11~4", 5, range(11, 12))


def waiting(world: Hours) -> tuple[Command, ...]:
    view = unfinished(world.ledger)
    return commands_obeyed(world.ledger, view.opened) if view else ()


def test_the_next_epoch_goes_on_at_the_time_of_a_rewind_also_if_another_command_waits_behind_it() -> None:
    world = Hours()
    for hour in (9, 10, 11):
        world.run(str(hour), hours(hour))
    newest = world.ledger.complete_record(3)
    assert rereading.goes_on_at(world.source, newest, waiting(world)) == hours(11).end
    world.rewind(10)
    at = orders.standing(world.ledger, "orders")
    orders.put(world.ledger, at, "adopt-sink", ME, Move(position=at.position(world.source)))
    assert rereading.goes_on_at(world.source, newest, waiting(world)) == hours(10).start


def test_no_time_is_known_after_a_rewind_to_offsets() -> None:
    world = Hours()
    for hour in (9, 10):
        world.run(str(hour), hours(hour))
    at = orders.standing(world.ledger, "orders")
    orders.put(world.ledger, at, "rewind", ME, moved_back(at.position(world.source), {"orders": {0: 9}}))
    assert rereading.goes_on_at(world.source, at.before, waiting(world)) is None
