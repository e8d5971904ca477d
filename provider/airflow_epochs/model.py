"""Frozen value types: what is written to the ledger and travels through XCom. No I/O, no clock.

Every record carries ``format``: 2 if it is signed, else 1. Decoding ignores unknown fields, so that a newer writer of
the *same* format may add some; a record of a newer format is refused by the ledger.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

from airflow_epochs.names import validated_name

FORMAT = 2
"""Of records that are signed; a record that was read has it only if its signature was checked."""
FORMAT_UNSIGNED = 1
"""Of records that are not; version 0.1 knows no others."""
_NONCE = re.compile(r"[0-9a-f]{32}")
_SESSION_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PART_OF_A_PLACE = re.compile(r"[0-9A-Za-z]{1,64}")

JsonDict = dict[str, Any]


class OffsetRange(NamedTuple):
    """Offsets ``[start, end)`` of one partition. ``start == end``: nothing to read, the position is kept."""

    partition: int
    start: int
    end: int


Ranges = dict[str, tuple[OffsetRange, ...]]
"""Per topic, one range for every known partition, ascending."""


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
        """The inverse of ``str``. Raises ValueError for anything else, ``p/01/1/…`` included."""
        return _parsed(text)

    @property
    def token(self) -> int:
        """63 bits of the nonce: what fits into a Delta ``SetTransaction`` version."""
        return int(self.nonce[:16], 16) >> 1


@lru_cache(maxsize=1024)
def _parsed(text: str) -> TransactionId:
    """A task meets a handful of ids, each of them in many records."""
    pipeline, epoch, attempt, nonce = text.split("/")
    txn = TransactionId(pipeline, int(epoch), int(attempt), nonce)
    if str(txn) != text:
        raise ValueError(f"not a transaction id: {text!r}")
    return txn


@dataclass(frozen=True)
class Marker:
    """What a sink stores atomically with an epoch's rows.

    ``token`` is ``TransactionId.token``, or None where the sink no longer knows whose epoch it was (Spark
    commits, once the table's history has been cleaned up).
    """

    epoch: int
    token: int | None

    @classmethod
    def of(cls, txn: TransactionId) -> Marker:
        return cls(txn.epoch, txn.token)


def agree(found: Marker | None, expected: TransactionId | None) -> bool:
    """Whether a marker is that of a transaction. A sink that no longer knows whose epoch it shows gets the benefit."""
    return compare(found, expected) is Shown.EXPECTED


class Shown(Enum):
    """What a sink shows, beside the epoch that is expected of it and the one that is on its way."""

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
    """Where a sink stands: the one comparison of what it shows with what a ledger knows.

    Args:
        found: What it shows: a marker, or a whole transaction id where it keeps that.
        expected: Its epoch before, or the last one that is complete; None: no epoch.
        on_its_way: The transaction, later than ``expected``, that is to be committed or in doubt, if there is one.
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


def described(marker: Marker | None) -> str:
    """What a sink shows, for an error's text."""
    return "no epoch of this sink" if marker is None else f"epoch {marker.epoch} (token {marker.token})"


def described_transaction(txn: TransactionId | None) -> str:
    """Which epoch the ledger expects, for an error's text that has said "epoch" before."""
    return "none" if txn is None else f"{txn.epoch} ({txn}, token {txn.token})"


def process_of(writer: str) -> str:
    """Which process a record's ``writer`` was, for people; empty for records of version 0.1, which do not say."""
    _, _, place = writer.partition("@")
    host, _, pid = place.rpartition(":")
    return f" (process {pid} on host {host})" if host else ""


@dataclass(frozen=True)
class Run:
    """An Airflow run. Identifies who opened an attempt."""

    dag_id: str
    run_id: str

    def __str__(self) -> str:
        return f"run {self.run_id} of DAG {self.dag_id}"


class VoteKind(str, Enum):
    VOTE_COMMIT = "VOTE_COMMIT"
    VOTE_ABORT = "VOTE_ABORT"


class DecisionKind(str, Enum):
    GLOBAL_COMMIT = "GLOBAL_COMMIT"
    GLOBAL_ABORT = "GLOBAL_ABORT"


@dataclass(frozen=True, kw_only=True)
class Staged:
    """What a sink has to show for its vote.

    ``digest``: of what lies at ``place``, by content: the same rows staged again *into files of the same kind* have it.
    ``content``: of the rows alone, whatever their order and their files; None where the sink has no such digest.
    ``detail``: what else the sink saw when it voted, for its own commit to compare with.
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
        """Whether these are the same rows, as far as the two tell."""
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


@dataclass(frozen=True, kw_only=True)
class StagedClaim:
    """What Spark says it staged for a sink. A claim, not proof: the vote looks for itself.

    ``problem`` is set where the rows cannot be staged because of the data or the schema: a VOTE_ABORT's reason.
    ``content``: what Spark says of the rows that it wrote, for ``Staged.content``.
    """

    place: str
    problem: str | None = None
    content: JsonDict | None = None


@dataclass(frozen=True, kw_only=True)
class StageReport:
    """The outcome of one try of ``stage``. Travels through XCom; the ledger does not rely on it."""

    txn_id: str
    nonce: str
    claims: dict[str, StagedClaim]
    metrics: JsonDict = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SinkPlan:
    """A sink as it takes part in one attempt: full specification (no secrets) and its previous transaction.

    ``ranges``: its own input where that begins before the epoch's, with earlier epochs' (a backfill).
    """

    spec: JsonDict
    previous: str | None
    ranges: Ranges | None = None

    def __post_init__(self) -> None:
        if self.previous is not None:
            TransactionId.parse(self.previous)


@dataclass(frozen=True, kw_only=True)
class PipelineRecord:
    """``pipeline.json``. ``ledger_id`` is drawn once and tells this ledger's staging places from all others."""

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

    ``who``: the effective user on ``host``; ``login``: whom the environment named, if that was somebody else. In a
    record without ``host``, of version 0.1, ``who`` is what the environment said.
    """

    dag_id: str
    who: str
    why: str
    at: str
    writer: str
    host: str = ""
    login: str = ""
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class SigningRecord:
    """``signing/<n>.json``: from here on, what is not signed is believed only if this record says so.

    Put when a ledger gets its first key, when that key changes, and by ``airflow epochs sign``. The highest one counts.

    Attributes:
        epoch: The newest complete epoch then. Records of this and of earlier ones are history, and need no signature;
            but for its completion record, which the next epoch rests on.
        trusted: What stood then and is still needed: key within the pipeline's ledger -> SHA-256 of the stored bytes.
        who, host, login: As in ``TakeoverRecord``; empty if a task did it, of itself.
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


@dataclass(frozen=True, kw_only=True)
class OpenRecord:
    """``<attempt>.open.json``. ``now`` and ``seed`` are those of attempt 1, so that a rerun computes the same rows.

    ``ledger``: where the ledger lay; in a copy of it that is elsewhere. Empty where it is not known. ``warnings``: what
    others have done to the sinks' rows since they were committed.
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
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        validated_name("ledger", self.ledger_id)
        for sink in self.sinks:
            validated_name("sink", sink)

    @property
    def txn(self) -> TransactionId:
        return TransactionId.parse(self.txn_id)

    @property
    def run(self) -> Run:
        return Run(self.dag_id, self.run_id)

    def ranges_of(self, sink: str) -> Ranges:
        """What is read for a sink."""
        return self.sinks[sink].ranges or self.ranges


@dataclass(frozen=True, kw_only=True)
class TryRecord:
    """``<attempt>.try.<nonce>.json``, put before a try of ``stage`` starts Spark: what to stop and what to clean up."""

    txn_id: str
    nonce: str
    places: dict[str, str]
    session: JsonDict
    started_at: str
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        if not _PART_OF_A_PLACE.fullmatch(self.nonce):
            raise ValueError(f"not a nonce: {self.nonce!r}")
        session_id = self.session.get("session_id")  # which another kind of runner need not have
        if session_id is not None and not (isinstance(session_id, str) and _SESSION_ID.fullmatch(session_id)):
            raise ValueError(f"not a Spark session: {session_id!r}")


@dataclass(frozen=True, kw_only=True)
class DecisionRecord:
    """``<attempt>.decision.json``: immutable, at most one per attempt."""

    txn_id: str
    decision: DecisionKind
    reason: str
    votes: dict[str, Vote]
    dag_id: str
    run_id: str
    decided_at: str
    writer: str
    format: int = FORMAT_UNSIGNED


@dataclass(frozen=True, kw_only=True)
class RestagedRecord:
    """``<sink>.restaged.<n>.json``: stands in for what the decision (or record n-1) names, whose files are gone.

    Put before anything of ``staged`` is committed; its digest is the decision's.
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

    ``place`` is the staging place that the sink's own commit names; None if the sink no longer knows.
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
    """``<sink>.waived.json``: an operator's word, in place of a receipt, that a promise cannot be kept any more.

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
    """``complete.json``: never deleted. Holds all that the next epoch needs, since other records may be pruned.

    ``markers``: for every sink that ever took part, the transaction id of its last complete epoch.
    ``waived``: sinks without a receipt, because an operator said so; until they take part again. ``waived_ids``: of
    each, the transactions waived since its last receipt, of which any may have been committed late after all.
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
    format: int = FORMAT_UNSIGNED

    def __post_init__(self) -> None:
        for txn_id in (*self.markers.values(), *(txn_id for ids in self.waived_ids.values() for txn_id in ids)):
            TransactionId.parse(txn_id)

    @property
    def txn(self) -> TransactionId:
        return TransactionId.parse(self.txn_id)

    def may_show(self, sink: str) -> list[str]:
        """The transactions of which a waived sink may show one beside its last: a late commit. The newest first."""
        if sink not in self.waived:
            return []
        return list(reversed(self.waived_ids.get(sink) or (self.txn_id,)))


@dataclass(frozen=True, kw_only=True)
class RunIndex:
    """``runs/<hash>.json``: the one epoch that a run works through, which it opened or rolled forward.

    Put after ``open.json``, which is the fact of opening; but before the ``complete.json`` of a roll-forward.
    """

    dag_id: str
    run_id: str
    epoch: int
    format: int = FORMAT_UNSIGNED

    @staticmethod
    def key_of(run: Run) -> str:
        return hashlib.sha256(f"{run.dag_id}\0{run.run_id}".encode()).hexdigest()[:40]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The checkpoint record that every operator returns (XCom). Carried for people and for the next task's input.

    Where it disagrees with the ledger, the ledger wins.

    ``totals``: per topic the number of partitions and offsets, in place of ``ranges`` that are too many for XCom.
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
    format: int = FORMAT_UNSIGNED


def records_upper_bound(ranges: Ranges) -> int:
    """The number of offsets in the ranges: at least the number of records (control records and gaps count too)."""
    return sum(r.end - r.start for per_topic in ranges.values() for r in per_topic)


def seed_of(pipeline: str, epoch: int, ledger_id: str) -> int:
    """A 31-bit seed, the same for every attempt of an epoch."""
    digest = hashlib.sha256(f"{ledger_id}/{pipeline}/{epoch}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def ends_of(ranges: Mapping[str, tuple[OffsetRange, ...]]) -> dict[tuple[str, int], int]:
    """The position after the ranges: ``(topic, partition) -> first offset not read``."""
    return {(topic, r.partition): r.end for topic, per_topic in ranges.items() for r in per_topic}


def starting_at_ends(ranges: Ranges) -> dict[str, dict[str, int]]:
    """The position after the ranges, as ``starting`` takes it: topic -> partition -> first offset not read."""
    return {topic: {str(r.partition): r.end for r in per_topic} for topic, per_topic in ranges.items()}
