"""Which waived commits of other names, if they hang, may land in the place of a sink of today.

The ledger says only of some that they write to this place. The others are not touched, since a commit to
another place may be sound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from airflow_epochs.contracts import Holding, Sink
from airflow_epochs.coordinator import agreement
from airflow_epochs.coordinator.former_names.other_names import SinkDestination
from airflow_epochs.coordinator.former_names.recorded_places import is_at_through, is_surely_at
from airflow_epochs.model import SinkPlan, TransactionId

_Plans = Mapping[TransactionId, SinkPlan | None]
_MARKERS = ("marker_table", "marker_topic")
"""The options of sinks that tell where a marker stands beside the rows."""


@dataclass(frozen=True, kw_only=True)
class Hanging:
    """The waived transactions of a sink of another name that may land here, each the oldest first.

    Attributes:
        sink: The other name.
        here: The transactions of all epochs that surely write to this place, and whose markers stand together.
        since: Of these, the transactions whose rows the backfill would bring a second time.
        perhaps: More transactions whose rows the backfill would bring a second time, if they write to this place.
    """

    sink: str
    here: tuple[TransactionId, ...] = ()
    since: tuple[TransactionId, ...] = ()
    perhaps: tuple[TransactionId, ...] = ()


def that_may_land(place: SinkDestination, first: int) -> Iterator[Hanging]:
    """Each other sink with a waived transaction, of the epoch ``first`` or a later one, that may land here."""
    for other in place.before.waived:
        waived = place.before.may_show(other)[::-1]
        if other != place.sink.name and (late := [txn for txn in waived if txn.epoch >= first]):
            plans = {txn: _plan(place, other, txn) for txn in waived}
            here = [txn for txn in waived if _writes_here(place, other, plans[txn])]
            for group in _by_markers(place, plans, here):
                if since := tuple(txn for txn in group if txn in late):
                    yield Hanging(sink=other, here=group, since=since)
            if perhaps := tuple(txn for txn in late if txn not in here and _may_write_here(place, other, plans[txn])):
                yield Hanging(sink=other, perhaps=perhaps)


def _by_markers(
    place: SinkDestination, plans: _Plans, here: Sequence[TransactionId]
) -> list[tuple[TransactionId, ...]]:
    """The transactions, by the table or topic in which the record has the sink's marker."""
    groups = defaultdict[str, list[TransactionId]](list)
    for txn in here:
        plan = plans[txn] if place.is_beside else None
        options = plan.spec if plan else {}
        groups[repr([options.get(name) for name in _MARKERS])].append(txn)
    return [tuple(group) for group in groups.values()]


def sink_here(place: SinkDestination, hanging: Hanging) -> Sink | None:
    """The other sink in this place; None if its record cannot be read.

    Where its marker stands beside the rows, the record tells in which table or topic.
    """
    return place.on_record(hanging.sink, hanging.here[-1]) if place.is_beside else place.alike(hanging.sink)


def _writes_here(place: SinkDestination, other: str, plan: SinkPlan | None) -> bool:
    """Whether the record has the same kind and place; or this table itself has the marker from before."""
    if plan and is_surely_at(place.sink, plan.spec, place.task.pipeline.sinks):
        return True
    return isinstance(place.sink, Holding) and not place.is_beside and _is_marked_here(place, other)


def _is_marked_here(place: SinkDestination, other: str) -> bool:
    """Whether the sink of today, under the other name, shows its last epoch: as by a path and by a catalog's name."""
    last, alike = place.before.markers.get(other), place.alike(other)
    found = place.marker_of(alike) if last and alike else None
    return last is not None and bool(
        agreement.late_in(found, [last]) or agreement.fence_in(found, place.before.may_show(other))
    )


def _may_write_here(place: SinkDestination, other: str, plan: SinkPlan | None) -> bool:
    """Whether another connection may lead there, or the rows of its last epoch are here under another spelling."""
    if plan and is_at_through(place.sink, plan.spec, place.task.pipeline.sinks):
        return True
    return place.is_beside and place.holds_newest(other)


def _plan(place: SinkDestination, other: str, txn: TransactionId) -> SinkPlan | None:
    opened = place.task.ledger.open_record(txn.epoch, txn.attempt)
    return opened.sinks.get(other) if opened else None
