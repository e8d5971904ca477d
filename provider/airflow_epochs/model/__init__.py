"""Frozen value types: what the ledger records and XCom carries. No I/O, no clock.

Every record carries ``format``: 2 if it is signed, else 1. Decoding ignores unknown fields, so a newer version may add
fields to the *same* format. The ledger refuses a record of a newer format.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple, TypedDict

from airflow_epochs.names import DRY_RUN, validated_name
from airflow_epochs.schemas import WriterSchema

FORMAT = 2
"""The format of signed records. A record that was read has this format only if its signature was checked."""
FORMAT_UNSIGNED = 1
"""The format of unsigned records, the only one that version 0.1 knows."""
_NONCE = re.compile(r"[0-9a-f]{32}")
_SESSION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TRY_ID = re.compile(r"[0-9A-Za-z]{1,64}")
"""A try's id is a part of its staging places, so no character of it may lead to another folder."""

JsonDict = dict[str, Any]


class OffsetRange(NamedTuple):
    """Offsets ``[start, end)`` of one partition: half-open. ``start == end``: nothing to read, the position stays."""

    partition: int
    start: int
    end: int


Ranges = dict[str, tuple[OffsetRange, ...]]
"""Topic -> one range for every known partition, ascending by partition."""


@dataclass(frozen=True, kw_only=True)
class PartitionTime:
    """The newest event time of a partition's rows, in microseconds since 1970 (UTC).

    ``seen``: the ``now`` of the last epoch that had rows of this partition with an event time.
    """

    newest: int
    seen: str


EventTimes = dict[str, dict[str, PartitionTime]]
"""Topic -> partition, as text -> its newest event time."""
Watermarks = tuple[int | None, ...]
"""The watermark of an epoch, then those of the epochs before, newest first: microseconds since 1970 (UTC).

One more than stateful operators may stand one behind another. None: no row with an event time had been seen by then.
"""


@dataclass(frozen=True, order=True)
class TransactionId:
    """``<pipeline>/<epoch>/<attempt>/<nonce>``, chosen before the first effect and never changed.

    The nonce (128 random bits, hex) makes ids unique even if a ledger restored from a backup issues the same
    numbers again for other data.
    """

    pipeline: str
    epoch: int
    attempt: int
    nonce: str

    def __post_init__(self) -> None:
        validated_name("pipeline", self.pipeline)
        if self.epoch < 1 or self.attempt < 1 or not _NONCE.fullmatch(self.nonce):
            raise ValueError(f"not a transaction id: {self!r}")

    def __str__(self) -> str:
        return f"{self.pipeline}/{self.epoch}/{self.attempt}/{self.nonce}"

    @classmethod
    def parse(cls, text: str) -> TransactionId:
        """The inverse of ``str``. Raises ValueError for every other text, also for ``p/01/1/…``."""
        return _parsed(text)

    @property
    def token(self) -> int:
        """The first 63 bits of the nonce: as many as a Delta ``SetTransaction`` version, a signed long, can hold."""
        return int(self.nonce[:16], 16) >> 1


@lru_cache(maxsize=1024)
def _parsed(text: str) -> TransactionId:
    """Cached, because a task meets few ids, each in many records."""
    pipeline, epoch, attempt, nonce = text.split("/")
    txn = TransactionId(pipeline, int(epoch), int(attempt), nonce)
    if str(txn) != text:
        raise ValueError(f"not a transaction id: {text!r}")
    return txn


class AttemptFields(TypedDict):
    """The fields by which an ``EpochError`` names an attempt."""

    pipeline: str
    epoch: int
    attempt: int


def attempt_fields(txn: TransactionId) -> AttemptFields:
    """The keyword arguments of an ``EpochError`` that name the attempt of ``txn``."""
    return {"pipeline": txn.pipeline, "epoch": txn.epoch, "attempt": txn.attempt}


@dataclass(frozen=True)
class Marker:
    """What a sink stores atomically with an epoch's rows.

    ``token`` is ``TransactionId.token``. It is None if the sink no longer knows the transaction: a Delta table that
    Spark commits to, once its history has been cleaned up.
    """

    epoch: int
    token: int | None

    @classmethod
    def of(cls, txn: TransactionId) -> Marker:
        """The marker that a sink stores for this transaction."""
        return cls(txn.epoch, txn.token)


