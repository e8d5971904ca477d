from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_epochs import DeltaSink
from airflow_epochs.errors import Refused
from airflow_epochs.model import Run
from airflow_epochs.testing import MemoryEnvironment, MemoryWorld, memory_coordinator, memory_pipeline
from tests.support.delta_world import rows, run_epoch, transaction
from tests.support.environment import Environment


def test_a_place_that_was_prepared_before_stage_failed_is_cleared_away(tmp_path: Path) -> None:
    good, bad = str(tmp_path / "good"), str(tmp_path / "bad")
    for table in (good, bad):  # by another pipeline, so that there is a version 0 to copy
        run_epoch(DeltaSink("other", table), transaction(1, pipeline="other"), None, rows(1), Environment())
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
