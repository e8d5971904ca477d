"""A waived commit lands after the next epoch, which backfills the same table or topic, was decided.

The table or topic now shows rows that this epoch has staged once more. If the epoch were committed too, they would be
there twice. The waived commit may be one of the new sink itself, or of a sink that had another name.
"""

from __future__ import annotations

from airflow_epochs import codes
from airflow_epochs.contracts import Sink, Vacating, backfill_from, replaces_by, waive_command
from airflow_epochs.coordinator import sink_calls
from airflow_epochs.coordinator.backfills import fences
from airflow_epochs.coordinator.former_names.other_names import SinkDestination, WrittenByOther
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import OpenRecord, Ranges, TransactionId, agree, attempt_fields


def found(task: TaskTry, opened: OpenRecord, sink: Sink, late: TransactionId) -> Corrupt:
    """The error of the commit. ``late``: what the sink shows in place of no epoch."""
    lossless = isinstance(sink, Vacating) and _has_all_of(task, opened, sink.name, late)
    vacate = sink.how_to_vacate(late, task.env) if isinstance(sink, Vacating) and lossless else None
    first = task.pipeline.backfill.get(sink.name)
    waived = (
        f"ype `{waive_command(opened.txn_id, sink.name)}`, so that the epoch is completed without this sink's rows. "
        "Then clear the failed task. The sink goes on with the next epoch, and lacks what came after epoch "
        f"{late.epoch} up to epoch {opened.txn_id.epoch}. To have all rows, also give the sink another name, with "
        f"{backfill_from(first or '<its first epoch>')}, and a new target."
    )
    return Corrupt(
        f"The commit of epoch {late.epoch} landed in the sink late, after an operator had waived it. This epoch is "
        "decided, and fills the sink with the rows of that epoch too: they would come twice. Nothing was written.",
        code=codes.BACKFILL_OVERTAKEN,
        remedy=f"{vacate} If this is not possible, t{waived}" if vacate else f"T{waived}",
        sink=sink.name,
        **attempt_fields(opened.txn_id),
    )


def require_not_overtaken(task: TaskTry, opened: OpenRecord, sink: Sink) -> None:
    """Raise Corrupt if a waived commit of another name is where the sink is to write, and has rows of this backfill.

    ``open`` has looked, too. As there, a commit of an epoch before the backfill's first one does not count: a command
    may have moved the input back since, so that the backfill reads the same offsets. Before this look the other names
    are fenced, so that no such commit lands after it.
    """
    before = task.ledger.complete_record(opened.txn_id.epoch - 1)
    if before is None or not set(before.waived) - {sink.name}:
        return
    if agree(sink_calls.marker_of(sink, opened.txn_id.pipeline, task.env), opened.txn_id):
        return  # a repeat: the commit is done
    place, first = SinkDestination(task=task, sink=sink, before=before), opened.sinks[sink.name].backfilled_from or 0
    fences.put(place, first)
    if replaces_by(sink):
        return  # its rows take the place of those that have landed
    late = place.late_since(first)
    if overtaken := next((each for each in late if _shares_rows_with(task, opened, sink.name, each)), None):
        raise _overtaken(opened, sink, overtaken)


def _overtaken(opened: OpenRecord, sink: Sink, late: WrittenByOther) -> Corrupt:
    return Corrupt(
        f"The commit of epoch {late.txn.epoch} landed late, after an operator had waived it: under the name "
        f"{late.sink!r}, where this sink is to write. This epoch is decided, and has the rows of that epoch among its "
        "own: they would come twice. Nothing was written.",
        code=codes.BACKFILL_OVERTAKEN,
        remedy=f"Type `{waive_command(opened.txn_id, sink.name)}`, so that the epoch is completed without this sink's "
        "rows. Then clear the failed task. The next run says with which epoch `backfill` of the sink is to begin then "
        "(EPOCHS-SINK-RENAMED). With that epoch it gets all rows that it lacks.",
        sink=sink.name,
        **attempt_fields(opened.txn_id),
    )


def _has_all_of(task: TaskTry, opened: OpenRecord, sink: str, late: TransactionId) -> bool:
    """Whether this epoch reads all that the late one read for the sink. False if its record was pruned."""
    then = task.ledger.open_record(late.epoch, late.attempt)
    return bool(then and _within(then.ranges_of(sink), opened.ranges_of(sink)))


def _shares_rows_with(task: TaskTry, opened: OpenRecord, sink: str, late: WrittenByOther) -> bool:
    """Whether this epoch reads any of what the late one read. True if its record was pruned."""
    then = task.ledger.open_record(late.txn.epoch, late.txn.attempt)
    return then is None or _overlap(then.ranges_of(late.sink), opened.ranges_of(sink))


def _overlap(these: Ranges, those: Ranges) -> bool:
    known = {(topic, r.partition): r for topic in those for r in those[topic]}
    parts = [(known.get((topic, r.partition)), r) for topic in these for r in these[topic]]
    return any(other and max(other.start, r.start) < min(other.end, r.end) for other, r in parts)


def _within(narrow: Ranges, wide: Ranges) -> bool:
    known = {(topic, r.partition): r for topic in wide for r in wide[topic]}
    parts = [(known.get((topic, r.partition)), r) for topic in narrow for r in narrow[topic]]
    return all(w is not None and w.start <= r.start and r.end <= w.end for w, r in parts)
