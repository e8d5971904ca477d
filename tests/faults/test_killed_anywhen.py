"""SIGKILL at no particular step (F1): between two named steps, in the middle of a write, while places are swept."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from cells import fired
from delta_world import log_of
from faults_history import LAST, observe, require_exactly_once
from faults_process import TaskProcess
from faults_world import DiskWorld, start

RUNS = 16
UPKEEP = {"compact_every": 1, "checkpoint_every": 2}
RUN_S = 0.4
"""About what a run takes in a process of its own, with its start."""


@pytest.mark.parametrize("seed", [1, 2])
def test_runs_killed_at_random_moments_and_followed_by_others_show_every_row_once(tmp_path: Path, seed: int) -> None:
    chance, world = random.Random(seed), start(DiskWorld(tmp_path, sink_options=UPKEEP))
    observations, left = [observe(world)], set()
    for number in range(2, 2 + RUNS):
        world.produce(chance.randrange(3))
        for _ in range(chance.randrange(1, 3)):
            with TaskProcess(world, number) as task:
                if task.kill_after(chance.uniform(0, RUN_S)):
                    left.add(world.left().txn)
            observations.append(observe(world))
    assert left and optimized(world)
    assert world.run(LAST - 1) is None
    world.one_more_epoch(LAST)
    require_exactly_once(world, observations=observations, copies=[seen.ledger for seen in observations])
    for outcome in sorted({world.fate_of(txn) for txn in left}):
        fired("F1", 15, outcome)


def optimized(world: DiskWorld) -> int:
    """How often a table was compacted on the way."""
    entries = [action for sink in world.sinks for entry in log_of(world.table(sink)) for action in entry]
    return sum(action.get("commitInfo", {}).get("operation") == "OPTIMIZE" for action in entries)
