"""Frozen value types: what the ledger records and XCom carries. No I/O, no clock.

Every record carries ``format``: 2 if it is signed, else 1. Decoding ignores unknown fields, so a newer version may add
fields to the *same* format. The ledger refuses a record of a newer format.

The names are imported from here, whatever file they stand in. A file imports only those that stand below it:

    checkpoint   what the tasks of a run hand on
    savepoint    a complete epoch that has a name
    dry_run      what a dry run stages
    completion   receipts, waivers, and the end of an epoch
    obeying      what is left of a command if others follow it
    attempt      one attempt, from its opening to its decision
    command      what an operator orders for the next epoch
    overlap      which offsets two of several ranges share
    pipeline     what is recorded beside the epochs
    schema       the schemas of a registry
    vote         what Spark claims, and what a sink promises
    marker       what a sink shows, compared with what is expected
    transaction  the identity of an attempt
    event_times  the newest event times, and watermarks
    ranges       where an epoch begins and ends
    record       what all records share
"""

from __future__ import annotations

from airflow_epochs.model.attempt import DecisionRecord, OpenRecord, RestagedRecord, SinkPlan, StatePin, TryRecord
from airflow_epochs.model.checkpoint import Checkpoint
from airflow_epochs.model.command import ACKNOWLEDGE_CODE, REWIND, Command, RestorePoint
from airflow_epochs.model.completion import (
    RAN_AS,
    CompleteRecord,
    Receipt,
    RunIndex,
    WaivedRecord,
    adopted_in,
    moved_in,
)
from airflow_epochs.model.dry_run import DryRunRecord
from airflow_epochs.model.event_times import EventTimes, PartitionTime, Watermarks
from airflow_epochs.model.marker import (
    Marker,
    Shown,
    agree,
    compare,
    described,
    described_epochs,
    described_transaction,
)
from airflow_epochs.model.obeying import obeyed
from airflow_epochs.model.overlap import Spans, added, in_two
from airflow_epochs.model.pipeline import (
    AcknowledgedRecord,
    PauseRecord,
    PipelineRecord,
    RebuiltRecord,
    RetriedRecord,
    SigningRecord,
    TakeoverRecord,
)
from airflow_epochs.model.ranges import (
    Backlog,
    OffsetRange,
    Ranges,
    empty_at_ends,
    ends_of,
    records_upper_bound,
    starting_at_ends,
    starts_of,
)
from airflow_epochs.model.record import FORMAT, FORMAT_UNSIGNED, SHORT_CODE, JsonDict, Run, process_of
from airflow_epochs.model.savepoint import DisposedRecord, SavepointRecord
from airflow_epochs.model.schema import SchemaRecord
from airflow_epochs.model.transaction import AttemptFields, TransactionId, attempt_fields, seed_of
from airflow_epochs.model.vote import (
    CLOSED,
    STORED,
    DecisionKind,
    Staged,
    StagedClaim,
    StageReport,
    Vote,
    VoteKind,
    reasons_against,
)

__all__ = [
    "ACKNOWLEDGE_CODE",
    "CLOSED",
    "FORMAT",
    "FORMAT_UNSIGNED",
    "RAN_AS",
    "REWIND",
    "SHORT_CODE",
    "STORED",
    "AcknowledgedRecord",
    "AttemptFields",
    "Backlog",
    "Checkpoint",
    "Command",
    "CompleteRecord",
    "DecisionKind",
    "DecisionRecord",
    "DisposedRecord",
    "DryRunRecord",
    "EventTimes",
    "JsonDict",
    "Marker",
    "OffsetRange",
    "OpenRecord",
    "PartitionTime",
    "PauseRecord",
    "PipelineRecord",
    "Ranges",
    "RebuiltRecord",
    "Receipt",
    "RestagedRecord",
    "RestorePoint",
    "RetriedRecord",
    "Run",
    "RunIndex",
    "SavepointRecord",
    "SchemaRecord",
    "Shown",
    "SigningRecord",
    "SinkPlan",
    "Spans",
    "StageReport",
    "Staged",
    "StagedClaim",
    "StatePin",
    "TakeoverRecord",
    "TransactionId",
    "TryRecord",
    "Vote",
    "VoteKind",
    "WaivedRecord",
    "Watermarks",
    "added",
    "adopted_in",
    "agree",
    "attempt_fields",
    "compare",
    "described",
    "described_epochs",
    "described_transaction",
    "empty_at_ends",
    "ends_of",
    "in_two",
    "moved_in",
    "obeyed",
    "process_of",
    "reasons_against",
    "records_upper_bound",
    "seed_of",
    "starting_at_ends",
    "starts_of",
]
