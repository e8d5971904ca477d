"""Clearing staging places away. Staged files may be a table's files, so the rules are narrow.

After GLOBAL_ABORT: exactly that attempt's places. After the epoch is complete: places that its decision does not
name, and of the named ones only what is not data. Never by a pattern over epochs, and never before the decision
has been read back. Failures are logged; ``complete`` of the next epoch sweeps again.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow_epochs.environment import Environment
from airflow_epochs.errors import tolerated
from airflow_epochs.ledger import Ledger
from airflow_epochs.model import DecisionRecord, OpenRecord, TransactionId, TryRecord
from airflow_epochs.sinks import from_spec
from airflow_epochs.sinks.base import SinkAttempt


def sweep(ledger: Ledger, epoch: int, env: Environment) -> None:
    """Clear away what is left of a complete epoch's staging; a no-op for any other. Idempotent."""
    complete = ledger.complete_record(epoch) if epoch >= 1 else None
    if not complete:
        return
    decision = ledger.decision_record(epoch, complete.txn.attempt)
    for record in ledger.tries(epoch):
        opened = ledger.open_record(epoch, TransactionId.parse(record.txn_id).attempt)
        if decision and opened:
            _discard_try(opened, record, opened.sinks, _published_places(decision), env)


def discard_attempt(ledger: Ledger, opened: OpenRecord, sinks: Collection[str], env: Environment) -> None:
    """Clear away an attempt's places in ``sinks``. Its GLOBAL_ABORT must have been read back. Idempotent."""
    for record in ledger.tries(opened.txn.epoch):
        if record.txn_id == opened.txn_id:
            _discard_try(opened, record, sinks, frozenset(), env)


def _discard_try(
    opened: OpenRecord, record: TryRecord, sinks: Collection[str], published: frozenset[str], env: Environment
) -> None:
    for name, place in record.places.items():
        if name not in sinks:
            continue
        with tolerated(f"clearing {place} away"):
            sink = from_spec(opened.sinks[name].spec)
            sink.discard(SinkAttempt.of(opened, name), place, env, published=place in published)


def _published_places(decision: DecisionRecord) -> frozenset[str]:
    return frozenset(vote.staged.place for vote in decision.votes.values() if vote.staged)
