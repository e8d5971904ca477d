"""Clearing staging places away. Staged files may be a table's files, so the rules are narrow.

After GLOBAL_ABORT: exactly that attempt's places. After the epoch is complete: all places but the one that the
sink's commit names in its receipt, and of that one what is not data. A sink that no longer knows which place it took
took one that is on record for it: the decision's, or one staged again. A waived one may yet take any of the attempt.
Never by a pattern over epochs, and never before the decision has been read back. Failures are logged; ``complete``
of the next epoch sweeps again.

No record deletes anything by itself: it may be in an old copy of the ledger, or in one that is run beside the original.
The place must be the one that its try would make, this ledger the one that the attempt was opened in, and the sink
whose place it is must show what this ledger says. Otherwise the place stays, and the log tells why: litter is better
than loss. Whatever the records say, a sink deletes nothing that it shows, or has shown and can still be read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from airflow_epochs import secrecy
from airflow_epochs.contracts import Environment, Leftovers, Sink, SinkAttempt
from airflow_epochs.coordinator.recorded_sinks import is_own_place, sink_of
from airflow_epochs.errors import tolerated
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import (
    CompleteRecord,
    DecisionRecord,
    Marker,
    OpenRecord,
    Shown,
    TransactionId,
    TryRecord,
    agree,
    compare,
)

log = secrecy.logger(__name__)


def sweep(ledger: Ledger, epoch: int, today: Collection[Sink], env: Environment) -> None:
    """Clear away what is left of a complete epoch's staging; a no-op for any other. Idempotent.

    ``today``: the sinks of the DAG.
    """
    complete = ledger.complete_record(epoch) if epoch >= 1 else None
    if not complete:
        return
    decision = ledger.decision_record(epoch, complete.txn.attempt)
    if not decision:  # pruned: the sweeps of this epoch are over
        return
    tries = ledger.tries(epoch)
    decided = [record for record in tries if record.txn_id == complete.txn_id]
    published = {place for sink in decision.votes for place in _published(ledger, complete, decision, decided, sink)}
    clearing = _Clearing(ledger, today, env, published, lambda sink: _shows_what_is_known(ledger, complete, sink, env))
    for record in tries:
        opened = ledger.open_record(epoch, TransactionId.parse(record.txn_id).attempt)
        if opened:
            clearing.of_try(opened, record)


def discard_attempt(
    ledger: Ledger, opened: OpenRecord, confirmed: Collection[str], today: Collection[Sink], env: Environment
) -> None:
    """Clear away an attempt's places. Its GLOBAL_ABORT must have been read back. Idempotent.

    ``confirmed``: the sinks that were seen to show the epoch before. ``today``: the sinks of the DAG.
    """
    clearing = _Clearing(ledger, today, env, frozenset(), lambda sink: sink.name in confirmed)
    for record in ledger.tries(opened.txn.epoch):
        if record.txn_id == opened.txn_id:
            clearing.of_try(opened, record)


@dataclass(frozen=True)
class _Clearing:
    """One clean-up.

    Attributes:
        published: The places whose rows sinks show, or may show.
        confirms: Whether a sink shows what the ledger says. Asked only where there is something to delete.
    """

    ledger: Ledger
    today: Collection[Sink]
    env: Environment
    published: Collection[str]
    confirms: Callable[[Sink], bool]

    def of_try(self, opened: OpenRecord, record: TryRecord) -> None:
        for name, place in record.places.items():
            if name in opened.sinks:
                with tolerated(f"clearing {place} away"):
                    self._clear(sink_of(opened, name, self.today), opened, record.nonce, place)

    def _clear(self, sink: Sink, opened: OpenRecord, nonce: str, place: str) -> None:
        attempt, published = SinkAttempt.of(opened, sink.name), place in self.published
        if not is_own_place(sink, attempt, place, self.env):
            log.warning("%s is left alone: a try of %s names it, which cannot have made it", place, opened.txn_id)
            return
        if isinstance(sink, Leftovers) and not sink.has_leftovers(attempt, place, self.env, published=published):
            return
        if why := self._objection(sink, opened, attempt, nonce, place):
            log.warning("%s is left alone: %s", place, why)
            return
        sink.discard(attempt, place, self.env, published=published)

    def _objection(self, sink: Sink, opened: OpenRecord, attempt: SinkAttempt, nonce: str, place: str) -> str | None:
        here = self.ledger.root
        if opened.ledger and here and opened.ledger != here:
            return f"its attempt was opened in the ledger at {opened.ledger}, and this one is at {here}"
        if place != sink.place(attempt, nonce, self.env):
            return "it is not the place that its try makes"
        return None if self.confirms(sink) else f"sink {sink.name} does not show what this ledger says"


def _shows_what_is_known(ledger: Ledger, complete: CompleteRecord, sink: Sink, env: Environment) -> bool:
    """Whether a sink shows what is known of it since an epoch was completed."""
    found = sink.last_committed(complete.txn.pipeline, env)
    if found and compare(found, complete.txn) is Shown.AHEAD:
        return _is_of_a_later_epoch(ledger, found, sink.name)
    shown = complete.markers.get(sink.name)
    late = any(agree(found, TransactionId.parse(txn)) for txn in complete.may_show(sink.name))
    return late or agree(found, TransactionId.parse(shown) if shown else None)


def _is_of_a_later_epoch(ledger: Ledger, found: Marker, sink: str) -> bool:
    view = ledger.view(found.epoch)
    shown = view.complete.markers.get(sink) if view.complete else view.open and view.open.txn_id
    return bool(shown) and agree(found, TransactionId.parse(str(shown)))


def _published(
    ledger: Ledger, complete: CompleteRecord, decision: DecisionRecord, tries: list[TryRecord], sink: str
) -> list[str]:
    """The places of which ``sink`` shows the rows, or may show them."""
    receipt = complete.receipts.get(sink)
    tried = [record.places[sink] for record in tries if sink in record.places]
    if receipt is None or (receipt.place and receipt.place not in tried):
        return tried
    if receipt.place:
        return [receipt.place]
    voted = decision.votes[sink].staged
    again = [record.staged.place for record in ledger.restaged(complete.txn.epoch, sink)]
    return [*again, voted.place] if voted else again
