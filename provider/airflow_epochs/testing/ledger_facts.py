"""A ledger's records, decoded and sorted by what they are about."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeVar

from airflow_epochs.ledger.codec import decode
from airflow_epochs.model import (
    CompleteRecord,
    DecisionRecord,
    OpenRecord,
    Receipt,
    RestagedRecord,
    TransactionId,
    TryRecord,
    WaivedRecord,
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
    """The newest complete epoch in a copy of a ledger, found without decoding it; 0 if there is none."""
    return max((epoch_of_key(key) or 0 for key in copy if key.endswith("/complete.json")), default=0)


def epoch_of_key(key: str) -> int | None:
    """The epoch of a record's key; None for the pipeline's own records."""
    match = _EPOCH.fullmatch(key)
    return int(match[1]) if match else None


@dataclass(frozen=True, kw_only=True)
class LedgerFacts:
    """The records of one copy of a ledger. ``unreadable``: the keys that do not decode, and why."""

    opens: dict[tuple[int, int], OpenRecord] = field(default_factory=dict)
    decisions: dict[tuple[int, int], DecisionRecord] = field(default_factory=dict)
    tries: list[TryRecord] = field(default_factory=list)
    receipts: dict[tuple[int, str], Receipt] = field(default_factory=dict)
    waived: dict[tuple[int, str], WaivedRecord] = field(default_factory=dict)
    restaged: list[RestagedRecord] = field(default_factory=list)
    complete: dict[int, CompleteRecord] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, copy: Mapping[str, bytes]) -> LedgerFacts:
        """Decode a copy of a ledger. Signatures are not checked."""
        facts = cls()
        for key in sorted(copy):
            match = _EPOCH.fullmatch(key)
            if not match:
                continue
            try:
                facts._take(int(match[1]), match[2], copy[key])
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
        """0 if no epoch is complete."""
        return max(self.complete, default=0)

    @cached_property
    def transactions(self) -> dict[str, TransactionId]:
        """Every attempt that the ledger knows, by its id. Of a pruned epoch it knows only the committed one."""
        records: list[OpenRecord | CompleteRecord] = [*self.opens.values(), *self.complete.values()]
        return {record.txn_id: record.txn for record in records}

    def decision_of(self, txn: TransactionId) -> DecisionRecord | None:
        """The decision on this transaction; None if there is none, or it is another transaction's."""
        record = self.decisions.get((txn.epoch, txn.attempt))
        return record if record and record.txn_id == str(txn) else None

    def is_committed(self, txn: TransactionId) -> bool:
        """Whether the decision is GLOBAL_COMMIT. In a pruned epoch, the completion record tells."""
        complete = self.complete.get(txn.epoch)
        if complete:
            return complete.txn == txn
        decision = self.decision_of(txn)
        return decision is not None and decision.decision.value == "GLOBAL_COMMIT"
