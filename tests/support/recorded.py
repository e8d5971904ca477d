"""The history of a world in memory: what the checkers need, seen at every effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from airflow_epochs.model import OffsetRange
from airflow_epochs.testing import MemoryWorld
from airflow_epochs.testing.history import (
    History,
    LedgerCopy,
    Observation,
    Origin,
    Rest,
    SinkState,
    VisibleRow,
    copy_of_ledger,
)
from airflow_epochs.testing.ledger_facts import newest_complete_of

PIPELINE = "orders"


def sink_states(world: MemoryWorld) -> dict[str, SinkState]:
    """What every sink of the pipeline shows now. Files that were deleted under a table show nothing."""
    states = {}
    for name, commits in world.tables.items():
        places = [world.places.get(commit.place) for commit in commits]
        rows = [row for place in places if place and place.files for row in place.rows]
        states[name] = SinkState(
            rows=[VisibleRow(row.topic, row.partition, row.offset, str(row.value)) for row in rows],
            commits=[commit.txn_id for commit in commits if commit.app == f"{PIPELINE}.{name}"],
        )
    return states


def produced(world: MemoryWorld, topic: str = "orders") -> dict[Origin, str]:
    parts = world.ends(topic).items()
    ranges = [OffsetRange(partition, world.start(topic, partition), end) for partition, end in parts]
    return {Origin(*row[:3]): str(row.value) for each in ranges for row in world.read(topic, each)}


def history_of(world: MemoryWorld, *, rest: Rest | None = None, **more: Any) -> History:
    """The history that a world in memory tells by itself: everything but what happened on the way."""
    states = sink_states(world)
    referenced = {commit.place for commits in world.tables.values() for commit in commits}
    places = {name for name, place in world.places.items() if place.files or name not in referenced}
    logs = {f"{name}/_log" for name, place in world.places.items() if name in referenced and place.log}
    more.setdefault("sinks", states)
    return History(
        pipeline=PIPELINE,
        ledger=copy_of_ledger(world.store, PIPELINE),
        produced=produced(world),
        rest=rest,
        places=places | logs,
        referenced=referenced,
        **more,
    )


@dataclass
class Recorder:
    """Sees a world after every effect: a concurrent reader, and a copy of the ledger each time."""

    world: MemoryWorld
    copies: list[LedgerCopy] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)

    def __call__(self, moment: str) -> None:
        if not moment.startswith("after ") or "/probe/" in moment:
            return
        copy = copy_of_ledger(self.world.store, PIPELINE)
        self.copies.append(copy)
        seen = Observation(complete=newest_complete_of(copy), sinks=sink_states(self.world), ledger=copy)
        self.observations.append(seen)

    @contextmanager
    def watching(self) -> Iterator[Recorder]:
        self.world.observe(self)
        try:
            yield self
        finally:
            self.world.observe(lambda moment: None)

    def history(self, *, rest: Rest | None = None, **more: Any) -> History:
        return history_of(
            self.world, rest=rest, copies=tuple(self.copies), observations=tuple(self.observations), **more
        )
