"""What happened in a run, as plain values: the input of ``airflow_epochs.testing.checkers``.

Fill in what your run can tell and leave the rest out: a check that lacks something answers UNKNOWN, never PASS.
The ledger part comes from a real ledger; rows and markers are read from the sinks by whatever reader you trust::

    history = History.of_ledger(
        ledger,
        sinks={"orders": SinkState(rows=[VisibleRow("orders", 0, 17, "crc…"), …], commits=["orders/1/1/…", …])},
        produced={Origin("orders", 0, 17): "crc…", …},
        rest=Rest(recoveries=1),
    )
    report = check(history)
    print(report)
    report.require()

A *copy* of the ledger is a dict of its files, key to bytes, without the pipeline's folder in front
(``copy_of_ledger``). Copies taken during the run let the checkers see records that changed or vanished.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import Store
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import CompleteRecord, Marker, TransactionId
from airflow_epochs.testing.ledger_facts import LedgerFacts
from airflow_epochs.testing.stores import DictStore

LedgerCopy = Mapping[str, bytes]
"""The ledger's files at one moment, by key below the pipeline's folder."""


class Origin(NamedTuple):
    """Where a record came from: its identity, everywhere."""

    topic: str
    partition: int
    offset: int


class VisibleRow(NamedTuple):
    """A row that a reader of a sink sees. ``payload`` is a hash of what comes unchanged from the record; "" unknown."""

    topic: str
    partition: int
    offset: int
    payload: str = ""

    @property
    def origin(self) -> Origin:
        return Origin(*self[:3])


@dataclass(frozen=True, kw_only=True)
class SinkState:
    """What a sink shows at one moment; None where nobody looked.

    Attributes:
        rows: All rows that a reader sees, in any order.
        commits: The epochs' markers in the order in which the sink committed them: transaction ids or ``Marker``.
    """

    rows: Sequence[VisibleRow] | None = None
    commits: Sequence[str | Marker] | None = None

    @cached_property
    def origins(self) -> frozenset[Origin]:
        return frozenset(row.origin for row in self.rows or ())


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a concurrent reader saw.

    Attributes:
        complete: The newest complete epoch, read from the ledger *before* the sinks.
        sinks: What each sink showed.
        ledger: A copy of the ledger taken *after* the sinks were read: what is shown must be decided in it.
        balance: What the reader's sum over all rows up to ``complete`` was, for the bank workload.
    """

    complete: int
    sinks: Mapping[str, SinkState]
    ledger: LedgerCopy | None = None
    balance: int | None = None

    @cached_property
    def facts(self) -> LedgerFacts | None:
        return None if self.ledger is None else LedgerFacts.of(self.ledger)


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """Fingerprints (ledger keys, table versions, file lists, end offsets …) before and after something was repeated."""

    what: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    @property
    def changed(self) -> list[str]:
        return sorted(k for k in {*self.before, *self.after} if self.before.get(k) != self.after.get(k))


@dataclass(frozen=True, kw_only=True)
class Rest:
    """The faults had stopped, and runs came until there was nothing to do.

    Attributes:
        recoveries: How many runs without faults that took.
        recoveries_max: How many it may take.
        hanging: Transactions, sessions, locks and processes that were still open then.
    """

    recoveries: int
    recoveries_max: int = 4
    hanging: Sequence[str] = ()


class Act(str, Enum):
    LOST = "lost"
    """A write of ``about`` ended without a known outcome."""
    LOOKED = "looked"
    """``about`` was read, or put-if-absent gave its answer."""
    DECIDED = "decided"
    """The decision record ``about`` was put (and stands)."""
    COMMITTED = "committed"
    """The sink ``about`` was made to show the transaction."""
    DISCARDED = "discarded"
    """The staging place ``about`` of the transaction was deleted."""


class Event(NamedTuple):
    """One thing that one process did. ``about``: a ledger key (below the pipeline's folder), a sink or a place."""

    actor: str
    act: Act
    about: str
    txn_id: str = ""


