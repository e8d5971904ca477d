"""Ledger records of pipeline ``p`` with one sink ``a``, as short as they can be."""

from __future__ import annotations

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import (
    CompleteRecord,
    DecisionKind,
    DecisionRecord,
    OpenRecord,
    RebuiltRecord,
    Receipt,
    Run,
    SinkPlan,
    Staged,
    TransactionId,
    TryRecord,
    Vote,
    VoteKind,
)

RUN = Run("dag", "run 1")


def txn(epoch: int = 1, attempt: int = 1, digit: str = "0", pipeline: str = "p") -> TransactionId:
    return TransactionId(pipeline, epoch, attempt, digit * 32)


def open_record(epoch: int = 1, attempt: int = 1, digit: str = "0", pipeline: str = "p") -> OpenRecord:
    return OpenRecord(
        txn_id=txn(epoch, attempt, digit, pipeline),
        ledger_id="l",
        ranges={},
        source={},
        source_state={},
        transform="t",
        sinks={"a": SinkPlan(spec={}, previous=None)},
        dag_id="dag",
        run_id="run 1",
        now="now",
        seed=1,
        opened_at="now",
        writer="w",
    )


def decision(
    kind: DecisionKind, epoch: int = 1, attempt: int = 1, digit: str = "0", writer: str = "w"
) -> DecisionRecord:
    staged = Staged(place="x", version=1, files=1, rows=1, bytes=1, digest="d")
    votes = {"a": Vote(vote=VoteKind.VOTE_COMMIT, staged=staged)} if kind is DecisionKind.GLOBAL_COMMIT else {}
    return DecisionRecord(
        txn_id=txn(epoch, attempt, digit),
        decision=kind,
        reason="because",
        votes=votes,
        dag_id="dag",
        run_id="run 1",
        decided_at="now",
        writer=writer,
    )


def receipt(epoch: int = 1, attempt: int = 1, digit: str = "0") -> Receipt:
    return Receipt(txn_id=txn(epoch, attempt, digit), sink="a", rows=1, files=1, bytes=1, version=0, committed_at="now")


def complete(epoch: int = 1) -> CompleteRecord:
    return CompleteRecord(
        txn_id=txn(epoch),
        ranges={},
        source_state={},
        receipts={},
        markers={},
        opened_by=RUN,
        completed_by=RUN,
        metrics={},
        completed_at="now",
        writer="w",
    )


def rebuilt_to(newest: CompleteRecord) -> RebuiltRecord:
    """The record of a rebuilding that put this completion record."""
    return RebuiltRecord(
        pipeline=newest.txn_id.pipeline,
        number=1,
        txn_id=newest.txn_id,
        backfill_from=newest.txn_id.epoch + 1,
        dag_id="dag",
        source={},
        transform="t",
        sinks={},
        without={},
        who="ann",
        why="a test",
        at="now",
        writer="w",
    )


def whole_epoch(ledger: Ledger) -> None:
    ledger.put(open_record())
    ledger.put(TryRecord(txn_id=txn(), try_id="n", places={}, session={}, started_at="now"))
    ledger.put(decision(DecisionKind.GLOBAL_COMMIT))
    ledger.put(receipt())
