"""Two actors at once, every schedule, answers lost anywhere, everybody dead at every state: one epoch in the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from datetime import datetime, timezone
from itertools import count
from typing import NamedTuple
from unittest.mock import patch

import pytest

from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, EpochError, NoNewData
from airflow_epochs.ledger.codec import from_plain, to_json
from airflow_epochs.model import StageReport
from airflow_epochs.testing import Crash, MemoryEnvironment, Rest, check
from tests.support.explored import EXPLORED, explored
from tests.support.lanes import long_but
from tests.support.quiet import nothing_logged
from tests.support.recorded import history_of
from tests.support.scenario import Scenario, crashes, run
from tests.support.scheduled_world import ScheduledWorld
from tests.support.schedules import Actor, Exploration, Task

Step = Callable[[Coordinator, StageReport | None], StageReport | None]
"""A task: takes the report that is in XCom, returns a new one, or None."""


def opening(number: int) -> Step:
    def step(coordinator: Coordinator, report: StageReport | None) -> None:
        coordinator.open(run(number))

    return step


def staging(number: int) -> Step:
    return lambda coordinator, report: coordinator.stage(run(number)).stage


def voting(number: int) -> Step:
    return lambda coordinator, report: coordinator.vote(run(number), report).stage


def committing(number: int, sink: str) -> Step:
    def step(coordinator: Coordinator, report: StageReport | None) -> None:
        coordinator.commit(run(number), sink)

    return step


def completing(number: int) -> Step:
    def step(coordinator: Coordinator, report: StageReport | None) -> None:
        coordinator.complete(run(number))

    return step


def committing_unrecorded(number: int, sink: str) -> Step:
    """The process dies between the sink's commit and its receipt."""

    def step(coordinator: Coordinator, report: StageReport | None) -> None:
        assert isinstance(coordinator.task.env, MemoryEnvironment)
        coordinator.task.env.observer = dies_at(f"committed.{sink}")
        assert crashes(lambda: coordinator.commit(run(number), sink))

    return step


def aborting_without_clean_up(number: int) -> Step:
    """The process dies after GLOBAL_ABORT."""

    def step(coordinator: Coordinator, report: StageReport | None) -> None:
        with patch("airflow_epochs.coordinator.coordinator.stop_earlier_tries", side_effect=Crash):
            assert crashes(lambda: coordinator.abort(run(number), "a task failed"))

    return step


def dies_at(phase: str) -> Callable[[str], None]:
    def observer(reached: str) -> None:
        if reached == phase:
            raise Crash(phase)

    return observer


def aborting(number: int) -> Step:
    def step(coordinator: Coordinator, report: StageReport | None) -> None:
        coordinator.abort(run(number), "a task failed")

    return step


ANY_TIME = {"I1", "I2", "I3", "I4", "I5", "I6", "I7", "I12", "I14"}
"""What must hold at any moment, and not only at rest."""


class XCom(NamedTuple):
    """What one task leaves for the next, and how many nonces its run has drawn."""

    drawn: int
    report: bytes


def starting_with(first: XCom, task: Task) -> Task:
    """The task, which is given ``first`` whatever came before."""
    return lambda carry: task(first)


