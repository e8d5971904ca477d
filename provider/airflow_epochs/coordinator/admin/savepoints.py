"""Savepoints: names for complete epochs, which one can go back to. Flink's word for a checkpoint that a user pins.

A savepoint is a record of its own with a copy of the epoch's completion record, so nothing that is pruned matters to
it. It does not keep files of tables: a ``VACUUM`` may delete a version that it names.
"""

from __future__ import annotations

from airflow_epochs import codes
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.task import new_writer
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import CompleteRecord, DisposedRecord, SavepointRecord
from airflow_epochs.names import NAME_RULE, is_name


def require_free(ledger: Ledger, pipeline: str, name: str, epoch: int | None = None) -> SavepointRecord | None:
    """Raise Refused unless a savepoint can have this name. Returns the one that has it already, for ``epoch``."""
    if not is_name(name):
        raise Refused(
            f"The savepoint name {name!r} is not valid. A name has {NAME_RULE}.",
            code=codes.SAVEPOINT_NAME,
            pipeline=pipeline,
        )
    found = ledger.savepoint(name)
    if (found and found.epoch != epoch) or ledger.disposed(name):
        raise _taken(pipeline, name, found)
    return found


def make(ledger: Ledger, pipeline: str, name: str, number: int | None, by: Account) -> SavepointRecord:
    """Name a complete epoch; None: the newest one. A repeat for the same epoch returns the savepoint that stands.

    Raises:
        Refused: The name is taken or not valid; or the epoch is not complete, or its open record was pruned.
    """
    record = require_complete(ledger, pipeline, number)
    if standing := require_free(ledger, pipeline, name, record.txn_id.epoch):
        return standing
    standing = ledger.put(_record(ledger, pipeline, name, record, by))
    if standing.epoch != record.txn_id.epoch:
        raise _taken(pipeline, name, standing)
    return standing


def require_complete(ledger: Ledger, pipeline: str, number: int | None) -> CompleteRecord:
    """The completion record of an epoch; None: of the newest one. Raises Refused if the epoch is not complete."""
    record = ledger.complete_record(ledger.newest_complete() if number is None else number)
    if record is None:
        raise Refused(
            f"The pipeline has no complete epoch{'' if number is None else f' {number}'}.",
            code=codes.EPOCH_UNKNOWN,
            pipeline=pipeline,
        )
    return record


def _record(ledger: Ledger, pipeline: str, name: str, record: CompleteRecord, by: Account) -> SavepointRecord:
    opened = ledger.open_record(record.txn_id.epoch, record.txn_id.attempt)
    if opened is None:
        raise Refused(
            f"The records of epoch {record.txn_id.epoch} were pruned, or the ledger was rebuilt since.",
            code=codes.SAVEPOINT_EPOCH_PRUNED,
            pipeline=pipeline,
            epoch=record.txn_id.epoch,
        )
    return SavepointRecord(
        pipeline=pipeline,
        name=name,
        complete=record,
        source=opened.source,
        sinks={sink: plan.spec for sink, plan in opened.sinks.items()},
        transform=opened.transform,
        code=record.code or opened.code,
        writer=new_writer(),
        **by.fields,
    )


def find(ledger: Ledger, pipeline: str, name: str) -> SavepointRecord:
    """The savepoint of this name. Raises Refused if there is none."""
    found = ledger.savepoint(name) if is_name(name) else None
    if found is None:
        names = ", ".join(each.name for each in ledger.savepoints())
        raise Refused(
            f"The pipeline has no savepoint {name!r}. Its savepoints: {names or 'none'}.",
            code=codes.SAVEPOINT_UNKNOWN,
            pipeline=pipeline,
        )
    return found


def dispose(ledger: Ledger, pipeline: str, name: str, by: Account) -> None:
    """Let the savepoint of this name not count any more. Raises Refused if there is none."""
    find(ledger, pipeline, name)
    ledger.put(
        DisposedRecord(
            pipeline=pipeline,
            name=name,
            writer=new_writer(),
            **by.fields,
        )
    )


def _taken(pipeline: str, name: str, found: SavepointRecord | None) -> Refused:
    what = f"is the name of epoch {found.epoch}" if found else "was the name of a savepoint that was disposed of"
    return Refused(f"The savepoint name {name!r} is taken: it {what}.", code=codes.SAVEPOINT_NAME, pipeline=pipeline)
