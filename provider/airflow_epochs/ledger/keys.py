"""The keys of ledger records, below ``<root>/<pipeline>/``.

Numbers are dense and have leading zeros: the last one is found by probing, and a listing sorts them. ::

    pipeline.json                        PipelineRecord
    takeovers/<n, 10 digits>.json        TakeoverRecord: the highest n names the owning DAG
    signing/<n, 10 digits>.json          SigningRecord: the highest n says which unsigned records are believed
    rebuilt/<n, 10 digits>.json          RebuiltRecord: epochs up to its own may lack their records
    acknowledged/<n, 10 digits>.json     AcknowledgedRecord: the highest n names the code that may be run
    pauses/<n, 10 digits>.json           PauseRecord: the highest n says whether new epochs are taken
    retries/<n, 10 digits>.json          RetriedRecord
    dry-runs/<try_id>.json               DryRunRecord: deleted with what it names
    savepoints/<name>.json               SavepointRecord
    savepoints/<name>.disposed.json      DisposedRecord: the savepoint does not count any more
    schemas/<digest of it>.json          SchemaRecord: never deleted; new schemas are rare
    epochs/<epoch, 20 digits>/
        <attempt, 10 digits>.open.json       OpenRecord
        <attempt>.try.<id>.json              TryRecord
        <attempt>.decision.json              DecisionRecord
        <sink>.restaged.<n, 10 digits>.json  RestagedRecord: the highest n names the place to commit
        <sink>.receipt.json                  Receipt
        <sink>.waived.json                   WaivedRecord
        complete.json                        CompleteRecord: closes its epoch, never deleted
    runs/<hash of dag_id + run_id>.json  RunIndex
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from airflow_epochs.model import (
    AcknowledgedRecord,
    CompleteRecord,
    DecisionRecord,
    DisposedRecord,
    DryRunRecord,
    OpenRecord,
    PauseRecord,
    PipelineRecord,
    RebuiltRecord,
    Receipt,
    RestagedRecord,
    RetriedRecord,
    Run,
    RunIndex,
    SavepointRecord,
    SchemaRecord,
    SigningRecord,
    TryRecord,
    WaivedRecord,
)
from airflow_epochs.names import validated_name

_EPOCH = re.compile(r"epochs/([0-9]{20})/")
_TRY = re.compile(r"epochs/[0-9]{20}/([0-9]{10})\.try\.[^/]*\.json")
_SAVEPOINT = re.compile(r"savepoints/([^/.]+)\.json")
_COMPLETE = re.compile(r"epochs/([0-9]{20})/complete\.json")

PIPELINE_KEY = "pipeline.json"
EPOCHS_FOLDER = "epochs"
REBUILT_FOLDER = "rebuilt"
SAVEPOINTS_FOLDER = "savepoints"
DRY_RUNS_FOLDER = "dry-runs"
ACKNOWLEDGED_FOLDER = "acknowledged"
PAUSES_FOLDER = "pauses"
RETRIES_FOLDER = "retries"
_SIGNING_FOLDER = "signing"

EpochRecord = OpenRecord | TryRecord | DecisionRecord | RestagedRecord | Receipt | WaivedRecord | CompleteRecord
NumberedRecord = SigningRecord | RebuiltRecord | AcknowledgedRecord | PauseRecord | RetriedRecord
PipelinesRecord = PipelineRecord | NumberedRecord | DryRunRecord | SavepointRecord | DisposedRecord
"""Records that name their pipeline."""
LedgerRecord = EpochRecord | PipelinesRecord | RunIndex | SchemaRecord
"""Every record whose key follows from its fields. A TakeoverRecord does not hold its number."""


def _nth_key(folder: str, number: int) -> str:
    return f"{folder}/{number:010d}.json"


takeover_key = partial(_nth_key, "takeovers")
signing_key = partial(_nth_key, _SIGNING_FOLDER)
rebuilt_key = partial(_nth_key, REBUILT_FOLDER)
acknowledged_key = partial(_nth_key, ACKNOWLEDGED_FOLDER)
pause_key = partial(_nth_key, PAUSES_FOLDER)
retried_key = partial(_nth_key, RETRIES_FOLDER)

_NUMBERED: dict[type[NumberedRecord], Callable[[int], str]] = {
    SigningRecord: signing_key,
    RebuiltRecord: rebuilt_key,
    AcknowledgedRecord: acknowledged_key,
    PauseRecord: pause_key,
    RetriedRecord: retried_key,
}
"""The key of the pipeline's n-th record of each kind, from 1."""


