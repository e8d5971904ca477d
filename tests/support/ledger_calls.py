"""What the tasks of an epoch ask of the ledger's store: each task a process of its own, as Airflow runs them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.ledger.keys import complete_key
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.signing import NO_KEYS, Keys
from airflow_epochs.ledger.store import LocalStore, Store
from airflow_epochs.model import CompleteRecord, Run, StageReport, TransactionId
from airflow_epochs.testing import DictStore, FaultyStore, MemoryEnvironment, MemoryWorld, memory_pipeline

SINKS = ("orders", "rejected")
KEEP_EPOCHS = 50


class CountingStore(FaultyStore):
    """Records in ``found``, too, the keys of which a ``get`` had the value, and in ``listed`` all keys of listings.

    ``seconds``: how long the task took that asked.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.found: list[str] = []
        self.listed: list[str] = []
        self.seconds = 0.0

    def list(self, prefix: str) -> list[str]:
        keys = super().list(prefix)
        self.listed += keys
        return keys

    def get(self, key: str) -> bytes | None:
        value = super().get(key)
        if value is not None:
            self.found.append(key)
        return value


@dataclass
class CountedEpochs:
    """A pipeline of two sinks whose ledger lies on the local disk, or in ``store``; ``run`` counts one epoch."""

    root: Path
    keys: Keys = NO_KEYS
    epochs: int = 0
    world: MemoryWorld = field(default_factory=MemoryWorld)
    report: StageReport | None = None
    store: Store | None = None
    in_dag: frozenset[str] | None = None

    @classmethod
    def of_a_ledger_with(cls, epochs: int, keys: Keys = NO_KEYS, root: Path | None = None) -> CountedEpochs:
        """A pipeline that has completed this many epochs, in memory or below ``root``.

        Only the completion records that the next epochs read are more than a key; whoever lists the others is seen to.
        """
        counted = cls(root or Path(), keys, store=None if root else DictStore())
        counted.run()
        counted._grow(epochs)
        return counted

    def _grow(self, epochs: int) -> None:
        ledger = self.ledger(self.home)
        first = ledger.complete_record(1)
        assert first
        for number in (epochs, epochs - 1, *range(epochs + 1 - KEEP_EPOCHS, epochs - 1)):
            ledger.put(_as_epoch(number, first))
        for number in range(2, epochs + 1 - KEEP_EPOCHS):
            self._put_empty(f"orders/{complete_key(number)}")
        for sink, commits in self.world.tables.items():
            self.world.tables[sink] = tuple(each._replace(txn_id=_as_of(epochs, each.txn_id)) for each in commits)

    def _put_empty(self, key: str) -> None:
        """Without the many fsyncs of a put."""
        if isinstance(self.store, DictStore):
            self.store.values[key] = b""
            return
        (self.root / key).parent.mkdir()
        (self.root / key).touch()

    @property
    def home(self) -> Store:
        """The ledger's store, uncounted."""
        return self.store or LocalStore(self.root)

    def ledger(self, store: Store) -> Ledger:
        """As a new task sees it."""
        return Ledger(store, "orders", self.keys)

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
        store = CountingStore(self.home)
        pipeline = replace(memory_pipeline(self.world, sinks=SINKS, keep_epochs=KEEP_EPOCHS), in_dag=self.in_dag)
        started = time.perf_counter()
        work(Coordinator(TaskTry(pipeline=pipeline, ledger=self.ledger(store), env=MemoryEnvironment())))
        store.seconds = time.perf_counter() - started
        return store


def _as_epoch(number: int, record: CompleteRecord) -> CompleteRecord:
    return replace(
        record,
        txn_id=_as_of(number, record.txn_id),
        markers={sink: _as_of(number, txn_id) for sink, txn_id in record.markers.items()},
        receipts={
            sink: replace(receipt, txn_id=_as_of(number, receipt.txn_id)) for sink, receipt in record.receipts.items()
        },
    )


def _as_of(epoch: int, txn: TransactionId) -> TransactionId:
    return TransactionId(txn.pipeline, epoch, txn.attempt, txn.nonce)


def total(tasks: dict[str, CountingStore]) -> int:
    return sum(len(store.calls) for store in tasks.values())
