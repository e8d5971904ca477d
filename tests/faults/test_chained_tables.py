"""Two pipelines, chained through a table that is the sink of one and the source of the other, crash at every phase."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from airflow_epochs import DeltaSink, DeltaSource
from airflow_epochs.contracts import Sink, Source
from tests.support.chained import Chain
from tests.support.environment import Action, Environment
from tests.support.faults_disk import DiskSpark, TableSpark


class TableChain(Chain):
    """With a table in between."""

    @property
    def table(self) -> str:
        return str(self.folder / "table")

    @property
    def sink(self) -> Sink:
        return DeltaSink("events", self.table, compact_every=3)

    @property
    def source(self) -> Source:
        return DeltaSource(self.table, max_wait=0)

    def environment(self, at: dict[str, Action]) -> Environment:
        return Environment(at=at)

    def spark(self, reached: Callable[[str], None]) -> DiskSpark:
        return TableSpark(reached)


def test_a_record_is_once_at_the_far_end_of_two_pipelines_wherever_either_crashes(tmp_path: Path) -> None:
    chain = TableChain(tmp_path)
    phases: dict[str, list[str]] = {}
    for _ in range(2):  # the first epoch has phases that do not come again
        chain.input.produce(4)
        phases = {"up": chain.up(), "down": chain.down()}
    assert {"delta.commit.after", "complete.put", "stage.done"} < {*phases["up"]} & {*phases["down"]}
    chain.crash_everywhere(phases, "delta.")
