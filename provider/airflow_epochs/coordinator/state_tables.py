"""State tables in an epoch: which version of each one the epoch reads, and what no epoch may do to them.

The versions are facts of attempt 1's open record: the state as of the last complete epoch. So every rerun of the epoch
reads the same state, and so does staging again after a loss. Only a state that begins may begin otherwise in a later
attempt: nobody has seen what an aborted one staged, and ``initial`` may have been corrected since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from airflow_epochs import codes
from airflow_epochs.contracts import Stateful
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import CompleteRecord, JsonDict, OpenRecord, StatePin, TransactionId, Watermarks
from airflow_epochs.names import normalised
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
    adopted: Mapping[str, TransactionId | None],
    earlier: Mapping[str, StatePin] | None = None,
) -> dict[str, StatePin]:
    """The version of each state table of today's DAG that an attempt reads.

    ``adopted``: as in ``OpenRecord``; a state in it begins anew. ``earlier``: the versions of the attempt before, which
    stand for a state that has begun. Every table is looked at all the same.

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


def require_whole(task: TaskTry, before: CompleteRecord | None, adopted: Mapping[str, TransactionId | None]) -> None:
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
        then = closed_in(task.ledger.complete_record(opened.txn_id.epoch))
        found = {name: replace(read, closed_then=then.get(name, ())) for name, read in found.items()}
    return found


def closed_in(complete: CompleteRecord | None) -> dict[str, Watermarks]:
    """State table -> up to where its operator had closed it after an epoch, as far as receipts tell."""
    told = {name: receipt.detail.get("state") for name, receipt in (complete.receipts if complete else {}).items()}
    # A sink of a user's own may have anything there.
    closed = {name: facts.get("closed") for name, facts in told.items() if isinstance(facts, dict)}
    return {name: tuple(marks) for name, marks in closed.items() if isinstance(marks, list)}


def _read(task: TaskTry, opened: OpenRecord, described: OpenRecord, name: str) -> StateRead:
    sink = task.sink_of(described, name)
    assert isinstance(sink, Stateful)
    return from_json(StateRead, sink.plan_read(opened.state[name], opened.watermarks, task.env))


def _require_none_replaced(task: TaskTry, before: CompleteRecord, adopted: Mapping[str, TransactionId | None]) -> None:
    """Raise Refused if a state begins empty where another one has left the DAG: it may be the same, renamed.

    ``initial``, or a command that takes the new state as it is, says what is meant. The ``initial`` with which the
    other one began says nothing: it may have stayed in the DAG.
    """
    known, today = {*before.markers, *before.waived, *adopted}, {sink.name for sink in task.pipeline.sinks}
    begins = [sink for sink in task.pipeline.sinks if isinstance(sink, Stateful) and sink.name not in known]
    left = sorted(of_epoch(task.ledger, before) - today) if begins else []
    used = _initials(task.ledger, before, left)
    if left and (unclear := {sink.name: initial for sink in begins if (initial := _initial(sink.spec())) in used}):
        raise _replaced(task, unclear, left, before.txn_id.epoch)


def of_epoch(ledger: Ledger, complete: CompleteRecord) -> frozenset[str]:
    """The states of a complete epoch.

    A rebuilt one has no open record, or one of another transaction, but receipts that tell; of a user's own sink they
    may have anything in them.
    """
    opened = ledger.open_record(complete.txn_id.epoch, complete.txn_id.attempt)
    if opened and opened.txn_id == complete.txn_id:
        return frozenset(opened.state)
    return frozenset(name for name, receipt in complete.receipts.items() if "state" in receipt.detail)


def _initials(ledger: Ledger, before: CompleteRecord, states: Sequence[str]) -> set[str | None]:
    """The values of ``initial`` that say nothing about a new state: None, and what each of ``states`` has."""
    opened = ledger.open_record(before.txn_id.epoch, before.txn_id.attempt) if states else None
    plans = [opened.sinks[name] for name in states if name in opened.sinks] if opened else []
    return {None, *(_initial(plan.spec) for plan in plans)}


def _initial(spec: JsonDict) -> str | None:
    initial = spec.get("initial")
    return normalised(initial.strip()) if initial else None


def _replaced(task: TaskTry, unclear: Mapping[str, str | None], left: Sequence[str], epoch: int) -> Refused:
    new = _listed(unclear)
    stale = [name for name, initial in unclear.items() if initial]
    why = f" `initial` of {_listed(stale)} is still the one of an old state." if stale else ""
    return Refused(
        f"{'The state' if len(unclear) == 1 else 'The states'} {new} {'is' if len(unclear) == 1 else 'are'} new. The "
        f"DAG no longer has {_listed(left)}, {'a state' if len(left) == 1 else 'states'} of epoch {epoch}. If a new "
        f"state is an old one under another name, later results would lack its rows, and nobody would see it.{why} "
        "Nothing was opened.",
        code=codes.STATE_REPLACED,
        remedy=_kept_or_begun(task.pipeline.name, list(unclear), left, with_initial=bool(stale)),
        pipeline=task.pipeline.name,
        epoch=epoch + 1,
        sink=next(iter(unclear)) if len(unclear) == 1 else None,
    )


def _kept_or_begun(pipeline: str, new: Sequence[str], left: Sequence[str], *, with_initial: bool) -> str:
    """The ways on: the old name, the old rows, or a beginning that a command asks for."""
    if len(new) == len(left) == 1:
        old = f"Give the state its old name {left[0]!r}"
    else:
        old = f"Give each state that you have renamed its old name (one of {_listed(left)})"
    begins = "begin empty, or with what its `initial` names now" if with_initial else "begin empty"
    commands = ", ".join(f"`airflow epochs adopt-sink {pipeline} {name} --new-table --why …`" for name in new)
    return (
        f"{old} and its old table again. If a new state must begin with the rows of an old one, write them to another "
        "Delta table (docs/state.md, 'Keep the rows of a state'), and name this one in `initial`. If a new state is to "
        f"{begins}, type its command: {commands}. Then clear the failed task."
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _require_unbroken(task: TaskTry, name: str, before: CompleteRecord) -> None:
    """Raise Refused if epochs have been completed without the state: it lacks their rows."""
    last = before.markers.get(name)
    if last == before.txn_id or (last is None and name not in before.waived):
        return
    at = last.epoch if last else 0
    raise Refused(
        f"The state {name!r} is as of epoch {at}, and epochs {at + 1} to {before.txn_id.epoch} were completed without "
        "it. Their rows are not in it, so results would be wrong without an error. Nothing was opened.",
        code=codes.STATE_SKIPPED,
        pipeline=task.pipeline.name,
        epoch=before.txn_id.epoch + 1,
        sink=name,
    )
