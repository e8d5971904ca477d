"""A ledger's records, decoded and sorted by what they are about."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TypeVar

from airflow_epochs.ledger.codec import decode
from airflow_epochs.ledger.keys import REBUILT_FOLDER
from airflow_epochs.model import (
    CompleteRecord,
    DecisionRecord,
    OpenRecord,
    RebuiltRecord,
    Receipt,
    RestagedRecord,
    TransactionId,
    TryRecord,
    WaivedRecord,
    ends_of,
)

R = TypeVar("R")

_EPOCH = re.compile(r"epochs/(\d{20})/(.+)\.json")
_ATTEMPT = re.compile(r"(\d{10})\.(open|decision|try\.[0-9a-f]+)")
_SINK = re.compile(r"(.+)\.(receipt|waived|restaged)(?:\.\d{10})?")


@lru_cache(maxsize=8192)
def _decoded(value: bytes, kind: type[R]) -> R:
    """Cached, because copies of one ledger share almost all of their records."""
    return decode(value, kind)


def newest_complete_of(copy: Mapping[str, bytes]) -> int:
    """The newest complete epoch in a copy of a ledger, found without decoding it; 0 if no epoch is complete."""
    return max((epoch_of_key(key) or 0 for key in copy if key.endswith("/complete.json")), default=0)


def epoch_of_key(key: str) -> int | None:
    """The epoch of a record's key; None for the pipeline's own records."""
    match = _EPOCH.fullmatch(key)
    return int(match[1]) if match else None


def _from(record: CompleteRecord, starts: Mapping[tuple[str, int], int]) -> CompleteRecord:
    """The record with ranges that begin at ``starts``, or at 0."""
    ranges = {
        topic: tuple(r._replace(start=min(r.start, starts.get((topic, r.partition), 0))) for r in per_topic)
        for topic, per_topic in record.ranges.items()
    }
    return replace(record, ranges=ranges)


@dataclass(frozen=True, kw_only=True)
class LedgerFacts:
    """The records of one copy of a ledger.

    Attributes:
        rebuilt: The rebuildings on record: epochs up to the newest rebuilding's epoch may lack their records.
        unreadable: The keys that do not decode, and why.
    """

    opens: dict[tuple[int, int], OpenRecord] = field(default_factory=dict)
    decisions: dict[tuple[int, int], DecisionRecord] = field(default_factory=dict)
    tries: list[TryRecord] = field(default_factory=list)
    receipts: dict[tuple[int, str], Receipt] = field(default_factory=dict)
    waived: dict[tuple[int, str], WaivedRecord] = field(default_factory=dict)
    restaged: list[RestagedRecord] = field(default_factory=list)
    complete: dict[int, CompleteRecord] = field(default_factory=dict)
    rebuilt: list[RebuiltRecord] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, copy: Mapping[str, bytes]) -> LedgerFacts:
        """Decode a copy of a ledger. Signatures are not checked."""
        facts = cls()
        for key in sorted(copy):
            match = _EPOCH.fullmatch(key)
            try:
                if match:
                    facts._take(int(match[1]), match[2], copy[key])
                elif key.startswith(f"{REBUILT_FOLDER}/"):
                    facts.rebuilt.append(_decoded(copy[key], RebuiltRecord))
            except ValueError as error:
                facts.unreadable[key] = str(error)
        return facts

    def _take(self, epoch: int, what: str, value: bytes) -> None:
        if what == "complete":
            self.complete[epoch] = _decoded(value, CompleteRecord)
        elif match := _ATTEMPT.fullmatch(what):
            self._take_attempt((epoch, int(match[1])), match[2], value)
        elif match := _SINK.fullmatch(what):
            self._take_of_sink((epoch, match[1]), match[2], value)

    def _take_of_sink(self, key: tuple[int, str], what: str, value: bytes) -> None:
        if what == "receipt":
            self.receipts[key] = _decoded(value, Receipt)
        elif what == "waived":
            self.waived[key] = _decoded(value, WaivedRecord)
        else:
            self.restaged.append(_decoded(value, RestagedRecord))

    def _take_attempt(self, attempt: tuple[int, int], what: str, value: bytes) -> None:
        if what == "open":
            self.opens[attempt] = _decoded(value, OpenRecord)
        elif what == "decision":
            self.decisions[attempt] = _decoded(value, DecisionRecord)
        else:
            self.tries.append(_decoded(value, TryRecord))

    @property
    def newest_complete(self) -> int:
        """The newest complete epoch; 0 if no epoch is complete."""
        return max(self.complete, default=0)

    @cached_property
    def sinks(self) -> frozenset[str]:
        """The sinks that have a receipt or a marker on record."""
        names = (name for record in self.complete.values() for name in (*record.receipts, *record.markers))
        return frozenset(sink for _, sink in self.receipts).union(names)

    def sinks_of(self, epoch: int) -> frozenset[str]:
        """The sinks that show a complete epoch. A sink on whose marker a rebuilding rests may have no receipt."""
        record = self.complete[epoch]
        return frozenset(record.receipts).union(name for name, txn in record.markers.items() if txn == record.txn_id)

    @cached_property
    def rebuilt_epochs(self) -> frozenset[int]:
        """The epochs of the rebuildings that are in force. Their completion records say what the sinks told."""
        return frozenset(record.epoch for record in self.rebuilt if record.epoch in self.complete)

    @property
    def rebuilt_to(self) -> int:
        """The newest of ``rebuilt_epochs``; 0 if there is none."""
        return max(self.rebuilt_epochs, default=0)

    @cached_property
    def complete_in_full(self) -> dict[int, CompleteRecord]:
        """``complete``, where the epoch of a rebuilding has the input of all epochs whose records were lost, too."""
        found: dict[int, CompleteRecord] = {}
        ends: dict[tuple[str, int], int] = {}
        for epoch, record in sorted(self.complete.items()):
            found[epoch] = _from(record, ends) if epoch in self.rebuilt_epochs else record
            ends |= ends_of(record.ranges)
        return found

    @cached_property
    def transactions(self) -> dict[str, TransactionId]:
        """Every attempt that the ledger knows, by its id. In a pruned epoch it knows only the committed attempt."""
        records: list[OpenRecord | CompleteRecord] = [*self.opens.values(), *self.complete.values()]
        return {record.txn_id: record.txn_id for record in records}

    @cached_property
    def fences(self) -> frozenset[TransactionId]:
        """The transaction ids of fences, which sinks may show in place of waived transactions."""
        waived = (txn for record in self.complete.values() for sink in record.waived for txn in record.may_show(sink))
        return frozenset(txn.fence for txn in waived)

    def decision_of(self, txn: TransactionId) -> DecisionRecord | None:
        """The decision on this transaction; None if it is not decided, or the decision is another transaction's."""
        record = self.decisions.get((txn.epoch, txn.attempt))
        return record if record and record.txn_id == txn else None

    def is_committed(self, txn: TransactionId) -> bool:
        """Whether the decision is GLOBAL_COMMIT. In a pruned epoch, the completion record tells."""
        complete = self.complete.get(txn.epoch)
        if complete:
            return complete.txn_id == txn
        decision = self.decision_of(txn)
        return decision is not None and decision.decision.value == "GLOBAL_COMMIT"
