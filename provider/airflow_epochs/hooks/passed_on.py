"""What becomes of the epoch of a run whose tasks are cleared: it passes a complete one on, or may take new data."""

from __future__ import annotations

from airflow_epochs.contracts import ByInterval, Interval
from airflow_epochs.coordinator.inspection.lag import source_in
from airflow_epochs.coordinator.runs import rereading, series
from airflow_epochs.hooks.intervals import interval_of
from airflow_epochs.hooks.known_runs import dag_again, stored_dag
from airflow_epochs.hooks.own_tasks import ALL_IN_ONE
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import newest_opened
from airflow_epochs.ledger.run_ids import nth, read_again
from airflow_epochs.model import Run


def epoch_passed_on(ledger: Ledger, run: Run) -> int | None:
    """The epoch that a run passes on if it is cleared; None if it may take new data. No epoch is unfinished."""
    known = _known(ledger, run)
    number = series.newest(ledger, known)
    epoch = ledger.epoch_of(nth(known, number))
    if epoch is None or not ledger.complete_record(epoch):
        return None
    return epoch if series.has_ended(ledger, known, number) or not _is_all_in_one(run) else None


def may_read_again(ledger: Ledger, run: Run) -> bool:
    """Whether a command lets the run read its data interval once more, which it has not done yet."""
    known = _known(ledger, run)
    return known != run and ledger.epoch_of(known) is None


def _known(ledger: Ledger, run: Run) -> Run:
    """The run, as its tasks will know it if they run again."""
    if source := source_by_interval(ledger, run):
        return rereading.known_by(ledger, source, run, lambda: interval_of_run(run), begins=True)
    return next((each for each in read_again(ledger, run) if ledger.has_index(each)), run)


def source_by_interval(ledger: Ledger, run: Run) -> ByInterval | None:
    """The source, if the run's epoch was planned for its data interval, or brought tables back before that."""
    epoch, opened = ledger.epoch_of(run), newest_opened(ledger)
    record, source = ledger.complete_record(epoch) if epoch else None, source_in(opened.source) if opened else None
    if record is None or not isinstance(source, ByInterval):
        return None
    by_interval = source.by_interval() if record.only_restored else source.read_until(record.source_state) is not None
    return source if by_interval else None


def interval_of_run(run: Run) -> Interval | None:
    """The data interval of a run, as its tasks know it; None if it has none, or Airflow has forgotten it."""
    from airflow.models.dagrun import DagRun
    from airflow.sdk.timezone import coerce_datetime
    from airflow.utils.session import create_session

    dag = stored_dag(run.dag_id)
    with create_session() as session:
        found = session.query(DagRun).filter_by(dag_id=run.dag_id, run_id=run.run_id).one_or_none()
        if found is None or dag is None:
            return None
        times = ("data_interval_start", "data_interval_end", "partition_date")
        return interval_of({"dag": dag, **{name: coerce_datetime(getattr(found, name)) for name in times}})


def _is_all_in_one(run: Run) -> bool:
    """Whether one task runs all phases if the run is cleared: its DAG may have got another layout since."""
    dag = dag_again(run)
    return dag is not None and ALL_IN_ONE in {task.task_type for task in dag.tasks}
