"""What the tasks of a run hand on."""

from __future__ import annotations

from dataclasses import dataclass, field

from airflow_epochs.model.completion import Receipt, WaivedRecord
from airflow_epochs.model.ranges import Ranges
from airflow_epochs.model.record import FORMAT_UNSIGNED, JsonDict
from airflow_epochs.model.transaction import TransactionId
from airflow_epochs.model.vote import DecisionKind, StageReport, Vote


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
    txn_id: TransactionId
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
