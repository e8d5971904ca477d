"""All pipelines of a ledger store at a glance: for the command line and the page. Reads only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from itertools import compress

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import Corrupt, EpochError, OutcomeUnknown, Refused
from airflow_epochs.ledger.keys import PIPELINE_KEY
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import causes_of, unfinished, waits_for
from airflow_epochs.ledger.run_ids import airflow_run
from airflow_epochs.ledger.store import Store
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import CompleteRecord, PauseRecord, Run
from airflow_epochs.names import is_name
from airflow_epochs.protocol import State
from airflow_epochs.storage.objects import may_answer_later

log = secrecy.logger(__name__)

_PARALLEL = 16
"""How many pipelines are read at a time: an object store takes some milliseconds for each record."""


_KEY_UNKNOWN = (codes.LEDGER_RECORD_FORGED, codes.SIGNING_PASSWORD_MISSING)
"""Errors for a record that cannot be believed but may be in order: it may be signed with another key."""


class Condition(str, Enum):
    """A pipeline's condition, by its ledger alone. The values are shown to people."""

    NEW = "new"
    IDLE = "idle"
    RUNNING = "running"
    ORDERED = "ordered"
    PAUSED = "paused"
    FAILED = "failed"
    IN_DOUBT = "in doubt"
    UNREADABLE = "unreadable"


MEANINGS = {
    Condition.NEW: "no epoch has been opened yet",
    Condition.IDLE: "every epoch that was opened is complete",
    Condition.RUNNING: "an epoch is open, and nothing is decided",
    Condition.ORDERED: "a command waits for the next run",
    Condition.PAUSED: "somebody has paused it: no run takes a new epoch",
    Condition.FAILED: "the newest attempt was aborted; the next run takes the same input",
    Condition.IN_DOUBT: "an epoch is decided, and not every sink shows it yet",
    Condition.UNREADABLE: "the ledger cannot be read",
}


@dataclass(frozen=True, kw_only=True)
class PipelineRow:
    """One pipeline at a glance.

    Attributes:
        owners: The DAGs that have owned it, oldest first; empty if the ledger does not tell.
        epoch: The newest complete epoch; 0 if there is none.
        completed_at: When it was completed, ISO 8601; None if there is none.
        rows: The sum of the rows in its receipts.
        seconds: How long its steps took, together; None if that was not measured.
        unfinished: The number of the unfinished epoch; None if there is none.
        waits_for: The sinks that an epoch in doubt waits for.
        run: The run that is in charge of the unfinished epoch, as Airflow knows it.
        runs_of_newest: The runs that opened and completed the newest complete epoch, as Airflow knows them.
        problem: Why the ledger cannot be read, or why the newest attempt was aborted; else empty.
        pause: The pause in force, whatever the condition; None if new epochs are taken.
    """

    name: str
    condition: Condition
    owners: tuple[str, ...] = ()
    epoch: int = 0
    completed_at: str | None = None
    rows: int = 0
    seconds: float | None = None
    unfinished: int | None = None
    waits_for: tuple[str, ...] = ()
    run: Run | None = None
    runs_of_newest: frozenset[Run] = frozenset()
    problem: str = ""
    pause: PauseRecord | None = None

    @property
    def dag_id(self) -> str:
        """The DAG that owns it; empty if the ledger does not tell."""
        return self.owners[-1] if self.owners else ""

    @property
    def can_go_back(self) -> bool:
        """Whether a rewind acts now: an epoch is complete, and no epoch is undecided or in doubt."""
        return bool(self.epoch) and self.condition not in (Condition.RUNNING, Condition.IN_DOUBT)

    @property
    def rows_per_second(self) -> float | None:
        """The throughput of the newest complete epoch; None if its time was not measured."""
        return self.rows / self.seconds if self.seconds else None


def pipelines_in(store: Store) -> list[str]:
    """The names of the pipelines that are registered in a store, sorted."""
    names = [name for name in store.folders() if is_name(name)]
    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(compress(names, pool.map(lambda name: store.exists(f"{name}/{PIPELINE_KEY}"), names)))


@dataclass(frozen=True, kw_only=True)
class Owned:
    """A pipeline with its owners, oldest first.

    Attributes:
        believed: False: it takes a key that is not known here to check the records. ``ledger`` then believes them all.
    """

    ledger: Ledger
    owners: tuple[str, ...]
    believed: bool = True


def owned(ledgers: Iterable[Ledger]) -> list[Owned]:
    """The ledgers of pipelines that a DAG has owned. One whose owner cannot be read is left out, with a warning.

    Raises OutcomeUnknown if the store does not answer.
    """
    with ThreadPoolExecutor(_PARALLEL) as pool:
        found = pool.map(_owned, ledgers)
        return [each for each in found if each and each.owners]


