"""What happened in a run, as plain values: the input of ``airflow_epochs.testing.checkers``.

Fill in what you know about your run and leave the rest out. A check that lacks something answers UNKNOWN, never PASS.
The ledger part comes from a real ledger. Read rows and markers from the sinks with a reader that you trust::

    history = History.of_ledger(
        ledger,
        sinks={"orders": SinkState(rows=[VisibleRow("orders", 0, 17, "crc…"), …], commits=["orders/1/1/…", …])},
        produced={Origin("orders", 0, 17): "crc…", …},
        rest=Rest(recoveries=1),
    )
    report = check(history)
    print(report)
    report.require()

A *copy* of the ledger is a dict of its files: key -> bytes, without the pipeline's folder in the key
(``copy_of_ledger``). From copies taken during the run, the checkers see records that changed or vanished.
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
"""The ledger's files at one moment, by their key below the pipeline's folder."""


class Origin(NamedTuple):
    """Where a record came from. It identifies the record everywhere."""

    topic: str
    partition: int
    offset: int


class VisibleRow(NamedTuple):
    """A row that a sink's reader sees. ``payload``: a hash of what the transform leaves unchanged; "" if unknown."""

    topic: str
    partition: int
    offset: int
    payload: str = ""

    @property
    def origin(self) -> Origin:
        """The record that the row came from."""
        return Origin(*self[:3])


