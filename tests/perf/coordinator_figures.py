"""The protocol's own cost: open + vote + complete, with a ledger on the local disk and all else in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run
from airflow_epochs.testing import MemoryWorld, memory_coordinator, memory_pipeline
from tests.perf.figures import Figure, figure, stopwatch

EPOCHS = 25


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        world = MemoryWorld()
        pipeline = memory_pipeline(world, sinks=("orders", "rejected"))
        process = partial(memory_coordinator, world, pipeline, store=LocalStore(Path(folder)))
        samples = [_epoch(world, process, number) for number in range(EPOCHS)]
    return [figure("coordinator: open + vote + complete", "ms", samples[5:], most=60, note="2 sinks, local ledger")]


def _epoch(world: MemoryWorld, process: Callable[[], Coordinator], number: int) -> float:
    """Each task in a process of its own, which remembers nothing of the others."""
    run = Run("bench", f"run {number}")
    world.produce("orders", 0, ["row"])
    with stopwatch() as opening:
        process().open(run)
    report = process().stage(run).stage
    with stopwatch() as voting:
        process().vote(run, report)
    for sink in ("orders", "rejected"):
        process().commit(run, sink)
    with stopwatch() as completing:
        process().complete(run)
    return 1e3 * (opening() + voting() + completing())
