"""What the tasks of an epoch ask of the ledger's store: each task a process of its own, as Airflow runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.signing import NO_KEYS, Keys
from airflow_epochs.ledger.store import LocalStore, Store
from airflow_epochs.model import Run, StageReport
from airflow_epochs.testing import FaultyStore, MemoryEnvironment, MemoryWorld, memory_pipeline

SINKS = ("orders", "rejected")


class CountingStore(FaultyStore):
    """Records in ``found``, too, the keys of which a ``get`` had the value."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.found: list[str] = []

    def get(self, key: str) -> bytes | None:
        value = super().get(key)
        if value is not None:
            self.found.append(key)
        return value


@dataclass
class CountedEpochs:
    """A pipeline of two sinks whose ledger lies on the local disk; ``run`` counts one epoch."""

    root: Path
    keys: Keys = NO_KEYS
    epochs: int = 0
    world: MemoryWorld = field(default_factory=MemoryWorld)
    report: StageReport | None = None

    def run(self) -> dict[str, CountingStore]:
        """One more epoch: per task what it has asked, as the operator of that task asks it."""
        self.epochs += 1
        self.world.produce("orders", 0, ["row"])
        run = Run("dag", f"run {self.epochs}")
        return {
            "open": self._task(lambda here: here.checkpoint(here.open_epoch(run))),
            "stage": self._task(lambda here: self._stage(here, run)),
            "vote": self._task(lambda here: here.vote(run, self.report)),
            **{f"commit.{sink}": self._task(lambda here, s=sink: here.commit(run, s)) for sink in SINKS},  # type: ignore[misc]
            "complete": self._task(lambda here: (here.complete(run), here.newest_complete())),
        }

    def _stage(self, here: Coordinator, run: Run) -> None:
        self.report = here.stage(run).stage

    def _task(self, work: Callable[[Coordinator], object]) -> CountingStore:
        store = CountingStore(LocalStore(self.root))
        pipeline = memory_pipeline(self.world, sinks=SINKS)
        ledger = Ledger(store, pipeline.name, self.keys)
        work(Coordinator(TaskTry(pipeline=pipeline, ledger=ledger, env=MemoryEnvironment())))
        return store


def total(tasks: dict[str, CountingStore]) -> int:
    return sum(len(store.calls) for store in tasks.values())
