"""The ids by which the ledger knows an Airflow run. Each names one epoch, and a run may have several.

The n-th epoch of a run that works on several has ``<run id> #n`` (``runs.series``). One that reads the records
of a data interval once more has ``<run id>~<epoch of the command>`` (``runs.rereading``). Both may come
together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import commands_obeyed
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import Command, CompleteRecord, Run

_NTH = " #"
_AGAIN = "~"
_READ_AGAIN = re.compile(rf"{_AGAIN}\d+$")
_LOOKED_AT = 20
"""How many of an epoch's newest attempts are read to find its runs: there may be hundreds."""


def nth(run: Run, number: int) -> Run:
    """The run of the n-th epoch, from 1.

    Airflow allows neither a blank nor ``#`` in a run id, unless its setting ``allowed_run_id_pattern`` does.
    """
    return run if number == 1 else Run(run.dag_id, f"{run.run_id}{_NTH}{number}")


def again(run: Run, epoch: int) -> Run:
    """The run whose records are read once more, because the epoch with this number obeyed a command."""
    return Run(run.dag_id, f"{run.run_id}{_AGAIN}{epoch}")


def read_again(ledger: Ledger, run: Run) -> list[Run]:
    """The ids that ``again`` may have made of the run since its epoch, newest first."""
    epoch = ledger.epoch_of(run)
    moved = [again(run, number) for number, _ in moves_since(ledger, epoch)] if epoch else []
    return [*(id_ for each in moved for id_ in (*_lost(ledger, each), each)), *_lost(ledger, run)]


def _lost(ledger: Ledger, run: Run) -> list[Run]:
    """The ids that ``again`` may have made because a command was obeyed in the run's epoch, newest first.

    Another run obeyed it; or the run itself, if the epoch only brought tables back.
    """
    epoch = ledger.epoch_of(run)
    record = ledger.complete_record(epoch) if epoch else None
    if not record or not (record.only_restored or obeyed_by_another(record, run)):
        return []
    following = again(run, record.txn_id.epoch)
    return [*_lost(ledger, following), following]


def obeyed_by_another(record: CompleteRecord, run: Run) -> bool:
    """Whether another run obeyed a command in the run's epoch, which then read something once more."""
    return run not in (record.opened_by, record.completed_by) and any(each.again for each in record.commands)


def airflow_run(ledger: Ledger, run: Run) -> Run:
    """The run as Airflow knows it: the inverse of ``nth`` and ``again``. A user's own run id may end like theirs."""
    first = Run(run.dag_id, run.run_id.partition(_NTH)[0])
    bare = Run(run.dag_id, _READ_AGAIN.sub("", first.run_id))
    if bare == first or first not in read_again(ledger, bare):
        return first
    return airflow_run(ledger, bare)


def runs_of_attempts(ledger: Ledger, view: EpochView) -> list[Run]:
    """The runs that opened the epoch's newest attempts, oldest first, as Airflow knows them. Without pruned ones."""
    last = (view.complete or view.opened).txn_id.attempt
    attempts = (ledger.open_record(view.number, number) for number in range(max(1, last - _LOOKED_AT + 1), last + 1))
    return list(dict.fromkeys(airflow_run(ledger, each.run) for each in attempts if each and not each.command))


def moves_since(ledger: Ledger, epoch: int) -> Iterator[tuple[int, list[Command]]]:
    """The epochs after ``epoch`` whose input was moved, newest first, each with its commands."""
    view = ledger.view_of_next()
    if found := _standing(ledger, view):
        yield view.number, found
    record = ledger.complete_record(view.number - 1)
    while record and record.moved_in > epoch:
        moved = ledger.complete_record(record.moved_in)
        yield record.moved_in, list(moved.commands) if moved else []
        record = ledger.complete_record(record.moved_in - 1)


def _standing(ledger: Ledger, view: EpochView) -> list[Command]:
    """The commands that the next epoch obeys."""
    return list(commands_obeyed(ledger, view.open)) if view.open else []
