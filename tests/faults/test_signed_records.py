"""A ledger with a key: what is forged in it is named and changes nothing, what is older than the key is finished."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_epochs.errors import Corrupt
from airflow_epochs.ledger.codec import encode
from airflow_epochs.ledger.keys import LedgerRecord, key_of, takeover_key
from airflow_epochs.model import (
    FORMAT_UNSIGNED,
    DecisionKind,
    JsonDict,
    Receipt,
    RunIndex,
    TakeoverRecord,
    TransactionId,
    TryRecord,
    WaivedRecord,
)
from tests.support.faults_golden import PHASES, unpack
from tests.support.faults_history import finished
from tests.support.faults_world import DiskWorld, start
from tests.support.forging import decided, opened, own_places, tried

KEY = "a key that only the workers have"


@pytest.fixture
def signed(tmp_path: Path) -> DiskWorld:
    """One complete epoch, signed from the first record on, and input for the next."""
    return start(DiskWorld(tmp_path, password=KEY))


def is_signed(path: Path) -> bool:
    record = json.loads(path.read_bytes())
    return len(record.get("hmac", "")) == 64 and record["format"] == 2


def as_forged(record: LedgerRecord) -> bytes:
    """As somebody writes it who has no key, even if he has copied it from one that was signed."""
    return encode(replace(record, format=FORMAT_UNSIGNED))


@pytest.mark.few(3)
@pytest.mark.parametrize("phase", [*PHASES, "stage.start", "restage.orders", "committed.orders"])
def test_a_signed_epoch_is_finished_after_a_kill_at_any_step(signed: DiskWorld, phase: str) -> None:
    if phase == "restage.orders":
        signed.crash_at("decision.landed")
        for place in signed.table("orders").glob("epochs/*/2-*"):
            for file in place.rglob("*.parquet"):
                file.unlink()
    left = signed.crash_at(phase)
    assert signed.run(3) is None
    finished(signed, left)
    assert all(map(is_signed, signed.records.rglob("*.json")))


@pytest.mark.parametrize("phase", PHASES)
def test_an_epoch_that_is_older_than_the_key_is_finished_and_signed_from_then_on(tmp_path: Path, phase: str) -> None:
    world = replace(unpack(phase, tmp_path), password=KEY)
    before = set(world.records.rglob("*.json"))
    left = world.left()
    assert world.run(3) is None
    finished(world, left)
    assert {path for path in world.records.rglob("*.json") if is_signed(path)} == {
        *(set(world.records.rglob("*.json")) - before)
    }
    assert (world.records / "signing" / f"{1:010}.json").exists()


def test_a_key_that_changes_with_every_epoch_loses_nothing(tmp_path: Path) -> None:
    world = DiskWorld(tmp_path)
    for number in range(1, 6):
        keys = [f"key number {n} of this ledger" for n in (number, number - 1) if n]
        world = replace(world, password=",".join(keys))
        world.produce(3)
        assert world.run(number) is None
    world = replace(world, password="key number 5 of this ledger")
    finished(world, world.left(5))


def everything_forged(world: DiskWorld) -> dict[str, bytes]:
    """One record of every kind that somebody could add to an epoch in doubt, or to one that is not begun."""
    attempt = world.ledger.view(2).open or opened(world)
    assert attempt
    txn = attempt.txn_id
    again = TransactionId(txn.pipeline, txn.epoch, txn.attempt + 1, "f" * 32)
    receipt = Receipt(txn_id=txn, sink="orders", rows=5, files=1, bytes=1, version=9, committed_at="now")
    waived = WaivedRecord(txn_id=txn, sink="audit", who="me", why="because", at="now")
    complete = world.ledger.complete_record(1)
    assert complete
    completed = replace(complete, txn_id=txn, ranges=attempt.ranges)
    records: list[LedgerRecord] = [
        replace(attempt, txn_id=again),
        tried(attempt, own_places(attempt)),
        replace(decided(attempt, {}), decision=DecisionKind.GLOBAL_ABORT),
        receipt,
        waived,
        completed,
        RunIndex(dag_id=world.dag_id, run_id="run 3", epoch=1),
    ]
    takeover = TakeoverRecord(dag_id="his", who="me", why="because", at="now", writer="w")
    return {**{key_of(record): as_forged(record) for record in records}, takeover_key(1): encode(takeover)}


@pytest.mark.few(3)
@pytest.mark.parametrize("kind", range(8))
@pytest.mark.parametrize("phase", ["stage.done", "decision.landed"])
def test_a_record_that_somebody_adds_is_named_and_changes_nothing(
    signed: DiskWorld, phase: str, kind: int, caplog: pytest.LogCaptureFixture
) -> None:
    left = signed.crash_at(phase)
    key, value = list(everything_forged(signed).items())[kind]
    path = signed.records / key
    if path.exists():  # put-if-absent keeps the sound one; he has to overwrite it
        path.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    sound = signed.snapshot_of_tables()
    path.write_bytes(value)
    error = signed.run(3)
    told = f"does not trust the ledger record orders/{key}: it is not signed"
    if (kind, phase) == (1, "decision.landed"):  # to finish an epoch in doubt, its tries are not asked for
        assert error is None and told in caplog.text
    else:
        assert isinstance(error, Corrupt) and told in error.what, error
        assert signed.snapshot_of_tables() == sound
    path.unlink()
    if kind == 2 and phase == "decision.landed":
        return  # the sound decision was overwritten: what that does is the affair of the tests of lost records
    assert signed.run(3) is None
    finished(signed, left)


# -- connections -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("password", "stopped"), [("", 0), (KEY, 1)])
def test_an_unsigned_try_has_no_session_ended_behind_another_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, password: str, stopped: int
) -> None:
    world = start(DiskWorld(tmp_path, password=password))
    world.crash_at("stage.done")
    session = {"kind": "spark_connect", "conn_id": "another", "session_id": "12345678-1234-1234-1234-123456789012"}
    txn = world.ledger.view(2).opened.txn_id
    world.ledger.put(TryRecord(txn_id=txn, try_id="f" * 32, places={}, session=session, started_at="now"))
    asked: list[JsonDict] = []
    coordinator = world.coordinator()
    monkeypatch.setattr(coordinator.task.env.spark, "stop", asked.append)
    assert world.run(3, coordinator) is None
    assert [each for each in asked if each == session] == [session] * stopped
    assert ("names connection 'another', which the DAG does not use" in caplog.text) == (not stopped)
