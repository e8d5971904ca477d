"""Compares the ledger with itself and with every sink, and changes nothing: ``airflow epochs verify``.

Each check says one of four things of some epochs: all is as it must be; something is wrong; a sink did not answer; or
it cannot be checked, for example because an upsert leaves no trace of an epoch's rows. It looks at the newest epochs
only, as many as it is told: to count their rows, it reads them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice, pairwise

from airflow_epochs import codes
from airflow_epochs.contracts import Perishable, Position, Sink, Telling, Watching
from airflow_epochs.coordinator import agreement, sink_calls
from airflow_epochs.coordinator.opening import previous_of
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, EpochError, NotApplied, Refused
from airflow_epochs.ledger.queries import given_up
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import (
    CompleteRecord,
    Marker,
    Receipt,
    agree,
    ends_of,
    records_upper_bound,
    starts_of,
)
from airflow_epochs.protocol import State

LEDGER = "ledger"
LOOKS = 3
"""How often a sink is asked for its marker if the pipeline goes on meanwhile."""
TOLD_MAX = 5
"""How many faults of one check are told."""


class FindingVerdict(Enum):
    """What a check says."""

    OK = "ok"
    WRONG = "wrong"
    NO_ANSWER = "no answer"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What one check says.

    Attributes:
        about: A sink's name, or ``LEDGER``.
        check: What was compared.
        epochs: How many epochs were looked at.
        details: A sentence for each fault, and for each waived sink, at most ``TOLD_MAX`` each; or why it was not
            checked.
    """

    about: str
    check: str
    verdict: FindingVerdict
    epochs: int
    details: tuple[str, ...] = ()


Looked = Callable[[int], None]
"""A function that is called with 1 each time a sink has been asked about one epoch."""


def verify(task: TaskTry, epochs: int, looked: Looked = lambda more: None) -> Iterator[Finding]:
    """Check the newest complete epochs. Reads only.

    Args:
        task: The pipeline, with the sinks of today's DAG, its ledger and its environment.
        epochs: How many epochs to look at, at most.
        looked: Is told of progress.

    """
    newest = max(task.ledger.epochs_completed(), default=0)
    numbers = range(max(1, newest - epochs + 1, task.ledger.rebuilt_to), newest + 1)
    records, unread = _completed(task, numbers)
    yield _finding(LEDGER, "complete", len(numbers), unread)
    yield _finding(LEDGER, "offsets", len(records), _not_contiguous(records))
    yield _receipts(task, records)
    if unread:
        return  # what the sinks must show is not known
    for name in sorted(records[-1].markers if records else ()):
        yield from _of_sink(task, name, records, looked)


def _finding(about: str, check: str, epochs: int, faults: Sequence[str]) -> Finding:
    verdict = FindingVerdict.WRONG if faults else FindingVerdict.OK
    return Finding(about=about, check=check, verdict=verdict, epochs=epochs, details=tuple(faults[:TOLD_MAX]))


def _receipts(task: TaskTry, records: Sequence[CompleteRecord]) -> Finding:
    """Whether each sink has its receipt. A waiver is no fault, but is told: the sink lacks the epoch's rows."""
    found = _finding(LEDGER, "receipts", len(records), [each for of in records for each in _unaccounted(task, of)])
    markers = _Markers(task)
    waived = (each for record in reversed(records) for each in _waived(task, record, markers))
    return replace(found, details=(*found.details, *islice(waived, TOLD_MAX)))


_LANDED = {
    True: ", but its commit landed all the same, so it has the epoch's rows.",
    False: ", so it lacks the epoch's rows.",
    None: ". It is not known whether its commit landed all the same.",
}


class _Markers:
    """What sinks show. Each sink is asked once, also if it does not answer: that may take minutes."""

    def __init__(self, task: TaskTry) -> None:
        self._task = task
        self._told: dict[str, Marker | EpochError | None] = {}

    def of(self, sink: Sink) -> Marker | None:
        """The sink's marker. Raises EpochError if it cannot be asked, each time."""
        where = json.dumps(sink.spec(), sort_keys=True)  # an epoch's record may describe another table of its name
        if where not in self._told:
            self._told[where] = self._asked(sink)
        found = self._told[where]
        if isinstance(found, EpochError):
            raise found
        return found

    def _asked(self, sink: Sink) -> Marker | EpochError | None:
        try:
            return sink_calls.marker_of(sink, self._task.pipeline.name, self._task.env)
        except EpochError as error:
            return error


def _waived(task: TaskTry, record: CompleteRecord, markers: _Markers) -> Iterator[str]:
    number = record.txn_id.epoch
    for sink, by in given_up(task.ledger, EpochView(number=number, complete=record)).items():
        landed = _LANDED[_has_landed(task, record, sink, markers)]
        yield f"Epoch {number}: sink {sink} was waived by {by.who} ({by.why}){landed}"


