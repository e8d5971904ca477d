"""Keeps waived commits that hang from landing beside a backfill that brings their rows under another name.

An operator may waive a sink while its commit task still runs. If the sink then gets another name, and a backfill, the
old commit could land after the new one: the rows would come twice. So before the backfill is committed, the sink shows,
under its old name, the *fence* of the newest transaction that was waived. A commit that expects what it showed before
finds the fence, and writes nothing. Only a sink that surely writes to the same place is fenced.

A sink that shows a waived transaction gets no fence: its marker must go on to tell whose rows are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_epochs import secrecy
from airflow_epochs.contracts import Fencing
from airflow_epochs.coordinator import sink_calls
from airflow_epochs.coordinator.former_names.hanging import Hanging, sink_here, that_may_land
from airflow_epochs.coordinator.former_names.other_names import SinkDestination
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, Refused, first_line
from airflow_epochs.model import TransactionId, agree

log = secrecy.logger(__name__)


def put(place: SinkDestination, first: int) -> None:
    """Fence each other sink whose waived commit, of the epoch ``first`` or a later one, would land here. Idempotent.

    A sink that takes part in this epoch, with another table, goes on from the fence. One that may write elsewhere gets
    no fence, but a line in the log.

    Raises:
        NotApplied, OutcomeUnknown: The sink does not answer. Call again.
    """
    for hanging in that_may_land(place, first):
        if hanging.since and _is_fenced(place, hanging):
            log.info("sink %s is fenced up to epoch %s, which was waived", hanging.sink, hanging.here[-1].epoch)
        else:
            _warn(hanging.sink, hanging.since, "which cannot be fenced")
        _warn(hanging.sink, hanging.perhaps, "which perhaps writes to the same place, and is not fenced")


def _warn(other: str, waived: Iterable[TransactionId], why: str) -> None:
    for txn in waived:
        log.warning(
            "Epoch %s was waived under the name %s, %s. Make sure that no task of that epoch runs any more: if its "
            "commit lands in the same place, the rows come twice.",
            txn.epoch,
            other,
            why,
        )


def _is_fenced(place: SinkDestination, hanging: Hanging) -> bool:
    """Whether no waived commit of the other sink can land here any more, after fences were put if they can be."""
    try:
        return _shows_a_fence(place, hanging)
    except (Refused, Corrupt) as error:  # its marker cannot be read, which must not stop the sink of today
        log.warning("The waived commits of sink %s cannot be fenced: %s", hanging.sink, first_line(error))
        return False


def _shows_a_fence(place: SinkDestination, hanging: Hanging) -> bool:
    sink, task, waived = sink_here(place, hanging), place.task, hanging.here
    if sink is None or not isinstance(sink, Fencing):
        return False
    if _puts_each(task, sink, place.before.markers.get(hanging.sink), waived):
        return True
    found = sink_calls.marker_of(sink, task.pipeline.name, task.env)
    if found is None:
        return False
    if found.epoch > waived[-1].epoch or agree(found, waived[-1]):
        return True
    shown = next((n for n, txn in enumerate(waived) if agree(found, txn.fence) and not agree(found, txn)), None)
    return shown is not None and _puts_each(task, sink, waived[shown].fence, waived[shown + 1 :])


def _puts_each(task: TaskTry, sink: Fencing, last: TransactionId | None, waived: Sequence[TransactionId]) -> bool:
    """Whether the sink shows the newest fence after one was put for each, the oldest first.

    Some sinks compare epochs alone. So no fence skips an epoch that may still land: it would hide that it has landed.
    """
    over = [last]
    for txn in waived:
        if not sink_calls.fenced(sink, task.pipeline.name, over, txn.fence, task.env):
            return False
        over.append(txn.fence)
    return True
