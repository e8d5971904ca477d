from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import ClassVar

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
    # By another pipeline, so that there is a version 0 to copy.
    run_epoch(DeltaSink("other", good), transaction(1, pipeline="other"), None, rows(1), connected())
    world = MemoryWorld()
    world.produce("orders", 0, ["row"])
    sinks = (DeltaSink("a", good), DeltaSink("b", bad, partition_by=["id"]))
    coordinator = memory_coordinator(world, replace(memory_pipeline(world), sinks=sinks), env=MemoryEnvironment())
    run = Run("dag", "r1")
    coordinator.open(run)
    run_epoch(DeltaSink("other", bad), transaction(1, pipeline="other"), None, rows(1), connected())
    with pytest.raises(Refused, match="partitioned by"):
        coordinator.stage(run)
    prepared = list(Path(good, "epochs").glob("*.a/*/_delta_log/*.json"))
    assert len(prepared) == 1, "sink a was prepared before sink b refused"
    coordinator.abort(run, "stage failed")
    assert not list(Path(good, "epochs").glob("*.a/*/_delta_log/*.json"))


class PlansFromItsPlace(MemorySink):
    """A class of its own: whether ``MemorySink`` has a method, Python finds out once and remembers."""

    planned: ClassVar[list[str]] = []

    def spec(self) -> JsonDict:
        return {**super().spec(), "kind": f"{__name__}:PlansFromItsPlace"}

    @classmethod
    def from_spec(cls, spec: JsonDict) -> PlansFromItsPlace:
        return cls(name=spec["name"], world=spec["world"], table=spec["table"])

    def plan_stage(self, attempt: SinkAttempt, try_id: str, env: Environment) -> JsonDict:
        raise AssertionError("its place is made again")

    def plan_stage_at(self, attempt: SinkAttempt, place: str, env: Environment) -> JsonDict:
        self.planned.append(place)
        return super().plan_stage(attempt, place.rpartition("-")[2], env)


def test_a_sink_that_can_plan_from_its_place_is_not_asked_for_it_again() -> None:
    world = MemoryWorld()
    world.produce("orders", 0, ["row"])
    pipeline = replace(memory_pipeline(world), sinks=(PlansFromItsPlace(name="orders", world=world.name),))
    coordinator, run = memory_coordinator(world, pipeline), Run("dag", "r1")
    coordinator.open(run)
    coordinator.stage(run)
    (tried,) = coordinator.task.ledger.tries(1)
    assert PlansFromItsPlace.planned == list(tried.places.values())
