"""What a dead try still had under way arrives late (F7), and late processes meet pruned records and logs (F4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_epochs.testing import Crash
from airflow_epochs.testing.history import Repeat
from tests.support.cells import fired
from tests.support.environment import Environment
from tests.support.faults_disk import stage_sink
from tests.support.faults_history import finished
from tests.support.faults_process import TaskProcess, stop
from tests.support.faults_steps import STEPS
from tests.support.faults_world import DiskWorld, crash, start


@pytest.mark.parametrize("finished_first", [False, True], ids=["before the next run", "after the next run"])
@pytest.mark.parametrize("successor", [2, 3], ids=["cleared", "next"])
def test_rows_that_spark_stages_after_its_client_was_killed_are_never_shown_and_swept(
    world: DiskWorld, successor: int, finished_first: bool
) -> None:
    coordinator = world.coordinator({"staging.audit": crash})
    with pytest.raises(Crash):
        world.run(2, coordinator)
    left = world.left()
    assert isinstance(coordinator.task.env, Environment)
    (plan,) = coordinator.task.env.spark.staged
    if finished_first:
        assert world.run(successor) is None
    stage_sink(plan, "audit")
    assert Path(plan.sinks["audit"]["place"], "_delta_log").exists()
    if not finished_first:
        assert world.run(successor) is None
    fired("F7", STEPS["staging.audit"], finished(world, left))


def pruning(folder: Path) -> DiskWorld:
    """Keeps as little of the past as can be: the records of one epoch, the log entries since the last checkpoint."""
    options = {"checkpoint_every": 1, "properties": {"delta.logRetentionDuration": "interval 0 seconds"}}
    return start(DiskWorld(folder, keep_epochs=1, sink_options=options))


@pytest.mark.few(1)
@pytest.mark.parametrize("phase", ["open.put", "stage.start", "stage.done", "decision.put", "committed.orders"])
def test_a_process_woken_after_its_epoch_was_pruned_shows_nothing_and_opens_nothing(tmp_path: Path, phase: str) -> None:
    world = pruning(tmp_path)
    with TaskProcess(world, 2, {phase: stop}) as zombie:
        zombie.wait_stopped()
        for number in range(3, 8):
            assert world.run(number) is None
            world.produce(3)
        assert world.run(8) is None
        assert not list(world.records.glob(f"epochs/{2:020}/*.open.json")), "not pruned"
        before = world.snapshot_of_tables()
        ended = zombie.wake()
    assert ended.error in {None, "Fenced"}, ended
    woken = Repeat(what=f"woken at {phase}", before=before, after=world.snapshot_of_tables())
    # Its tries are no longer on record, so what it stages now is left for VACUUM.
    assert [path for path in woken.changed if "/2-1-" not in path] == []
    newest = world.ledger.newest_complete()
    assert world.run(9) is None
    assert world.ledger.newest_complete() == newest
    assert [world.rows(sink) for sink in world.sinks] == [world.source.all_rows()] * 2
    fired("F4", STEPS[phase], "=" if ended.error is None else "X")
