"""Whoever can add a file to the ledger does not own the worker: what a forged record names stays as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_epochs.errors import Corrupt, Refused
from faults_world import DiskWorld
from forging import decided, opened, own_places, plant, tried

MODULE = "a_module_that_nobody_asked_for"


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the module leaves behind if it is imported."""
    folder, trace = tmp_path / "path", tmp_path / "imported"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(f"open({str(trace)!r}, 'w').close()\nclass Sink: ...\n")
    monkeypatch.syspath_prepend(folder)
    return trace


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("is_decided", [True, False])
def test_a_sink_class_that_only_a_record_names_is_not_imported(
    world: DiskWorld, importable: Path, is_decided: bool, number: int
) -> None:
    attempt = opened(world, {"orders": {"kind": f"{MODULE}:Sink"}})
    plant(world, attempt)
    plant(world, tried(attempt, own_places(attempt)))
    if is_decided:
        plant(world, decided(attempt, own_places(attempt)))
    before = world.snapshot_of_tables()
    error = world.run(number)
    assert not importable.exists() and MODULE not in sys.modules
    assert isinstance(error, Refused), error
    assert (error.epoch, error.attempt, error.sink) == (2, 1, "orders")
    assert f"kind '{MODULE}:Sink'" in error.what and "airflow_epochs.sinks" in error.remedy
    assert world.snapshot_of_tables() == before


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"name": "audit"}, "it is named 'audit' there"),
        ({"name": "../orders"}, "sink name '../orders' is not usable"),
        ({"partition_by": 7}, "TypeError"),
        ({"mode": "of its own"}, "mode"),
    ],
)
def test_a_record_that_describes_no_sink_or_another_one_is_named(
    world: DiskWorld, changed: dict[str, object], told: str
) -> None:
    attempt = opened(world, {"orders": changed})
    path = plant(world, attempt)
    plant(world, decided(attempt, own_places(attempt)))
    before = world.snapshot_of_tables()
    error = world.run(2)
    assert isinstance(error, Corrupt), error
    assert str(path.relative_to(world.ledger_root)) in error.what and told in error.what
    assert world.snapshot_of_tables() == before