class Model:
    """A scenario whose task processes are deterministic."""

    def __init__(self, record_property: Callable[[str, object], None], *sinks: str) -> None:
        self.record_property = record_property
        self.world = ScheduledWorld()
        self.scenario = Scenario(sinks, world=self.world, records=2)
        self.scenario.ledger.register("dag", at="now", writer="setup")

    def coordinator(self, name: str, drawn: Iterator[int]) -> Coordinator:
        coordinator = self.scenario.coordinator()
        return Coordinator(
            TaskTry(
                pipeline=coordinator.task.pipeline,
                ledger=coordinator.task.ledger,
                env=MemoryEnvironment(),
                clock=lambda: datetime(2026, 1, 1, tzinfo=timezone.utc),
                draw_id=lambda: f"{2 * next(drawn):016x}{0:016x}",
                writer=name,
            )
        )

    def setup(self, *steps: Step) -> StageReport | None:
        """What happened before: tasks that ended well; the report that is in XCom."""
        coordinator, report = self.coordinator("setup", count(1)), None
        for step in steps:
            report = step(coordinator, report) or report
        return report

    def actor(self, name: str, *steps: Step, abort: int | None = None, report: StageReport | None = None) -> Actor:
        """One process per step; after an error, the ``abort`` task of that run, if given."""
        first = XCom((sum(map(ord, name)) << 16), to_json(report))
        tasks = [self._task(name, index, step, len(steps)) for index, step in enumerate(steps)]
        tasks[0] = starting_with(first, tasks[0])
        abort_step = aborting(abort) if abort else lambda c, r: None
        return Actor(name, [*tasks, self._task(name, len(steps), abort_step, len(steps))])

    def _task(self, name: str, index: int, step: Step, abort_index: int) -> Task:
        def task(carry: Hashable) -> tuple[int | None, Hashable]:
            assert isinstance(carry, XCom)
            drawn = count(carry.drawn)
            told = json.loads(carry.report)
            report = from_plain(told, StageReport) if told else None
            try:
                report = step(self.coordinator(f"{name}.{index}", drawn), report) or report
            except NoNewData:
                return None, None
            except EpochError as error:
                assert not isinstance(error, Corrupt), f"a late process calls for a human: {error}"
                return (abort_index, carry._replace(drawn=next(drawn))) if index < abort_index else (None, None)
            last = index + 1 >= abort_index
            return None if last else index + 1, XCom(next(drawn), to_json(report))

        return task

    def whole_run(self, name: str, number: int) -> Actor:
        """All tasks of run ``number`` from the beginning, with ``abort`` if one fails."""
        steps = [opening(number), staging(number), voting(number)]
        steps += [committing(number, sink) for sink in self.scenario.sinks]
        return self.actor(name, *steps, completing(number), abort=number)

    def explore(self, *actors: Actor, lost_answers: int = 1) -> Exploration:
        exploration = Exploration(self.world, list(actors), self.invariant, lost_answers)
        with nothing_logged():
            exploration.run()
            exploration.check_worlds()
        self.record_property(EXPLORED, explored(exploration))
        return exploration

    def invariant(self) -> None:
        """Everybody died here: what is shown was decided; and the next runs make one epoch of it, and one more."""
        now = history_of(self.world)
        check(now, only=ANY_TIME).require()
        self.scenario.airflow_run(run(7))
        assert self.scenario.ledger.newest_complete() == 1
        with self.more_records():
            self.scenario.airflow_run(run(8))
            assert self.scenario.ledger.newest_complete() == 2
            at_rest = history_of(self.world, rest=Rest(recoveries=2), copies=[now.ledger])
            check(at_rest).require(unknown={"I8", "I13"})

    @contextmanager
    def more_records(self) -> Iterator[None]:
        """Records for another epoch: the second one sweeps what the first may have left."""
        topics = deepcopy(self.world._topics)
        self.scenario.produce(2)
        try:
            yield
        finally:
            self.world._topics = topics
            self.scenario.produced -= 2


MakeModel = Callable[..., Model]


@pytest.fixture
def model_of(record_property: Callable[[str, object], None]) -> MakeModel:
    """Makes models of the named sinks; how much they explored is told at the end of the session."""
    return lambda *sinks: Model(record_property, *sinks)


ANSWERS_LOST = pytest.mark.parametrize("lost_answers", long_but([0], [0, 1]))
"""How many answers may get lost in a schedule. With one, there are several times as many states."""


@pytest.mark.proof
@pytest.mark.timeout(600)
@ANSWERS_LOST
def test_two_runs_from_the_beginning(model_of: MakeModel, lost_answers: int) -> None:
    model = model_of("a")
    seen = model.explore(model.whole_run("one", 1), model.whole_run("two", 2), lost_answers=lost_answers)
    assert seen.worlds > (800 if lost_answers else 600) and seen.schedules > 10**16