def key_of(record: LedgerRecord) -> str:
    """The only key under which ``record`` is valid. Raises ValueError for a name that could lead to another folder."""
    match record:
        case PipelineRecord():
            return PIPELINE_KEY
        case SigningRecord() | RebuiltRecord() | AcknowledgedRecord() | PauseRecord() | RetriedRecord():
            return _NUMBERED[type(record)](record.number)
        case DryRunRecord():
            return f"{DRY_RUNS_FOLDER}/{record.tried.try_id}.json"
        case SavepointRecord():
            return savepoint_key(record.name)
        case DisposedRecord():
            return disposed_key(record.name)
        case RunIndex():
            return run_key(Run(record.dag_id, record.run_id))
        case SchemaRecord():
            return schemas_key(record.digest)
        case _:
            return _key_of_epoch_record(record)


def _key_of_epoch_record(record: EpochRecord) -> str:
    txn = record.txn_id
    match record:
        case OpenRecord():
            return attempt_key(txn.epoch, txn.attempt, "open")
        case TryRecord():
            return attempt_key(txn.epoch, txn.attempt, f"try.{record.try_id}")
        case DecisionRecord():
            return attempt_key(txn.epoch, txn.attempt, "decision")
        case RestagedRecord():
            return restaged_key(txn.epoch, record.sink, record.number)
        case Receipt():
            return sink_key(txn.epoch, record.sink, "receipt")
        case WaivedRecord():
            return sink_key(txn.epoch, record.sink, "waived")
        case CompleteRecord():
            return complete_key(txn.epoch)


def pipeline_of(record: object) -> str | None:
    """The pipeline that a record names; None if it names no pipeline."""
    if isinstance(record, PipelinesRecord):
        return record.pipeline
    return record.txn_id.pipeline if isinstance(record, EpochRecord) else None


def epoch_folder(epoch: int) -> str:
    """The folder of all records of an epoch, without a slash at the end."""
    return f"{EPOCHS_FOLDER}/{epoch:020d}"


def complete_key(epoch: int) -> str:
    """The key of the completion record: whether it exists says whether the epoch is complete."""
    return f"{epoch_folder(epoch)}/complete.json"


def epoch_completed_by(key: str) -> int | None:
    """The epoch whose completion record has this key; None for every other key."""
    found = _COMPLETE.fullmatch(key)
    return int(found[1]) if found else None


def epoch_of(key: str) -> int | None:
    """The epoch that a record under this key belongs to; None if it belongs to no epoch."""
    found = _EPOCH.match(key)
    return int(found[1]) if found else None


def attempt_key(epoch: int, attempt: int, what: str) -> str:
    """The key of an attempt's record. ``what``: ``open``, ``decision`` or ``try.<id>``."""
    return f"{epoch_folder(epoch)}/{attempt:010d}.{what}.json"


def attempt_tried(key: str) -> int | None:
    """The attempt, if the key is one of a try's record; None for every other key."""
    found = _TRY.fullmatch(key)
    return int(found[1]) if found else None


def sink_key(epoch: int, sink: str, what: str) -> str:
    """The key of a sink's record. ``what``: ``receipt``, ``waived`` or ``restaged.<n>``.

    Raises ValueError for a name that could lead out of the epoch's folder.
    """
    return f"{epoch_folder(epoch)}/{validated_name('sink', sink)}.{what}.json"


def restaged_key(epoch: int, sink: str, number: int) -> str:
    """The key of a sink's n-th ``RestagedRecord`` in an epoch, from 1."""
    return sink_key(epoch, sink, f"restaged.{number:010d}")


def run_key(run: Run) -> str:
    """The key of the index from a run to its epoch."""
    return f"runs/{RunIndex.key_of(run)}.json"


def savepoint_key(name: str) -> str:
    """The key of a savepoint. Raises ValueError for a name that could lead out of the folder."""
    return f"{SAVEPOINTS_FOLDER}/{validated_name('savepoint', name)}.json"


def disposed_key(name: str) -> str:
    """The key of the record that disposes of a savepoint."""
    return savepoint_key(name).replace(".json", ".disposed.json")


def schemas_key(digest: str) -> str:
    """The key of the schemas with this digest."""
    return f"schemas/{digest}.json"


def savepoint_of(key: str) -> str | None:
    """The name of the savepoint with this key; None for every other key."""
    found = _SAVEPOINT.fullmatch(key)
    return found[1] if found else None


def is_signing_key(key: str) -> bool:
    """Whether a record under this key is a signing record."""
    return key.startswith(f"{_SIGNING_FOLDER}/")


def is_dry_run_key(key: str) -> bool:
    """Whether a record under this key says what a dry run or a preview has staged."""
    return key.startswith(f"{DRY_RUNS_FOLDER}/")
