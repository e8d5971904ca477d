"""SIGKILL at no particular step (F1): between two named steps, in the middle of a write, while places are swept."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.support.cells import fired
from tests.support.delta_world import log_of
from tests.support.faults_history import LAST, observe, require_exactly_once
from tests.support.faults_process import TaskProcess
from tests.support.faults_world import DiskWorld, start

RUNS = 16
UPKEEP = {"compact_every": 1, "checkpoint_every": 2}


# Its moments are parts of a run's time on this machine, so it takes as long as the machine is slow.
@pytest.mark.timeout(300)
@pytest.mark.few(1)
@pytest.mark.parametrize("seed", [1, 2])
def test_runs_killed_at_random_moments_and_followed_by_others_show_every_row_once(tmp_path: Path, seed: int) -> None:
    chance, world = random.Random(seed), start(DiskWorld(tmp_path, sink_options=UPKEEP))
    run_s = seconds_of_a_run(world, 2)
    observations, left = [observe(world)], set()
    for number in range(3, 3 + RUNS):
        world.produce(chance.randrange(3))
        for _ in range(chance.randrange(1, 3)):
            with TaskProcess(world, number) as task:
                if task.kill_after(chance.uniform(0, 1.3 * run_s)):
                    left.add(world.left().txn)
            observations.append(observe(world))
        if number % 2:  # however slow the machine has become, some epochs are completed, and tables compacted
            run_undisturbed(world, number)
            observations.append(observe(world))
    assert left and optimized(world)
    assert world.run(LAST - 1) is None
    world.one_more_epoch(LAST)
    require_exactly_once(world, observations=observations, copies=[seen.ledger for seen in observations])
    for outcome in sorted({world.fate_of(txn) for txn in left}):
        fired("F1", 15, outcome)


def seconds_of_a_run(world: DiskWorld, number: int) -> float:
    """What a run takes on this machine today, with the start of its process."""
    begun = time.monotonic()
    run_undisturbed(world, number)
    return time.monotonic() - begun


def run_undisturbed(world: DiskWorld, number: int) -> None:
    with TaskProcess(world, number) as task:
        assert not task.kill_after(60)


def optimized(world: DiskWorld) -> int:
    """How often a table was compacted on the way."""
    entries = [action for sink in world.sinks for entry in log_of(world.table(sink)) for action in entry]
    return sum(action.get("commitInfo", {}).get("operation") == "OPTIMIZE" for action in entries)