def agree(found: Marker | None, expected: TransactionId | None) -> bool:
    """Whether a sink shows exactly ``expected``; None: no epoch. A marker without a token needs only the same epoch."""
    return compare(found, expected) is Shown.EXPECTED


class Shown(Enum):
    """What a sink shows, compared with the epoch that is expected and with the one that is being committed."""

    ALREADY = "the epoch on its way"
    NAMELESS = "an epoch of that number, and the sink no longer knows whose"
    EXPECTED = "what is expected"
    NOTHING = "no epoch, though one is expected"
    BEHIND = "an earlier epoch than expected"
    ANOTHER = "another transaction of the epoch that is expected"
    AHEAD = "a later epoch than expected"


def compare(
    found: Marker | TransactionId | None, expected: TransactionId | None, on_its_way: TransactionId | None = None
) -> Shown:
    """Compare what a sink shows with what the ledger says. No other code makes this comparison.

    Args:
        found: What the sink shows: a marker, or a whole transaction id if the sink keeps it.
        expected: The sink's previous transaction, or its last complete one; None: no epoch.
        on_its_way: The transaction that is being committed or is in doubt, if any. Later than ``expected``.
    """
    if found is None:
        return Shown.NOTHING if expected else Shown.EXPECTED
    if on_its_way and found in (on_its_way, Marker.of(on_its_way)):
        return Shown.ALREADY
    if on_its_way and found == Marker(on_its_way.epoch, None):
        return Shown.NAMELESS
    if expected is None or found.epoch > expected.epoch:
        return Shown.AHEAD
    if found.epoch < expected.epoch:
        return Shown.BEHIND
    is_it = found in (expected, Marker.of(expected), Marker(expected.epoch, None))
    return Shown.EXPECTED if is_it else Shown.ANOTHER


def described_epochs(first: int, last: int) -> str:
    """The epochs ``[first, last]``, for a text."""
    return f"epoch {first}" if first == last else f"epochs {first} to {last}"


def described(marker: Marker | None) -> str:
    """What a sink shows, for an error's text."""
    return "no epoch of this sink" if marker is None else f"epoch {marker.epoch} (token {marker.token})"


def described_transaction(txn: TransactionId | None) -> str:
    """The epoch that the ledger expects, for an error's text in which the word "epoch" comes before."""
    return "none" if txn is None else f"{txn.epoch} ({txn}, token {txn.token})"


def process_of(writer: str) -> str:
    """The process and host in a record's ``writer``, for a text; empty for a record of version 0.1, which has none."""
    _, _, process = writer.partition("@")
    host, _, pid = process.rpartition(":")
    return f" (process {pid} on host {host})" if host else ""


@dataclass(frozen=True)
class Run:
    """An Airflow run, by its two ids. The run that opens an attempt is in charge of it."""

    dag_id: str
    run_id: str

    def __str__(self) -> str:
        return f"run {self.run_id} of DAG {self.dag_id}"


class VoteKind(str, Enum):
    """A sink's vote. The values are the messages' names in the literature, and stand in records."""

    VOTE_COMMIT = "VOTE_COMMIT"
    VOTE_ABORT = "VOTE_ABORT"


class DecisionKind(str, Enum):
    """The decision on an attempt. The values are the messages' names in the literature, and stand in records."""

    GLOBAL_COMMIT = "GLOBAL_COMMIT"
    GLOBAL_ABORT = "GLOBAL_ABORT"


@dataclass(frozen=True, kw_only=True)
class Staged:
    """What a sink's VOTE_COMMIT rests on: the staged rows, as the sink itself found them.

    Attributes:
        place: The staging place of the try.
        version: The version of the staging table that holds the rows.
        digest: A digest of the staged files. The same rows, staged again *into files of the same kind*, have the same.
        content: A digest of the rows alone, whatever their order and their files; None if the sink computes none.
        detail: What else the sink saw when it voted. Its commit compares this with what it finds.
    """

    place: str
    version: int
    files: int
    rows: int
    bytes: int
    digest: str
    content: str | None = None
    detail: JsonDict = field(default_factory=dict)

    def has_rows_of(self, other: Staged) -> bool:
        """Whether both digests of the rows are equal; if one is missing, whether the digests of the files are."""
        if self.content is None or other.content is None:
            return self.digest == other.digest
        return self.content == other.content


