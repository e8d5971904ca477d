"""Where each ledger record lies, below ``<root>/<pipeline>/``.

::

    pipeline.json                        PipelineRecord
    takeovers/<n, 10 digits>.json        TakeoverRecord: the highest one names the owning DAG
    signing/<n, 10 digits>.json          SigningRecord: the highest one says what is believed unsigned
    epochs/<epoch, 20 digits>/
        <attempt, 10 digits>.open.json       OpenRecord
        <attempt>.try.<nonce>.json           TryRecord
        <attempt>.decision.json              DecisionRecord
        <sink>.restaged.<n, 10 digits>.json  RestagedRecord: the highest one names the place to commit
        <sink>.receipt.json                  Receipt
        <sink>.waived.json                   WaivedRecord
        complete.json                        CompleteRecord: closes its epoch, never deleted
    runs/<hash of dag_id + run_id>.json  RunIndex
"""

from __future__ import annotations

import re

from airflow_epochs.model import (
    CompleteRecord,
    DecisionRecord,
    OpenRecord,
    PipelineRecord,
    Receipt,
    RestagedRecord,
    Run,
    RunIndex,
    SigningRecord,
    TransactionId,
    TryRecord,
    WaivedRecord,
)
from airflow_epochs.names import validated_name

_COMPLETE = re.compile(r"epochs/([0-9]{20})/complete\.json")

PIPELINE_KEY = "pipeline.json"
EPOCHS_FOLDER = "epochs"
_SIGNING_FOLDER = "signing"

EpochRecord = OpenRecord | TryRecord | DecisionRecord | RestagedRecord | Receipt | WaivedRecord | CompleteRecord
Record = EpochRecord | PipelineRecord | RunIndex | SigningRecord
"""Every record whose place follows from what it says; takeovers are only numbered."""


def key_of(record: Record) -> str:
    """The one key under which ``record`` may lie. Raises ValueError if its transaction id is none."""
    match record:
        case PipelineRecord():
            return PIPELINE_KEY
        case SigningRecord():
            return signing_key(record.number)
        case RunIndex():
            return run_key(Run(record.dag_id, record.run_id))
        case _:
            return _key_of_epoch_record(record)


def _key_of_epoch_record(record: EpochRecord) -> str:
    txn = TransactionId.parse(record.txn_id)
    match record:
        case OpenRecord():
            return attempt_key(txn.epoch, txn.attempt, "open")
        case TryRecord():
            return attempt_key(txn.epoch, txn.attempt, f"try.{record.nonce}")
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
    """The pipeline that a record says it belongs to; None if it does not say."""
    if isinstance(record, PipelineRecord | SigningRecord):
        return record.pipeline
    txn_id = getattr(record, "txn_id", None)
    return TransactionId.parse(txn_id).pipeline if txn_id else None


def epoch_folder(epoch: int) -> str:
    return f"{EPOCHS_FOLDER}/{epoch:020d}"


def complete_key(epoch: int) -> str:
    return f"{epoch_folder(epoch)}/complete.json"


def epoch_completed_by(key: str) -> int | None:
    """The epoch whose completion record has this key; None for all other keys."""
    found = _COMPLETE.fullmatch(key)
    return int(found[1]) if found else None


def attempt_key(epoch: int, attempt: int, what: str) -> str:
    return f"{epoch_folder(epoch)}/{attempt:010d}.{what}.json"


def sink_key(epoch: int, sink: str, what: str) -> str:
    return f"{epoch_folder(epoch)}/{validated_name('sink', sink)}.{what}.json"


def restaged_key(epoch: int, sink: str, number: int) -> str:
    return sink_key(epoch, sink, f"restaged.{number:010d}")


def run_key(run: Run) -> str:
    return f"runs/{RunIndex.key_of(run)}.json"


def takeover_key(number: int) -> str:
    return f"takeovers/{number:010d}.json"


def signing_key(number: int) -> str:
    return f"{_SIGNING_FOLDER}/{number:010d}.json"


def is_signing_key(key: str) -> bool:
    return key.startswith(f"{_SIGNING_FOLDER}/")
