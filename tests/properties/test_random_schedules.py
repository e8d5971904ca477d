"""Random schedules of runs, clears, retries, zombies and faults; then the faults stop, and everything is checked.

A failure prints the steps that led to it, and the seed stands at the end of every session: ``EPOCHS_SEED=N`` replays
it. ``EPOCHS_EXAMPLES=5000`` makes a long run, ``EPOCHS_SHRINK=1`` looks for the shortest example that fails.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from random import Random, SystemRandom
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from airflow_epochs.contracts import Before
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.cleanup import sweep
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.orders import orders
from airflow_epochs.errors import Corrupt, NoNewData
from airflow_epochs.model import Run, StageReport
from airflow_epochs.testing import MemoryEnvironment, Repeat, Rest, check, memory_ledger
from airflow_epochs.testing.history import copy_of_ledger
from airflow_epochs.testing.ledger_facts import LedgerFacts
from tests.support.explored import SCHEDULED
from tests.support.quiet import nothing_logged
from tests.support.random_world import STEPS_MAX, Action, Process, RandomWorld, Swarm
from tests.support.recorded import PIPELINE

EXAMPLES = int(os.environ.get("EPOCHS_EXAMPLES", "100"))

SEED = int(os.environ.get("EPOCHS_SEED", SystemRandom().randrange(10**9)))

SHRINK = os.environ.get("EPOCHS_SHRINK") == "1"
"""Look for a smaller example that fails, too; that may take minutes, and the test its time limit."""

SINKS = ("a", "b", "c")

TASKS = ("open", "stage", "vote", *(f"commit.{sink}" for sink in SINKS), "complete", "abort")

RECOVERIES_MAX = 4

calls = st.one_of(st.integers(1, 20), st.just(STEPS_MAX))
"""How far a process gets before it is stopped; or to its end."""


dice = st.integers(0, 2**64)
"""What befalls the calls from here on. Drawn anew for every step: Hypothesis likes to use one value again and again."""


def replanned(number: int) -> Action:
    """What ``airflow epochs replan`` does, with the same ids in every execution of the process."""

    def put(coordinator: Coordinator) -> None:
        ledger, source = coordinator.task.ledger, coordinator.task.pipeline.source
        assert isinstance(source, Before)
        ids = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{2 * (number << 16):016x}{0:016x}"))
        with patch.multiple(orders, uuid=ids, new_writer=lambda: f"process {number}"):
            at = orders.standing(ledger, PIPELINE)
            by = Account(who="operator", why="it is too large", at="now")
            orders.put(ledger, at, "replan", by, orders.replan(at, source))

    return put


class RandomSchedules(RuleBasedStateMachine):
    """Airflow, gone mad: any task of any run at any time, stopped anywhere, woken whenever."""

    seen = Counter[str]()
    """Over all examples: how many there were, and which faults fired how often."""

    @initialize(dice=dice)
    def begin(self, dice: int) -> None:
        self.world = RandomWorld(Swarm.drawn(Random(dice)))
        self.sinks: tuple[str, ...] = SINKS[:2]
        self.produced = self.processes = self.runs = 0
        self.reports: dict[int, StageReport | None] = {}
        self.asleep: list[Process] = []
        self._produce(4)

    # -- what can happen ----------------------------------------------------------------------------------------

    @rule(records=st.integers(1, 4))
    def produce(self, records: int) -> None:
        self._produce(records)

    @rule(dice=dice)
    def a_new_run(self, dice: int) -> None:
        """All tasks in order; ``abort`` if one fails."""
        self.world.swarm.random.seed(dice)
        self.runs += 1
        self._airflow_run(self.runs)

    @rule(tasks_done=st.integers(0, 5), calls=st.integers(1, 20), dice=dice)
    def a_new_run_that_gets_stuck(self, tasks_done: int, calls: int, dice: int) -> None:
        """Some tasks in order; the next one is stopped half way."""
        self.world.swarm.random.seed(dice)
        self.runs += 1
        tasks = self._tasks()
        for task in tasks[:tasks_done]:
            self._sleep_unless_finished(self._process(self.runs, task), STEPS_MAX)
        self._sleep_unless_finished(self._process(self.runs, tasks[min(tasks_done, len(tasks) - 1)]), calls)

    @rule(data=st.data(), task=st.sampled_from(TASKS), calls=calls, dice=dice)
    @precondition(lambda self: self.runs)
    def a_task_is_cleared(self, data: st.DataObject, task: str, calls: int, dice: int) -> None:
        """Any task of any run, also of one that is long over; it may get stuck half way."""
        self.world.swarm.random.seed(dice)
        run = data.draw(st.integers(max(1, self.runs - 2), self.runs), label="run")
        self._sleep_unless_finished(self._process(run, task), calls)

    @rule(data=st.data(), calls=calls)
    @precondition(lambda self: self.asleep)
    def a_zombie_wakes(self, data: st.DataObject, calls: int) -> None:
        process = self.asleep.pop(data.draw(st.integers(0, len(self.asleep) - 1), label="zombie"))
        self._sleep_unless_finished(process, calls)

    @rule(data=st.data())
    @precondition(lambda self: self.asleep)
    def a_process_is_killed(self, data: st.DataObject) -> None:
        self.asleep.pop(data.draw(st.integers(0, len(self.asleep) - 1), label="process"))

    @rule(calls=calls, dice=dice)
    def an_operator_lets_an_aborted_epoch_be_planned_anew(self, calls: int, dice: int) -> None:
        """It may get stuck half way, and go on when the epoch has long been opened or completed."""
        self.world.swarm.random.seed(dice)
        self._sleep_unless_finished(self._replan(), calls)

    @rule(sinks=st.sets(st.sampled_from(SINKS), min_size=1))
    def the_dag_gets_other_sinks(self, sinks: set[str]) -> None:
        self.sinks = tuple(sorted(sinks))

    @rule(data=st.data())
    @precondition(lambda self: "vacuum" in self.world.swarm.rates and self.world.unpublished())
    def a_vacuum(self, data: st.DataObject) -> None:
        """Staged files are taken away to which no table refers."""
        self.world.vacuum(data.draw(st.sampled_from(self.world.unpublished()), label="place"))

    # -- how it happens -----------------------------------------------------------------------------------------

    def _produce(self, records: int) -> None:
        for _ in range(records):
            self.world.produce("orders", self.produced % 2, [self.produced])
            self.produced += 1

    def _process(self, run: int, task: str) -> Process:
        self.processes += 1
        return Process(self.world, self.processes, f"{task} of run {run}", self.sinks, self._action(run, task))

    def _action(self, number: int, task: str) -> Action:
        run, report = Run("dag", f"run {number}"), self.reports.get(number)
        kind, _, sink = task.partition(".")
        actions: dict[str, Callable[[Coordinator], object]] = {
            "open": lambda c: c.open(run),
            "stage": lambda c: self._leave(number, c.stage(run).stage),
            "vote": lambda c: self._leave(number, c.vote(run, report).stage),
            "commit": lambda c: c.commit(run, sink),
            "complete": lambda c: c.complete(run),
            "abort": lambda c: c.abort(run, "a task failed"),
        }
        return actions[kind]

    def _replan(self) -> Process:
        self.processes += 1
        return Process(self.world, self.processes, "replan", self.sinks, replanned(self.processes))

    def _tasks(self) -> list[str]:
        return ["open", "stage", "vote", *(f"commit.{sink}" for sink in self.sinks), "complete"]

    def _leave(self, number: int, report: StageReport | None) -> None:
        """XCom: the last writer wins, zombies included."""
        self.reports[number] = report or self.reports.get(number)

    def _sleep_unless_finished(self, process: Process, calls: int) -> None:
        if not process.advance(calls):
            self.asleep.append(process)
        assert not isinstance(process.error, Corrupt), f"{process.name} calls for a human: {process.error}"

    def _airflow_run(self, number: int) -> bool:
        """Whether the run is green."""
        for task in self._tasks():
            process = self._process(number, task)
            self._sleep_unless_finished(process, STEPS_MAX)
            if isinstance(process.error, NoNewData):
                return True
            if process.error:
                self._sleep_unless_finished(self._process(number, "abort"), STEPS_MAX)
                return False
        return True

    # -- the end ------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """The faults stop: few runs settle everything; what wakes late changes nothing, and reruns neither."""
        if not hasattr(self, "world"):
            return
        self.seen.update(self.world.swarm.fired, examples=1, zombies=len(self.asleep), processes=self.processes)
        self.world.swarm.stop()
        recoveries = self._settled()
        zombies = [self._woken(process) for process in self.asleep if process.number % 2]  # the others are dead
        repeats = [self._repeated(number) for number in range(1, self.runs + 1)]
        self._settled()
        self._swept_by_hand()
        history = self.world.recorder.history(
            rest=Rest(recoveries=recoveries, recoveries_max=RECOVERIES_MAX),
            zombies=zombies,
            repeats=repeats,
            trace=self.world.trace,
        )
        check(history).require(unknown=set() if repeats else {"I8"})

    def _settled(self) -> int:
        """How many runs it took until all was read; then one more epoch, which sweeps the one before.

        That epoch's first run fails, and an operator lets it be planned anew: so every example has such a command.
        """
        recoveries = 0
        while self.world.ends("orders") != self._position() and recoveries < 10 * RECOVERIES_MAX:
            recoveries += 1
            self.runs += 1
            self._airflow_run(self.runs)
        self._produce(2)
        self.runs += 1
        for process in (self._process(self.runs, "open"), self._process(self.runs, "abort"), self._replan()):
            self._sleep_unless_finished(process, STEPS_MAX)
            assert process.error is None, f"{process.name} failed without a fault: {process.error}"
        self.runs += 1
        assert self._airflow_run(self.runs), "a run without faults failed"
        return recoveries

    def _swept_by_hand(self) -> None:
        """Sweeps are tried three times and then given up; what is staged even later waits for a VACUUM.

        So only a run without either must have left nothing by itself. In the others a sweep must still be able to.
        """
        if self.world.swarm.has_failed_calls or self.world.staged_late:
            ledger = memory_ledger(PIPELINE, self.world.store)
            for epoch in range(1, ledger.newest_complete() + 1):
                sweep(ledger, epoch, (), MemoryEnvironment())

    def _position(self) -> dict[int, int]:
        """Up to where epochs are complete."""
        facts = LedgerFacts.of(copy_of_ledger(self.world.store, PIPELINE))
        newest = facts.complete.get(facts.newest_complete)
        return {r.partition: r.end for r in newest.ranges["orders"]} if newest else {}

    def _woken(self, process: Process) -> Repeat:
        before = self._fingerprint()
        process.advance()
        assert not isinstance(process.error, Corrupt), f"{process.name} calls for a human: {process.error}"
        return Repeat(what=process.name, before=before, after=self._fingerprint())

    def _repeated(self, number: int) -> Repeat:
        before = self._fingerprint()
        self._airflow_run(number)
        return Repeat(what=f"run {number}", before=before, after=self._fingerprint())

    def _fingerprint(self) -> dict[str, Any]:
        records = copy_of_ledger(self.world.store, PIPELINE)
        decided = {k: v for k, v in records.items() if k.startswith("epochs/") and ".try." not in k}
        return {**decided, **self.world.tables}


SETTINGS = settings(
    max_examples=EXAMPLES,
    stateful_step_count=30,
    print_blob=True,
    phases=[Phase.generate, Phase.shrink] if SHRINK else [Phase.generate],
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.few(1)
@pytest.mark.proof
@pytest.mark.timeout(600 if EXAMPLES <= 1000 else 0)
@pytest.mark.parametrize("part", [1, 2])
def test_whatever_happens_every_record_is_shown_once(part: int, record_property: Callable[[str, object], None]) -> None:
    """In two parts, so that two processes share the work."""
    RandomSchedules.seen.clear()
    try:
        with nothing_logged():
            run_state_machine_as_test(seed(SEED + part)(RandomSchedules), settings=SETTINGS)
    finally:
        record_property(SCHEDULED, {"seed": SEED, **RandomSchedules.seen})
        print(f"EPOCHS_SEED={SEED}")
    assert RandomSchedules.seen["examples"] >= EXAMPLES
