"""A ledger or a table that becomes read-only (F5, F11): the run is red and says so; nothing is half done."""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.cells import fired
from tests.support.faults_history import finished
from tests.support.faults_process import TaskProcess
from tests.support.faults_rights import allow, forbid_writing_to
from tests.support.faults_steps import STEPS
from tests.support.faults_world import DiskWorld


@pytest.mark.few(3)
@pytest.mark.parametrize("phase", ["open.put", "open.landed", "decision.put", "committed.orders", "complete.put"])
def test_a_ledger_that_becomes_read_only_stops_the_run_until_it_can_be_written_again(
    world: DiskWorld, phase: str
) -> None:
    with TaskProcess(world, 2, {phase: partial(forbid_writing_to, world.ledger_root)}) as task:
        ended = task.wait()
    assert ended.error == "OutcomeUnknown", ended
    assert "Permission denied" in ended.message
    left = world.left()
    allow(world.ledger_root)
    assert world.run(2) is None
    fired("F5", STEPS[phase], finished(world, left))


@pytest.mark.parametrize("phase", ["stage.done", "delta.commit.before#1"])
def test_a_table_that_becomes_read_only_stops_the_run_until_it_can_be_written_again(
    world: DiskWorld, phase: str
) -> None:
    with TaskProcess(world, 2, {phase: partial(forbid_writing_to, world.table("orders"))}) as task:
        ended = task.wait()
    assert ended.error == "Refused", ended
    assert "has no permission" in ended.message
    left = world.left()
    allow(world.table("orders"))
    assert world.run(2) is None
    fired("F11", STEPS[phase], finished(world, left))
