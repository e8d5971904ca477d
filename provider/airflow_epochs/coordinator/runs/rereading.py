"""Data intervals that are to be read once more: after ``airflow epochs rewind``, a cleared run gets a new epoch.

The ledger knows one epoch for each run. A cleared run passes that one on, as a rule. But the run of a data interval is
its only one: a backfill clears it, or makes another one with the same id. So if a command has moved the input to before
the records of the run's epoch since, the ledger knows the run by another id, which names the epoch of the command. The
same holds if the run's epoch had failed, and a run of an earlier interval obeyed the command in it; and if the epoch
only brought tables back, whichever run obeyed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from airflow_epochs.contracts import ByInterval, Interval, is_by_interval
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.ledger import run_ids
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import (
    REWIND,
    Command,
    CompleteRecord,
    Ranges,
    Run,
    ends_of,
    records_upper_bound,
    starts_of,
)


def as_known(task: TaskTry, run: Run, *, begins: bool = False) -> Run:
    """The run, as the ledger knows it: the same in all its tasks, until a command moves the input once more.

    ``begins``: whether this is the task that opens epochs. Only there does a run that brought tables back begin anew:
    its other tasks still work on the epoch that did so.
    """
    source = task.pipeline.source
    if not is_by_interval(source):
        return run
    return known_by(task.ledger, source, run, task.interval, begins=begins)


def known_by(
    ledger: Ledger, source: ByInterval, run: Run, interval: Callable[[], Interval | None], *, begins: bool
) -> Run:
    """As ``as_known``, of a run with an interval."""
    known, last = run, 0
    while record := _complete(ledger, known, last):
        last = record.txn_id.epoch
        if _is_of_others(source, record, known, interval) or _goes_on(ledger, record, known, begins, interval):
            known = run_ids.again(known, last)
        elif moved_in := _read_again_by(ledger, source, record):
            known = run_ids.again(run, moved_in)
        else:
            break
    return known


def goes_on_at(source: ByInterval, record: CompleteRecord | None, waiting: Sequence[Command]) -> datetime | None:
    """The time from which the next epoch reads; None if that is known by offsets only.

    ``record``: of the newest complete epoch. ``waiting``: the commands that the next one obeys.
    """
    if any(map(goes_back, waiting)):
        return _back_to(waiting)
    return read_up_to(source, record) if record else None


def read_up_to(source: ByInterval, record: CompleteRecord) -> datetime | None:
    """The time up to which the pipeline has read after a complete epoch; None if that is known by offsets only."""
    return _back_to(record.commands) if record.only_restored else source.read_until(record.source_state)


def _back_to(commands: Sequence[Command]) -> datetime | None:
    """The time that the newest command which goes back has gone back to; None if that is known by offsets only."""
    text = next((each.back_to for each in reversed(commands) if goes_back(each)), "")
    return datetime.fromisoformat(text) if text else None


def goes_back(command: Command) -> bool:
    """Whether the command reads something again, or brings tables back to where an epoch ended."""
    return bool(command.again) or command.name == REWIND


def _complete(ledger: Ledger, run: Run, last: int) -> CompleteRecord | None:
    """The complete epoch of a run, by this id; None if there is none after epoch ``last``, so every search ends."""
    number = ledger.epoch_of(run)
    return ledger.complete_record(number) if number and number > last else None


def _is_of_others(
    source: ByInterval, record: CompleteRecord, run: Run, interval: Callable[[], Interval | None]
) -> bool:
    """Whether another run obeyed a command in the run's failed epoch, and did not read up to the run's interval."""
    until = source.read_until(record.source_state)
    if until is None or not run_ids.obeyed_by_another(record, run):
        return False
    at = interval()
    return at is not None and until < at.end


def _goes_on(
    ledger: Ledger, record: CompleteRecord, run: Run, begins: bool, interval: Callable[[], Interval | None]
) -> bool:
    """Whether the run's epoch only brought tables back, and the run has gone on to its interval, or begins to.

    It does not if it has no interval, or one that the tables had already when they came back. A run of many epochs has
    gone on by itself, unless it had ended: its next index then names the same epoch.
    """
    epoch = record.txn_id.epoch
    if not record.only_restored:
        return False
    if ledger.has_index(run_ids.again(run, epoch)):
        return True
    if not begins or ledger.epoch_of(run_ids.nth(run, 2)) not in (None, epoch):
        return False
    at, until = interval(), _back_to(record.commands)
    return at is not None and (until is None or at.end > until)


def _read_again_by(ledger: Ledger, source: ByInterval, record: CompleteRecord) -> int | None:
    """The newest epoch whose command lets records of ``record`` be read once more; None if there is none."""
    until = source.read_until(record.source_state)
    for number, commands in run_ids.moves_since(ledger, record.txn_id.epoch):
        if any(_overlap(each.again, record.ranges) for each in commands if not _ended_by(until, each.back_to)):
            return number
    return None


def _ended_by(until: datetime | None, back_to: str) -> bool:
    """Whether the interval was over at the time that a command went back to. An empty one has no offset to tell."""
    return until is not None and back_to != "" and until <= datetime.fromisoformat(back_to)


def _overlap(again: Ranges, ranges: Ranges) -> bool:
    """Whether the epoch with ``ranges`` has read some of ``again``; if it has no records: whether it is among them."""
    begins, ends, until = starts_of(again), ends_of(again), ends_of(ranges)
    spans = [(start, until[at], begins[at], ends[at]) for at, start in starts_of(ranges).items() if at in begins]
    if records_upper_bound(ranges):
        return any(max(start, begin) < min(stop, end) for start, stop, begin, end in spans)
    return any(begin <= start <= end for start, _, begin, end in spans)