def _owned(ledger: Ledger, believed: bool = True) -> Owned | None:
    try:
        return Owned(ledger=ledger, owners=_owners(ledger), believed=believed)
    except (Corrupt, Refused, OutcomeUnknown) as error:
        if may_answer_later(error):
            raise
        log.warning("The owner of a pipeline cannot be read. %s", error)
        return _owned(ledger.unchecked(), believed=False) if believed and error.code in _KEY_UNKNOWN else None


def overview(names: Iterable[str], ledger_of: Callable[[str], Ledger], dag_id: str | None = None) -> list[PipelineRow]:
    """The row of each pipeline, in the order of the names. A ledger that cannot be read has a row that says so.

    Args:
        names: The pipelines.
        ledger_of: Opens the ledger of a pipeline.
        dag_id: Only pipelines that this DAG owns or has owned, and those whose ledgers do not tell their owners. Of
            the others only the owners are read.
    """
    with ThreadPoolExecutor(_PARALLEL) as pool:
        rows = pool.map(lambda name: _row(name, ledger_of, dag_id), names)
        return [row for row in rows if row]


def seconds_of(complete: CompleteRecord) -> dict[str, float]:
    """Step -> how long it took; empty if that was not measured."""
    found = complete.metrics.get("seconds")
    return {step: float(took) for step, took in found.items()} if isinstance(found, dict) else {}


def _row(name: str, ledger_of: Callable[[str], Ledger], dag_id: str | None) -> PipelineRow | None:
    """The row; None for a pipeline of other DAGs."""
    owners: tuple[str, ...] = ()
    try:
        ledger = ledger_of(name)
        if dag_id is not None:
            owners = _owners_at_least(ledger)
            if owners and dag_id not in owners:
                return None
        return pipeline_row(name, ledger, owners)
    except EpochError as error:
        owners = owners or _owners_of_unreadable(name, ledger_of)
        return PipelineRow(name=name, condition=Condition.UNREADABLE, owners=owners, problem=error.what)


def _owners_of_unreadable(name: str, ledger_of: Callable[[str], Ledger]) -> tuple[str, ...]:
    try:
        return _owners_at_least(ledger_of(name))
    except EpochError:
        return ()


def _owners_at_least(ledger: Ledger) -> tuple[str, ...]:
    """The owners, if at least their records can be read."""
    try:
        return _owners(ledger)
    except EpochError:
        return ()


def _owners(ledger: Ledger) -> tuple[str, ...]:
    identity = ledger.identity()
    return ledger.owners(identity) if identity else ()


def pipeline_row(name: str, ledger: Ledger, owners: tuple[str, ...] = ()) -> PipelineRow:
    """The row of a pipeline that is registered. ``owners``: if they have been read. Raises as ``Ledger.view``."""
    view = unfinished(ledger)
    complete = ledger.complete_record(ledger.newest_complete())
    steps = seconds_of(complete) if complete else {}
    pause = ledger.pause_in_force()
    return PipelineRow(
        name=name,
        condition=_condition(view, complete, pause),
        owners=owners or _owners(ledger),
        epoch=complete.txn_id.epoch if complete else 0,
        completed_at=complete.completed_at if complete else None,
        rows=sum(receipt.rows for receipt in complete.receipts.values()) if complete else 0,
        seconds=round(sum(steps.values()), 3) if steps else None,
        unfinished=view.number if view else None,
        waits_for=waits_for(view) if view else (),
        run=airflow_run(ledger, view.opened.run) if view and not view.opened.command else None,
        runs_of_newest=_runs_of(ledger, complete) if complete else frozenset(),
        problem=_problem(view),
        pause=pause,
    )


def _runs_of(ledger: Ledger, complete: CompleteRecord) -> frozenset[Run]:
    return frozenset(airflow_run(ledger, run) for run in (complete.opened_by, complete.completed_by))


def _condition(view: EpochView | None, complete: CompleteRecord | None, pause: PauseRecord | None) -> Condition:
    """The condition. A pause shows only if no unfinished epoch is at work or in doubt: work and doubt matter more."""
    if pause and (view is None or view.state is State.ABORTED):
        return Condition.PAUSED
    if view is None:
        return Condition.IDLE if complete else Condition.NEW
    if view.opened.command:
        return Condition.ORDERED
    return {
        State.OPEN: Condition.RUNNING,
        State.ABORTED: Condition.FAILED,
        State.IN_DOUBT: Condition.IN_DOUBT,
    }[view.state]


def _problem(view: EpochView | None) -> str:
    if view is None or view.decision is None or view.state is not State.ABORTED:
        return ""
    return causes_of(view.decision)
