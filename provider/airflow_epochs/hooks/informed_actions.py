"""Actions of ``coordinator.admin`` that depend on what Airflow knows: which run is at work, which DAGs there are."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Sink
from airflow_epochs.coordinator import sink_calls
from airflow_epochs.coordinator.admin import actions, admin
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.looks import NotChecked
from airflow_epochs.coordinator.recorded_sinks import sink_of
from airflow_epochs.errors import RAISED_BY_USERS, EpochError, Refused, first_line
from airflow_epochs.hooks.epochs import AirflowEnvironment
from airflow_epochs.hooks.known_runs import RUNNING, is_at_work, knows_dag, newest_run, state_of
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import unfinished
from airflow_epochs.ledger.run_ids import airflow_run
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import Run, agree
from airflow_epochs.spark.runners import SparkConnect
from airflow_epochs.time_limit import bounded

log = secrecy.logger(__name__)

ANSWERS_WITHIN_S = 10.0
"""How long a sink may take to answer before it counts as unreachable. Somebody waits for the page."""

T = TypeVar("T")


@dataclass(frozen=True)
class InformedWaive(actions.Waive):
    """As ``actions.Waive``, but not while the run in charge of the epoch may still commit the sink.

    Attributes:
        ledger_conn_id: Of two pipelines with one name in the DAG, the one with this connection; empty: it is not known.
    """

    ledger_conn_id: str = ""

    def told(self, ledger: Ledger) -> list[str]:
        """As ``Action.told``. Raises Refused if the run in charge is at work, too."""
        lines = super().told(ledger)
        return [*lines, *self._of_runs(ledger)]

    def do(self, ledger: Ledger, by: Account) -> str:
        """As ``Action.do``."""
        self._of_runs(ledger)
        return super().do(ledger, by)

    def require_possible(self, ledger: Ledger) -> None:
        """As ``Asking.require_possible``."""
        self._of_runs(ledger)

    def is_shown(self, ledger: Ledger, view: EpochView) -> bool:
        """Ask the sink, as the ledger describes it. It may be gone, or hang: that is why it is waived."""
        late = TimeoutError(f"It has not answered within {ANSWERS_WITHIN_S:g} s.")
        env = AirflowEnvironment(SparkConnect())
        try:
            sink = self._sink(ledger, view)
            found = bounded(lambda: sink_calls.marker_of(sink, self.pipeline, env), ANSWERS_WITHIN_S, late)
        except RAISED_BY_USERS as error:
            cause = error.cause if isinstance(error, EpochError) else f"{type(error).__name__}: {first_line(error)}"
            log.warning("Sink %s was not asked whether it shows epoch %s: %s", self.sink, self.epoch, cause)
            raise NotChecked(_why_unknown(error)) from error
        return agree(found, view.opened.txn_id)

    def sinks_of_today(self, ledger: Ledger) -> Collection[Sink]:
        """The sinks of today's DAG, as far as they are known here. To read them, its file must be run."""
        return ()

    def _sink(self, ledger: Ledger, view: EpochView) -> Sink:
        """The sink on record. Raises EpochError if that may not be used, or is of a kind that is not known here."""
        try:
            return sink_of(view.opened, self.sink, ())
        except Refused:  # today's DAG may use its connection, or have its class
            if today := self.sinks_of_today(ledger):
                return sink_of(view.opened, self.sink, today)
            raise

    def _of_runs(self, ledger: Ledger) -> list[str]:
        """What runs may yet do for the sink. Raises Refused if the run in charge is at work."""
        run = airflow_run(ledger, admin.with_promise(ledger, self.epoch, self.sink).opened.run)
        at_work = asked(lambda: is_at_work(self.pipeline, run, self.ledger_conn_id) if state_of(run) else None)
        if at_work:
            raise self._at_work(run)
        other = asked(lambda: self._other_at_work(ledger, run))
        return [*([self._unknown(run)] if at_work is None else []), *([self._maybe(other)] if other else [])]

    def _other_at_work(self, ledger: Ledger, run: Run) -> Run | None:
        found = newest_run(admin.owner_of(ledger, self.pipeline), RUNNING)
        other = found[0] if found and found[0] != run else None
        return other if other and is_at_work(self.pipeline, other, self.ledger_conn_id) else None

    def _at_work(self, run: Run) -> Refused:
        return Refused(
            f"{_named(run)} is at work on this epoch, and will commit sink {self.sink}. Nothing was changed.",
            code=codes.RUN_AT_WORK,
            remedy=f"Wait until {run} has ended. If it cannot commit the sink, mark it as failed in Airflow, and waive "
            "the sink then.",
            pipeline=self.pipeline,
            epoch=self.epoch,
            sink=self.sink,
        )

    def _unknown(self, run: Run) -> str:
        return (
            f"{_named(run)} is in charge of the epoch. Airflow's database does not tell here whether it is at work. If "
            f"it is, it may be about to commit sink {self.sink}: once the sink is waived, it begins no commit."
        )

    def _maybe(self, run: Run) -> str:
        return (
            f"{_named(run)} is running, and may be about to finish this epoch with sink {self.sink}. Once the sink is "
            "waived, it begins no commit of it."
        )


@dataclass(frozen=True)
class InformedTakeOver(actions.TakeOver):
    """As ``actions.TakeOver``; it also tells if Airflow does not have the DAG, and what a run at work does."""

    def told(self, ledger: Ledger) -> list[str]:
        """As ``Action.told``."""
        return [*super().told(ledger), *self._run_at_work(ledger), *self._of_dag()]

    def _run_at_work(self, ledger: Ledger) -> list[str]:
        view = unfinished(ledger)
        run = airflow_run(ledger, view.opened.run) if view and not view.opened.command else None
        if view is None or run is None or not asked(lambda: is_at_work(self.pipeline, run)):
            return []
        until = "" if self.ends else f" until a run of DAG {self.dag_id} takes it over"
        return [
            f"{_named(run)} is at work on epoch {view.number}, and goes on with it{until}. To stop it, first mark it "
            "as failed in Airflow."
        ]

    def _of_dag(self) -> list[str]:
        """Whether Airflow has the DAG, and who sees the pipeline on the page, which asks for rights on the DAG."""
        if asked(lambda: knows_dag(self.dag_id)) is not False:
            return [f"On the Epochs page, those who may read DAG {self.dag_id} see the pipeline from then on."]
        missing = f"Airflow has no DAG {self.dag_id!r} (yet). Until it has, nothing runs the pipeline."
        return [
            *([] if self.ends else [missing]),
            "On the Epochs page, only those who may read all DAGs see the pipeline from then on, and only those who "
            "may edit all DAGs can act on it there, or hand it back.",
        ]


def _why_unknown(error: BaseException) -> str:
    """Why it is not known what the sink shows, as a clause."""
    if isinstance(error, EpochError) and error.code is codes.RECORD_CONNECTION_FOREIGN:
        return "the ledger is not signed, so the sink was not asked"
    return "it could not be asked"


def _named(run: Run) -> str:
    """The run, at the beginning of a sentence."""
    return f"Run {run.run_id} of DAG {run.dag_id}"


def asked(question: Callable[[], T]) -> T | None:
    """The answer of Airflow's database; None if it cannot be asked, as where only the command line is set up."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return question()
    except SQLAlchemyError:
        return None
