"""Clearing staging places away. Staged files may be a table's files, so the rules are narrow.

After GLOBAL_ABORT: exactly that attempt's places. After the epoch is complete: all places but the one that the
sink's commit names in its receipt, and of that one what is not data. A sink that no longer knows which place it took
took one that is on record for it: the decision's, or one staged again. A waived one may yet take any of the attempt.
Never by a pattern over epochs, and never before the decision has been read back. Failures are logged; ``complete``
of the next epoch sweeps again.
"""

from __future__ import annotations

from collections.abc import Collection

from airflow_epochs.environment import Environment
from airflow_epochs.errors import tolerated
from airflow_epochs.ledger import Ledger
from airflow_epochs.model import CompleteRecord, DecisionRecord, OpenRecord, TransactionId, TryRecord
from airflow_epochs.sinks import from_spec
from airflow_epochs.sinks.base import SinkAttempt


def sweep(ledger: Ledger, epoch: int, env: Environment) -> None:
    """Clear away what is left of a complete epoch's staging; a no-op for any other. Idempotent."""
    complete = ledger.complete_record(epoch) if epoch >= 1 else None
    if not complete:
        return
    decision = ledger.decision_record(epoch, complete.txn.attempt)
    if not decision:  # pruned: the sweeps of this epoch are over
        return
    tries = ledger.tries(epoch)
    decided = [record for record in tries if record.txn_id == complete.txn_id]
    published = {place for sink in decision.votes for place in _published(ledger, complete, decision, decided, sink)}
    for record in tries:
        opened = ledger.open_record(epoch, TransactionId.parse(record.txn_id).attempt)
        if opened:
            _discard_try(opened, record, opened.sinks, published, env)


def discard_attempt(ledger: Ledger, opened: OpenRecord, sinks: Collection[str], env: Environment) -> None:
    """Clear away an attempt's places in ``sinks``. Its GLOBAL_ABORT must have been read back. Idempotent."""
    for record in ledger.tries(opened.txn.epoch):
        if record.txn_id == opened.txn_id:
            _discard_try(opened, record, sinks, frozenset(), env)


def _discard_try(
    opened: OpenRecord, record: TryRecord, sinks: Collection[str], published: Collection[str], env: Environment
) -> None:
    for name, place in record.places.items():
        if name not in sinks:
            continue
        with tolerated(f"clearing {place} away"):
            sink = from_spec(opened.sinks[name].spec)
            sink.discard(SinkAttempt.of(opened, name), place, env, published=place in published)


def _published(
    ledger: Ledger, complete: CompleteRecord, decision: DecisionRecord, tries: list[TryRecord], sink: str
) -> list[str]:
    """The places of which ``sink`` shows the rows, or may show them."""
    receipt = complete.receipts.get(sink)
    if receipt is None:
        return [record.places[sink] for record in tries if sink in record.places]
    if receipt.place:
        return [receipt.place]
    voted = decision.votes[sink].staged
    again = [record.staged.place for record in ledger.restaged(complete.txn.epoch, sink)]
    return [*again, voted.place] if voted else again
