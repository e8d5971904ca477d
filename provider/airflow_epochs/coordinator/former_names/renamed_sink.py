"""A new sink may get a table or topic that another sink of the pipeline has filled. ``backfill`` would fill it again.

Ledger and markers go by names. So a sink that was renamed counts as new, and begins where ``backfill`` says. So does
one that takes the place which another sink, of the DAG or removed from it, has left.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Fencing, Sink, replaces_by
from airflow_epochs.coordinator.former_names.hanging import Hanging, that_may_land
from airflow_epochs.coordinator.former_names.other_names import SinkDestination, WrittenByOther
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.model import TransactionId

log = secrecy.logger(__name__)


def require_new_rows(task: TaskTry, sink: Sink, epoch: int) -> None:
    """Raise Refused if ``backfill`` lets a new sink write rows that its table or topic has under another name.

    If the table or topic was lost, or emptied with its markers, it may be filled again. So it may with an epoch that
    was waived, unless a marker tells that its commit landed all the same. A sink whose rows replace those with the same
    keys may write all of them again.
    """
    first = task.pipeline.backfill.get(sink.name, epoch)
    before = task.ledger.complete_record(epoch - 1) if first < epoch else None
    if before is None or replaces_by(sink):
        return
    place = SinkDestination(task=task, sink=sink, before=before)
    if found := place.newest_since(first):
        raise _twice(task, sink, found, first, epoch)
    for hanging in that_may_land(place, first):
        _warn(sink, hanging, hanging.since, " in the same place", _FENCED if isinstance(sink, Fencing) else _NOT_FENCED)
        _warn(sink, hanging, hanging.perhaps, ", perhaps in the same place", _PERHAPS)


def _warn(sink: Sink, hanging: Hanging, waived: Iterable[TransactionId], where: str, then: str) -> None:
    for txn in waived:
        log.warning(
            "`backfill` of sink %s has the rows of epoch %s, which was waived under the name %s%s. %s",
            sink.name,
            txn.epoch,
            hanging.sink,
            where,
            then,
        )


_FENCED = (
    "The commit fences that name first: a commit that hangs does not land then. If the fence fails, the log of the "
    "commit says so."
)
_BY_HAND = "Make sure that no task of that epoch runs any more: if its commit landed, the rows would come twice."
_NOT_FENCED = f"{_BY_HAND} A sink of this kind cannot be fenced."
_PERHAPS = f"{_BY_HAND} The commit does not fence that name, which may have another place."


def _twice(task: TaskTry, sink: Sink, found: WrittenByOther, first: int, epoch: int) -> Refused:
    shown = found.txn.epoch
    why = f" Epoch {shown} was waived there, but its commit landed all the same." if found.waived else ""
    why = " No marker of that name is left, but the ledger says so." if found.unmarked else why
    return Refused(
        f"`backfill` lets sink {sink.name!r} begin with epoch {first}. But under the name {found.sink!r} the pipeline "
        f"has written rows up to epoch {shown} to the same place, {secrecy.shown(sink.destination() or '')}, and they "
        f"are there.{why} {_what_happens(sink)} Nothing was read or written.",
        code=codes.SINK_RENAMED,
        remedy=_remedy(task, found.sink, shown, epoch) + (_IF_LACKING if found.unmarked else ""),
        pipeline=task.pipeline.name,
        epoch=epoch,
        sink=sink.name,
    )


_IF_LACKING = (
    " But if the table or topic lacks some of these rows, put the marker of the newest epoch that it has back, under "
    "the old name: if the sink has that name in the DAG, the error of `open` says how. Then let `backfill` of the new "
    "name begin with the epoch after that. If it has no rows of the old name at all, give the sink a new table or "
    "topic, and move there what else the old one has."
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
