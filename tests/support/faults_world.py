"""A pipeline on real storage, and what must hold of its ledger and its tables whatever happened to it.

One ``DiskWorld`` is all that outlives a process. Its coordinators are thrown away like task processes; those that
are to be killed or stopped run in a process of their own (``faults_process``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_epochs.contracts import Connection, SparkRunner
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import EpochError, NoNewData
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.signing import Keys
from airflow_epochs.ledger.store import LocalStore, Store
from airflow_epochs.model import OpenRecord, Run, TransactionId
from airflow_epochs.operators import definitions
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.testing import Crash, run_epoch
from airflow_epochs.testing.history import LedgerCopy, copy_of_ledger
from tests.support.cells import Outcome
from tests.support.environment import Action, Environment
from tests.support.faults_disk import DiskSpark, FileSource, Row, StartingSource

SINKS = ("orders", "audit")


def on_disk(
    at: Mapping[str, Action] | None = None,
    connections: Mapping[str, Connection] | None = None,
    spark: SparkRunner | None = None,
) -> Environment:
    """With a Spark that only stages; ``spark`` does what else it is asked for."""
    env = Environment(dict(connections or {}), dict(at or {}))
    env.spark = DiskSpark(env.reached, spark)
    return env


@dataclass(frozen=True)
class Left:
    """What a process left behind: its attempt, if it had opened one, and a copy of the ledger."""

    txn: TransactionId | None
    copy: LedgerCopy


@dataclass(frozen=True)
class DiskWorld:
    """One pipeline's input, tables and ledger below ``folder``; picklable, so that another process can act in it."""

    folder: Path
    name: str = "orders"
    dag_id: str = "dag"
    ledger_folder: Path | None = None
    sinks: tuple[str, ...] = SINKS
    sink_options: Mapping[str, Any] = field(default_factory=dict)
    clock_skew_s: float = 0.0
    keep_epochs: int = 1000
    backfill: Mapping[str, int] = field(default_factory=dict)
    password: str = ""
    """Of the ledger's connection: the keys that records are signed with."""
    code: str | None = None
    """The digest of the DAG's transform."""
    function: str = "keep_all"
    on_code_change: str = "warn"
    tables: Mapping[str, str] = field(default_factory=dict)
    """Where a sink's table has another name than the sink."""
    input: str | None = None
    """The name of the pipeline whose input it reads, where that is another one."""
    starting: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    in_dag: frozenset[str] | None = None
    """The names of all pipelines in the DAG; None: not known."""

    # -- acting ---------------------------------------------------------------------------------------------------

    @property
    def source(self) -> FileSource:
        return StartingSource(folder=str(self.folder / f"input-{self.input or self.name}"), starting=self.starting)

    def produce(self, records: int) -> None:
        self.source.produce(records)

    @property
    def ledger_root(self) -> Path:
        return self.ledger_folder or self.folder / "ledger"

    @property
    def records(self) -> Path:
        """Where the pipeline's ledger records lie."""
        return self.ledger_root / self.name

    @property
    def ledger(self) -> Ledger:
        return self._ledger(LocalStore(self.ledger_root))

    def _ledger(self, store: Store) -> Ledger:
        return Ledger(store, self.name, Keys.parse(self.password))

    def table(self, sink: str) -> Path:
        return self.folder / self.tables.get(sink, sink)

    def coordinator(
        self, at: Mapping[str, Action] | None = None, store: Store | None = None, spark: SparkRunner | None = None
    ) -> Coordinator:
        """What one task process makes."""
        return Coordinator(
            TaskTry(
                pipeline=Pipeline(
                    wait_for_others=0,
                    name=self.name,
                    dag_id=self.dag_id,
                    source=self.source,
                    sinks=tuple(DeltaSink(sink, str(self.table(sink)), **self.sink_options) for sink in self.sinks),
                    transform=Transform(path="disk.py", function=self.function, digest=self.code),
                    on_code_change=self.on_code_change,
                    keep_epochs=self.keep_epochs,
                    backfill=self.backfill,
                    in_dag=self.in_dag,
                ),
                ledger=self._ledger(store or LocalStore(self.ledger_root)),
                env=on_disk(at, spark=spark),
                clock=self._clock,
            )
        )

    def _clock(self) -> datetime:
        return datetime.fromtimestamp(datetime.now(timezone.utc).timestamp() + self.clock_skew_s, timezone.utc)

    def run(self, number: int, coordinator: Coordinator | None = None) -> Exception | None:
        """An Airflow run, or one that was cleared as a whole; the error that made it red, if any."""
        return airflow_run(coordinator or self.coordinator(), self.run_of(number))

    def crash_at(self, phase: str, number: int = 2, at: Mapping[str, Action] | None = None) -> Left:
        """A run that ends at a phase without one more effect; what it leaves."""
        with pytest.raises(Crash):
            self.run(number, self.coordinator({phase: crash, **(at or {})}))
        return self.left()

    def run_of(self, number: int) -> Run:
        return Run(self.dag_id, f"run {number}")

    def one_more_epoch(self, number: int = 90) -> None:
        """New input, and a run that must take it: whatever was left behind is swept with it."""
        self.produce(2)
        error = self.run(number)
        assert error is None, error

    # -- looking --------------------------------------------------------------------------------------------------

    def rows(self, sink: str) -> list[Row]:
        """What a reader of the table sees of this pipeline's rows."""
        return rows_in(self.table(sink), self.source.name)

    def left(self, epoch: int | None = None) -> Left:
        """What a process that ended now leaves behind; of the epoch after the newest complete one if none is named."""
        opened = self._newest_attempt(epoch or self.ledger.newest_complete() + 1)
        return Left(opened.txn_id if opened else None, copy_of_ledger(LocalStore(self.ledger_root), self.name))

    def _newest_attempt(self, epoch: int) -> OpenRecord | None:
        newest, attempt = None, 1
        while opened := self.ledger.open_record(epoch, attempt):
            newest, attempt = opened, attempt + 1
        return newest

    def fate_of(self, txn: TransactionId | None) -> Outcome:
        """What came of an attempt, now that everything is complete."""
        if txn is None:
            return "="
        record = self.ledger.complete_record(txn.epoch)
        return "C" if record and record.txn_id == txn else "A"

    def snapshot(self) -> dict[str, str]:
        """Every file of ledger and tables, by the digest of its bytes."""
        return {**_digests(self.records), **self.snapshot_of_tables()}

    def snapshot_of_tables(self) -> dict[str, str]:
        """Every file of the tables, staging places included."""
        return {path: digest for sink in self.sinks for path, digest in _digests(self.table(sink)).items()}


