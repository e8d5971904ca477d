"""A new sink may get a table or topic that another sink of the pipeline has filled. ``backfill`` would fill it again.

Ledger and markers go by names. So a sink that was renamed counts as new, and begins where ``backfill`` says. So does
one that takes the place which another sink, of the DAG or removed from it, has left.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Holding, Sink, replaces_by
from airflow_epochs.coordinator import sink_calls
from airflow_epochs.coordinator.recorded_places import is_at
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.model import CompleteRecord, Receipt, TransactionId
from airflow_epochs.sinks import from_spec

_OF_ITS_EPOCH = "offsets"
"""What a receipt's detail tells of the rows of its epoch, and not of their place."""


def require_new_rows(task: TaskTry, sink: Sink, epoch: int) -> None:
    """Raise Refused if ``backfill`` lets a new sink write rows that its table or topic has under another name.

    The table or topic tells by its markers: if it was lost, or emptied with them, it may be filled again. So it
    may with an epoch that was waived: only the operator knows what is there of it. A sink whose rows replace those with
    the same keys may write all of them again.
    """
    first = task.pipeline.backfill.get(sink.name, epoch)
    before = task.ledger.complete_record(epoch - 1) if first < epoch else None
    if before is None or replaces_by(sink):
        return
    if found := _Place(task=task, sink=sink, before=before).newest_since(first):
        raise _twice(task, sink, *found, first, epoch)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a new sink is to write, and what sinks of other names have written there.

    Attributes:
        before: The record of the newest complete epoch.
        asked: The places on receipts that were compared with this one, and whether they may be the same.
    """

    task: TaskTry
    sink: Sink
    before: CompleteRecord
    asked: dict[str, bool] = field(default_factory=dict)

    def newest_since(self, first: int) -> tuple[str, int] | None:
        """The sink that wrote here last, and the epoch, ``first`` or a later one; None if there is none.

        A sink may have had several places. So this reads the completion record of each epoch that a marker admits, the
        newest first, until one tells: at most as many as the backfill covers. These records are never pruned.
        """
        newest = {other: self._shown_as(other, first) for other in self.before.markers if other != self.sink.name}
        for number in range(max(newest.values(), default=0), first - 1, -1):
            record = self.task.ledger.complete_record(number)
            for other in (name for name, shown in newest.items() if record and number <= shown):
                if record and self._got(record, other):
                    return other, number
        return None

    def _shown_as(self, other: str, first: int) -> int:
        """The newest epoch that this place may show of another sink, by its marker and by the ledger; 0: none."""
        newest = TransactionId.parse(self.before.markers[other]).epoch
        if newest < first:
            return 0
        alike = from_spec({**self.sink.spec(), "name": other}, self.task.pipeline.sinks)
        found = sink_calls.marker_of(alike, self.task.pipeline.name, self.task.env) if alike.name == other else None
        return min(found.epoch, newest) if found else 0

    def _got(self, record: CompleteRecord, other: str) -> bool:
        """Whether the rows of an epoch may have come here under another name. No, if that sink took no part in it."""
        text = record.markers.get(other)
        if text is None or TransactionId.parse(text).epoch != record.txn.epoch:
            return False
        if isinstance(self.sink, Holding):
            receipt = record.receipts.get(other)  # a ledger that was rebuilt may lack it
            return receipt is None or self._may_hold(self.sink, receipt)
        return self._is_described(TransactionId.parse(text), other)

    def _may_hold(self, sink: Holding, receipt: Receipt) -> bool:
        """As ``Holding``: asked once for each place, since each answer may cost a connection."""
        place = {name: value for name, value in receipt.detail.items() if name != _OF_ITS_EPOCH}
        key = json.dumps([receipt.sink, place], sort_keys=True, default=str)
        if key not in self.asked:
            self.asked[key] = sink.may_hold(receipt, self.task.env)
        return self.asked[key]

    def _is_described(self, txn: TransactionId, other: str) -> bool:
        """Whether the open record describes a sink that writes here. Of the pruned ones, only the newest counts."""
        opened = self.task.ledger.open_record(txn.epoch, txn.attempt)
        if opened is None or other not in opened.sinks:
            return str(txn) == self.before.markers[other]
        return is_at(self.sink, opened.sinks[other].spec, self.task.pipeline.sinks)


def _twice(task: TaskTry, sink: Sink, other: str, shown: int, first: int, epoch: int) -> Refused:
    return Refused(
        f"`backfill` lets sink {sink.name!r} begin with epoch {first}. But under the name {other!r} the pipeline has "
        f"written rows up to epoch {shown} to the same place, {secrecy.shown(sink.destination() or '')}, and they "
        f"are there. {_what_happens(sink)} Nothing was read or written.",
        code=codes.SINK_RENAMED,
        remedy=_remedy(task, other, shown, epoch),
        pipeline=task.pipeline.name,
        epoch=epoch,
        sink=sink.name,
    )


def _what_happens(sink: Sink) -> str:
    if replaces_by(sink) is None:
        return (
            "The sink's mode would apply the rows of all these epochs together: an overwrite would bring back rows "
            "that a later epoch has replaced, and a merge would count rows again."
        )
    return "They would come twice."


def _remedy(task: TaskTry, other: str, shown: int, epoch: int) -> str:
    copy = "For a second copy of the rows, give the sink another table or topic. Then clear the failed task."
    if shown + 1 < epoch:
        return f"Let `backfill` name epoch {shown + 1}, the first one after these rows. {copy}"
    on = f"emove the sink from `backfill`: it then begins with epoch {epoch}, and no row is written again. {copy}"
    if other in {each.name for each in task.pipeline.sinks}:
        return f"R{on}"
    return f"Give the sink its old name {other!r} again, without `backfill`: it goes on where it is. Or r{on}"
