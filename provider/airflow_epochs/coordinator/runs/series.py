"""The epochs of an Airflow run that works on several, one after another.

Each has a run id of its own (``ledger.run_ids.nth``). So whatever the ledger says of a run and its one epoch holds here
too, and a run may begin in one layout and go on in the other.

No record says how many epochs a run has. They are dense, so they are found by their indexes. When a run has ended by
itself, the index after its last one names the same epoch once more: a run that is cleared then takes no new data.
"""

from __future__ import annotations

from collections.abc import Iterator

from airflow_epochs import codes
from airflow_epochs.contracts import is_by_interval
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import EpochError
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import newest_epochs
from airflow_epochs.ledger.records import last_of
from airflow_epochs.ledger.run_ids import nth, read_again, runs_of_attempts
from airflow_epochs.model import Run


def as_known(task: TaskTry, run: Run, *, begins: bool = False) -> Run:
    """The run of its newest epoch, for a task per step: in the other layout, the run may have had several.

    ``begins``: whether this is the task that opens epochs. It puts the newest epoch's index if the run died before it
    did, so that the tasks behind find the epoch, too.
    """
    number = newest(task.ledger, run)
    known, following = nth(run, number), nth(run, number + 1)
    opened = task.ledger.view_of_next().open if begins and task.ledger.epoch_of(known) else None
    if opened is None or opened.run != following:
        return known
    task.ledger.put_run(following, opened.txn_id.epoch)
    return following


def newest(ledger: Ledger, run: Run) -> int:
    """How many epochs have an index: the newest of them may be unfinished. 1 if there is none.

    An index that is ignored counts too: behind indexes of complete epochs, the newest may be of an unfinished one.
    """
    return max(1, last_of(lambda number: ledger.has_index(nth(run, number))))


def has_ended(ledger: Ledger, run: Run, number: int) -> bool:
    """Whether the run had ended by itself, given the number that ``newest`` returned."""
    epoch = ledger.epoch_of(nth(run, number))
    return number > 1 and epoch is not None and epoch == ledger.epoch_of(nth(run, number - 1))


def is_at_its_end(task: TaskTry, epoch: int) -> bool:
    """Whether a run takes no further epoch after this complete one, whatever the source has.

    After an epoch that brought tables back, it takes no further one: the run after it reads on. Where epochs belong to
    data intervals, it stops when it has read its own; if it has no interval, when it has finished another run's epoch.
    """
    record = task.ledger.complete_record(epoch)
    assert record, "the run has just completed it, or found it complete"
    if record.only_restored:
        return True
    source = task.pipeline.source
    if not is_by_interval(source):
        return False
    at = task.interval()
    return at is None or at.start >= at.end or source.planned_for(record.source_state) == at


def has_next_run(task: TaskTry, error: EpochError) -> bool:
    """Whether a run that has had an epoch has ended, because ``open`` refused the next one: it is another run's.

    It has not ended where epochs belong to data intervals: the run has not read its own, as ``is_at_its_end`` has told.
    """
    return error.code is codes.EPOCH_BLOCKED and not is_by_interval(task.pipeline.source)


def put_end(ledger: Ledger, run: Run, number: int, epoch: int) -> None:
    """Put on record that the n-th epoch, with this number, is the run's last one. Idempotent."""
    ledger.put_run(nth(run, number + 1), epoch)


def epochs_of(ledger: Ledger, run: Run) -> list[int]:
    """The epochs that a run of Airflow has worked on, oldest first.

    A run that died before it wrote its first index is found by its attempt, if that is among the newest of one of the
    two newest epochs.
    """
    indexed = {epoch for known in _ids_of(ledger, run) if (epoch := ledger.epoch_of(known)) is not None}
    if indexed:
        return sorted(indexed)
    views = newest_epochs(ledger, 2)
    return sorted(view.number for view in views if run in runs_of_attempts(ledger, view))


def _ids_of(ledger: Ledger, run: Run) -> Iterator[Run]:
    """A run of Airflow by each id that the ledger may know it by."""
    for each in (run, *read_again(ledger, run)):
        yield from (nth(each, number) for number in range(1, newest(ledger, each) + 1))
