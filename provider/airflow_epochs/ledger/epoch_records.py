"""Everything that the ledger holds about one epoch, also about its aborted attempts. For people; no task reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import waivers
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import (
    CompleteRecord,
    DecisionRecord,
    OpenRecord,
    Receipt,
    RestagedRecord,
    TryRecord,
    WaivedRecord,
)
from airflow_epochs.protocol import State


@dataclass(frozen=True, kw_only=True)
class AttemptRecords:
    """One attempt: its open record, the tries of ``stage`` in the order in which they began, and its decision."""

    number: int
    opened: OpenRecord
    tries: tuple[TryRecord, ...] = ()
    decision: DecisionRecord | None = None


@dataclass(frozen=True, kw_only=True)
class EpochRecords:
    """The records of one epoch. What was pruned is missing: then only the completion record and waivers are there.

    Attributes:
        attempts: Oldest first.
        receipts: As in the completion record, if there is one.
        restaged: Sink -> what was staged again after the decision, oldest first.
    """

    number: int
    state: State
    attempts: tuple[AttemptRecords, ...]
    receipts: dict[str, Receipt]
    restaged: dict[str, tuple[RestagedRecord, ...]]
    waived: dict[str, WaivedRecord]
    complete: CompleteRecord | None

    @property
    def newest(self) -> AttemptRecords | None:
        """The newest attempt that is still on record."""
        return self.attempts[-1] if self.attempts else None

    @property
    def places(self) -> dict[str, str]:
        """Sink -> its table or topic, as its receipt says; before that, as the newest attempt says."""
        planned = {sink: plan.spec for sink, plan in self.newest.opened.sinks.items()} if self.newest else {}
        told = planned | {sink: planned.get(sink, {}) | receipt.detail for sink, receipt in self.receipts.items()}
        found = {sink: said.get("table") or said.get("topic") for sink, said in told.items()}
        return {sink: str(place) for sink, place in found.items() if place}


def epoch_records(ledger: Ledger, view: EpochView) -> EpochRecords:
    """All records of an epoch that has been opened. Asks the store a few times, and once for a listing."""
    sinks = view.complete.markers if view.complete else view.opened.sinks
    restaged = {sink: tuple(ledger.restaged(view.number, sink)) for sink in sinks}
    return EpochRecords(
        number=view.number,
        state=view.state,
        attempts=tuple(_attempts(ledger, view)),
        receipts=view.complete.receipts if view.complete else view.receipts,
        restaged={sink: records for sink, records in restaged.items() if records},
        waived=waivers(ledger, view),
        complete=view.complete,
    )


def _attempts(ledger: Ledger, view: EpochView) -> Iterator[AttemptRecords]:
    tries = sorted(ledger.tries(view.number), key=lambda each: each.started_at)
    for attempt in range(1, (view.complete or view.opened).txn_id.attempt + 1):
        if opened := ledger.open_record(view.number, attempt):
            yield AttemptRecords(
                number=attempt,
                opened=opened,
                tries=tuple(each for each in tries if each.txn_id == opened.txn_id),
                decision=ledger.decision_record(view.number, attempt),
            )
