"""A task process is killed or stopped at a step, others go on, and what came of it is judged."""

from __future__ import annotations

from collections.abc import Callable

from airflow_epochs.testing.history import Repeat
from tests.support.cells import Outcome
from tests.support.environment import Action
from tests.support.faults_history import finished, require_exactly_once
from tests.support.faults_process import TaskProcess, kill, stop
from tests.support.faults_world import DiskWorld

HARMLESS = {None, "Fenced"}
"""How a process that was overtaken may end: told so, or content that its work is done."""


def finished_after_a_kill(world: DiskWorld, phase: str, then: Action | None = None) -> Outcome:
    """Run 3 recovers an epoch and is killed at a step, ``then`` happens, and run 4 finishes it once."""
    left = world.left()
    with TaskProcess(world, 3, {phase: kill}) as task:
        task.wait_killed()
    if then:
        then()
    error = world.run(4)
    assert error is None, error
    return finished(world, left)


def woken_after_a_successor(
    world: DiskWorld,
    phase: str,
    *,
    run: int,
    successor: int,
    look: Callable[[DiskWorld], dict[str, str]] = DiskWorld.snapshot,
) -> Outcome:
    """A run stops at a step, its successor and one more epoch go by, and it wakes: it changes nothing that is seen.

    ``look``: the files that must stay as they are.
    """
    with TaskProcess(world, run, {phase: stop}) as zombie:
        zombie.wait_stopped()
        error = world.run(successor)
        assert error is None, error
        world.one_more_epoch()
        before = look(world)
        ended = zombie.wake()
    assert ended.error in HARMLESS, ended
    woken = Repeat(what=f"woken at {phase}", before=before, after=look(world))
    require_exactly_once(world, zombies=[woken])
    return "=" if ended.error is None else "X"


def without_tries(world: DiskWorld) -> dict[str, str]:
    """A late process may still note its try; everything else of ledger and tables must stay."""
    return {path: digest for path, digest in world.snapshot().items() if ".try." not in path}
