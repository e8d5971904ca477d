"""Disk full (F8): at any step, on the ledger's disk or a table's; with room again, the epoch is finished once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cells import fired
from tests.support.faults_history import finished
from tests.support.faults_process import TaskProcess
from tests.support.faults_space import forbid_writing, free, small_disk
from tests.support.faults_steps import STEPS
from tests.support.faults_world import DiskWorld, start

UNTROUBLED = ("complete.landed",)
"""Here everything that counts is written."""


def half_written(world: DiskWorld) -> set[str]:
    """Temporary files left in the ledger."""
    return {str(path) for path in world.records.rglob("*.tmp")}


@pytest.mark.parametrize("phase", STEPS)
def test_a_run_that_can_write_nothing_from_some_step_on_is_red_and_goes_on_with_room_again(
    world: DiskWorld, phase: str
) -> None:
    with TaskProcess(world, 2, {phase: forbid_writing}) as task:
        ended = task.wait()
    assert (ended.error is None) == (phase in UNTROUBLED), ended
    left = world.left()
    assert half_written(world) == set()
    assert world.run(2) is None
    fired("F8", STEPS[phase], finished(world, left))


@pytest.mark.few(3)
@pytest.mark.parametrize("phase", ["open.put", "open.landed", "decision.put", "committed.orders", "complete.put"])
def test_an_epoch_stopped_by_a_full_ledger_is_finished_with_room_again(tmp_path: Path, phase: str) -> None:
    assert_survives(tmp_path, tmp_path / "ledger", phase)


@pytest.mark.few(2)
@pytest.mark.parametrize("phase", ["open.landed", "staging.orders", "stage.done", "delta.commit.before#1"])
def test_an_epoch_stopped_by_a_full_table_is_finished_with_room_again(tmp_path: Path, phase: str) -> None:
    assert_survives(tmp_path, tmp_path / "orders", phase)


def assert_survives(folder: Path, disk: Path, phase: str) -> None:
    world = DiskWorld(folder)
    with small_disk(disk) as fill:
        start(world)
        with TaskProcess(world, 2, {phase: fill}) as task:
            ended = task.wait()
        assert "No space left" in ended.message or "File too large" in ended.message, ended
        assert (
            disk != world.ledger_root
            or "No space left" not in ended.message
            or "Free space on the ledger's disk" in ended.message
        )
        left = world.left()
        assert half_written(world) == set()
        free(disk)
        assert world.run(2) is None
        fired("F8", STEPS.get(phase, 3), finished(world, left))
