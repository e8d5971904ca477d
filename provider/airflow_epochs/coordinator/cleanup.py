"""Deletes staging places. Staged files may be files of the sink's table, so the rules are narrow.

What is deleted
    After GLOBAL_ABORT, exactly the places of that attempt. After the epoch is complete, every place except the one
    whose rows the sink committed; of that one, only what is not data. The receipt names it. If the receipt does not,
    because the sink no longer knows it, all places on record for the sink stay: the decision's, and those staged
    again. A waived sink may still commit late, so all its places of the decided attempt stay.

When
    Never before the decision has been read back, and never by a pattern over epochs. A failure is logged.
    ``complete`` of the next epoch sweeps again, and for the last time the epoch that prunes this one.

A record alone never deletes a place, because the record may be in an old copy of the ledger, or in a copy that is used
beside the original. Three more conditions must hold: the place is the one that its try would make; the attempt was
opened in this ledger; and the sink shows what this ledger says. Otherwise the place stays, and the log says why:
litter is better than loss. Besides, no sink deletes what it shows, or what it has shown and readers can still read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from airflow_epochs import secrecy
from airflow_epochs.contracts import Environment, Leftovers, Sink, SinkAttempt
from airflow_epochs.coordinator import agreement, sink_calls
from airflow_epochs.coordinator.recorded_sinks import is_own_place, sink_of
from airflow_epochs.errors import tolerated
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import (
    CompleteRecord,
    DecisionRecord,
    Marker,
    OpenRecord,
    Shown,
    TryRecord,
    agree,
    compare,
)

log = secrecy.logger(__name__)


def sweep(ledger: Ledger, epoch: int, today: Collection[Sink], env: Environment, *, last: bool = False) -> None:
    """Delete what is left of a complete epoch's staging; does nothing for any other epoch. Idempotent.

    A place that cannot be deleted is logged and left.

    Args:
        ledger: The ledger.
        epoch: The epoch.
        today: The sinks of the DAG.
        env: The environment to work in.
        last: Whether the epoch is pruned now.
    """
    complete = ledger.complete_record(epoch) if epoch >= 1 else None
    if not complete:
        return
    decision = ledger.decision_record(epoch, complete.txn_id.attempt)
    if not decision:  # the epoch was pruned, and swept before that
        return
    tries = ledger.tries(epoch)
    decided = [record for record in tries if record.txn_id == complete.txn_id]
    published = {place for sink in decision.votes for place in _published(ledger, complete, decision, decided, sink)}
    clearing = _Clearing(
        ledger, today, env, published, lambda sink: _shows_what_is_known(ledger, complete, sink, env), last
    )
    for record in tries:
        opened = ledger.open_record(epoch, record.txn_id.attempt)
        if opened:
            clearing.of_try(opened, record)


def discard_attempt(
    ledger: Ledger, opened: OpenRecord, confirmed: Collection[str], today: Collection[Sink], env: Environment
) -> None:
    """Delete the places of an attempt whose GLOBAL_ABORT has been read back. Idempotent.

    Args:
        ledger: The ledger.
        opened: The attempt.
        confirmed: The sinks that show the epoch before. The places of all others stay.
        today: The sinks of the DAG.
        env: The environment to work in.
    """
    clearing = _Clearing(ledger, today, env, frozenset(), lambda sink: sink.name in confirmed)
    for record in ledger.tries_of(opened):
        clearing.of_try(opened, record)


@dataclass(frozen=True)
class _Clearing:
    """One clean-up.

    Attributes:
        published: The places whose rows sinks show, or may show.
        confirms: Whether a sink shows what the ledger says. Called only if there is something to delete.
        last: Whether no later epoch will know of the places.
    """

    ledger: Ledger
    today: Collection[Sink]
    env: Environment
    published: Collection[str]
    confirms: Callable[[Sink], bool]
    last: bool = False

    def of_try(self, opened: OpenRecord, record: TryRecord) -> None:
        """Delete the places of one try of the attempt. A failure is logged."""
        for name, place in record.places.items():
            if name in opened.sinks:
                with tolerated(f"deleting the staging place {place}", self._if_it_fails(opened.txn_id.epoch)):
                    self._clear(sink_of(opened, name, self.today), opened, record.try_id, place)

    def _if_it_fails(self, epoch: int) -> str:
        stays = "what is left there stays"
        if self.last:
            return f"{stays}, since epoch {epoch} is pruned now, and no later epoch knows of it"
        return f"{stays}; the next epoch tries again, and for the last time the epoch that prunes epoch {epoch}"

    def _clear(self, sink: Sink, opened: OpenRecord, try_id: str, place: str) -> None:
        attempt, published = SinkAttempt.of(opened, sink.name), place in self.published
        if not is_own_place(sink, attempt, place, self.env):
            log.warning(
                "%s is not deleted: a record names it as a staging place of %s, but this attempt cannot have made it",
                place,
                opened.txn_id,
            )
            return
        if isinstance(sink, Leftovers) and not sink.has_leftovers(attempt, place, self.env, published=published):
            return
        if why := self._objection(sink, opened, attempt, try_id, place):
            log.warning("%s is not deleted: %s", place, why)
            return
        sink.discard(attempt, place, self.env, published=published)

    def _objection(self, sink: Sink, opened: OpenRecord, attempt: SinkAttempt, try_id: str, place: str) -> str | None:
        here = self.ledger.root
        if opened.ledger and here and opened.ledger != here:
            return f"its attempt was opened in the ledger at {opened.ledger}, but this ledger is at {here}"
        if place != sink.place(attempt, try_id, self.env):
            return "its try makes another place"
        return None if self.confirms(sink) else f"sink {sink.name} does not show what this ledger says"


def _shows_what_is_known(ledger: Ledger, complete: CompleteRecord, sink: Sink, env: Environment) -> bool:
    """Whether a sink shows what the ledger says now: this complete epoch, or a later one that it took part in."""
    found = sink_calls.marker_of(sink, complete.txn_id.pipeline, env)
    if found and compare(found, complete.txn_id) is Shown.AHEAD:
        return _is_of_a_later_epoch(ledger, found, sink.name)
    late = agreement.waived_in(found, complete.may_show(sink.name))
    return late is not None or agree(found, complete.markers.get(sink.name))


def _is_of_a_later_epoch(ledger: Ledger, found: Marker, sink: str) -> bool:
    view = ledger.view(found.epoch)
    opened = view.open.txn_id if view.open else None
    shown = view.complete.markers.get(sink) if view.complete else opened
    return shown is not None and agree(found, shown)


def _published(
    ledger: Ledger, complete: CompleteRecord, decision: DecisionRecord, tries: list[TryRecord], sink: str
) -> list[str]:
    """The places whose rows ``sink`` shows, or may show. ``tries``: of the decided attempt."""
    receipt = complete.receipts.get(sink)
    tried = [record.places[sink] for record in tries if sink in record.places]
    if receipt is None or (receipt.place and receipt.place not in tried):
        return tried
    if receipt.place:
        return [receipt.place]
    voted = decision.votes[sink].staged
    again = [record.staged.place for record in ledger.restaged(complete.txn_id.epoch, sink)]
    return [*again, voted.place] if voted else again
