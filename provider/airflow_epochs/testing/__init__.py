"""In-memory doubles of everything around the coordinator, for our own tests and for yours.

A ``MemoryWorld`` holds what outlives a process: the ledger's store, the topics, the tables and the staging
places. Everything else is a view of it, made and thrown away like a task process::

    world = MemoryWorld()
    world.produce("orders", 0, ["a", "b", "c"])
    pipeline = memory_pipeline(world, sinks=("orders", "audit"))
    run = Run("dag", "run 1")
    coordinator = memory_coordinator(world, pipeline)
    run_epoch(coordinator, run)
    assert world.table("orders").values() == ["a", "b", "c"]

Faults: ``world.observer`` sees every effect before and after it happens, and ``MemoryEnvironment.observer``
every named phase; either may raise ``Crash`` or do something else meanwhile. ``FaultyStore`` loses
acknowledgements, refuses, or is unreachable; ``OverwritingStore`` ignores "if absent".

Proof: ``check(History(...))`` says of any run, also of one on real servers, whether exactly once held; see
``checkers`` for the invariants and ``history`` for what to fill in.

A sink of your own: ``testing.conformance`` has the tests that every sink must pass (it needs pytest).
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
]
