"""A sink that has another name in the DAG now would write once more what its table or topic has.

Ledger and markers go by names. So a sink that was renamed counts as new, and begins where ``backfill`` says.
"""

from __future__ import annotations

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Holding, Sink
from airflow_epochs.coordinator import sink_calls
from airflow_epochs.coordinator.recorded_places import is_at
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.model import (
    Receipt,
    TransactionId,
)
from airflow_epochs.sinks import from_spec

log = secrecy.logger(__name__)


def require_new_rows(task: TaskTry, sink: Sink, epoch: int) -> None:
    """Raise Refused if ``backfill`` lets a new sink write rows that its table has under another name of the sink.

    The table or topic tells by its markers: if it was lost, or emptied with them, it may be filled again. So it
    may with an epoch that was waived: only the operator knows what is there of it. Two sinks of today are told apart
    elsewhere.
    """
    first = task.pipeline.backfill.get(sink.name, epoch)
    before = task.ledger.complete_record(epoch - 1) if first < epoch else None
    if before is None:
        return
    today = {each.name for each in task.pipeline.sinks}
    for other, txn in ((name, TransactionId.parse(text)) for name, text in before.markers.items() if name not in today):
        if first <= txn.epoch and (shown := min(_shown_as(task, sink, other, txn), txn.epoch)) >= first:
            raise _twice(task, sink, other, first, shown, epoch)


def _shown_as(task: TaskTry, sink: Sink, other: str, txn: TransactionId) -> int:
    """The newest epoch that the sink's place shows of the sink ``other``; 0 if it shows none.

    ``txn``: the newest transaction that ``other`` may show, by the ledger.
    """
    if not _may_be_there(task, sink, other, txn):
        return 0
    alike = from_spec({**sink.spec(), "name": other}, task.pipeline.sinks)
    found = sink_calls.marker_of(alike, task.pipeline.name, task.env) if alike.name == other else None
    return found.epoch if found else 0


def _may_be_there(task: TaskTry, sink: Sink, other: str, txn: TransactionId) -> bool:
    """Whether ``other`` may have committed where ``sink`` writes to now. A pruned record tells nothing against it."""
    if isinstance(sink, Holding):
        receipt = _last_receipt(task, other, txn.epoch)
        return receipt is not None and sink.may_hold(receipt, task.env)
    opened = task.ledger.open_record(txn.epoch, txn.attempt)
    if opened is None or other not in opened.sinks:
        return True
    return is_at(sink, opened.sinks[other].spec, task.pipeline.sinks)


def _last_receipt(task: TaskTry, other: str, epoch: int) -> Receipt | None:
    """The newest receipt of a sink up to an epoch; None if it has none. An epoch without one was waived."""
    record = task.ledger.complete_record(epoch)
    if record and other not in record.receipts and (marker := record.markers.get(other)):
        record = task.ledger.complete_record(TransactionId.parse(marker).epoch)
    return record.receipts.get(other) if record else None


def _twice(task: TaskTry, sink: Sink, other: str, first: int, shown: int, epoch: int) -> Refused:
    return Refused(
        f"`backfill` lets sink {sink.name!r} begin with epoch {first}. But under the name {other!r} the pipeline has "
        f"written the rows up to epoch {shown} to the same place, {secrecy.shown(sink.destination() or '')}, and they "
        "are there. They would come twice. Nothing was read or written.",
        code=codes.SINK_RENAMED,
        remedy=_remedy_of_sink(other, shown, epoch),
        pipeline=task.pipeline.name,
        epoch=epoch,
        sink=sink.name,
    )


def _remedy_of_sink(other: str, shown: int, epoch: int) -> str:
    copy = "For a second copy of the rows, give the sink another table or topic. Then clear the failed task."
    if shown + 1 < epoch:
        return f"Let `backfill` name epoch {shown + 1}, the first one that the table or topic lacks. {copy}"
    return (
        f"Give the sink its old name {other!r} again, without `backfill`: it goes on where it is. Or remove the "
        f"sink from `backfill`: it then begins with epoch {epoch}, and each row is there once. {copy}"
    )
