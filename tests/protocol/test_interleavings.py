"""Two actors at once, every schedule, everybody dead at every state: exactly one epoch in the end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from datetime import datetime, timezone
from itertools import count
from typing import NamedTuple

import msgspec

from airflow_epochs.coordinator import Coordinator
from airflow_epochs.errors import Corrupt, EpochError, NoNewData
from airflow_epochs.model import DecisionKind, StageReport
from airflow_epochs.testing import MemoryEnvironment
from scenario import Scenario, run
from scheduled_world import ScheduledWorld
from schedules import Actor, Exploration, Task

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


def aborting(number: int) -> Step:
    def step(coordinator: Coordinator, report: StageReport | None) -> None:
        coordinator.abort(run(number), "a task failed")

    return step


class XCom(NamedTuple):
    """What one task leaves for the next, and how many nonces its run has drawn."""

    drawn: int
    report: bytes


class Model:
    """A scenario whose task processes are deterministic."""

    def __init__(self, *sinks: str) -> None:
        self.world = ScheduledWorld()
        self.scenario = Scenario(sinks, world=self.world, records=2)
        self.scenario.ledger.claim("dag", at="now", writer="setup")

    def coordinator(self, name: str, drawn: Iterator[int]) -> Coordinator:
        coordinator = self.scenario.coordinator()
        return Coordinator(
            pipeline=coordinator.pipeline,
            ledger=coordinator.ledger,
            env=MemoryEnvironment(),
            clock=lambda: datetime(2026, 1, 1, tzinfo=timezone.utc),
            draw_nonce=lambda: f"{2 * next(drawn):016x}{0:016x}",
            writer=name,
        )

    def setup(self, *steps: Step) -> StageReport | None:
        """What happened before: tasks that ended well; the report that is in XCom."""
        coordinator, report = self.coordinator("setup", count(1)), None
        for step in steps:
            report = step(coordinator, report) or report
        return report

    def actor(self, name: str, *steps: Step, abort: int | None = None, report: StageReport | None = None) -> Actor:
        """One process per step; after an error, the ``abort`` task of that run, if given."""
        first = XCom((sum(map(ord, name)) << 16), msgspec.json.encode(report))
        tasks = [self._task(name, index, step, len(steps)) for index, step in enumerate(steps)]
        tasks[0] = lambda carry, task=tasks[0]: task(first)  # type: ignore[misc]
        abort_step = aborting(abort) if abort else lambda c, r: None
        return Actor(name, [*tasks, self._task(name, len(steps), abort_step, len(steps))])

    def _task(self, name: str, index: int, step: Step, abort_index: int) -> Task:
        def task(carry: Hashable) -> tuple[int | None, Hashable]:
            assert isinstance(carry, XCom)
            drawn = count(carry.drawn)
            report = msgspec.json.decode(carry.report, type=StageReport | None)
            try:
                report = step(self.coordinator(f"{name}.{index}", drawn), report) or report
            except NoNewData:
                return None, None
            except EpochError as error:
                assert not isinstance(error, Corrupt), f"a late process calls for a human: {error}"
                return (abort_index, carry._replace(drawn=next(drawn))) if index < abort_index else (None, None)
            last = index + 1 >= abort_index
            return None if last else index + 1, XCom(next(drawn), msgspec.json.encode(report))

        return task

    def whole_run(self, name: str, number: int) -> Actor:
        """All tasks of run ``number`` from the beginning, with ``abort`` if one fails."""
        steps = [opening(number), staging(number), voting(number)]
        steps += [committing(number, sink) for sink in self.scenario.sinks]
        return self.actor(name, *steps, completing(number), abort=number)

    def explore(self, *actors: Actor, lost_answers: int = 1) -> Exploration:
        exploration = Exploration(self.world, list(actors), self.invariant, lost_answers)
        exploration.run()
        exploration.check_worlds()
        print(
            f"{exploration.states} states, {exploration.transitions} steps, {exploration.worlds} worlds, "
            f"{exploration.schedules:.2e} schedules"
        )
        return exploration

    def invariant(self) -> None:
        """Everybody died here: what is shown was decided; and the next run makes one epoch of it."""
        self.decided_before_shown()
        self.scenario.airflow_run(run(7))
        self.decided_before_shown()
        self.scenario.check_history()
        self.scenario.check_every_row()
        assert self.scenario.ledger.newest_complete() == 1

    def decided_before_shown(self) -> None:
        for sink in self.scenario.sinks:
            commits = self.world.table(sink).commits
            assert len(commits) <= 1, "an epoch is shown twice"
            for commit in commits:
                attempt = int(commit.txn_id.split("/")[2])
                decision = self.scenario.ledger.decision_record(1, attempt)
                assert decision and decision.txn_id == commit.txn_id
                assert decision.decision is DecisionKind.GLOBAL_COMMIT, "an aborted attempt is shown"


def test_two_runs_from_the_beginning() -> None:
    model = Model("a")
    seen = model.explore(model.whole_run("one", 1), model.whole_run("two", 2))
    assert seen.worlds > 300 and seen.schedules > 10**20


def test_the_old_and_the_new_tries_of_one_cleared_run() -> None:
    model = Model("a")
    old = model.actor("old", opening(1), staging(1), voting(1), committing(1, "a"))
    seen = model.explore(old, model.whole_run("new", 1))
    assert seen.worlds > 300 and seen.schedules > 10**20


def test_two_recoveries_of_an_epoch_in_doubt() -> None:
    model = Model("a", "b")
    model.setup(opening(1), staging(1), voting(1))
    model.explore(model.whole_run("one", 2), model.whole_run("two", 3))


def test_a_recovery_and_the_commit_tasks_it_overtakes() -> None:
    model = Model("a", "b")
    model.setup(opening(1), staging(1), voting(1))
    late = model.actor("late", committing(1, "b"), committing(1, "a"), completing(1))
    model.explore(late, model.whole_run("two", 2))


def test_a_vote_and_the_recovery_that_presumes_abort() -> None:
    model = Model("a")
    report = model.setup(opening(1), staging(1))
    voter = model.actor("voter", voting(1), committing(1, "a"), completing(1), abort=1, report=report)
    model.explore(voter, model.whole_run("two", 2))


def test_a_vote_and_the_abort_of_the_same_run() -> None:
    model = Model("a")
    report = model.setup(opening(1), staging(1))
    voter = model.actor("voter", voting(1), committing(1, "a"), completing(1), report=report)
    model.explore(voter, model.actor("aborter", aborting(1)))


def test_two_tries_of_stage_and_vote_of_one_run() -> None:
    model = Model("a")
    model.setup(opening(1))
    model.explore(*(model.actor(name, staging(1), voting(1), committing(1, "a"), abort=1) for name in ("old", "new")))
