"""A pipeline in memory, driven as Airflow drives it, and the check that every history must pass in the end."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.errors import EpochError, NoNewData
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import Store
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import DecisionKind, OffsetRange, Run, StageReport, TransactionId
from airflow_epochs.testing import (
    Crash,
    MemoryEnvironment,
    MemorySpark,
    MemoryWorld,
    Observed,
    memory_coordinator,
    memory_ledger,
    memory_pipeline,
    run_epoch,
)

Observer = Callable[[str], None]

RECOVERIES_MAX = 4
"""Liveness: once faults stop, this many runs bring everything to rest."""


def run(number: int) -> Run:
    return Run("dag", f"run {number}")


@dataclass
class Scenario:
    """A world with a few records in two partitions, and the pipeline as today's DAG has it."""

    sinks: tuple[str, ...] = ("orders",)
    keep_epochs: int = 1000
    world: MemoryWorld = field(default_factory=MemoryWorld)
    records: int = 10
    produced: int = 0
    told: list[int] = field(default_factory=list)
    """The epochs of which the tasks behind the pipeline were told, in order."""

    def __post_init__(self) -> None:
        self.produce(self.records)

    def produce(self, count: int) -> None:
        for _ in range(count):
            self.world.produce("orders", self.produced % 2, [self.produced])
            self.produced += 1

    @property
    def pipeline(self) -> Pipeline:
        return memory_pipeline(self.world, self.sinks, keep_epochs=self.keep_epochs)

    @property
    def ledger(self) -> Ledger:
        return memory_ledger("orders", self.world.store)

    def coordinator(
        self, *, observer: Observer | None = None, store: Store | None = None, spark: MemorySpark | None = None
    ) -> Coordinator:
        """A new task process."""
        env = MemoryEnvironment(spark=spark or MemorySpark())
        if observer:
            env.observer = observer
        return memory_coordinator(self.world, self.pipeline, env=env, store=store)

    def with_sinks(self, *sinks: str) -> Scenario:
        """The same world under a DAG with other sinks."""
        other = copy(self)
        other.sinks = sinks
        return other

    def airflow_run(self, which: Run, coordinator: Coordinator | None = None) -> EpochError | None:
        """All tasks of a run, from the beginning, as after "clear"; the error that made it red, if any.

        ``abort`` runs if a task failed, and NoNewData is a skip: the run is green.
        """
        coordinator = coordinator or self.coordinator()
        try:
            self.told.append(run_epoch(coordinator, which).epoch)
        except NoNewData:
            return None
        except EpochError as error:
            abort(coordinator, which)
            return error
        return None

    def settle(self, first: int = 100) -> None:
        """Let new runs come, without faults, until there is nothing to do; then check everything.

        One more epoch follows, since each also sweeps what the one before may have left.
        """
        for number in range(first, first + RECOVERIES_MAX):
            self.airflow_run(run(number))
        self.produce(2)
        assert self.airflow_run(run(first + RECOVERIES_MAX)) is None
        self.check()

    # -- what must hold at rest ---------------------------------------------------------------------------------

    def check(self) -> None:
        newest = self.check_history()
        end = {r.partition: r.end for r in newest}
        assert end == {0: (self.produced + 1) // 2, 1: self.produced // 2}, "something was left behind"
        assert self.world.litter() == set(), "staging places are left"

    def check_history(self) -> tuple[OffsetRange, ...]:
        """Epochs are contiguous and every sink shows exactly the complete ones; the last epoch's ranges."""
        before: dict[int, int] = {}
        last: tuple[OffsetRange, ...] = ()
        shown: dict[str, list[str]] = {}
        for epoch in range(1, self.ledger.newest_complete() + 1):
            record = self.ledger.complete_record(epoch)
            assert record
            last = record.ranges["orders"]
            assert all(r.start == before.get(r.partition, 0) for r in last), "ranges are not contiguous"
            assert any(r.end > r.start for r in last)
            before = {r.partition: r.end for r in last}
            for sink in record.receipts:
                shown.setdefault(sink, []).append(record.txn_id)
            self._check_records(epoch, record.txn_id)
        for sink, transactions in shown.items():
            table = self.world.table(sink)
            assert [commit.txn_id for commit in table.commits] == transactions, "a sink shows what the ledger does not"
            assert len({row[:3] for row in table.visible}) == len(table.visible), "duplicates"
        return last

    def _check_records(self, epoch: int, committed: TransactionId) -> None:
        """One decision per attempt: GLOBAL_COMMIT for the newest alone; the same ranges, but after a command."""
        opens = []
        attempt = 1
        while opened := self.ledger.open_record(epoch, attempt):
            attempt += 1
            if opened.command:
                continue
            opens.append(opened)
            decision = self.ledger.decision_record(epoch, opened.txn_id.attempt)
            assert decision and decision.txn_id == opened.txn_id
            expected = DecisionKind.GLOBAL_COMMIT if opened.txn_id == committed else DecisionKind.GLOBAL_ABORT
            assert decision.decision is expected
        inputs = {(o.obeys, str(o.ranges), o.now, o.seed) for o in opens}
        assert len(inputs) == len({o.obeys for o in opens}), "an attempt changed the epoch's input"

    def check_every_row(self) -> None:
        """Every sink shows every record produced, once."""
        for sink in self.sinks:
            shown: list[Any] = [*self.world.table(sink).values()]
            assert sorted(shown) == list(range(self.produced))


@dataclass
class Coded(Scenario):
    """A DAG whose transform has a known digest."""

    code: str | None = "old"
    function: str = "keep_all"
    on_code_change: str = "warn"

    @property
    def pipeline(self) -> Pipeline:
        transform = Transform(path="memory.py", function=self.function, digest=self.code)
        return replace(super().pipeline, transform=transform, on_code_change=self.on_code_change)


def abort(coordinator: Coordinator, which: Run) -> None:
    try:
        coordinator.abort(which, "a task failed")
    except EpochError:
        return  # the abort task is skipped or red; either way nothing more happens in this run


def observed_run(scenario: Scenario, which: int, observer: Observer) -> EpochError | None:
    """A run in which ``observer`` sees every phase and every effect."""
    scenario.world.observe(observer)
    try:
        return scenario.airflow_run(run(which), scenario.coordinator(observer=observer))
    finally:
        scenario.world.observe(lambda moment: None)


def moments(sinks: tuple[str, ...]) -> list[str]:
    """All moments of an undisturbed run, in order."""
    observer = Observed()
    observed_run(Scenario(sinks), 1, observer)
    return observer.seen


def crashes(action: Callable[[], object]) -> bool:
    """Whether the process died."""
    try:
        action()
    except Crash:
        return True
    return False


BOTH = ("orders", "audit")


def staged(scenario: Scenario, coordinator: Coordinator, number: int = 1) -> StageReport:
    coordinator.open(run(number))
    report = coordinator.stage(run(number)).stage
    assert report
    return report


def in_doubt(scenario: Scenario, number: int = 1) -> Coordinator:
    coordinator = scenario.coordinator()
    coordinator.vote(run(number), staged(scenario, coordinator, number))
    return coordinator


def newest(scenario: Scenario) -> EpochView:
    return scenario.ledger.view(scenario.ledger.newest_complete() + 1)


def nested(scenario: Scenario, act: Callable[[], object]) -> Callable[[], None]:
    """``act`` as somebody else's step, which the observer of the first does not see."""

    def call() -> None:
        observer = scenario.world.observer
        scenario.world.observe(lambda moment: None)
        try:
            act()
        finally:
            scenario.world.observe(observer)

    return call