@dataclass(frozen=True, kw_only=True)
class History:
    """A run and how it ended. Everything is optional but the pipeline's name.

    Attributes:
        ledger: The ledger at the end.
        copies: Earlier copies of it, oldest first.
        sinks: What the sinks show at the end.
        groups: Sinks that share the records: each record is in exactly one sink of a group (orders and rejected
            orders). A sink in no group shows every record.
        rewritten: Sinks that rewrite their rows (upsert, overwrite): only their commits are checked.
        produced: Every record whose producer got an acknowledgement, with the hash of its payload or "".
        filtered: Records that the transform leaves out on purpose.
        withdrawn: Records of producer transactions that were aborted.
        starts: Per (topic, partition) the first offset that the pipeline had to read; 0 if not named.
        observations: What readers saw during the run, oldest first.
        balance: What every observation's balance must be.
        repeats: Things done again that must change nothing (I8).
        zombies: What a process did that woke up after its epoch had been finished by another one (I11).
        rest: Set if the run was brought to rest before the end was read.
        places: Staging places or files at the end; referenced: those that the sinks' visible data consist of.
        trace: What each process did, in order.
    """

    pipeline: str
    ledger: LedgerCopy | None = None
    copies: Sequence[LedgerCopy] = ()
    sinks: Mapping[str, SinkState] | None = None
    groups: Sequence[Collection[str]] = ()
    rewritten: Collection[str] = ()
    produced: Mapping[Origin, str] | None = None
    filtered: Collection[Origin] = frozenset()
    withdrawn: Collection[Origin] = frozenset()
    starts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    observations: Sequence[Observation] = ()
    balance: int | None = None
    repeats: Sequence[Repeat] = ()
    zombies: Sequence[Repeat] = ()
    rest: Rest | None = None
    places: Collection[str] | None = None
    referenced: Collection[str] | None = None
    trace: Sequence[Event] | None = None

    @classmethod
    def of_ledger(cls, ledger: Ledger, **more: Any) -> History:
        """A history whose ledger is a copy of a real one; ``more`` are the other attributes."""
        store, pipeline = ledger._store, ledger._pipeline  # the same package: a ledger gives its store to nobody else
        return cls(pipeline=pipeline, ledger=copy_of_ledger(store, pipeline), **more)

    # -- what follows from it ---------------------------------------------------------------------------------

    @cached_property
    def facts(self) -> LedgerFacts:
        return LedgerFacts.of(self.ledger or {})

    @property
    def timeline(self) -> list[LedgerCopy]:
        """All copies of the ledger, oldest first; observations' copies only if there are no others."""
        observed = [seen.ledger for seen in self.observations if seen.ledger is not None]
        return [*(self.copies or observed), *([self.ledger] if self.ledger is not None else [])]

    @property
    def rows(self) -> Mapping[str, Sequence[VisibleRow]] | None:
        """The final rows of every sink that keeps them; None if those of one are missing."""
        states = {name: state for name, state in (self.sinks or {}).items() if name not in self.rewritten}
        found = {name: state.rows for name, state in states.items() if state.rows is not None}
        return found if self.sinks is not None and len(found) == len(states) else None

    @property
    def commits(self) -> Mapping[str, Sequence[str | Marker]] | None:
        """The final commits of every sink; None if those of one are missing."""
        states = self.sinks or {}
        found = {name: state.commits for name, state in states.items() if state.commits is not None}
        return found if self.sinks is not None and len(found) == len(states) else None

    def view(self, epoch: int) -> EpochView:
        """What the protocol makes of the final records. Raises Corrupt if they contradict each other."""
        return self._reader.view(epoch)

    @cached_property
    def _reader(self) -> Ledger:
        store = DictStore()
        store.values = {f"{self.pipeline}/{key}": value for key, value in (self.ledger or {}).items()}
        return Ledger(store, self.pipeline, checked=False)

    def groups_of(self, epoch: int) -> list[frozenset[str]]:
        """The groups of sinks that each show every record of a complete epoch; without those with a waived sink."""
        complete = self.facts.complete[epoch]
        parts = frozenset(complete.receipts) - {*self.rewritten}
        shared = [frozenset(group) for group in self.groups]
        alone = [frozenset({sink}) for sink in sorted(parts) if not any(sink in group for group in shared)]
        return [group & parts for group in [*shared, *alone] if group & parts and not group & set(complete.waived)]

    @cached_property
    def epochs(self) -> EpochIndex:
        return EpochIndex(self.facts.complete)

    def transaction(self, shown: str | Marker) -> TransactionId | None:
        """The attempt that a sink's marker names, among those that the ledger knows of."""
        if isinstance(shown, str):
            return self.facts.transactions.get(shown)
        in_epoch = (txn for txn in self.facts.transactions.values() if txn.epoch == shown.epoch)
        return next((txn for txn in in_epoch if shown.token in (None, txn.token)), None)


class EpochIndex:
    """Which complete epoch an offset belongs to."""

    def __init__(self, complete: Mapping[int, CompleteRecord]) -> None:
        self._bounds: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        for epoch, record in sorted(complete.items()):
            for topic, per_topic in record.ranges.items():
                for r in per_topic:
                    if r.end > r.start:
                        self._bounds.setdefault((topic, r.partition), []).append((r.start, r.end, epoch))
        for bounds in self._bounds.values():
            bounds.sort()

    def of(self, origin: Origin) -> int | None:
        bounds = self._bounds.get((origin.topic, origin.partition), [])
        index = bisect_right(bounds, origin.offset, key=lambda each: each[0]) - 1
        if index < 0 or origin.offset >= bounds[index][1]:
            return None
        return bounds[index][2]

    def split(self, origins: Collection[Origin]) -> dict[int | None, set[Origin]]:
        """Origins by epoch; None: in no complete epoch."""
        parts: dict[int | None, set[Origin]] = {}
        for origin in origins:
            parts.setdefault(self.of(origin), set()).add(origin)
        return parts


def copy_of_ledger(store: Store, pipeline: str) -> dict[str, bytes]:
    """The pipeline's records as they lie in the store. What is written meanwhile may be in it or not."""
    return dict(_copied(store, pipeline))


def _copied(store: Store, pipeline: str) -> Iterator[tuple[str, bytes]]:
    for key in store.list(pipeline):
        value = store.get(key)
        if value is not None:
            yield key.removeprefix(f"{pipeline}/"), value