@pytest.mark.proof
@pytest.mark.timeout(600)
@ANSWERS_LOST
def test_the_old_and_the_new_tries_of_one_cleared_run(model_of: MakeModel, lost_answers: int) -> None:
    model = model_of("a")
    old = model.actor("old", opening(1), staging(1), voting(1), committing(1, "a"))
    seen = model.explore(old, model.whole_run("new", 1), lost_answers=lost_answers)
    assert seen.worlds > (1_900 if lost_answers else 1_300) and seen.schedules > 10**16


LEFT_BEHIND: dict[str, list[Step]] = {
    "in doubt": [opening(1), staging(1), voting(1)],
    "in doubt, one sink shows it": [opening(1), staging(1), voting(1), committing_unrecorded(1, "a")],
    "in doubt, one sink has a receipt": [opening(1), staging(1), voting(1), committing(1, "a")],
    "in doubt, both sinks have receipts": [
        opening(1),
        staging(1),
        voting(1),
        committing(1, "a"),
        committing(1, "b"),
    ],
}


@pytest.mark.proof
@pytest.mark.parametrize("left", LEFT_BEHIND)
def test_two_recoveries_of_an_epoch_in_doubt(model_of: MakeModel, left: str) -> None:
    model = model_of("a", "b")
    model.setup(*LEFT_BEHIND[left])
    model.explore(model.whole_run("one", 2), model.whole_run("two", 3), lost_answers=2)


@pytest.mark.proof
@ANSWERS_LOST
def test_two_recoveries_of_an_undecided_epoch(model_of: MakeModel, lost_answers: int) -> None:
    model = model_of("a")
    model.setup(opening(1), staging(1))
    one, two = (model.actor(name, opening(n), staging(n), abort=n) for name, n in (("one", 2), ("two", 3)))
    model.explore(one, two, lost_answers=lost_answers)


@pytest.mark.proof
@ANSWERS_LOST
def test_two_recoveries_of_an_aborted_epoch_that_was_not_cleaned_up(model_of: MakeModel, lost_answers: int) -> None:
    model = model_of("a")
    model.setup(opening(1), staging(1), aborting_without_clean_up(1))
    one = model.actor("one", opening(2), staging(2), abort=2)
    two = model.actor("two", aborting(1), opening(3), staging(3))
    model.explore(one, two, lost_answers=lost_answers)


@pytest.mark.proof
def test_the_end_of_an_epoch_and_its_cleared_run(model_of: MakeModel) -> None:
    model = model_of("a", "b")
    model.setup(*LEFT_BEHIND["in doubt, both sinks have receipts"])
    model.explore(model.actor("late", completing(1)), model.whole_run("again", 1), lost_answers=2)


@pytest.mark.proof
def test_a_recovery_and_the_commit_tasks_it_overtakes(model_of: MakeModel) -> None:
    model = model_of("a", "b")
    model.setup(opening(1), staging(1), voting(1))
    late = model.actor("late", committing(1, "b"), committing(1, "a"), completing(1))
    model.explore(late, model.whole_run("two", 2), lost_answers=2)


@pytest.mark.proof
@ANSWERS_LOST
def test_a_vote_and_the_recovery_that_presumes_abort(model_of: MakeModel, lost_answers: int) -> None:
    model = model_of("a")
    report = model.setup(opening(1), staging(1))
    voter = model.actor("voter", voting(1), committing(1, "a"), completing(1), abort=1, report=report)
    model.explore(voter, model.whole_run("two", 2), lost_answers=lost_answers)


@pytest.mark.proof
def test_a_vote_and_the_abort_of_the_same_run(model_of: MakeModel) -> None:
    model = model_of("a")
    report = model.setup(opening(1), staging(1))
    voter = model.actor("voter", voting(1), committing(1, "a"), completing(1), report=report)
    model.explore(voter, model.actor("aborter", aborting(1)), lost_answers=2)


@pytest.mark.proof
@ANSWERS_LOST
def test_two_tries_of_stage_and_vote_of_one_run(model_of: MakeModel, lost_answers: int) -> None:
    model = model_of("a")
    model.setup(opening(1))
    old, new = (model.actor(name, staging(1), voting(1), committing(1, "a"), abort=1) for name in ("old", "new"))
    model.explore(old, new, lost_answers=lost_answers)
