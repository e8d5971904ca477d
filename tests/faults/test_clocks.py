"""Clocks that jump between tries (F12): they fill fields, and decide nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.cells import fired
from tests.support.faults_history import finished, require_exactly_once
from tests.support.faults_process import TaskProcess, kill, stop
from tests.support.faults_steps import STEPS
from tests.support.faults_world import DiskWorld

HOUR_S = 3600.0


@pytest.mark.few(5)
@pytest.mark.parametrize("jump_s", [-HOUR_S, HOUR_S], ids=["back", "forward"])
@pytest.mark.parametrize("phase", ["open.landed", "stage.done", "decision.landed", "committed.orders", "complete.put"])
def test_a_clock_that_jumps_between_two_tries_changes_no_outcome(world: DiskWorld, phase: str, jump_s: float) -> None:
    with TaskProcess(world, 2, {phase: kill}) as task:
        task.wait_killed()
    left = world.left()
    assert replace(world, clock_skew_s=jump_s).run(3) is None
    assert world.fate_of(left.txn) == ("A" if phase in ("open.landed", "stage.done") else "C")
    fired("F12", STEPS[phase], finished(world, left))


def test_a_late_process_whose_clock_is_an_hour_ahead_changes_nothing_all_the_same(world: DiskWorld) -> None:
    with TaskProcess(replace(world, clock_skew_s=HOUR_S), 2, {"decision.put": stop}) as zombie:
        zombie.wait_stopped()
        left = world.left()
        assert world.run(3) is None
        before = world.snapshot()
        assert zombie.wake().error is None, "it passes on what the other run has completed"
        assert world.snapshot() == before
    finished(world, left)
    require_exactly_once(world)
    fired("F12", STEPS["decision.put"], "=")