@dataclass(frozen=True, kw_only=True)
class SinkState:
    """What a sink shows at one moment. None: not read.

    Attributes:
        rows: All rows that a reader sees, in any order.
        commits: The epochs' markers, in the order of their commits: transaction ids or ``Marker``.
    """

    rows: Sequence[VisibleRow] | None = None
    commits: Sequence[str | Marker] | None = None

    @cached_property
    def origins(self) -> frozenset[Origin]:
        """The records of all rows; empty if the rows were not read."""
        return frozenset(row.origin for row in self.rows or ())


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a concurrent reader saw.

    Attributes:
        complete: The newest complete epoch, read from the ledger *before* the sinks.
        sinks: What each sink showed.
        ledger: A copy of the ledger, taken *after* the sinks were read. All that they show must be decided in it.
        balance: For the bank workload: the sum over all rows up to ``complete``.
    """

    complete: int
    sinks: Mapping[str, SinkState]
    ledger: LedgerCopy | None = None
    balance: int | None = None

    @cached_property
    def facts(self) -> LedgerFacts | None:
        """The copy of the ledger, decoded; None without a copy."""
        return None if self.ledger is None else LedgerFacts.of(self.ledger)


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """Fingerprints (ledger keys, table versions, file lists, end offsets …) before and after an action was repeated."""

    what: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]

    @property
    def changed(self) -> list[str]:
        """The names of the fingerprints that differ."""
        return sorted(k for k in {*self.before, *self.after} if self.before.get(k) != self.after.get(k))


@dataclass(frozen=True, kw_only=True)
class Rest:
    """The run was brought to rest: without faults, until there was nothing left to do.

    Attributes:
        recoveries: How many runs it took to come to rest.
        recoveries_max: How many runs it may take.
        hanging: Transactions, sessions, locks and processes that were still open then.
    """

    recoveries: int
    recoveries_max: int = 4
    hanging: Sequence[str] = ()


class Act(str, Enum):
    """What a process did, for I13."""

    LOST = "lost"
    """A write of ``about`` ended without a known outcome."""
    LOOKED = "looked"
    """``about`` was read, or a put-if-absent of it got its answer."""
    DECIDED = "decided"
    """The decision record ``about`` was put, and stands."""
    COMMITTED = "committed"
    """The sink ``about`` was made to show the transaction."""
    DISCARDED = "discarded"
    """The staging place ``about`` of the transaction was deleted."""


class Event(NamedTuple):
    """One act of one process. ``about``: a ledger key (below the pipeline's folder), a sink or a place."""

    actor: str
    act: Act
    about: str
    txn_id: str = ""


@dataclass(frozen=True, kw_only=True)
class History:
    """A run and its end. Everything but the pipeline's name is optional.

    Attributes:
        ledger: The ledger at the end.
        copies: Earlier copies of it, oldest first.
        sinks: What the sinks show at the end. Nobody looked at a sink that is missing here.
        groups: Sinks that share the records, for example orders and rejected orders: each record is in exactly one sink
            of a group. A sink in no group shows every record.
        rewritten: Sinks that rewrite their rows (upsert, overwrite). Only their commits are checked.
        produced: Every record whose producer got an acknowledgement, with the hash of its payload, or "".
        filtered: Records that the transform leaves out on purpose.
        withdrawn: Records of producer transactions that were aborted.
        starts: (topic, partition) -> the first offset that the pipeline had to read; 0 by default.
        observations: What readers saw during the run, oldest first.
        balance: What every observation's balance must be.
        repeats: Repeated actions, which must change nothing (I8).
        zombies: What a process did that went on after another one had finished its epoch (I11).
        rest: Set if the run was brought to rest before the end was read.
        places: Staging places or files at the end.
        referenced: Those places or files that belong to the sinks' visible data.
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
        """A history with a copy of a real ledger. ``more``: the other attributes."""
        store, pipeline = ledger._store, ledger.pipeline  # private, but of this package: a ledger shares its store
        return cls(pipeline=pipeline, ledger=copy_of_ledger(store, pipeline), **more)

    # -- what follows from it ---------------------------------------------------------------------------------

    @cached_property
    def facts(self) -> LedgerFacts:
        """The final ledger, decoded; empty without a ledger."""
        return LedgerFacts.of(self.ledger or {})

    @property
    def timeline(self) -> list[LedgerCopy]:
        """All copies of the ledger, oldest first. Observations' copies are used only if there are no others."""
        observed = [seen.ledger for seen in self.observations if seen.ledger is not None]
        return [*(self.copies or observed), *([self.ledger] if self.ledger is not None else [])]

    @property
    def rows(self) -> Mapping[str, Sequence[VisibleRow]] | None:
        """The final rows of every sink that does not rewrite them; None if some sink's rows are missing."""
        states = {name: state for name, state in (self.sinks or {}).items() if name not in self.rewritten}
        found = {name: state.rows for name, state in states.items() if state.rows is not None}
        return found if self._has_all_sinks and len(found) == len(states) else None

    @property
    def commits(self) -> Mapping[str, Sequence[str | Marker]] | None:
        """The final commits of every sink; None if some sink's commits are missing."""
        states = self.sinks or {}
        found = {name: state.commits for name, state in states.items() if state.commits is not None}
        return found if self._has_all_sinks and len(found) == len(states) else None

    @property
    def _has_all_sinks(self) -> bool:
        """Whether somebody looked at every sink that the ledger names."""
        return self.sinks is not None and self.facts.sinks <= self.sinks.keys()

    def view(self, epoch: int) -> EpochView:
        """What the protocol derives from the final records. Raises Corrupt if they contradict each other."""
        return self._reader.view(epoch)

    @cached_property
    def _reader(self) -> Ledger:
        store = DictStore()
        store.values = {f"{self.pipeline}/{key}": value for key, value in (self.ledger or {}).items()}
        return Ledger(store, self.pipeline, checked=False)

    def groups_of(self, epoch: int) -> list[frozenset[str]]:
        """Groups of sinks that each show every record of a complete epoch. Groups with a waived sink are left out."""
        complete = self.facts.complete[epoch]
        parts = self.facts.sinks_of(epoch) - {*self.rewritten}
        shared = [frozenset(group) for group in self.groups]
        alone = [frozenset({sink}) for sink in sorted(parts) if not any(sink in group for group in shared)]
        return [group & parts for group in [*shared, *alone] if group & parts and not group & set(complete.waived)]

    @cached_property
    def epochs(self) -> EpochIndex:
        """The epochs of the offsets."""
        return EpochIndex(self.facts.complete_in_full)

    def transaction(self, shown: str | Marker) -> TransactionId | None:
        """The attempt that a sink's marker names; None if the ledger does not know it."""
        if isinstance(shown, str):
            return self.facts.transactions.get(shown)
        in_epoch = (txn for txn in self.facts.transactions.values() if txn.epoch == shown.epoch)
        return next((txn for txn in in_epoch if shown.token in (None, txn.token)), None)

    def is_fence(self, shown: str | Marker) -> bool:
        """Whether a sink's marker stands for no rows: it keeps a waived commit from landing."""
        return any(shown in (fence, Marker.of(fence)) for fence in self.facts.fences)


class EpochIndex:
    """Finds the complete epoch that an offset belongs to."""

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
        """The epoch of a record; None if it is in no complete epoch."""
        bounds = self._bounds.get((origin.topic, origin.partition), [])
        index = bisect_right(bounds, origin.offset, key=lambda each: each[0]) - 1
        if index < 0 or origin.offset >= bounds[index][1]:
            return None
        return bounds[index][2]

    def split(self, origins: Collection[Origin]) -> dict[int | None, set[Origin]]:
        """Records by epoch. None: in no complete epoch."""
        parts: dict[int | None, set[Origin]] = {}
        for origin in origins:
            parts.setdefault(self.of(origin), set()).add(origin)
        return parts


def copy_of_ledger(store: Store, pipeline: str) -> dict[str, bytes]:
    """The pipeline's records in the store now. A record that is put meanwhile may be missing."""
    return dict(_copied(store, pipeline))


def _copied(store: Store, pipeline: str) -> Iterator[tuple[str, bytes]]:
    for key in store.list(pipeline):
        value = store.get(key)
        if value is not None:
            yield key.removeprefix(f"{pipeline}/"), value
