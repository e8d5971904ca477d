"""Truncated and bit-flipped ledger records and staged files (F9, F10): refused by name, and nothing is changed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import Corrupt, NotApplied, Refused
from airflow_epochs.ledger.keys import run_key
from airflow_epochs.model import DecisionKind, StagedClaim
from airflow_epochs.sinks import from_spec
from tests.support.cells import fired
from tests.support.environment import Environment
from tests.support.faults_history import finished
from tests.support.faults_process import refuse
from tests.support.faults_steps import STEPS
from tests.support.faults_world import DiskWorld

Damage = Callable[[Path], None]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    """One bit in the middle."""
    value = bytearray(path.read_bytes())
    value[len(value) // 2] ^= 1
    path.write_bytes(value)


def flip_last(path: Path) -> None:
    """One bit at the end, as of a file whose tail was never written."""
    value = bytearray(path.read_bytes())
    value[-1] ^= 1
    path.write_bytes(value)


FAULTS = {truncate: "F9", empty: "F9", flip: "F10", flip_last: "F10", Path.unlink: "F9"}
RECORDS = {
    "pipeline.json": 1,
    "00000000000000000002/0000000001.open.json": 2,
    "00000000000000000002/0000000001.decision.json": 8,
    "00000000000000000002/orders.receipt.json": 11,
    "00000000000000000001/complete.json": 12,
    "runs": 2,
}
"""Of an epoch in doubt: the record, and the row of the matrix."""


def record_of(world: DiskWorld, name: str) -> Path:
    if name == "runs":
        return world.records / run_key(world.run_of(2))
    return next(path for path in world.records.rglob("*.json") if str(path).endswith(f"/{name}"))


def assert_refused_until_restored(world: DiskWorld, path: Path, damage: Damage, number: int = 2) -> None:
    sound = path.read_bytes()
    damage(path)
    before = world.snapshot()
    error = world.run(number)
    assert isinstance(error, Corrupt), error
    assert str(path.relative_to(world.ledger_root)) in error.what
    assert "Restore this one file" in error.remedy
    assert world.snapshot() == before
    path.write_bytes(sound)
    assert world.run(number) is None


@pytest.mark.parametrize("damage", [truncate, empty, flip])
@pytest.mark.parametrize("name", RECORDS)
def test_a_damaged_record_of_an_epoch_in_doubt_is_named_and_nothing_happens_until_it_is_restored(
    world: DiskWorld, name: str, damage: Damage
) -> None:
    left = world.crash_at("complete.put")
    assert_refused_until_restored(world, record_of(world, name), damage)
    fired(FAULTS[damage], RECORDS[name], finished(world, left))


@pytest.mark.parametrize("damage", [truncate, flip])
def test_a_damaged_global_abort_is_not_taken_for_an_undecided_attempt(world: DiskWorld, damage: Damage) -> None:
    error = world.run(2, world.coordinator({"staged.orders": refuse}))
    assert isinstance(error, NotApplied)
    left = world.left()
    assert_refused_until_restored(
        world, record_of(world, "00000000000000000002/0000000001.decision.json"), damage, number=3
    )
    fired(FAULTS[damage], 14, finished(world, left))


@pytest.mark.parametrize("damage", [truncate, flip])
def test_a_damaged_takeover_does_not_give_the_pipeline_back(world: DiskWorld, damage: Damage) -> None:
    world.ledger.take_over("other", who="me", why="a test", at="now", writer="w")
    other = DiskWorld(world.folder, dag_id="other")
    left = other.left()
    path = record_of(world, "takeovers/0000000001.json")
    assert_refused_until_restored(other, path, damage)
    fired(FAULTS[damage], 1, finished(other, left))


def test_a_damaged_try_is_named_before_anything_is_staged_again(world: DiskWorld) -> None:
    left = world.crash_at("stage.done")
    (path,) = world.records.glob("epochs/*2/*.try.*.json")
    sound = path.read_bytes()
    truncate(path)
    before = world.snapshot_of_tables()
    error = world.run(2)
    assert isinstance(error, Corrupt)
    assert path.name in error.what
    assert world.snapshot_of_tables() == before
    path.write_bytes(sound)
    assert world.run(2) is None
    fired("F9", 3, finished(world, left))


STAGED = [
    ("*.parquet", truncate),
    ("*.parquet", empty),
    ("*.parquet", flip_last),
    ("*.parquet", Path.unlink),
    ("_delta_log/*1.json", truncate),
    ("_delta_log/*1.json", empty),
    ("_delta_log/*0.json", truncate),
    ("_delta_log/*0.json", empty),
    ("_delta_log/*1.json", Path.unlink),
    ("_delta_log/*0.json", Path.unlink),
]


def staged_file(world: DiskWorld, pattern: str) -> Path:
    """Of epoch 2, first sink."""
    (found,) = world.table("orders").glob(f"epochs/*/2-1-*/{pattern}")
    return found


@pytest.mark.few(5)
@pytest.mark.parametrize(("pattern", "damage"), STAGED)
def test_a_staged_file_damaged_before_the_vote_is_a_vote_abort(world: DiskWorld, pattern: str, damage: Damage) -> None:
    error = world.run(2, world.coordinator({"stage.done": lambda: damage(staged_file(world, pattern))}))
    assert isinstance(error, Refused), error
    left = world.left()
    decision = world.ledger.decision_record(2, 1)
    assert decision and decision.decision is DecisionKind.GLOBAL_ABORT
    assert decision.votes["orders"].reason and decision.votes["audit"].reason is None
    assert world.run(2) is None
    fired(FAULTS[damage], STEPS["stage.done"], finished(world, left))


@pytest.mark.few(5)
@pytest.mark.parametrize(("pattern", "damage"), STAGED)
def test_a_staged_file_damaged_after_the_decision_is_staged_again(
    world: DiskWorld, pattern: str, damage: Damage
) -> None:
    left = world.crash_at("decision.landed")
    damage(staged_file(world, pattern))
    assert world.run(2) is None
    fired(FAULTS[damage], STEPS["decision.landed"], finished(world, left))


def test_a_staging_log_that_was_changed_after_the_decision_is_refused_until_it_is_restored(world: DiskWorld) -> None:
    left = world.crash_at("decision.landed")
    path = staged_file(world, "_delta_log/*1.json")
    sound = path.read_bytes()
    path.write_bytes(sound.replace(b'numRecords\\":5', b'numRecords\\":4'))
    assert path.read_bytes() != sound
    for number in (2, 3):
        error = world.run(number)
        assert isinstance(error, Corrupt), error
        assert "the staging table was changed" in error.what
        assert len(world.rows("orders")) == 4
    path.write_bytes(sound)
    assert world.run(2) is None
    finished(world, left)
    fired("F10", STEPS["decision.landed"], "X")


def test_a_staging_table_that_was_changed_after_the_decision_is_staged_again_once_it_is_deleted(
    world: DiskWorld,
) -> None:
    left = world.crash_at("decision.landed")
    path = staged_file(world, "_delta_log/*1.json")
    path.write_bytes(path.read_bytes().replace(b'numRecords\\":5', b'numRecords\\":4'))
    error = world.run(2)
    assert isinstance(error, Corrupt), error
    named = re.search(r"The rows at (\S+) are not the rows that .*: the staging table was changed", error.what)
    assert named and "or delete it. Then clear the commit task" in error.remedy
    shutil.rmtree(named[1])
    assert world.run(2) is None
    finished(world, left)


@pytest.mark.parametrize("version", [0, 1])
def test_whatever_bit_of_a_staging_log_flips_the_vote_answers_and_never_promises_other_files(
    world: DiskWorld, version: int
) -> None:
    world.crash_at("stage.done")
    opened = world.ledger.view(2).opened
    path = staged_file(world, f"_delta_log/*{version}.json")
    claim = StagedClaim(place=str(path.parents[1]))
    sink, attempt = from_spec(opened.sinks["orders"].spec), SinkAttempt.of(opened, "orders")
    sound, votes = path.read_bytes(), []
    for position in range(0, len(sound), 5):
        path.write_bytes(sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :])
        votes.append(sink.vote(attempt, claim, Environment()))
    promised = [vote.staged for vote in votes if vote.staged]
    assert {(staged.files, staged.bytes) for staged in promised} == {
        (1, staged_file(world, "*.parquet").stat().st_size)
    }
    assert 0 < len(promised) < len(votes)
