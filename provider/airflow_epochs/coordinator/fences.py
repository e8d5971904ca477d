"""Keeps waived commits that hang from landing beside a backfill that brings their rows under another name.

An operator may waive a sink while its commit task still runs. If the sink then gets another name, and a backfill, the
old commit could land after the new one: the rows would come twice. So before the backfill is committed, the sink shows,
under its old name, the *fence* of the newest transaction that was waived. A commit that expects what it showed before
finds the fence, and writes nothing.

A sink that shows a waived transaction gets no fence: its marker must go on to tell whose rows are there.
"""

from __future__ import annotations

from airflow_epochs import secrecy
from airflow_epochs.contracts import Fencing
from airflow_epochs.coordinator import sink_calls
from airflow_epochs.coordinator.other_names import Place
from airflow_epochs.errors import Refused
from airflow_epochs.model import TransactionId, agree

log = secrecy.logger(__name__)


def put(place: Place, first: int) -> None:
    """Fence each other sink whose waived commit, of the epoch ``first`` or a later one, may land here. Idempotent.

    A sink that takes part in this epoch, with another table, goes on from the fence.

    Raises:
        NotApplied, OutcomeUnknown: The sink does not answer. Call again.
    """
    for other, waived in place.may_land_since(first):
        if not _is_fenced(place, other, waived):
            log.warning(
                "Epoch %s was waived under the name %s, which cannot be fenced. Make sure that no task of that epoch "
                "runs any more: if its commit lands, the rows come twice.",
                waived.epoch,
                other,
            )


def _is_fenced(place: Place, other: str, waived: TransactionId) -> bool:
    """Whether no waived commit of the other sink can land any more, after fences were put if they can be."""
    sink = place.as_then(other, waived)
    if sink is None or not isinstance(sink, Fencing):
        return False
    newest = TransactionId.parse(place.before.may_show(other)[0])
    if _shows_the_newest(place, other, sink):
        log.info("sink %s is fenced up to epoch %s, which was waived", other, newest.epoch)
        return True
    found = sink_calls.marker_of(sink, place.task.pipeline.name, place.task.env)
    return found is not None and (found.epoch > newest.epoch or agree(found, newest))


def _shows_the_newest(place: Place, other: str, sink: Fencing) -> bool:
    """Whether the sink shows the fence of its newest waived transaction, once one was put for each, oldest first.

    Some sinks compare epochs alone. So no fence skips an epoch that may still land: it would hide that it has landed.
    """
    last, task = place.before.markers.get(other), place.task
    over = [TransactionId.parse(last) if last else None]
    for txn in map(TransactionId.parse, reversed(place.before.may_show(other))):
        try:
            if not sink_calls.fenced(sink, task.pipeline.name, over, txn.fence, task.env):
                return False
        except Refused as refused:
            log.warning("Sink %s cannot be fenced: %s", other, refused.reason)
            return False
        over.append(txn.fence)
    return True
