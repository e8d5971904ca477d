"""SIGSTOP at every named step (F4): woken after others have gone on, the old process changes nothing."""

from __future__ import annotations

import pytest

from airflow_epochs.testing.history import Repeat
from tests.support.cells import fired
from tests.support.faults_history import require_exactly_once
from tests.support.faults_process import TaskProcess, fail, stop
from tests.support.faults_steps import STEPS
from tests.support.faults_successors import woken_after_a_successor
from tests.support.faults_world import DiskWorld

CLEARED, NEXT = 2, 3


@pytest.mark.parametrize("phase", STEPS)
def test_a_process_woken_after_its_successors_changes_nothing(world: DiskWorld, phase: str) -> None:
    fired("F4", STEPS[phase], woken_after_a_successor(world, phase, run=2, successor=NEXT))


@pytest.mark.parametrize("phase", ["open.put", "stage.start", "stage.done", "decision.put", "delta.commit.before#1"])
def test_a_process_woken_after_its_own_run_was_cleared_changes_nothing(world: DiskWorld, phase: str) -> None:
    fired("F4", STEPS[phase], woken_after_a_successor(world, phase, run=2, successor=CLEARED))


def test_a_process_woken_before_it_writes_global_abort_obeys_the_decision_of_its_successor(world: DiskWorld) -> None:
    with TaskProcess(world, 2, {"stage.done": fail, "abort.put": stop}) as zombie:
        zombie.wait_stopped()
        assert world.run(NEXT) is None
        world.one_more_epoch()
        before = world.snapshot()
        assert zombie.wake().error == "OSError"
    woken = Repeat(what="woken at abort.put", before=before, after=world.snapshot())
    require_exactly_once(world, zombies=[woken])
    fired("F4", 14, "=")
