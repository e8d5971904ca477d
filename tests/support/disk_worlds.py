"""Fixtures: pipelines on a disk, each as far as many tests need it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.faults_world import DiskWorld, start


@pytest.fixture
def no_epoch(tmp_path: Path) -> DiskWorld:
    """Two tables that are not there yet, and four records for the first epoch."""
    world = DiskWorld(tmp_path)
    world.produce(4)
    return world


@pytest.fixture
def one_epoch(tmp_path: Path) -> DiskWorld:
    """One complete epoch of four records in two tables, and five records for the next one."""
    return start(DiskWorld(tmp_path))


@pytest.fixture
def one_sink(tmp_path: Path) -> DiskWorld:
    """One complete epoch of four records in one table, and five records for the next one."""
    return start(DiskWorld(tmp_path, sinks=("orders",)))


@pytest.fixture
def seven_unread(one_epoch: DiskWorld) -> DiskWorld:
    """One complete epoch in two tables, and records that no epoch has read."""
    one_epoch.produce(2)
    return one_epoch


@pytest.fixture
def all_read(one_epoch: DiskWorld) -> DiskWorld:
    """Two complete epochs, of four and of five records, in two tables."""
    assert one_epoch.run(2) is None
    return one_epoch


@pytest.fixture
def two_epochs(all_read: DiskWorld) -> DiskWorld:
    """Two complete epochs, of four and of five records, in two tables, and six records for the third."""
    all_read.produce(6)
    return all_read
