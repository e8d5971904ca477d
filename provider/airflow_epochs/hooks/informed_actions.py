"""Actions of ``coordinator.actions`` that depend on what Airflow knows: which run is at work, which DAGs there are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from airflow_epochs import codes, secrecy
from airflow_epochs.coordinator import actions, admin, sink_calls
from airflow_epochs.coordinator.admin import Account
from airflow_epochs.coordinator.recorded_sinks import sink_of
from airflow_epochs.errors import RAISED_BY_USERS, Refused
from airflow_epochs.hooks.epochs import AirflowEnvironment
from airflow_epochs.hooks.known_runs import RUNNING, is_at_work, knows_dag, newest_run, state_of
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import unfinished
from airflow_epochs.ledger.run_ids import airflow_run
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import Run, agree
from airflow_epochs.spark.runners import SparkConnect

log = secrecy.logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Waive(actions.Waive):
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

    def is_shown(self, view: EpochView) -> bool | None:
        """Ask the sink, as the ledger describes it."""
        try:
            sink = sink_of(view.opened, self.sink, ())
            found = sink_calls.marker_of(sink, self.pipeline, AirflowEnvironment(SparkConnect()))
        except RAISED_BY_USERS as error:  # it may be gone, which is why it is waived
            log.warning("Sink %s cannot be asked whether it shows epoch %s: %s", self.sink, self.epoch, error)
            return None
        return agree(found, view.opened.txn)

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
class TakeOver(actions.TakeOver):
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
