"""Which data interval a pipeline reads next, and which run or backfill takes it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from airflow_epochs.contracts import ByInterval, Interval
from airflow_epochs.coordinator.inspection.lag import source_in
from airflow_epochs.coordinator.runs import rereading
from airflow_epochs.hooks import backfills, taken_dates
from airflow_epochs.hooks.backfills import Halted
from airflow_epochs.hooks.known_runs import FAILED, failed_run_at, latest_runs, state_of
from airflow_epochs.hooks.passed_on import may_read_again
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import commands_obeyed, newest_opened, unfinished
from airflow_epochs.model import Run

ONE_BACKFILL = "Airflow takes it once no other backfill of the DAG is at work."
_READ_ALL = 'Set `missed="read"` of the KafkaSource: each run then reads all records up to the end of its interval.'
_BY_OFFSETS = (
    "Type `{command} --dag-id {dag_id} --from-date … --to-date … --reprocess-behavior completed --max-active-runs 1`, "
    "with dates from the interval of the first of these records up to the newest one. Or, until the next run is green, "
    'set `missed="read"` of the KafkaSource: that run then reads all records up to the end of its interval.'
)


@dataclass(frozen=True)
class NextInterval:
    """What is read next.

    Attributes:
        since: The time from which the next epoch reads; None if that is known by offsets only.
        moved: Whether a command waits that went back.
        at: The first interval of the DAG's timetable that is not over at that time; None if it is not known.
    """

    dag_id: str
    since: datetime | None
    moved: bool
    at: Interval | None

    @property
    def has_gap(self) -> bool:
        """Whether the timetable has no run for the time that is read first. After a command, offsets tell that."""
        return not self.moved and self.at is not None and self.since is not None and self.at.start > self.since

    @property
    def is_by_offsets(self) -> bool:
        """Whether a command went back without a time, so that no interval is known to be the next."""
        return self.moved and self.since is None

    def failed_run(self, ledger: Ledger) -> Run | None:
        """The run that reads it, if it failed; after a command that went back, the first one that is to read again."""
        if self.at and not self.has_gap and (run := failed_run_at(self.dag_id, self.at.start)):
            return run
        again = _first_again(ledger, self.dag_id) if self.moved else None
        return again if again and state_of(again) == FAILED else None


def _first_again(ledger: Ledger, dag_id: str) -> Run | None:
    """The run of the earliest interval that a command lets its run read again; later ones may have no epoch yet."""
    first = None
    for run in latest_runs(dag_id):
        if may_read_again(ledger, run):
            first = run
        elif ledger.epoch_of(run):
            break
    return first


def read_next(ledger: Ledger, dag_id: str) -> NextInterval:
    """What the pipeline reads next, as the ledger and the DAG's timetable tell it."""
    view, opened = unfinished(ledger), newest_opened(ledger)
    waiting = commands_obeyed(ledger, view.opened) if view else ()
    source = source_in(opened.source) if opened else None
    record = ledger.complete_record(ledger.newest_complete())
    since = rereading.goes_on_at(source, record, waiting) if isinstance(source, ByInterval) else None
    moved = any(map(rereading.goes_back, waiting))
    return NextInterval(dag_id, since, moved, backfills.next_interval(dag_id, since) if since else None)


def told(following: NextInterval, run: Run | None, halted: Halted | None, *, refuses: bool) -> tuple[str, str | None]:
    """Why neither a run that failed nor a new one takes the next data interval, and what does.

    ``refuses``: whether the source refuses intervals if earlier ones are missed.
    """
    if refuses and following.has_gap:
        assert following.at
        gap = f"from {following.since} to {following.at.start}"
        return f"The timetable of DAG {following.dag_id} has no run for the time {gap}.", _READ_ALL
    if refuses and following.is_by_offsets:
        what = "A command went back to offsets, so it is not known which data interval is read next."
        return what, _BY_OFFSETS.format(command=backfills.COMMAND, dag_id=following.dag_id)
    gone = f"{run} is of {halted}: Airflow does not start it again. And a" if halted else "A"
    what = f"{gone} run that is started by hand has no data interval, so it would fail."
    return what, _taking(following.dag_id, following.at) if following.at else None


def _taking(dag_id: str, at: Interval) -> str | None:
    """What takes this interval, the next one; None if that is not known."""
    first = taken_dates.freeing(dag_id, at)
    if at.end > datetime.now(timezone.utc):
        return joined(first, f"Wait: the next data interval, {at}, is not over. The schedule starts its run then.")
    command, others = backfills.of_interval(dag_id, at)
    takes = f"Type `{command}`: it takes the next data interval, {at}."
    later = "A later `--to-date` takes the intervals after it, too."
    return joined(first, takes, others, later, ONE_BACKFILL) if command else None


def joined(*sentences: str) -> str:
    return " ".join(filter(None, sentences))
