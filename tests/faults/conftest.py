"""The world that most tests of faults start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from faults_world import DiskWorld, start


@pytest.fixture
def world(tmp_path: Path) -> DiskWorld:
    """With one complete epoch, so that the tables are there, and input for the next one."""
    return start(DiskWorld(tmp_path))
