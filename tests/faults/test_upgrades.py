"""An upgrade with an epoch in flight (F20): what an earlier version left is finished by the code of today."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_epochs.errors import Corrupt, Refused
from tests.support.cells import fired
from tests.support.faults_golden import ABORTED, PASSWORDS, PHASES, resealed, unpack
from tests.support.faults_history import finished
from tests.support.faults_steps import DECIDED, STEPS
from tests.support.faults_world import DiskWorld

CLEARED, NEXT = 2, 3
COMPLETE = "complete.landed"
STEP = {**STEPS, ABORTED: 14}


@pytest.mark.parametrize("successor", [CLEARED, NEXT], ids=["cleared", "next"])
@pytest.mark.parametrize("phase", [*PHASES, ABORTED])
@pytest.mark.parametrize("written", PASSWORDS, ids=lambda number: f"format {number}")
def test_an_epoch_opened_by_an_earlier_version_is_finished_by_todays_code(
    tmp_path: Path, written: int, phase: str, successor: int
) -> None:
    world = unpack(phase, tmp_path, written)
    left = world.left(epoch=2)
    assert left.txn
    assert world.run(successor) is None
    outcome = finished(world, left)
    assert outcome == ("C" if phase in DECIDED else "A")
    fired("F20", STEP[phase], "=" if phase == COMPLETE else outcome)


def change(path: Path, old: bytes, new: bytes) -> None:
    """The record's own, not that of a record within."""
    before, found, after = path.read_bytes().rpartition(old)
    assert found
    path.write_bytes(resealed(before + new + after))


def test_a_signed_record_of_an_earlier_version_that_somebody_has_changed_is_refused(tmp_path: Path) -> None:
    world = unpack("complete.put", tmp_path, 2)
    for path in records(world):
        right = path.read_bytes()
        change(path, b'"format":', b'"unknown":1,"format":')
        before = world.snapshot()
        error = world.run(CLEARED)
        assert isinstance(error, Corrupt) and "signature" in error.what, path
        assert world.snapshot() == before
        path.write_bytes(right)
    assert world.run(CLEARED) is None
    fired("F20", 12, finished(world, world.left(epoch=2)))


def records(world: DiskWorld) -> list[Path]:
    """Of the epoch in flight and of those before it; the next run reads them all."""
    newest = world.records / "epochs" / f"{2:020}"
    return [
        world.records / "pipeline.json",
        newest / f"{1:010}.open.json",
        newest / f"{1:010}.decision.json",
        newest / "orders.receipt.json",
        newest.with_name(f"{1:020}") / "complete.json",
    ]


@pytest.mark.parametrize("which", range(5), ids=["pipeline", "open", "decision", "receipt", "complete"])
def test_a_record_of_a_newer_format_is_refused_and_nothing_is_changed(world: DiskWorld, which: int) -> None:
    left = world.crash_at("complete.put")
    path = records(world)[which]
    change(path, b'"format":1', b'"format":3')
    before = world.snapshot()
    for number in (CLEARED, NEXT):
        error = world.run(number)
        assert isinstance(error, Refused), error
        assert path.name in error.what and "Upgrade airflow-provider-epochs" in error.remedy
    assert world.snapshot() == before
    change(path, b'"format":3', b'"format":1')
    assert world.run(CLEARED) is None
    finished(world, left)
    fired("F20", 12, "X")


def test_fields_that_a_newer_version_of_the_same_format_added_do_no_harm(world: DiskWorld) -> None:
    world.crash_at("complete.put")
    for path in records(world):
        change(path, b'"format":1', b'"later":{"x":[1]},"format":1')
    left = world.left()
    assert world.run(NEXT) is None
    fired("F20", 12, finished(world, left))
