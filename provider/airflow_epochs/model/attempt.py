"""The records of one attempt, from its opening to its decision."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from airflow_epochs.model.command import Command, RestorePoint
from airflow_epochs.model.event_times import Watermarks
from airflow_epochs.model.ranges import Backlog, Ranges
from airflow_epochs.model.record import FORMAT_UNSIGNED, JsonDict, Run
from airflow_epochs.model.transaction import TransactionId
from airflow_epochs.model.vote import DecisionKind, Staged, Vote
from airflow_epochs.names import validated_name

_SESSION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TRY_ID = re.compile(r"[0-9A-Za-z]{1,64}")
"""A try's id is a part of its staging places, so no character of it may lead to another folder."""


@dataclass(frozen=True, kw_only=True)
class SinkPlan:
    """A sink in one attempt.

    Attributes:
        spec: The full specification, without secrets.
        previous: The sink's transaction before this epoch; None for its first epoch.
        ranges: The sink's own input, if it begins with earlier epochs (a backfill); None: the epoch's ranges.
        replayed_from: The first epoch of a backfill in which the transform runs once for each epoch; else None.
        backfilled_from: The first epoch of any backfill; None if there is none, or if an earlier version wrote the
            record.
        stored: The columns of the rows that the sink stored in ``previous``, as its receipt says; empty if unknown.
    """

    spec: JsonDict
    previous: TransactionId | None
    ranges: Ranges | None = None
    replayed_from: int | None = None
    backfilled_from: int | None = None
    stored: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StatePin:
    """The version of a state table that an epoch reads: the state as of the epoch before.

    Attributes:
        version: None if the table does not exist yet: the state is empty, or as ``initial`` says.
        initial: The version of the table that the state begins as; None if the state does not begin so in this epoch.
        fold: Whether this epoch stages the whole state instead of its changes.
        base: Bytes of the last fold.
        changes: Bytes of the changes since.
        epochs: How many epochs have changed the state since.
        folded_in: The epoch of that fold, or the first one; None if unknown.
        closed: Up to where the transform's operator had closed the state by the epoch before: one instant, or None, if
            there was no watermark. Empty if unknown.
    """

    version: int | None
    initial: int | None = None
    fold: bool = False
    base: int = 0
    changes: int = 0
    epochs: int = 0
    folded_in: int | None = None
    closed: Watermarks = ()


@dataclass(frozen=True, kw_only=True)
class OpenRecord:
    """``<attempt>.open.json``: VOTE_REQUEST. The attempt exists once this record does.

    An operator's command is an attempt too. Nothing is staged for it, and it counts as aborted from the beginning. Its
    ``ranges`` are empty, and the next attempt is planned from there. An attempt has one record, so a command and a run
    that opens the epoch cannot both have it: either the run obeys the command, or the command is refused.

    Attributes:
        ledger_id: As in ``PipelineRecord``.
        ranges: The input, half-open. Every attempt of the epoch has the same, except as ``Renewing`` says, and after a
            command.
        now, seed: As in attempt 1, so every attempt computes the same rows.
        code: ``Transform.digest`` of the transform; None if unknown.
        ledger: The location of the ledger when the attempt was opened; empty if unknown. A copy of the ledger lies
            elsewhere, and so finds out that it is a copy.
        warnings: What other writers have done to the sinks' rows since they were committed.
        watermarks: As in attempt 1 (``event_time.next_watermarks``). Empty without event time.
        state: State table -> the version that this epoch reads; as in attempt 1.
        command: The command that the attempt holds; None: a run opened it.
        obeys: The attempt with the newest command of this epoch; 0 if there is none. Of a command: itself.
        moved: Whether a command of this epoch moved its input.
        adopted: Sink -> the transaction that it shows before this epoch, by a command of this epoch; None: no epoch.
        restored_to: The epoch whose position and tables come back, by a command of this epoch; 0: no epoch. Such an
            epoch reads no input.
        restores: Sink -> the version that comes back. The other sinks get no rows.
        backlog: As in attempt 1, or in the first one after a command; None if the source does not tell.
        schemas: The ``digest`` of the SchemaRecord with which the input is decoded; None: no registry was asked.
    """

    txn_id: TransactionId
    ledger_id: str
    ranges: Ranges
    source: JsonDict
    source_state: JsonDict
    transform: str
    sinks: dict[str, SinkPlan]
    dag_id: str
    run_id: str
    now: str
    seed: int
    opened_at: str
    writer: str
    code: str | None = None
    ledger: str = ""
    warnings: tuple[str, ...] = ()
    watermarks: Watermarks = ()
    state: dict[str, StatePin] = field(default_factory=dict)
    command: Command | None = None
    obeys: int = 0
    moved: bool = False
    adopted: dict[str, TransactionId | None] = field(default_factory=dict)
    restored_to: int = 0
    restores: dict[str, RestorePoint] = field(default_factory=dict)
    backlog: Backlog | None = None
    schemas: str | None = None
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        validated_name("ledger", self.ledger_id)
        for sink in self.sinks:
            validated_name("sink", sink)

    @property
    def run(self) -> Run:
        """The run that opened the attempt, and is in charge of it."""
        return Run(self.dag_id, self.run_id)

    def ranges_of(self, sink: str) -> Ranges:
        """The input of one sink: its own ranges if it has some, else the epoch's."""
        return self.sinks[sink].ranges or self.ranges


@dataclass(frozen=True, kw_only=True)
class TryRecord:
    """``<attempt>.try.<try_id>.json``, put before a try of ``stage`` starts Spark: what to stop and what to clean up.

    Attributes:
        try_id: The random id of the try, which is part of its staging places. The ledger has it as ``nonce``.
        places: Sink name -> its staging place.
        session: The identity of the Spark session, as the runner chose it.
        code: The transform that this try runs, as in ``OpenRecord``.
        function: Its function; None in a record of an older version, or if the attempt brings tables back.
    """

    txn_id: TransactionId
    try_id: str
    places: dict[str, str]
    session: JsonDict
    started_at: str
    code: str | None = None
    function: str | None = None
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        if not _TRY_ID.fullmatch(self.try_id):
            raise ValueError(f"not a nonce: {self.try_id!r}")
        session_id = self.session.get("session_id")  # a runner of another kind may have no such id
        if session_id is not None and not (isinstance(session_id, str) and _SESSION_ID.fullmatch(session_id)):
            raise ValueError(f"not a Spark session: {session_id!r}")


@dataclass(frozen=True, kw_only=True)
class DecisionRecord:
    """``<attempt>.decision.json``: immutable, at most one per attempt. ``dag_id``, ``run_id``: the run that decided.

    ``event_times``, ``code``, ``metrics``: as in ``StageReport``, of the rows that were voted on.
    """

    txn_id: TransactionId
    decision: DecisionKind
    reason: str
    votes: dict[str, Vote]
    dag_id: str
    run_id: str
    decided_at: str
    writer: str
    event_times: dict[str, dict[str, int]] = field(default_factory=dict)
    code: str | None = None
    metrics: JsonDict = field(default_factory=dict)
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class RestagedRecord:
    """``<sink>.restaged.<n>.json``: replaces what the decision (or record n-1) names, because those files are gone.

    Put before anything of ``staged`` is committed. ``staged`` has the same digest as in the decision.
    """

    txn_id: TransactionId
    sink: str
    number: int
    staged: Staged
    at: str
    writer: str
    format: int = FORMAT_UNSIGNED
