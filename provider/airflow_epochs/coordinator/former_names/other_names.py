"""Rows that sinks of other names have written to the place of a sink of today.

The marker of the other name tells, and the ledger. A marker that stands beside the rows may be in another table or
topic than today's sink writes to, or be gone, and the rows are there all the same. So there the receipts tell too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

from airflow_epochs import secrecy
from airflow_epochs.contracts import Holding, KnownByMarker, Positioned, Sink, Undoable
from airflow_epochs.coordinator import agreement, sink_calls
from airflow_epochs.coordinator.former_names.recorded_places import is_at
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import RAISED_BY_USERS
from airflow_epochs.model import CompleteRecord, Marker, Receipt, TransactionId
from airflow_epochs.sinks import from_spec, is_built_in

log = secrecy.logger(__name__)

_OF_ITS_EPOCH = "offsets"
"""What a receipt's detail tells of the rows of its epoch, and not of their place."""


@dataclass(frozen=True, kw_only=True)
class WrittenByOther:
    """What a sink of another name has written.

    Attributes:
        sink: The other name.
        txn: The newest transaction whose rows are there.
        waived: Whether an operator had waived it: its commit landed all the same.
        unmarked: Whether no marker of that name is left, so that only the ledger tells.
    """

    sink: str
    txn: TransactionId
    waived: bool = False
    unmarked: bool = False


