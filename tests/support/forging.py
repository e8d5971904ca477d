"""Records that somebody else has put into a ledger: all he needs is the right to add a file there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from airflow_epochs.ledger.codec import encode
from airflow_epochs.ledger.keys import LedgerRecord, key_of
from airflow_epochs.model import (
    DecisionKind,
    DecisionRecord,
    JsonDict,
    OpenRecord,
    SinkPlan,
    Staged,
    TransactionId,
    TryRecord,
    Vote,
    VoteKind,
)
from tests.support.faults_golden import resealed
from tests.support.faults_world import DiskWorld

NONCE = "f" * 32


def plant(world: DiskWorld, record: LedgerRecord) -> Path:
    """The file of a record, with its right name and checksum."""
    path = world.records / key_of(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode(record))
    return path


def alter(path: Path, old: str, new: str) -> None:
    """Another text in a record, with the checksum that belongs to it then: nobody needs a secret for that."""
    value = path.read_bytes()
    assert old.encode() in value
    path.write_bytes(resealed(value.replace(old.encode(), new.encode())))


def opened(world: DiskWorld, specs: Mapping[str, JsonDict] | None = None) -> OpenRecord:
    """An attempt at epoch 2 as epoch 1 had one, with these specifications in place of its sinks'."""
    before = world.ledger.open_record(1, 1)
    assert before
    sinks = {
        name: SinkPlan(spec={**plan.spec, **(specs or {}).get(name, {})}, previous=before.txn_id)
        for name, plan in before.sinks.items()
    }
    txn = TransactionId(world.name, 2, 1, NONCE)
    return replace(before, txn_id=txn, sinks=sinks, run_id="somebody's")


def tried(attempt: OpenRecord, places: dict[str, str], session: JsonDict | None = None) -> TryRecord:
    return TryRecord(
        txn_id=attempt.txn_id, try_id=NONCE, places=places, session=session or {"kind": "disk"}, started_at="now"
    )


def decided(attempt: OpenRecord, places: Mapping[str, str]) -> DecisionRecord:
    """GLOBAL_COMMIT of what lies at ``places``."""
    votes = {
        name: Vote(
            vote=VoteKind.VOTE_COMMIT,
            staged=Staged(place=place, version=1, files=1, rows=1, bytes=1, digest="d"),
        )
        for name, place in places.items()
    }
    return DecisionRecord(
        txn_id=attempt.txn_id,
        decision=DecisionKind.GLOBAL_COMMIT,
        reason="somebody says so",
        votes=votes,
        dag_id=attempt.dag_id,
        run_id=attempt.run_id,
        decided_at="now",
        writer="somebody",
    )


def own_places(attempt: OpenRecord) -> dict[str, str]:
    """Where the sinks of an attempt stage in the try ``NONCE``."""
    txn = attempt.txn_id
    stem = f"epochs/{attempt.ledger_id}.{{}}/{txn.epoch}-{txn.attempt}-{NONCE}"
    return {name: f"{plan.spec['table']}/{stem.format(name)}" for name, plan in attempt.sinks.items()}


def files_below(folder: Path) -> dict[str, str]:
    """Every file by the digest of its bytes."""
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}
