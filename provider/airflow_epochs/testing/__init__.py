"""In-memory doubles of everything around the coordinator, for this project's tests and for yours.

A ``MemoryWorld`` holds what outlives a process: the ledger's store, the topics, the tables and the staging places. All
other objects are views of it, which you make and throw away like a task's process::

    world = MemoryWorld()
    world.produce("orders", 0, ["a", "b", "c"])
    pipeline = memory_pipeline(world, sinks=("orders", "audit"))
    run = Run("dag", "run 1")
    coordinator = memory_coordinator(world, pipeline)
    run_epoch(coordinator, run)
    assert world.table("orders").values() == ["a", "b", "c"]

Faults: ``world.observer`` is called before and after every effect, ``MemoryEnvironment.observer`` at every named
phase. Either may raise ``Crash``, or do something else meanwhile. ``FaultyStore`` loses acknowledgements, refuses
calls, or is unreachable. ``OverwritingStore`` ignores "if absent".

Proof: ``check(History(...))`` tells whether any run, also one on real servers, was exactly once. ``checkers`` lists the
invariants, ``history`` explains what to fill in.

A transform: ``run_transform("file.py:function", records=[…])`` runs it on Spark in the test's process.

A sink of your own: ``testing.conformance`` has the tests that every sink must pass. It needs pytest.
"""

from __future__ import annotations

from airflow_epochs.testing.checkers import Report, Result, Verdict, Violation, check
from airflow_epochs.testing.environment import Crash, MemoryEnvironment, MemorySpark, Observed
from airflow_epochs.testing.history import (
    Act,
    Event,
    History,
    Observation,
    Origin,
    Repeat,
    Rest,
    SinkState,
    VisibleRow,
    copy_of_ledger,
)
from airflow_epochs.testing.pipelines import memory_coordinator, memory_ledger, memory_pipeline, run_epoch
from airflow_epochs.testing.sinks import MemorySink
from airflow_epochs.testing.sources import MemorySource
from airflow_epochs.testing.stores import DictStore, Fault, FaultyStore, OverwritingStore
from airflow_epochs.testing.transforms import Record, run_transform
from airflow_epochs.testing.world import MemoryWorld, Place, Row, Table

__all__ = [
    "Act",
    "Crash",
    "DictStore",
    "Event",
    "Fault",
    "FaultyStore",
    "History",
    "MemoryEnvironment",
    "MemorySink",
    "MemorySource",
    "MemorySpark",
    "MemoryWorld",
    "Observation",
    "Observed",
    "Origin",
    "OverwritingStore",
    "Place",
    "Record",
    "Repeat",
    "Report",
    "Rest",
    "Result",
    "Row",
    "SinkState",
    "Table",
    "Verdict",
    "Violation",
    "VisibleRow",
    "check",
    "copy_of_ledger",
    "memory_coordinator",
    "memory_ledger",
    "memory_pipeline",
    "run_epoch",
    "run_transform",
]