@dataclass(frozen=True, kw_only=True)
class Vote:
    """One sink's vote. VOTE_COMMIT always carries ``staged``; VOTE_ABORT always carries ``reason``."""

    vote: VoteKind
    reason: str | None = None
    staged: Staged | None = None

    def __post_init__(self) -> None:
        if self.vote is VoteKind.VOTE_COMMIT and self.staged is None:
            raise ValueError("VOTE_COMMIT without staged")
        if self.vote is VoteKind.VOTE_ABORT and not self.reason:
            raise ValueError("VOTE_ABORT without a reason")


def reasons_against(votes: Mapping[str, Vote]) -> dict[str, str]:
    """The reason of each VOTE_ABORT, by its sink."""
    return {sink: vote.reason or "" for sink, vote in votes.items() if vote.vote is VoteKind.VOTE_ABORT}


STORED = "stored"
"""In ``detail`` of ``Staged`` and of ``Receipt``: the columns of the rows that the sink stores, as its vote found."""


@dataclass(frozen=True, kw_only=True)
class StagedClaim:
    """What Spark reports that it staged for a sink. It proves nothing: the sink checks the rows before it votes.

    Attributes:
        place: The staging place that Spark wrote to.
        problem: Why data or schema keep the rows from being staged: the reason of a VOTE_ABORT. Else None.
        content: Spark's digest of the rows that it wrote, for ``Staged.content``.
        unmet: Which expectations the rows do not meet. The provider then votes against the sink itself. Else None.
    """

    place: str
    problem: str | None = None
    content: JsonDict | None = None
    unmet: str | None = None


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """The outcome of one try of ``stage``. XCom carries it; the ledger does not rely on it.

    Attributes:
        try_id: The random id of the try, which is part of its staging places. XCom has it as ``nonce``.
        claims: Sink name -> what Spark reports for it.
        event_times: Topic -> partition -> the newest event time of the rows that were read (see ``PartitionTime``).
        code: The transform that made the rows, as in ``OpenRecord``.
    """

    txn_id: str
    try_id: str
    claims: dict[str, StagedClaim]
    metrics: JsonDict = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    event_times: dict[str, dict[str, int]] = field(default_factory=dict)
    code: str | None = None


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
    previous: str | None
    ranges: Ranges | None = None
    replayed_from: int | None = None
    backfilled_from: int | None = None
    stored: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.previous is not None:
            TransactionId.parse(self.previous)


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
    """

    version: int | None
    initial: int | None = None
    fold: bool = False
    base: int = 0
    changes: int = 0
    epochs: int = 0
    folded_in: int | None = None


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """What the source had when an epoch was planned, and the epoch does not read. For people; no task reads it.

    Attributes:
        offsets: How many offsets can be read behind the epoch's ranges; at most as many are records.
        seconds: How long the first of them had waited, at most; None if the source does not tell.
    """

    offsets: int
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class PipelineRecord:
    """``pipeline.json``. ``ledger_id`` is drawn once; no other ledger has the same, so no staging places collide."""

    pipeline: str
    ledger_id: str
    dag_id: str
    created_at: str
    writer: str
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        validated_name("ledger", self.ledger_id)


@dataclass(frozen=True, kw_only=True)
class TakeoverRecord:
    """``takeovers/<n>.json``: from now on ``dag_id`` owns the pipeline.

    Attributes:
        who: The effective user on ``host``. In a record of version 0.1, which has no ``host``: the user that the
            environment named.
        login: The user that the environment named, if it was another one.
        epoch: The epoch that was open or in doubt then, else the newest complete one; None in a record of an earlier
            version.
    """

    dag_id: str
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    epoch: int | None = None
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class SigningRecord:
    """``signing/<n>.json``: from now on an unsigned record is believed only if this record says so.

    Put when a ledger gets its first key, when the key changes, and by ``airflow epochs sign``. The highest n counts.

    Attributes:
        epoch: The newest complete epoch at that time. The records of this epoch and of earlier ones are history and
            need no signature, except the completion record of this one, because the next epoch rests on it.
        trusted: The records of that time that are still needed: key within the pipeline's ledger -> SHA-256 of the
            stored bytes.
        who, host, login: As in ``TakeoverRecord``; empty if a task put the record without being asked.
    """

    pipeline: str
    number: int
    epoch: int
    trusted: dict[str, str]
    why: str
    at: str
    writer: str
    who: str = ""
    host: str = ""
    login: str = ""
    format: int = FORMAT


RAN_AS = "spark"
"""The metric that says which Spark application staged the rows, where that is known: ``id``, and ``url`` of its UI."""
REWIND = "rewind"
"""The name of the command that alone brings tables back."""
ACKNOWLEDGE_CODE = "acknowledge-code"
"""The name of the command that is no attempt: it may come while an epoch is open, and changes no position."""
SHORT_CODE = 12
"""How many digits of a transform's digest a text shows."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """What an operator ordered for the next epoch. ``who``, ``host``, ``login``: as in ``TakeoverRecord``.

    Attributes:
        name: The command, as typed after ``airflow epochs``.
        lost: The offsets that no epoch will read, half-open.
        again: The offsets before the position that the next epochs read once more, half-open. No epoch has read those
            that lie before the first epoch's beginning, or that a command has skipped.
        left: Where the pipeline left a topic whose place another topic has taken, as empty ranges.
        lacks: Sink -> the epochs ``(first, last)`` that it lacks from now on.
        restores: Sink -> the version of its table that comes back.
        back_to: The time that the input goes back to, in ISO 8601: epochs of data intervals that ended by then are not
            read again. "": it is not known by a time, or an older version has written the command.
    """

    name: str
    who: str
    why: str
    at: str
    host: str = ""
    login: str = ""
    lost: Ranges = field(default_factory=dict)
    again: Ranges = field(default_factory=dict)
    left: Ranges = field(default_factory=dict)
    lacks: dict[str, tuple[int, int]] = field(default_factory=dict)
    restores: dict[str, int] = field(default_factory=dict)
    back_to: str = ""


@dataclass(frozen=True, kw_only=True)
class RestorePoint:
    """The version of a sink's table that comes back by a command.

    Attributes:
        epoch: The epoch that the version shows: the last one of the sink, as of the epoch that the command names.
        version: The version of the table.
        state: Of a state table: what the receipt of ``epoch`` says of it.
    """

    epoch: int
    version: int
    state: JsonDict = field(default_factory=dict)


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
        now, seed: Those of attempt 1, so every attempt computes the same rows.
        code: ``Transform.digest`` of the transform; None if unknown.
        ledger: The location of the ledger when the attempt was opened; empty if unknown. A copy of the ledger lies
            elsewhere, and so finds out that it is a copy.
        warnings: What other writers have done to the sinks' rows since they were committed.
        watermarks: Those of attempt 1 (``event_time.next_watermarks``). Empty without event time.
        state: State table -> the version that this epoch reads; those of attempt 1.
        command: The command that the attempt holds; None: a run opened it.
        obeys: The attempt with the newest command of this epoch; 0 if there is none. Of a command: itself.
        moved: Whether a command of this epoch moved its input.
        adopted: Sink -> the transaction that it shows before this epoch, by a command of this epoch; None: no epoch.
        restored_to: The epoch whose position and tables come back, by a command of this epoch; 0: none does. Such an
            epoch reads no input.
        restores: Sink -> the version that comes back. The other sinks get no rows.
        backlog: That of attempt 1, or of the first one after a command; None if the source does not tell.
        schemas: The ``digest`` of the SchemaRecord with which the input is decoded; None: no registry was asked.
    """

    txn_id: str
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
    adopted: dict[str, str | None] = field(default_factory=dict)
    restored_to: int = 0
    restores: dict[str, RestorePoint] = field(default_factory=dict)
    backlog: Backlog | None = None
    schemas: str | None = None
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        validated_name("ledger", self.ledger_id)
        for sink in self.sinks:
            validated_name("sink", sink)
        for txn_id in filter(None, self.adopted.values()):
            TransactionId.parse(txn_id)

    @property
    def txn(self) -> TransactionId:
        """``txn_id``, parsed."""
        return TransactionId.parse(self.txn_id)

    @property
    def run(self) -> Run:
        """The run that opened the attempt, and is in charge of it."""
        return Run(self.dag_id, self.run_id)

    def ranges_of(self, sink: str) -> Ranges:
        """The input of one sink: its own ranges if it has some, else the epoch's."""
        return self.sinks[sink].ranges or self.ranges