def start(world: DiskWorld) -> DiskWorld:
    """The first epoch, complete, and input for the next one."""
    world.produce(4)
    assert world.run(1) is None
    world.produce(5)
    return world


def airflow_run(coordinator: Coordinator, run: Run) -> Exception | None:
    """All tasks in order; ``abort`` after a failure. NoNewData is a skip: the run is green."""
    try:
        run_epoch(coordinator, run)
    except NoNewData:
        return None
    except Exception as error:  # Airflow calls a task red whatever it raised
        abort(coordinator, run)
        return error
    return None


def crash() -> None:
    """The process of the test itself ends a task here, without one more effect."""
    raise Crash


def phases_of(coordinator: Coordinator) -> list[str]:
    """What a coordinator of a world on disk came by."""
    env = coordinator.task.env
    assert isinstance(env, Environment)
    return env.phases


def abort(coordinator: Coordinator, run: Run) -> None:
    """The task ``abort``: skipped or red, and nothing follows it."""
    try:
        coordinator.abort(run, "a task failed")
    except EpochError:
        return


def rows_in(table: Path, source: str) -> list[Row]:
    """The rows of one source, sorted; none if there is no table."""
    if not (table / "_delta_log").exists():
        return []
    columns = DeltaTable(str(table)).to_pyarrow_table().to_pydict()
    found = zip(columns["source"], columns["partition"], columns["offset"], columns["payload"], strict=True)
    return sorted((partition, offset, text) for name, partition, offset, text in found if name == source)


def versions(tables: Iterable[Path]) -> list[int]:
    return [DeltaTable(str(table)).version() for table in tables]


def _digests(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def found_by_commands(world: DiskWorld, monkeypatch: pytest.MonkeyPatch) -> TaskTry:
    """The task of the pipeline that a command finds in the DAGs."""
    task = world.coordinator().task
    monkeypatch.setattr(definitions, "find", lambda *_, **__: SimpleNamespace(task=lambda: task))
    return task


def begin(world: DiskWorld, number: int = 2) -> Callable[[], None]:
    """A run up to the vote; what the rest of it does."""
    task, run = world.coordinator(), world.run_of(number)
    task.open(run)
    report = task.stage(run).stage

    def go_on() -> None:
        task.vote(run, report)
        for sink in world.sinks:
            task.commit(run, sink)
        task.complete(run)

    return go_on
