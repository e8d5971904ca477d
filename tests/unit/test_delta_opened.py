"""How often a task opens a sink's table: each time, deltalake lists the log and reads its newest checkpoint."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from airflow_epochs.delta import table
from airflow_epochs.delta.table import TableLocation
from tests.support.faults_world import SINKS, DiskWorld, start


@pytest.fixture
def world(tmp_path: Path) -> DiskWorld:
    return start(DiskWorld(tmp_path))


def test_complete_asks_a_table_once_for_its_marker_twice_before_it_deletes_a_place_and_once_for_the_upkeep(
    world: DiskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, run, of = Counter[str](), world.run_of(2), table._opened

    def counted(location: TableLocation) -> object:
        opened[Path(location.url).name] += 1
        return of(location)

    world.coordinator().open(run)
    world.coordinator().vote(run, world.coordinator().stage(run).stage)
    for sink in SINKS:
        world.coordinator().commit(run, sink)
    monkeypatch.setattr(table, "_opened", counted)
    world.coordinator().complete(run)
    assert opened == dict.fromkeys(SINKS, 4)
    opened.clear()
    world.coordinator().complete(run)
    assert opened == dict.fromkeys(SINKS, 1), (
        "only for the upkeep: the epoch is complete, and nothing is left to delete"
    )