def _has_landed(task: TaskTry, record: CompleteRecord, name: str, markers: _Markers) -> bool | None:
    """Whether the waived commit of a sink landed: the marker tells, and later what the sink's next epoch found there.

    None if the sink cannot be asked, or the record of that epoch was pruned.
    """
    try:
        opened = task.ledger.open_record(record.txn_id.epoch, record.txn_id.attempt)
        today = next((sink for sink in task.pipeline.sinks if sink.name == name), None)
        sink = today or (task.sink_of(opened, name) if opened else None)
        found = markers.of(sink) if sink else None
    except EpochError:
        return None
    if sink is None or found is None or found.epoch <= record.txn_id.epoch:
        return None if sink is None else agree(found, record.txn_id)
    return _found_by_next(task, record, name)


def _found_by_next(task: TaskTry, record: CompleteRecord, name: str) -> bool | None:
    """Whether the sink showed the epoch when its next one was opened. None if that record was pruned."""
    for number in range(record.txn_id.epoch + 1, task.ledger.newest_complete() + 1):
        later = task.ledger.complete_record(number)
        opened = task.ledger.open_record(number, later.txn_id.attempt) if later else None
        if opened is None:
            return None
        if name in opened.sinks:
            return opened.sinks[name].previous == record.txn_id
    return None


# -- the ledger ------------------------------------------------------------------------------------------------------


def _completed(task: TaskTry, numbers: range) -> tuple[list[CompleteRecord], list[str]]:
    """The completion records that can be read, oldest first; and what is wrong with the others."""
    records, faults = [], []
    for number in numbers:
        try:
            if record := task.ledger.complete_record(number):
                records.append(record)
            else:
                task.ledger.require_no_gap(number, thoroughly=True)
        except Corrupt as error:
            faults.append(error.reason)
    return records, faults


def _not_contiguous(records: Sequence[CompleteRecord]) -> list[str]:
    """Where an epoch does not begin where the one before ended, and no command has moved it."""
    faults = []
    for before, after in pairwise(records):
        number = after.txn_id.epoch
        if number != before.txn_id.epoch + 1 or after.moved_in == number:
            continue
        starts, ranges = starts_of(after.ranges), Position.of(before).named_as_in(Position.of(after))
        for (topic, partition), end in ends_of(ranges).items():
            start = starts.get((topic, partition))
            if start != end:
                at = f"begins at {start}" if start is not None else "has no range"
                faults.append(f"Epoch {number} {at} in {topic}-{partition}, and the epoch before ended at {end}.")
    return faults


def _unaccounted(task: TaskTry, record: CompleteRecord) -> list[str]:
    """Sinks of a complete epoch that have neither a receipt nor a waiver, or the receipt of another transaction."""
    opened = task.ledger.open_record(record.txn_id.epoch, record.txn_id.attempt)  # None: pruned
    sinks = opened.sinks if opened else record.receipts
    without = [name for name in sinks if name not in record.receipts and name not in record.waived]
    others = [name for name, receipt in record.receipts.items() if receipt.txn_id != record.txn_id]
    number = record.txn_id.epoch
    return [
        *(f"Epoch {number} is complete without a receipt or a waiver of sink {name}." for name in without),
        *(f"Epoch {number} has a receipt of another transaction for sink {name}." for name in others),
    ]


# -- the sinks -------------------------------------------------------------------------------------------------------


def _of_sink(task: TaskTry, name: str, records: Sequence[CompleteRecord], looked: Looked) -> Iterator[Finding]:
    sink = next((each for each in task.pipeline.sinks if each.name == name), None)
    yield _marker(task, name, sink)
    since = max(records[-1].adopted_in.get(name, 0), 1)
    receipts = [each.receipts[name] for each in records if each.txn_id.epoch >= since and name in each.receipts]
    if any(receipt.version is not None for receipt in receipts):
        yield _finding(name, "versions", len(receipts), _not_rising(receipts))
    if sink is None:
        return
    if isinstance(sink, Perishable):
        yield _asked(name, "files", receipts, lambda receipt: _lost(sink, receipt, task))
    if isinstance(sink, Watching) and receipts:
        yield _asked(name, "other writers", receipts[:1], lambda first: _changed(sink, first, task, records))
    countable = _with_a_count(task, records)
    counted = [receipt for receipt in receipts if receipt.txn_id in countable]
    yield _asked(name, "rows", counted, lambda receipt: _miscounted(sink, receipt, task), looked)


def _with_a_count(task: TaskTry, records: Sequence[CompleteRecord]) -> frozenset[str]:
    """The transactions whose receipts tell how many rows they showed.

    The epoch of a restored table has no rows of its own, and the receipts of a rebuilding do not know their number.
    """
    rebuilt = {each.txn_id for each in task.ledger.rebuildings_in_force()}
    return frozenset(record.txn_id for record in records if records_upper_bound(record.ranges)) - rebuilt


