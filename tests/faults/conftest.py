"""The world that most tests of faults start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults_world import DiskWorld


@pytest.fixture
def world(tmp_path: Path) -> DiskWorld:
    """With one complete epoch, so that the tables are there, and input for the next one."""
    world = DiskWorld(tmp_path)
    world.produce(4)
    assert world.run(1) is None
    world.produce(5)
    return world