@dataclass(frozen=True, kw_only=True)
class SinkDestination:
    """Where a sink writes, and what sinks of other names have written there.

    Attributes:
        before: The record of the newest complete epoch.
        asked: The places on receipts that were compared with this one, and whether they may be the same.
        told: Sink -> the newest epoch that markers beside the rows tell of; None: no marker tells.
        unmarked: The sinks that have no marker of their own any more.
    """

    task: TaskTry
    sink: Sink
    before: CompleteRecord
    asked: dict[str, bool] = field(default_factory=dict)
    told: dict[str, int | None] = field(default_factory=dict)
    unmarked: set[str] = field(default_factory=set)

    def newest_since(self, first: int) -> WrittenByOther | None:
        """What was written here last in the epoch ``first`` or a later one; None if there is nothing."""
        late = max(self.late_since(first), key=lambda each: each.txn.epoch, default=None)
        return self._complete_since(late.txn.epoch + 1 if late else first) or late

    # -- epochs that were waived ---------------------------------------------------------------------------------

    def late_since(self, first: int) -> Iterator[WrittenByOther]:
        """For each other sink: its waived transaction, of epoch ``first`` or a later one, whose rows landed here."""
        for other in self.before.waived:
            waived = [txn for txn in self.before.may_show(other) if txn.epoch >= first]
            if other != self.sink.name and waived and (txn := self._late(other, waived)):
                yield WrittenByOther(sink=other, txn=txn, waived=True)

    def _late(self, other: str, waived: list[TransactionId]) -> TransactionId | None:
        alike = self.alike(other)
        late = agreement.late_in(self.marker_of(alike), waived) if alike else None
        if alike and late:
            return late if self._got_late(alike, other, late) else None
        on_record = (self._late_on_record(other, txn) for txn in waived)
        return next(filter(None, on_record), None) if self.is_beside else None

    def _late_on_record(self, other: str, txn: TransactionId) -> TransactionId | None:
        """``txn`` if its rows are here, and its marker is where the sink of then had it."""
        then = self.on_record(other, txn)
        if then is None or not (self.holds_newest(other) or is_at(self.sink, then.spec(), self.task.pipeline.sinks)):
            return None  # so no server is asked that may be gone for good
        late = agreement.late_in(self._marker_on_record(then), [txn])
        return late if late and self._got_late(then, other, late) else None

    def _got_late(self, other: Sink, name: str, late: TransactionId) -> bool:
        """Whether the rows of the waived transaction that the sink ``other`` shows came here. It has no receipt."""
        if not isinstance(self.sink, Holding):
            return self._is_described(late, name)
        if isinstance(other, Undoable) and other.is_taken_back(self.task.pipeline.name, self.task.env):
            return False
        if not isinstance(other, Positioned) or not self.is_beside:
            return True
        last = sink_calls.last_epoch_of(other, self.task.pipeline.name, self.task.env)
        if last is None or last.receipt is None:
            return True
        return self.holds_newest(name) if last.elsewhere else self._may_hold(self.sink, last.receipt)

    def holds_newest(self, other: str) -> bool:
        """Whether the rows of the sink's last complete epoch may be here. Always, if rows and marker are in one log."""
        last = self.before.markers.get(other)
        record = self.task.ledger.complete_record(last.epoch) if last else None
        receipt = record.receipts.get(other) if record else None
        return isinstance(self.sink, Holding) and receipt is not None and self._may_hold(self.sink, receipt)

    # -- complete epochs -----------------------------------------------------------------------------------------

    def _complete_since(self, first: int) -> WrittenByOther | None:
        """As ``newest_since``, of epochs that were complete with the other sink.

        A sink may have had several places. So this reads the completion record of each epoch, the newest first, until
        one tells: at most as many as the backfill covers. These records are never pruned.
        """
        newest = {other: self._limit(other, first) for other in self.before.markers if other != self.sink.name}
        for number in range(max(newest.values(), default=0), first - 1, -1):
            record = self.task.ledger.complete_record(number)
            for other in (name for name, limit in newest.items() if record and number <= limit):
                if record and self._got(record, other):
                    return WrittenByOther(sink=other, txn=record.txn_id, unmarked=other in self.unmarked)
        return None

    def _limit(self, other: str, first: int) -> int:
        """No record of a later epoch need be read; 0: no record at all."""
        newest = self._newest(other)
        if newest < first or (self.is_beside and not self._is_elsewhere(other)):
            return newest
        return min(self._told_here(other) or 0, newest)

    def _is_elsewhere(self, other: str) -> bool:
        """Whether all epochs of a sink went to another kind of place, such as Delta tables, as the ledger has it.

        Only a sink that ``adopt-sink`` gave a new place may have changed its kind.
        """
        txn = self._newest_txn(other)
        opened = self.task.ledger.open_record(txn.epoch, txn.attempt)
        described = opened.sinks.get(other) if opened else None
        if described is None or other in self.before.adopted_in:
            return False
        kinds = (described.spec, self.sink.spec())
        return kinds[0]["kind"] != kinds[1]["kind"] and all(map(is_built_in, kinds))

    def _got(self, record: CompleteRecord, other: str) -> bool:
        """Whether the rows of an epoch may have come here under another name. False if that sink took no part in it."""
        txn = record.markers.get(other)
        if txn is None or txn.epoch != record.txn_id.epoch:
            return False
        if not isinstance(self.sink, Holding):
            return self._is_described(txn, other)
        receipt = record.receipts.get(other)  # a ledger that was rebuilt may lack it
        if receipt and not self._may_hold(self.sink, receipt):
            return False
        if not self.is_beside:
            return True
        told = self._told_of(other) if receipt else self._told_here(other)
        return record.txn_id.epoch <= told if told else receipt is not None

    def _told_of(self, other: str) -> int | None:
        """As ``told``. If the marker here is not the newest one, the sink may have had it in another table or topic.

        If it is in neither, the place may have gone back to before the sink's first epoch.
        """
        if other not in self.told:
            here, then = self._told_here(other), self.on_record(other, self._newest_txn(other))
            there = None if then is None or (here and here >= self._newest(other)) else self._marker_on_record(then)
            self.told[other] = max(here or 0, there.epoch if there else 0) or self._told_by_others(other, then)
        return self.told[other]

    def _told_by_others(self, other: str, then: Sink | None) -> int | None:
        """The newest epoch in a marker of any name, where the marker of ``other`` should be.

        None if ``other`` had rows by then: so its marker alone is gone, and the other sinks took no part since.
        """
        self.unmarked.add(other)
        names = self.before.markers.keys() - {other}
        found = [self._marker_on_record(each) for name in sorted(names) if (each := self.alike(name, then))]
        newest = max((marker.epoch for marker in found if marker), default=0)
        record = self.task.ledger.complete_record(newest) if newest else None
        return newest if record and other not in record.markers else None

    def _told_here(self, other: str) -> int | None:
        alike = self.alike(other)
        found = self.marker_of(alike) if alike else None
        return found.epoch if found else None

    def _newest(self, other: str) -> int:
        """The sink's last complete epoch."""
        return self._newest_txn(other).epoch

    def _newest_txn(self, other: str) -> TransactionId:
        return self.before.markers[other]

    def _may_hold(self, sink: Holding, receipt: Receipt) -> bool:
        """As ``Holding``: asked once for each place, since each answer may cost a connection."""
        place = {name: value for name, value in receipt.detail.items() if name != _OF_ITS_EPOCH}
        key = json.dumps([receipt.sink, place], sort_keys=True, default=str)
        if key not in self.asked:
            self.asked[key] = sink.may_hold(receipt, self.task.env)
        return self.asked[key]

    def _is_described(self, txn: TransactionId, other: str) -> bool:
        """Whether the open record describes a sink that writes here. Of the pruned ones, only the newest count."""
        opened = self.task.ledger.open_record(txn.epoch, txn.attempt)
        if opened is None or other not in opened.sinks:
            return txn in (self.before.markers.get(other), *self.before.may_show(other))
        return is_at(self.sink, opened.sinks[other].spec, self.task.pipeline.sinks)

    # -- markers -------------------------------------------------------------------------------------------------

    @property
    def is_beside(self) -> bool:
        """Whether the marker of the sink of today stands beside its rows, and not among them."""
        return isinstance(self.sink, KnownByMarker) and isinstance(self.sink, Holding)

    def alike(self, other: str, of: Sink | None = None) -> Sink | None:
        """The sink of today, or ``of``, under another name: its marker is where theirs are. None: it takes no name."""
        alike = from_spec({**(of or self.sink).spec(), "name": other}, self.task.pipeline.sinks)
        return alike if alike.name == other else None

    def marker_of(self, sink: Sink) -> Marker | None:
        return sink_calls.marker_of(sink, self.task.pipeline.name, self.task.env)

    def on_record(self, other: str, txn: TransactionId) -> Sink | None:
        """The other sink as it was then; None if its record is pruned, or is not to be trusted."""
        opened = self.task.ledger.open_record(txn.epoch, txn.attempt)
        if opened is None or other not in opened.sinks:
            return None
        try:
            return self.task.sink_of(opened, other)
        except RAISED_BY_USERS as error:  # for example, its kind is not installed any more
            log.warning("Sink %s, as epoch %s has it on record, cannot be asked: %r", other, txn.epoch, error)
            return None

    def _marker_on_record(self, then: Sink) -> Marker | None:
        """Its marker; None also if it cannot be asked: its connection may be gone for good."""
        try:
            return self.marker_of(then)
        except RAISED_BY_USERS as error:
            log.warning("Sink %s, as the ledger has it on record, cannot be asked for its marker: %r", then.name, error)
            return None