@dataclass(frozen=True, kw_only=True)
class SchemaRecord:
    """``schemas/<digest>.json``: schemas by their ids in a registry. Epochs that found the same schemas share it.

    It has no signature: its key is the digest of what it says, and the open record that names the digest is signed.
    """

    schemas: dict[str, WriterSchema]
    format: int = FORMAT_UNSIGNED

    @property
    def digest(self) -> str:
        """SHA-256 of the schemas, in hex."""
        told = [[number, each.kind, each.text, each.flaw] for number, each in sorted(self.schemas.items())]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()


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

    txn_id: str
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
        session_id = self.session.get("session_id")  # a runner of another kind may have none
        if session_id is not None and not (isinstance(session_id, str) and _SESSION_ID.fullmatch(session_id)):
            raise ValueError(f"not a Spark session: {session_id!r}")


@dataclass(frozen=True, kw_only=True)
class DecisionRecord:
    """``<attempt>.decision.json``: immutable, at most one per attempt. ``dag_id``, ``run_id``: the run that decided.

    ``event_times``, ``code``, ``metrics``: as in ``StageReport``, of the rows that were voted on.
    """

    txn_id: str
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

    txn_id: str
    sink: str
    number: int
    staged: Staged
    at: str
    writer: str
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """``<sink>.receipt.json``: the sink shows the epoch. ``version`` is the Delta version of the commit.

    ``place`` is the staging place whose rows the sink committed; None if the sink no longer knows it.
    """

    txn_id: str
    sink: str
    rows: int
    files: int
    bytes: int
    version: int | None
    committed_at: str
    place: str | None = None
    detail: JsonDict = field(default_factory=dict)
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class WaivedRecord:
    """``<sink>.waived.json``, in place of a receipt: an operator states that the sink cannot keep its promise.

    ``who``, ``host``, ``login``: as in ``TakeoverRecord``.
    """

    txn_id: str
    sink: str
    who: str
    why: str
    at: str
    host: str = ""
    login: str = ""
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class CompleteRecord:
    """``complete.json``: closes its epoch and is never deleted.

    It holds all that the next epoch needs, because the epoch's other records may be pruned.

    Attributes:
        markers: For every sink that ever took part, the transaction id of its last complete epoch.
        waived: The sinks that were waived and have had no receipt since.
        waived_ids: For each of them, the transactions waived since its last receipt, oldest first. The sink may have
            committed any of them late.
        watermarks: As in ``OpenRecord``.
        event_times: Per partition, the newest event time up to this epoch.
        moved_in: The newest epoch whose input a command moved, up to this epoch; 0 if there is none. Since then, each
            epoch begins where the one before ended.
        commands: The commands that this epoch obeyed, oldest first. If its code was acknowledged, that comes last.
        code: The transform that made the rows, as in ``OpenRecord``.
        adopted_in: Sink -> the newest epoch that took it as it was: versions of earlier epochs may be of another table.
        backlog: As in ``OpenRecord``.
    """

    txn_id: str
    ranges: Ranges
    source_state: JsonDict
    receipts: dict[str, Receipt]
    markers: dict[str, str]
    opened_by: Run
    completed_by: Run
    metrics: JsonDict
    completed_at: str
    writer: str
    waived: tuple[str, ...] = ()
    waived_ids: dict[str, tuple[str, ...]] = field(default_factory=dict)
    watermarks: Watermarks = ()
    event_times: EventTimes = field(default_factory=dict)
    moved_in: int = 0
    commands: tuple[Command, ...] = ()
    adopted_in: dict[str, int] = field(default_factory=dict)
    code: str | None = None
    backlog: Backlog | None = None
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        for txn_id in (*self.markers.values(), *(txn_id for ids in self.waived_ids.values() for txn_id in ids)):
            TransactionId.parse(txn_id)

    @property
    def txn(self) -> TransactionId:
        """``txn_id``, parsed."""
        return TransactionId.parse(self.txn_id)

    @property
    def only_restored(self) -> bool:
        """Whether the epoch brought tables back by a command, and read nothing. Another `rewind` may call that off."""
        rewinds = [each for each in self.commands if each.name == REWIND]
        return bool(rewinds and rewinds[-1].restores)

    def may_show(self, sink: str) -> list[str]:
        """The waived transactions that a waived sink may have committed late, newest first; none for other sinks."""
        if sink not in self.waived:
            return []
        return list(reversed(self.waived_ids.get(sink) or (self.txn_id,)))


