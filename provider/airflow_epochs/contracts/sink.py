"""One destination of rows: what every sink does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.model import (
    EventTimes,
    JsonDict,
    Marker,
    OpenRecord,
    Receipt,
    RestorePoint,
    Staged,
    StagedClaim,
    StatePin,
    TransactionId,
    Vote,
    Watermarks,
    starting_at_ends,
)

Ends = Mapping[str, Mapping[str, int]]
"""Topic -> partition -> first offset after an epoch, in the form of ``starting``."""


@dataclass(frozen=True, kw_only=True)
class SinkAttempt:
    """One sink's part in one attempt: what stage, vote, commit and abort need besides the sink itself.

    Attributes:
        txn: The attempt's transaction.
        ledger_id: Keeps this pipeline's staging places in a table apart from the places of other pipelines.
        previous: The sink's marker before this epoch, as the ledger records it; None for its first epoch.
        ends: Where the epoch ends. A sink stores it with its commit, so the position survives the loss of the ledger.
        ledger: Where the ledger is, for people to read; empty if unknown.
        promised: True if GLOBAL_COMMIT has been decided and lost rows are staged again. The vote then leaves out
            checks that only say whether a VOTE_COMMIT is wise: the sink has given it.
        watermarks: As in ``OpenRecord``.
        event_times: As in ``CompleteRecord`` of this epoch; given to the commit alone.
        state: The version that a state table's changes rest on; None for other sinks.
        restore: The version of the sink's table that comes back with this epoch; else None.
        stored: As in ``SinkPlan``.
    """

    txn: TransactionId
    ledger_id: str
    previous: TransactionId | None
    ends: Ends = field(default_factory=dict)
    ledger: str = ""
    promised: bool = False
    watermarks: Watermarks = ()
    event_times: EventTimes = field(default_factory=dict)
    state: StatePin | None = None
    restore: RestorePoint | None = None
    stored: tuple[str, ...] = ()

    @classmethod
    def of(cls, opened: OpenRecord, sink: str) -> SinkAttempt:
        """The part of ``sink`` in the attempt that ``opened`` records."""
        plan = opened.sinks[sink]
        return cls(
            txn=opened.txn_id,
            ledger_id=opened.ledger_id,
            previous=plan.previous,
            ends=starting_at_ends(opened.ranges),
            ledger=opened.ledger,
            watermarks=opened.watermarks,
            state=opened.state.get(sink),
            restore=opened.restores.get(sink),
            stored=plan.stored,
        )


class Sink(Protocol):
    """One destination of rows. An instance is configuration; each operation gets its environment as an argument.

    ``from_spec`` (in ``sinks/__init__.py``) is the inverse of ``spec``: commit and roll-forward rebuild the sink from
    the specification in the ledger, not from today's DAG.
    """

    @property
    def name(self) -> str:
        """The sink's name, unique in its pipeline. The sink's marker and receipts carry it."""
        ...

    def asset_uri(self, pipeline: str) -> str:
        """The URI of the Airflow asset for the sink's data. Needs no connection."""
        ...

    def destination(self) -> str | None:
        """What no other sink of the pipeline may write to; None while it still holds an Airflow template."""
        ...

    def spec(self) -> JsonDict:
        """The full specification, as the ledger records it, with ``kind``: connection ids, no secrets."""
        ...

    def place(self, attempt: SinkAttempt, try_id: str, env: Environment) -> str:
        """The staging place of the try ``try_id``. No other try ever has the same. Writes nothing.

        ``try_id`` is part of the place, unchanged, so the coordinator can detect a forged place in a record.
        """
        ...

    def plan_stage(self, attempt: SinkAttempt, try_id: str, env: Environment) -> JsonDict:
        """Spark's plan for filling ``place``, with ``place`` in it. The coordinator passes it on unchanged.

        May prepare the place: the ledger has recorded it before this call. Idempotent per try.
        """
        ...

    def vote(self, attempt: SinkAttempt, claim: StagedClaim, env: Environment) -> Vote:
        """Verify the staged rows, independently of Spark's claim, and run every check that commit will run.

        VOTE_COMMIT is a promise: from then on ``commit`` can always succeed in the end. The staged rows are durable
        before it is given: they survive a power cut. Changes nothing that readers see, so it may be repeated.
        """
        ...

    def commit(self, attempt: SinkAttempt, staged: Staged, env: Environment) -> Receipt:
        """Make the staged rows visible, exactly once, together with the marker. A repeat returns the same receipt.

        Raises:
            OutcomeUnknown: The commit may have happened, and the sink cannot be asked now. Call again.
            RowsGone: The sink still shows the previous epoch, and the staged rows are gone. Stage them again.
            RowsLost: The sink shows this epoch, but some of its rows have vanished. Stage them again: commit then
                puts them back.
            Corrupt: The sink's marker names neither the previous nor this transaction. Nothing was written.
        """
        ...

    def discard(self, attempt: SinkAttempt, place: str, env: Environment, *, published: bool) -> None:
        """Delete one staging place. With ``published``, keep the part of it that belongs to the sink's visible data.

        Called only after the decision that allows it has been read back. Idempotent. The ledger may be a stale copy,
        so a sink never deletes what it shows, nor what it once showed and readers can still read.
        """
        ...

    def last_committed(self, pipeline: str, env: Environment) -> Marker | None:
        """The sink's marker for this pipeline now; None if it has none."""
        ...
