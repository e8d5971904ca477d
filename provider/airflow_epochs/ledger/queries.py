"""Read-only questions to a ledger: its newest epochs, the unfinished epoch, and the sinks that it waits for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from airflow_epochs.contracts import Position
from airflow_epochs.errors import cause_and_remedy
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import (
    Command,
    CompleteRecord,
    DecisionRecord,
    OpenRecord,
    SinkPlan,
    TransactionId,
    WaivedRecord,
    obeyed,
    reasons_against,
    records_upper_bound,
)
from airflow_epochs.protocol import State


@dataclass(frozen=True, kw_only=True)
class EpochRow:
    """One epoch at a glance.

    Attributes:
        offsets: The number of offsets in its ranges: at most as many are records.
        rows: The sum of the rows in its receipts.
        waits_for: The sinks without a receipt or a waiver, if the epoch is in doubt; else empty.
        commands: The operators' commands that the epoch obeys, oldest first; if it is not open yet, those that wait.
        versions: Sink name -> the version that shows the epoch; only sinks that have versions.
        at: When it was completed; if it is not complete, when its newest attempt was opened. ISO 8601.
        code: The transform that made its rows, as in ``OpenRecord``; None if unknown.
        code_changed: Whether this is not the code of the epoch before, as far as both are known.
        read: The records that were read; None if they were not counted.
        dead_letters: The rows in the sink of the dead letters; None if there is none, or records were not counted.
        waived: The sinks that do not get their rows, and the word of the operator who said so.
    """

    number: int
    state: State
    attempt: int
    offsets: int
    rows: int
    waits_for: tuple[str, ...]
    versions: dict[str, int]
    at: str
    txn_id: TransactionId
    commands: tuple[str, ...] = ()
    code: str | None = None
    code_changed: bool = False
    read: int | None = None
    dead_letters: int | None = None
    waived: Mapping[str, WaivedRecord] = field(default_factory=dict)

    @classmethod
    def of(cls, ledger: Ledger, view: EpochView, before: CompleteRecord | None = None) -> EpochRow:
        """The row of an epoch that has been opened. ``before``: the epoch before; needed for ``code_changed`` alone."""
        record = view.complete or view.opened
        receipts = view.complete.receipts if view.complete else view.receipts
        metrics = view.complete.metrics if view.complete else {}
        letters = receipts.get(metrics.get("dead_letter_sink", ""))
        return cls(
            number=view.number,
            state=view.state,
            attempt=record.txn_id.attempt,
            offsets=records_upper_bound(record.ranges),
            rows=sum(receipt.rows for receipt in receipts.values()),
            waits_for=waits_for(view),
            versions={sink: r.version for sink, r in sorted(receipts.items()) if r.version is not None},
            at=view.complete.completed_at if view.complete else view.opened.opened_at,
            txn_id=record.txn_id,
            commands=tuple(command.name for command in commands_of(ledger, view)),
            code=record.code,
            code_changed=before is not None and None not in (before.code, record.code) and before.code != record.code,
            read=metrics.get("rows_in"),
            dead_letters=letters.rows if letters else None,
            waived=given_up(ledger, view),
        )


@dataclass(frozen=True, kw_only=True)
class RecordCounts:
    """Where the records of an epoch went, as one sink sees it: ``read = written + dead_letters + left_out``.

    It adds up for a transform that makes at most one row of a record.

    Attributes:
        read: The records that were read.
        written: The sink's rows.
        dead_letters: The sink's dead letters, and the records that the transform could not parse.
        left_out: The rest. None if there are more rows than records, so that nobody can say what was left out.
    """

    read: int
    written: int
    dead_letters: int
    left_out: int | None


def accounts(complete: CompleteRecord) -> dict[str, RecordCounts]:
    """Sink -> its account, without state tables and the sink of the dead letters. Empty if no records were counted."""
    read, letters = complete.metrics.get("rows_in"), complete.metrics.get("dead_letter_sink")
    if not isinstance(read, int):
        return {}
    of_sinks: dict[str, int] = complete.metrics.get("dead_letters", {})
    posted = complete.receipts.get(letters) if letters else None
    unparsed = posted.rows - sum(of_sinks.values()) if posted else 0
    return {
        name: _account(read, receipt.rows, of_sinks.get(name, 0) + unparsed)
        for name, receipt in sorted(complete.receipts.items())
        if name != letters and "state" not in receipt.detail
    }


def _account(read: int, written: int, dead_letters: int) -> RecordCounts:
    rest = read - written - dead_letters
    return RecordCounts(read=read, written=written, dead_letters=dead_letters, left_out=rest if rest >= 0 else None)


def newest_epochs(ledger: Ledger, limit: int, before: int | None = None) -> Iterator[EpochView]:
    """At most ``limit`` epochs, newest first. An unfinished epoch comes first. ``before``: only earlier epochs."""
    newest = ledger.newest_complete()
    first = newest + 1 if before is None else min(newest + 1, before - 1)
    if first > newest:
        view, first = ledger.view(first), newest
        if view.complete or view.open:
            yield view
            limit -= 1
    for number in range(first, max(0, first - limit), -1):  # a rebuilt ledger may lack any number of records
        view = ledger.view(number)
        if view.complete:  # one that was unfinished before a rebuilding is history
            yield view


def waivers(ledger: Ledger, view: EpochView) -> dict[str, WaivedRecord]:
    """Sink -> the waiver by which an operator gave it up in this epoch."""
    if not view.complete:
        return view.waived
    here = [sink for sink in view.complete.waived if view.complete.txn_id in view.complete.may_show(sink)]
    found = {sink: ledger.waiver(view.number, sink) for sink in here}
    return {sink: record for sink, record in found.items() if record}


def given_up(ledger: Ledger, view: EpochView) -> dict[str, WaivedRecord]:
    """As ``waivers``, without the sinks that have a receipt: those do not get their rows of this epoch."""
    receipts = view.complete.receipts if view.complete else view.receipts
    return {sink: record for sink, record in sorted(waivers(ledger, view).items()) if sink not in receipts}


def unfinished(ledger: Ledger) -> EpochView | None:
    """The epoch that was opened and is not complete; None if there is none. There is never more than one."""
    view = ledger.view(ledger.newest_complete() + 1)
    return view if view.open and not view.complete else None


def in_doubt(ledger: Ledger) -> tuple[EpochView, datetime] | None:
    """The epoch in doubt, and when it was decided; None if there is none.

    It may wait for no sink: if all have receipts, and its completion record is not there yet.
    """
    view = unfinished(ledger)
    if view is None or view.decision is None or view.state is not State.IN_DOUBT:
        return None
    return view, datetime.fromisoformat(view.decision.decided_at)


def waits_for(view: EpochView) -> tuple[str, ...]:
    """The names of the sinks that an epoch in doubt waits for, sorted; empty for an epoch in another state."""
    return tuple(sorted(view.epoch.unacknowledged)) if view.state is State.IN_DOUBT else ()


def in_words(view: EpochView) -> str:
    """A sentence about an unfinished epoch, for people."""
    if order := view.open and view.open.command:
        return (
            f"Epoch {view.number} is not open. The next run obeys `{order.name}` by {order.who}, because: "
            f"{order.why.rstrip('.')}."
        )
    waits = f": waits for {', '.join(waits_for(view))}" if waits_for(view) else ""
    opened = view.opened
    return f"Epoch {view.number} is {view.state.value}{waits} ({opened.txn_id}, opened by {opened.run})."


def newest_opened(ledger: Ledger) -> OpenRecord | None:
    """The newest open record, which says what the pipeline reads and writes; None if there is none or it was pruned."""
    if view := unfinished(ledger):
        return view.open
    complete = ledger.complete_record(ledger.newest_complete())
    if complete is None:
        return None
    return ledger.open_record(complete.txn_id.epoch, complete.txn_id.attempt) or _as_rebuilt(ledger, complete)


def position_of_next(ledger: Ledger) -> tuple[int, Position | None]:
    """The newest complete epoch, 0 if there is none, and where the next one begins; None: as the source says."""
    view = ledger.view_of_next()
    return view.number - 1, Position.after(order_in_force(ledger, view) or ledger.complete_record(view.number - 1))


def order_in_force(ledger: Ledger, view: EpochView) -> OpenRecord | None:
    """The attempt that holds the newest command of this epoch, also if a run has obeyed it since; None: there is none.

    ``view``: of the next epoch.
    """
    return ledger.open_record(view.number, view.open.obeys) if view.open and view.open.obeys else None


def commands_obeyed(ledger: Ledger, opened: OpenRecord) -> tuple[Command, ...]:
    """The commands that the epoch of this attempt obeys, oldest first, with the one that the attempt holds, if any.

    Each as far as no later one has taken its place.
    """
    orders = orders_of(ledger, opened)
    return tuple(obeyed(order, orders[number:]) for number, order in enumerate(orders, 1))


def orders_of(ledger: Ledger, opened: OpenRecord) -> list[OpenRecord]:
    """The attempts that hold these commands, oldest first, as typed."""
    attempts = [ledger.open_record(opened.txn_id.epoch, number) for number in range(1, opened.obeys + 1)]
    return [each for each in attempts if each and each.command]


def commands_of(ledger: Ledger, view: EpochView) -> tuple[Command, ...]:
    """The commands that an epoch obeys, complete or not, oldest first; also those that wait for a run."""
    return tuple(view.complete.commands) if view.complete else commands_obeyed(ledger, view.opened)


def _as_rebuilt(ledger: Ledger, complete: CompleteRecord) -> OpenRecord | None:
    """A rebuilding's record in the form of an open record, as if an attempt of its epoch had been opened then."""
    rebuilt, identity = ledger.rebuilt(), ledger.identity()
    if rebuilt is None or identity is None or rebuilt.txn_id != complete.txn_id:
        return None
    return OpenRecord(
        txn_id=complete.txn_id,
        ledger_id=identity.ledger_id,
        ranges=complete.ranges,
        source=rebuilt.source,
        source_state=complete.source_state,
        transform=rebuilt.transform,
        sinks={name: SinkPlan(spec=spec, previous=None) for name, spec in rebuilt.sinks.items()},
        dag_id=rebuilt.dag_id,
        run_id=complete.completed_by.run_id,
        now=rebuilt.at,
        seed=0,
        opened_at=rebuilt.at,
        writer=rebuilt.writer,
        watermarks=complete.watermarks,
    )


def causes_of(decision: DecisionRecord) -> str:
    """The decision's reason without what the votes ask for: that names tasks that a run of one task does not have.

    After an abort there is more to do than they say: ``coordinator.reasons`` says all of it.
    """
    causes = [f"{sink}: {cause_and_remedy(reason)[0]}" for sink, reason in reasons_against(decision.votes).items()]
    return "; ".join(causes) or cause_and_remedy(decision.reason)[0]