@dataclass(frozen=True, kw_only=True)
class RebuiltRecord:
    """``rebuilt/<n>.json``: all epochs up to ``epoch`` are complete, whatever the ledger lacks of their records.

    In force once ``epoch`` has a completion record. Put by ``airflow epochs rebuild``, which learned from the sinks
    what a ledger that was lost, or restored from an older copy, did not know.

    Attributes:
        backfill_from: The first epoch whose input the ledger knows. No sink can begin with an earlier one.
        txn_id: The transaction that all of ``sinks`` show.
        source, transform: The pipeline as it was then, as in ``OpenRecord``.
        sinks: Sink -> its specification.
        without: The sinks that do not show ``epoch`` and were left out -> the epoch that they show, 0 if none.
        who, host, login: As in ``TakeoverRecord``.
    """

    pipeline: str
    number: int
    txn_id: str
    backfill_from: int
    dag_id: str
    source: JsonDict
    transform: str
    sinks: dict[str, JsonDict]
    without: dict[str, int]
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    format: int = FORMAT_UNSIGNED

    @property
    def epoch(self) -> int:
        """The newest epoch that the sinks showed."""
        return TransactionId.parse(self.txn_id).epoch


@dataclass(frozen=True, kw_only=True)
class DryRunRecord:
    """``dry-runs/<try_id>.json``: what a dry run stages, so that its places are found if it is killed.

    It is deleted when they are. No step of an epoch reads it.

    Attributes:
        opened: The attempt that is played. Its ``ledger_id`` begins with ``names.DRY_RUN``, so its places are no
            attempt's.
        tried: As for a try of ``stage``.
        writer: As in ``OpenRecord``: the process that plays it.
    """

    pipeline: str
    opened: OpenRecord
    tried: TryRecord
    writer: str
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        if not self.opened.ledger_id.startswith(DRY_RUN) or self.opened.txn.pipeline != self.pipeline:
            raise ValueError(f"not a dry run: {self.opened.ledger_id!r} of {self.opened.txn_id}")


