from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_epochs import DeltaSink
from airflow_epochs.contracts import Environment, SinkAttempt
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict, Run
from airflow_epochs.testing import MemoryEnvironment, MemorySink, MemoryWorld, memory_coordinator, memory_pipeline
from tests.support.delta_world import rows, run_epoch, transaction
from tests.support.environment import connected


def test_a_place_that_was_prepared_before_stage_failed_is_cleared_away(tmp_path: Path) -> None:
    good, bad = str(tmp_path / "good"), str(tmp_path / "bad")
    for table in (good, bad):  # by another pipeline, so that there is a version 0 to copy
        run_epoch(DeltaSink("other", table), transaction(1, pipeline="other"), None, rows(1), connected())
    world = MemoryWorld()
    world.produce("orders", 0, ["row"])
    sinks = (DeltaSink("a", good), DeltaSink("b", bad, partition_by=["id"]))
    coordinator = memory_coordinator(world, replace(memory_pipeline(world), sinks=sinks), env=MemoryEnvironment())
    run = Run("dag", "r1")
    coordinator.open(run)
    with pytest.raises(Refused, match="partitioned by"):
        coordinator.stage(run)
    prepared = list(Path(good, "epochs").glob("*.a/*/_delta_log/*.json"))
    assert len(prepared) == 1, "sink a was prepared before sink b refused"
    coordinator.abort(run, "stage failed")
    assert not list(Path(good, "epochs").glob("*.a/*/_delta_log/*.json"))


def test_a_sink_that_can_plan_from_its_place_is_not_asked_for_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[str] = []
    plan_stage = MemorySink.plan_stage

    def plan_stage_at(sink: MemorySink, attempt: SinkAttempt, place: str, env: Environment) -> JsonDict:
        planned.append(place)
        return plan_stage(sink, attempt, place.rpartition("-")[2], env)

    monkeypatch.setattr(MemorySink, "plan_stage_at", plan_stage_at, raising=False)
    monkeypatch.setattr(MemorySink, "plan_stage", lambda *_: pytest.fail("its place is made again"))
    world = MemoryWorld()
    world.produce("orders", 0, ["row"])
    coordinator, run = memory_coordinator(world, memory_pipeline(world)), Run("dag", "r1")
    coordinator.open(run)
    coordinator.stage(run)
    (tried,) = coordinator.task.ledger.tries(1)
    assert planned == list(tried.places.values())
