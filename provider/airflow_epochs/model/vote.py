"""What Spark claims, what a sink votes, and how an attempt is decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from airflow_epochs.model.record import JsonDict
from airflow_epochs.model.transaction import TransactionId


class VoteKind(str, Enum):
    """A sink's vote. The values are the messages' names in the literature, and stand in records."""

    VOTE_COMMIT = "VOTE_COMMIT"
    VOTE_ABORT = "VOTE_ABORT"


class DecisionKind(str, Enum):
    """The decision on an attempt. The values are the messages' names in the literature, and stand in records."""

    GLOBAL_COMMIT = "GLOBAL_COMMIT"
    GLOBAL_ABORT = "GLOBAL_ABORT"


CLOSED = "closed"
"""In a state's ``Staged.detail``: up to where its operator has closed it."""
STORED = "stored"
"""In ``detail`` of ``Staged`` and of ``Receipt``: the columns of the rows that the sink stores, as its vote found."""


@dataclass(frozen=True, kw_only=True)
class Staged:
    """What a sink's VOTE_COMMIT rests on: the staged rows, as the sink itself found them.

    Attributes:
        place: The staging place of the try.
        version: The version of the staging table that holds the rows.
        digest: A digest of the staged files. The same rows, staged again *into files of the same kind*, have the same.
        content: A digest of the rows alone, whatever their order and their files; None if the sink computes no digest.
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

    txn_id: TransactionId
    try_id: str
    claims: dict[str, StagedClaim]
    metrics: JsonDict = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    event_times: dict[str, dict[str, int]] = field(default_factory=dict)
    code: str | None = None