@dataclass(frozen=True, kw_only=True)
class SavepointRecord:
    """``savepoints/<name>.json``: a name for a complete epoch, with a copy of what is known of it. Never pruned.

    Attributes:
        complete: The completion record: position, receipts with the versions of Delta tables, metrics.
        source, sinks, transform, code: The pipeline as it was then, as in ``OpenRecord``.
        who, host, login: As in ``TakeoverRecord``; ``who`` is empty if a run made it, by its DAG param.
    """

    pipeline: str
    name: str
    complete: CompleteRecord
    source: JsonDict
    sinks: dict[str, JsonDict]
    transform: str
    code: str | None
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        validated_name("savepoint", self.name)

    @property
    def epoch(self) -> int:
        """The epoch that has the name."""
        return self.complete.txn.epoch


@dataclass(frozen=True, kw_only=True)
class AcknowledgedRecord:
    """``acknowledged/<n>.json``: an operator knows that the transform's code has changed. Only the highest n counts.

    Attributes:
        code: The new code, as in ``OpenRecord``.
        before: The code of the newest complete epoch at that time; None if unknown.
        function: The transform's function; None: the operator named none, so that only changed files are meant.
        who, host, login: As in ``TakeoverRecord``.
    """

    pipeline: str
    number: int
    code: str
    before: str | None
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    function: str | None = None
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class PauseRecord:
    """``pauses/<n>.json``: from now on the pipeline takes no new epoch, or takes them again. Only the highest n counts.

    Attributes:
        paused: True: it takes none. False: it takes them again.
        who, host, login: As in ``TakeoverRecord``.
    """

    pipeline: str
    number: int
    paused: bool
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class RetriedRecord:
    """``retries/<n>.json``: an operator let Airflow run the pipeline once more. For people: no step reads it.

    Attributes:
        dag_id, run_id: The run of Airflow.
        cleared: Whether its tasks were cleared; else it was started.
        epoch: The epoch that was unfinished then; 0: none was.
        who, host, login: As in ``TakeoverRecord``.
    """

    pipeline: str
    number: int
    dag_id: str
    run_id: str
    cleared: bool
    epoch: int
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class DisposedRecord:
    """``savepoints/<name>.disposed.json``: the savepoint does not count any more. Its name is not used again."""

    pipeline: str
    name: str
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        validated_name("savepoint", self.name)


