"""Two pipelines, the second of which reads what the first writes: every record that goes in is a row at the end.

Spark is left out: what it would stage is read as the plan says.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from airflow_epochs import DeltaSink
from airflow_epochs.contracts import Sink, Source
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run
from airflow_epochs.testing import Crash
from tests.support.environment import Action, Environment
from tests.support.faults_disk import DiskSpark, FileSource
from tests.support.faults_world import airflow_run, crash, rows_in


class Chain(ABC):
    """Records in a file → what a subclass puts in between → a table."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.name = folder, uuid.uuid4().hex[:8]
        self.input = FileSource(folder=str(folder / "input"))
        self._runs = 0

    @property
    @abstractmethod
    def sink(self) -> Sink:
        """Where the first pipeline writes."""

    @property
    @abstractmethod
    def source(self) -> Source:
        """What the second pipeline reads: the same."""

    @abstractmethod
    def environment(self, at: dict[str, Action]) -> Environment:
        """That of both."""

    @abstractmethod
    def spark(self, reached: Callable[[str], None]) -> DiskSpark:
        """That of both."""

    def up(self, at: Mapping[str, Action] | None = None) -> list[str]:
        return self._run(f"up-{self.name}", self.input, self.sink, at)

    def down(self, at: Mapping[str, Action] | None = None) -> list[str]:
        return self._run(f"down-{self.name}", self.source, DeltaSink("rows", str(self.folder / "rows")), at)

    def _run(self, name: str, source: Source, sink: Sink, at: Mapping[str, Action] | None) -> list[str]:
        """An Airflow run of one of the two; the phases that it reached. It fails only where it is told to crash."""
        self._runs += 1
        env = self.environment(dict(at or {}))
        env.spark = self.spark(env.reached)
        pipeline = Pipeline(
            wait_for_others=0,
            name=name,
            dag_id="dag",
            source=source,
            sinks=(sink,),
            transform=Transform(path="disk.py", function="keep_all"),
        )
        coordinator = Coordinator(
            TaskTry(pipeline=pipeline, ledger=Ledger(LocalStore(self.folder / "ledger"), name), env=env)
        )
        if at:
            with pytest.raises(Crash):
                airflow_run(coordinator, Run("dag", f"run {self._runs}"))
        else:
            assert airflow_run(coordinator, Run("dag", f"run {self._runs}")) is None
        return list(dict.fromkeys(env.phases))

    def crash_everywhere(self, phases: Mapping[str, Iterable[str]], between: str) -> None:
        """Each pipeline crashes at each of its phases, and runs again: every record is there once.

        Args:
            phases: Those of ``up`` and of ``down``.
            between: What the phases begin with in which the first one writes.
        """
        for phase in phases["up"]:
            self.input.produce(3)
            self.up({phase: crash})
            if phase.startswith(between):
                self.down()  # takes whole epochs of the other, or nothing
            self.up()
        self.down()
        self.require_once()
        for phase in phases["down"]:
            self.input.produce(2)
            self.up()
            self.down({phase: crash})
            self.down()
        self.require_once()

    def require_once(self) -> None:
        """The table at the end has every record of the file once."""
        found = Counter(text for _, _, text in rows_in(self.folder / "rows", self.input.name))
        assert found == Counter(text for _, _, text in self.input.all_rows())