def _marker(task: TaskTry, name: str, today: Sink | None) -> Finding:
    """Whether the sink shows the epoch that the ledger expects. A pipeline may go on meanwhile."""
    for _ in range(LOOKS):
        view = task.ledger.view_of_next()
        try:
            if not require_marker(task, name, today, view):
                return _not_checked(name, "marker", "No sink of today's DAG has this name.")
            return _finding(name, "marker", 1, [])
        except Corrupt as error:
            now = task.ledger.view_of_next()
            if (now.number, now.state, now.epoch.attempt) == (view.number, view.state, view.epoch.attempt):
                return _finding(name, "marker", 1, [error.reason])
        except EpochError as error:
            return _no_answer(name, "marker", error)
    return _not_checked(name, "marker", f"The pipeline went on {LOOKS} times while the sink was asked.")


def require_marker(task: TaskTry, name: str, today: Sink | None, view: EpochView) -> bool:
    """Raise Corrupt if the sink shows anything else than the ledger expects. False: there is no sink to ask."""
    before = task.ledger.complete_record(view.number - 1)
    receipt = before.receipts.get(name) if before else None
    if view.state is State.IN_DOUBT and name in view.opened.sinks:
        sink, plan = task.sink_of(view.opened, name), view.opened.sinks[name]
        if name in view.receipts:
            agreement.require_marker(sink, view.opened.txn_id, task.pipeline.name, task.env, view.receipts[name])
        elif name not in view.waived:
            agreement.shows(sink, view.opened.txn_id, plan.previous, task.env, receipt)
    elif today is not None:
        agreement.require_marker(today, previous_of(task, today, before), task.pipeline.name, task.env, receipt)
    else:
        return False
    return True


def _not_rising(receipts: Sequence[Receipt]) -> list[str]:
    versions = [(each.txn_id, each.version) for each in receipts if each.version is not None]
    return [
        f"Epoch {later.epoch} is version {after} of the table, and an earlier epoch is {before}."
        for (_, before), (later, after) in pairwise(versions)
        if after <= before
    ]


def _asked(
    name: str,
    check: str,
    receipts: Sequence[Receipt],
    fault: Callable[[Receipt], str | None],
    looked: Looked | None = None,
) -> Finding:
    """The faults of these receipts, the newest first. Ends at the first one that cannot be checked."""
    faults: list[str] = []
    for done, receipt in enumerate(reversed(receipts)):
        try:
            if told := fault(receipt):
                faults.append(told)
        except Refused as no:
            if no.code is codes.DRY_RUN_UNTOLD:
                return _up_to(name, check, done, faults, no.what)
            if no.code is codes.KAFKA_FORBIDDEN:  # to read a topic takes other rights than to write it
                return _no_answer(name, check, no)
            faults.append(no.cause)
        except NotApplied as error:
            return _no_answer(name, check, error)
        except Corrupt as error:
            faults.append(error.cause)
        if looked:
            looked(1)
    return _finding(name, check, len(receipts), faults)


def _up_to(name: str, check: str, done: int, faults: list[str], why: str) -> Finding:
    """What was found in the newest ``done`` epochs. ``why``: why the one before cannot be checked."""
    if not done:
        return _not_checked(name, check, why)
    found = _finding(name, check, done, faults)
    return replace(found, details=(*found.details, f"Earlier epochs were not checked. {why}"))


def _lost(sink: Perishable, receipt: Receipt, task: TaskTry) -> str | None:
    if not sink.has_lost_rows(receipt, task.env):
        return None
    return (
        f"Files of epoch {receipt.txn_id.epoch} (version {receipt.version}) are gone, and the table still refers to "
        "them."
    )


def _changed(sink: Watching, first: Receipt, task: TaskTry, records: Sequence[CompleteRecord]) -> str | None:
    opened = [task.ledger.open_record(record.txn_id.epoch, record.txn_id.attempt) for record in records]
    told = {warning for record in opened if record for warning in record.warnings}
    return "; ".join(sink.foreign_changes(first, task.pipeline.name, told, task.env)) or None


def _miscounted(sink: Sink, receipt: Receipt, task: TaskTry) -> str | None:
    if not isinstance(sink, Telling):
        raise Refused(
            "This kind of sink cannot list the rows of one epoch.",
            code=codes.DRY_RUN_UNTOLD,
            sink=sink.name,
        )
    rows = sum(1 for _ in sink.rows_of(receipt, task.pipeline.name, task.env))
    if rows == receipt.rows:
        return None
    return f"Epoch {receipt.txn_id.epoch} has {rows} rows, and its receipt says {receipt.rows}."


def _not_checked(name: str, check: str, why: str) -> Finding:
    return Finding(about=name, check=check, verdict=FindingVerdict.NOT_CHECKED, epochs=0, details=(why,))


def _no_answer(name: str, check: str, error: EpochError) -> Finding:
    return Finding(about=name, check=check, verdict=FindingVerdict.NO_ANSWER, epochs=0, details=(error.cause,))
