"""How often a task opens a sink's table: each time, deltalake lists the log and reads its newest checkpoint."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from airflow_epochs.delta import table
from airflow_epochs.delta.table import TableLocation
from tests.support.faults_world import SINKS, DiskWorld


@pytest.mark.proof
def test_complete_asks_a_table_once_for_its_marker_twice_before_it_deletes_a_place_and_once_for_the_upkeep(
    one_epoch: DiskWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, run, of = Counter[str](), one_epoch.run_of(2), table._opened

    def counted(location: TableLocation) -> object:
        opened[Path(location.url).name] += 1
        return of(location)

    one_epoch.coordinator().open(run)
    one_epoch.coordinator().vote(run, one_epoch.coordinator().stage(run).stage)
    for sink in SINKS:
        one_epoch.coordinator().commit(run, sink)
    monkeypatch.setattr(table, "_opened", counted)
    one_epoch.coordinator().complete(run)
    assert opened == dict.fromkeys(SINKS, 4)
    opened.clear()
    one_epoch.coordinator().complete(run)
    assert opened == dict.fromkeys(SINKS, 1), (
        "only for the upkeep: the epoch is complete, and nothing is left to delete"
    )
