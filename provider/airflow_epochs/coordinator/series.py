"""The epochs of an Airflow run that works on several, one after another.

Each has a run id of its own: the first has the run's own id, the n-th one ``<run id> #n``. So whatever the ledger says
of a run and its one epoch holds here too, and a run may begin in one layout and go on in the other. Airflow allows
neither a blank nor ``#`` in a run id, unless its setting ``allowed_run_id_pattern`` does.

No record says how many epochs a run has. They are dense, so they are found by their indexes. When a run has ended by
itself, the index after its last one names the same epoch once more: whoever clears the run then takes no new data.
"""

from __future__ import annotations

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.records import last_of
from airflow_epochs.model import Run

_NTH = " #"


def nth(run: Run, number: int) -> Run:
    """The run of the n-th epoch, from 1."""
    return run if number == 1 else Run(run.dag_id, f"{run.run_id}{_NTH}{number}")


def airflow_run(run: Run) -> Run:
    """The run as Airflow knows it: the inverse of ``nth``, for each number."""
    return Run(run.dag_id, run.run_id.partition(_NTH)[0])


def newest(ledger: Ledger, run: Run) -> int:
    """How many epochs have an index: the newest of them may be unfinished. 1 if there is none."""
    return max(1, last_of(lambda number: ledger.epoch_of(nth(run, number)) is not None))


def has_ended(ledger: Ledger, run: Run, number: int) -> bool:
    """Whether the run had ended by itself, given the number that ``newest`` returned."""
    return number > 1 and ledger.epoch_of(nth(run, number)) == ledger.epoch_of(nth(run, number - 1))


def put_end(ledger: Ledger, run: Run, number: int, epoch: int) -> None:
    """Put on record that the n-th epoch, with this number, is the run's last one. Idempotent."""
    ledger.put_run(nth(run, number + 1), epoch)
