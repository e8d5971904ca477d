"""State tables in an epoch: which version of each one the epoch reads, and what no epoch may do to them.

The versions are facts of attempt 1's open record: the state as of the last complete epoch. So every rerun of the epoch
reads the same state, and so does staging again after a loss. Only a state that begins may begin otherwise in a later
attempt: nobody has seen what an aborted one staged, and ``initial`` may have been corrected since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from airflow_epochs import codes
from airflow_epochs.contracts import Stateful
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.model import CompleteRecord, OpenRecord, StatePin, TransactionId
from airflow_epochs.spark.driver.plans import StateRead
from airflow_epochs.spark.driver.wire import from_json

BEGIN_ANEW = (
    "point the state to a new table in the DAG, and run `airflow epochs adopt-sink PIPELINE SINK --new-table --why …`: "
    "the state begins anew there. Then clear the failed task. To let it see earlier records again, see docs/state.md, "
    "'A state that is lost'."
)
"""The way out for a state that is lost; the end of a sentence."""
AFTER_A_WAIVER = f" This sink is a state table, which lacks these rows after a waiver. So after it {BEGIN_ANEW}"
"""What to add to a remedy that names a waiver."""


def pins(
    task: TaskTry,
    before: CompleteRecord | None,
    adopted: Mapping[str, str | None],
    earlier: Mapping[str, StatePin] | None = None,
) -> dict[str, StatePin]:
    """The version of each state table of today's DAG that an attempt reads.

    ``adopted``: as in ``OpenRecord``; a state in it begins anew. ``earlier``: those of the attempt before, which stand
    for a state that has begun. Every table is looked at all the same.

    Raises:
        Refused: A state table has missed epochs, cannot begin here, or takes the place of another one.
        Corrupt: Others have changed rows of a state table.
    """
    require_whole(task, before, adopted)
    found = {}
    for sink in task.pipeline.sinks:
        if isinstance(sink, Stateful):
            receipt = before.receipts.get(sink.name) if before and sink.name not in adopted else None
            found[sink.name] = sink.pin(receipt, task.pipeline.name, task.env)
    standing = {name: pin for name, pin in (earlier or {}).items() if pin.version is not None}
    return {name: standing.get(name, pin) for name, pin in found.items()}


def require_whole(task: TaskTry, before: CompleteRecord | None, adopted: Mapping[str, str | None]) -> None:
    """Raise Refused if a state lacks rows of epochs by what the ledger says. No table is looked at.

    ``open`` asks this before it asks the tables: what their errors say of keeping rows is true of whole states only.
    """
    if before is None:
        return
    _require_none_replaced(task, before, adopted)
    for sink in task.pipeline.sinks:
        if isinstance(sink, Stateful) and sink.name not in adopted:
            _require_unbroken(task, sink.name, before)


def reads(task: TaskTry, opened: OpenRecord, by: OpenRecord | None = None) -> dict[str, StateRead]:
    """Spark's plan for reading each state table of an attempt.

    ``by``: the later attempt that reads the same once more; its own state tables, at the versions of ``opened``. A
    state that began with ``opened`` begins again with the table that ``initial`` named then.
    """
    later = by or opened
    found = {name: _read(task, opened, later, name) for name in opened.state if name in later.state}
    if by:
        began = [name for name in found if opened.state[name].version is None]
        found |= {name: replace(found[name], initial=_read(task, opened, opened, name).initial) for name in began}
    return found


def _read(task: TaskTry, opened: OpenRecord, described: OpenRecord, name: str) -> StateRead:
    sink = task.sink_of(described, name)
    assert isinstance(sink, Stateful)
    return from_json(StateRead, sink.plan_read(opened.state[name], opened.watermarks, task.env))


def _require_none_replaced(task: TaskTry, before: CompleteRecord, adopted: Mapping[str, str | None]) -> None:
    """Raise Refused if a state begins empty where another one has left the DAG: it may be the same, renamed.

    ``initial``, or a command that takes the new state as it is, says what is meant.
    """
    known, today = {*before.markers, *before.waived, *adopted}, {sink.name: sink for sink in task.pipeline.sinks}
    begins = [name for name, sink in today.items() if isinstance(sink, Stateful) and name not in known]
    empty = [name for name in begins if not today[name].spec().get("initial")]
    opened = task.ledger.open_record(before.txn.epoch, before.txn.attempt) if empty else None
    if opened and (left := sorted(opened.state.keys() - today.keys())):
        raise _replaced(task, empty[0], left, before.txn.epoch)


def _replaced(task: TaskTry, name: str, left: Sequence[str], epoch: int) -> Refused:
    return Refused(
        f"The state {name!r} is new, and would begin empty. The DAG no longer has {', '.join(map(repr, left))}, a "
        f"state of epoch {epoch}. If {name!r} is that state under another name, later results would lack its rows, and "
        "nobody would see it. Nothing was opened.",
        code=codes.STATE_REPLACED,
        remedy=f"Give the state its old name {left[0]!r} and its old table again. If {name!r} must begin with the rows "
        "of that state, write them to another Delta table (docs/state.md, 'Keep the rows of a state'), and "
        f"name this one in `initial`. If {name!r} is to begin empty, type `airflow epochs adopt-sink "
        f"{task.pipeline.name} {name} --new-table --why …`. Then clear the failed task.",
        pipeline=task.pipeline.name,
        epoch=epoch + 1,
        sink=name,
    )


def _require_unbroken(task: TaskTry, name: str, before: CompleteRecord) -> None:
    """Raise Refused if epochs have been completed without the state: it lacks their rows."""
    last = before.markers.get(name)
    if last == before.txn_id or (last is None and name not in before.waived):
        return
    at = TransactionId.parse(last).epoch if last else 0
    raise Refused(
        f"The state {name!r} is as of epoch {at}, and epochs {at + 1} to {before.txn.epoch} were completed without it. "
        "Their rows are not in it, so results would be wrong and nobody would see it. Nothing was opened.",
        code=codes.STATE_SKIPPED,
        pipeline=task.pipeline.name,
        epoch=before.txn.epoch + 1,
        sink=name,
    )
