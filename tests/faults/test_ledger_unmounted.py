"""The mount of the ledger's disk disappears below one process that makes all steps of a run: a folder without files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_epochs.errors import EpochError
from tests.support.faults_steps import STEPS
from tests.support.faults_world import DiskWorld
from tests.support.remedies import assert_all_rows


@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_written_into_the_empty_folder_of_a_ledger_whose_mount_disappears(
    world: DiskWorld, step: str
) -> None:
    kept = world.folder / "mounted elsewhere"

    def unmount() -> None:
        world.ledger_root.rename(kept)
        world.ledger_root.mkdir()

    error = world.run(2, world.coordinator({step: unmount}))
    if step != "complete.landed":
        assert isinstance(error, EpochError), error
        assert error.remedy.startswith("Mount the ledger's disk at its place again. Then let Airflow retry"), error
    assert files(world.ledger_root) == []
    shutil.rmtree(world.ledger_root)
    kept.rename(world.ledger_root)
    assert world.run(2) is None
    assert_all_rows(world, "orders", "audit")


def files(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*") if each.is_file()]
