"""What Airflow's database knows of the runs behind epochs. If it knows nothing, only the ledger counts."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from airflow_epochs.hooks.backfills import Halted, halted
from airflow_epochs.hooks.known_runs import ACTIVE, FAILED, QUEUED
from airflow_epochs.ledger.overview import Condition, PipelineRow
from airflow_epochs.model import Run


@dataclass(frozen=True)
class AirflowRuns:
    """States of runs, as Airflow names them, the newest run of each DAG, and the backfills of queued runs that halt."""

    states: dict[Run, str] = field(default_factory=dict)
    newest: dict[str, Run] = field(default_factory=dict)
    halted: dict[Run, Halted] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Collection[PipelineRow]) -> AirflowRuns:
        """The runs in charge of unfinished epochs, and the newest run of each DAG that owns a pipeline."""
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import func, tuple_

        asked = {(row.run.dag_id, row.run.run_id) for row in rows if row.run}
        dags = {row.dag_id for row in rows if row.dag_id}
        with create_session() as session:
            last = session.query(func.max(DagRun.id)).filter(DagRun.dag_id.in_(dags)).group_by(DagRun.dag_id)
            newest = session.query(DagRun.dag_id, DagRun.run_id, DagRun.state).filter(DagRun.id.in_(last)).all()
            named = tuple_(DagRun.dag_id, DagRun.run_id).in_(asked)
            found = session.query(DagRun.dag_id, DagRun.run_id, DagRun.state).filter(named).all() if asked else []
        states = {Run(dag_id, run_id): str(state) for dag_id, run_id, state in (*found, *newest)}
        return cls(
            states=states,
            newest={dag_id: Run(dag_id, run_id) for dag_id, run_id, _ in newest},
            halted={run: found for run, state in states.items() if state == QUEUED and (found := halted(run))},
        )

    def condition(self, row: PipelineRow) -> tuple[str, str]:
        """The pipeline's condition in a word, and the reason in a sentence, which may be empty."""
        newest = self.newest.get(row.dag_id)
        newest_failed = newest is not None and self.states.get(newest) == FAILED
        if row.run and row.condition in (Condition.RUNNING, Condition.IN_DOUBT):
            return self._unfinished(row, row.run)
        if newest_failed and newest and row.condition is Condition.FAILED and row.run and newest != row.run:
            return (
                "blocked",
                f"epoch {row.unfinished} belongs to run {row.run.run_id}, and the later run {newest.run_id} failed",
            )
        if newest_failed and newest and row.condition in (Condition.IDLE, Condition.NEW):
            return Condition.FAILED.value, _failed_with_nothing_unfinished(row, newest)
        return row.condition.value, row.problem

    def _unfinished(self, row: PipelineRow, run: Run) -> tuple[str, str]:
        state, backfill = self.states.get(run), self.halted.get(run)
        if state in ACTIVE and backfill is None:
            return Condition.RUNNING.value, ""
        why = f"run {run.run_id} is {state}" if state else f"Airflow does not know run {run.run_id}"
        why += f", and does not start: it is of {backfill}" if backfill else ""
        if row.condition is Condition.IN_DOUBT:
            return row.condition.value, f"waits for sink {', '.join(row.waits_for)}; {why}" if row.waits_for else why
        return Condition.FAILED.value, f"epoch {row.unfinished} is not decided, and {why}"


def _failed_with_nothing_unfinished(row: PipelineRow, run: Run) -> str:
    if run in row.runs_of_newest:
        return f"run {run.run_id} failed, and its epoch {row.epoch} is complete"
    return f"run {run.run_id} failed without an epoch"