@dataclass(frozen=True, kw_only=True)
class RunIndex:
    """``runs/<hash>.json``: the one epoch that a run works on, because it opened it or rolled it forward.

    Put after ``open.json``, so a run that dies in between is found by its open record alone. Put before the
    ``complete.json`` of a roll-forward, so a run that dies in between finds the epoch again.
    """

    dag_id: str
    run_id: str
    epoch: int
    format: int = FORMAT_UNSIGNED

    @staticmethod
    def key_of(run: Run) -> str:
        """160 bits of the SHA-256 of both ids, in hex: they may be too long, or not valid, as a key."""
        return hashlib.sha256(f"{run.dag_id}\0{run.run_id}".encode()).hexdigest()[:40]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The checkpoint record that every operator returns: for people, and as the input of the next task (XCom).

    If it disagrees with the ledger, the ledger wins.

    Attributes:
        seconds: Task -> how long it took.
        totals: Topic -> the number of partitions and of offsets, in place of ``ranges`` that are too long for XCom.
        waived: The sinks that do not get their rows of this epoch, and the word of the operator who said so.
    """

    pipeline: str
    epoch: int
    attempt: int
    txn_id: str
    ranges: Ranges
    state: str
    stage: StageReport | None = None
    votes: dict[str, Vote] = field(default_factory=dict)
    decision: DecisionKind | None = None
    reason: str | None = None
    receipts: dict[str, Receipt] = field(default_factory=dict)
    metrics: JsonDict = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    totals: dict[str, dict[str, int]] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    waived: dict[str, WaivedRecord] = field(default_factory=dict)
    format: int = FORMAT_UNSIGNED


def moved_in(opened: OpenRecord, before: CompleteRecord | None) -> int:
    """``CompleteRecord.moved_in`` of the epoch that ``opened`` opened. ``before``: the epoch before."""
    if opened.moved:
        return opened.txn.epoch
    return before.moved_in if before else 0


def records_upper_bound(ranges: Ranges) -> int:
    """The number of offsets in the ranges. Control records and gaps count too, so there are at most as many records."""
    return sum(r.end - r.start for per_topic in ranges.values() for r in per_topic)


def seed_of(pipeline: str, epoch: int, ledger_id: str) -> int:
    """A seed of 31 bits, the same for every attempt of an epoch."""
    digest = hashlib.sha256(f"{ledger_id}/{pipeline}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def starts_of(ranges: Ranges) -> dict[tuple[str, int], int]:
    """Where the ranges begin: ``(topic, partition) -> first offset``."""
    return {(topic, r.partition): r.start for topic, of in ranges.items() for r in of}


def ends_of(ranges: Mapping[str, tuple[OffsetRange, ...]]) -> dict[tuple[str, int], int]:
    """The position after the ranges: ``(topic, partition) -> first offset not read``."""
    return {(topic, r.partition): r.end for topic, per_topic in ranges.items() for r in per_topic}


def empty_at_ends(ranges: Ranges) -> Ranges:
    """The position after the ranges, as ranges with nothing to read."""
    return {topic: tuple(r._replace(start=r.end) for r in of) for topic, of in ranges.items()}


def starting_at_ends(ranges: Ranges) -> dict[str, dict[str, int]]:
    """The position after the ranges, as ``starting`` takes it: topic -> partition -> first offset not read."""
    return {topic: {str(r.partition): r.end for r in per_topic} for topic, per_topic in ranges.items()}
