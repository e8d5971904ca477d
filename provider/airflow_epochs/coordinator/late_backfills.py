"""A waived commit of a new sink lands after the next epoch, which backfills the sink again, was decided.

The sink now shows rows that this epoch's promised rows have among them. On top of each other they would come twice.
"""

from __future__ import annotations

from airflow_epochs import codes
from airflow_epochs.contracts import Sink, Vacating, backfill_from, waive_command
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import OpenRecord, Ranges, TransactionId, attempt_fields


def found(task: TaskTry, opened: OpenRecord, sink: Sink, late: TransactionId) -> Corrupt:
    """The error of the commit. ``late``: what the sink shows in place of no epoch."""
    lossless = isinstance(sink, Vacating) and _has_all_of(task, opened, sink.name, late)
    vacate = sink.how_to_vacate(late, task.env) if isinstance(sink, Vacating) and lossless else None
    first = task.pipeline.backfill.get(sink.name)
    waived = (
        f"ype `{waive_command(opened.txn, sink.name)}`, so that the epoch is completed without this sink's rows. Then "
        f"clear the failed task. The sink goes on with the next epoch, and lacks what came after epoch {late.epoch} up "
        f"to epoch {opened.txn.epoch}. To have all rows, also give the sink another name, with "
        f"{backfill_from(first or '<its first epoch>')}, and a new target."
    )
    return Corrupt(
        f"The commit of epoch {late.epoch} landed in the sink late, after an operator had waived it. This epoch is "
        "decided, and fills the sink with the rows of that epoch too: they would come twice. Nothing was written.",
        code=codes.BACKFILL_OVERTAKEN,
        remedy=f"{vacate} If this is not possible, t{waived}" if vacate else f"T{waived}",
        sink=sink.name,
        **attempt_fields(opened.txn),
    )


def _has_all_of(task: TaskTry, opened: OpenRecord, sink: str, late: TransactionId) -> bool:
    """Whether this epoch reads all that the late one read for the sink. False if its record was pruned."""
    then = task.ledger.open_record(late.epoch, late.attempt)
    return bool(then and _within(then.ranges_of(sink), opened.ranges_of(sink)))


def _within(narrow: Ranges, wide: Ranges) -> bool:
    known = {(topic, r.partition): r for topic in wide for r in wide[topic]}
    parts = [(known.get((topic, r.partition)), r) for topic in narrow for r in narrow[topic]]
    return all(w is not None and w.start <= r.start and r.end <= w.end for w, r in parts)
