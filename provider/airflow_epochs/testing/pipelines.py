"""Short ways to make a pipeline over a ``MemoryWorld``, and to run a whole epoch."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_epochs.contracts import Limits
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import Store
from airflow_epochs.model import Checkpoint, Run
from airflow_epochs.testing.environment import MemoryEnvironment
from airflow_epochs.testing.sinks import MemorySink
from airflow_epochs.testing.sources import MemorySource
from airflow_epochs.testing.stores import DictStore
from airflow_epochs.testing.world import MemoryWorld


def memory_ledger(pipeline: str = "orders", store: Store | None = None) -> Ledger:
    """A ledger in memory, or on another store."""
    return Ledger(store or DictStore(), pipeline)


def memory_pipeline(
    world: MemoryWorld,
    sinks: Iterable[str] = ("orders",),
    *,
    name: str = "orders",
    dag_id: str = "dag",
    topics: tuple[str, ...] = ("orders",),
    keep_epochs: int = 1000,
    wait_for_others: float = 0,
) -> Pipeline:
    """A pipeline from topics of the world to tables that are named like the sinks."""
    return Pipeline(
        name=name,
        dag_id=dag_id,
        source=MemorySource(world=world.name, topics=topics),
        sinks=tuple(MemorySink(name=sink, world=world.name) for sink in sinks),
        transform=Transform(path="memory.py", function="keep_all"),
        keep_epochs=keep_epochs,
        wait_for_others=wait_for_others,
    )


def memory_coordinator(
    world: MemoryWorld, pipeline: Pipeline, *, env: MemoryEnvironment | None = None, store: Store | None = None
) -> Coordinator:
    """A coordinator as a task's process makes it: nothing in it outlives the task."""
    return Coordinator(
        TaskTry(
            pipeline=pipeline,
            ledger=memory_ledger(pipeline.name, store or world.store),
            env=env or MemoryEnvironment(),
        )
    )


def run_epoch(coordinator: Coordinator, run: Run, limits: Limits | None = None) -> Checkpoint:
    """Run all tasks of an Airflow run in order, except ``abort``. Raises what the first failing task raises."""
    coordinator.open(run, limits)
    report = coordinator.stage(run).stage
    coordinator.vote(run, report)
    for sink in coordinator.task.pipeline.sinks:
        coordinator.commit(run, sink.name)
    return coordinator.complete(run)
