"""The world that most tests of faults start from. All of them are proof: they take a minute together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faults_world import DiskWorld


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("proof")


@pytest.fixture
def world(one_epoch: DiskWorld) -> DiskWorld:
    """With one complete epoch, so that the tables are there, and input for the next one."""
    return one_epoch
