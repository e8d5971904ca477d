"""SIGKILL at every named step (F1): the same run, cleared, or the next run finishes the epoch, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cells import fired
from tests.support.faults_history import finished
from tests.support.faults_process import TaskProcess, fail, kill
from tests.support.faults_steps import STEPS
from tests.support.faults_world import DiskWorld, phases_of

CLEARED, NEXT = 2, 3
AGAIN = ("delta.commit.after#1", "committed.audit", "complete.put", "complete.landed")


def test_the_steps_named_here_are_all_that_a_run_comes_by(world: DiskWorld) -> None:
    coordinator = world.coordinator()
    assert world.run(2, coordinator) is None
    phases = phases_of(coordinator)
    assert {name.partition("#")[0] for name in STEPS} | {"staging.orders", "staged.orders"} == set(phases)


@pytest.mark.few(18)
@pytest.mark.parametrize("successor", [CLEARED, NEXT], ids=["cleared", "next"])
@pytest.mark.parametrize("phase", STEPS)
def test_an_epoch_whose_run_is_killed_at_any_step_is_finished_once_by_the_cleared_or_by_the_next_run(
    world: DiskWorld, phase: str, successor: int
) -> None:
    with TaskProcess(world, 2, {phase: kill}) as task:
        task.wait_killed()
    left = world.left()
    assert world.run(successor) is None
    fired("F1", STEPS[phase], finished(world, left))


@pytest.mark.few(2)
@pytest.mark.parametrize("phase", ["stage.done", "decision.landed", "delta.commit.after#1", "committed.audit"])
def test_the_epoch_that_creates_the_tables_survives_a_kill_too(tmp_path: Path, phase: str) -> None:
    world = DiskWorld(tmp_path)
    world.produce(5)
    with TaskProcess(world, 1, {phase: kill}) as task:
        task.wait_killed()
    left = world.left()
    assert world.run(2) is None
    fired("F1", STEPS[phase], finished(world, left))


@pytest.mark.few(2)
@pytest.mark.parametrize("phase", AGAIN)
def test_a_recovery_that_is_killed_too_is_recovered(world: DiskWorld, phase: str) -> None:
    with TaskProcess(world, 2, {"decision.landed": kill}) as task:
        task.wait_killed()
    left = world.left()
    with TaskProcess(world, 3, {phase: kill}) as recovery:
        recovery.wait_killed()
    assert world.run(4) is None
    fired("F1", 15, finished(world, left))


@pytest.mark.parametrize("successor", [CLEARED, NEXT], ids=["cleared", "next"])
def test_an_abort_killed_before_its_record_is_written_again(world: DiskWorld, successor: int) -> None:
    with TaskProcess(world, 2, {"stage.done": fail, "abort.put": kill}) as task:
        task.wait_killed()
    left = world.left()
    assert world.run(successor) is None
    fired("F1", 14, finished(world, left))


def test_two_runs_in_a_row_killed_before_they_clear_away_leave_nothing_for_good(world: DiskWorld) -> None:
    for number in (2, 3):
        with TaskProcess(world, number, {"complete.landed": kill}) as task:
            task.wait_killed()
        world.produce(3)
    left = world.left()
    assert world.run(4) is None
    fired("F1", 13, finished(world, left))
