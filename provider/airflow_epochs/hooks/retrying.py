"""Let Airflow run a pipeline once more, now: an action of operators, as those in ``coordinator.admin``.

The run in charge of an unfinished epoch is cleared, in both layouts: its tasks read the ledger, and go on where it
stands. A new run would do the same only where ``on_failed_epoch`` lets it: with "block", no other run may have the
epoch. A new run is started if no run is in charge, or Airflow has forgotten it; also if a command waits, and the failed
run would pass its complete epoch on: then only another run obeys. A new run has no data interval, and Airflow starts no
run of a cancelled backfill again: where only such runs are left, the refusal names the backfill that goes on. So it
does if Airflow has forgotten the run in charge, and only another run of its data interval may have the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.config import BLOCK
from airflow_epochs.contracts import ByInterval, Interval, is_by_interval
from airflow_epochs.coordinator.admin import admin, pausing
from airflow_epochs.coordinator.admin.admin import Account
from airflow_epochs.coordinator.inspection.lag import source_in
from airflow_epochs.coordinator.task import new_writer
from airflow_epochs.errors import Refused
from airflow_epochs.hooks import backfills, next_intervals, taken_dates
from airflow_epochs.hooks.backfills import Halted
from airflow_epochs.hooks.cleared_tasks import clear, marked_green, not_green, operators_again
from airflow_epochs.hooks.known_runs import ACTIVE, FAILED, QUEUED, RUNNING, failed_run_at, newest_run, no_dag, state_of
from airflow_epochs.hooks.own_tasks import ALL_IN_ONE, stored_own_tasks
from airflow_epochs.hooks.passed_on import epoch_passed_on, interval_of_run, may_read_again, source_by_interval
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import in_words, newest_opened, unfinished
from airflow_epochs.ledger.run_ids import airflow_run
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import RetriedRecord, Run
from airflow_epochs.protocol import State

if TYPE_CHECKING:
    from airflow.models.dag import DagModel

_MARKED = "that somebody marked as success though they are not done"
_TAKE_OVER = 'Set `on_failed_epoch="take_over"` in the DAG until the next run is green.'
_FINISHES = "a new run for the same interval finishes the epoch"
_BOUNDS = re.compile(r"\bbounds='(available|data_interval)'")
_REFUSES_MISSED = re.compile(r"\bmissed='refuse'")
"""How Airflow's database writes these options of a KafkaSource."""
_BECOMES = {
    State.ABORTED: "The same offsets will be taken again.",
    State.IN_DOUBT: "It will be rolled forward: each sink that does not show it, and was not waived, gets the rows "
    "that all have voted for.",
}


_OPENS = "OpenEpochOperator"
_OPENED_ANEW = "Its attempt will be aborted, and the same offsets will be taken again."
_GOES_ON = {
    "StageEpochOperator": "Its attempt goes on: the same offsets will be staged again, and voted on.",
    "VoteEpochOperator": "Its attempt goes on: the rows that are staged will be voted on again.",
}
"""What becomes of an open attempt, by the first step that runs again. Only ``open`` aborts it."""


@dataclass(frozen=True)
class Retry:
    """Clear a run, or start one.

    Attributes:
        number: Of the record, so that two operators do not retry at once.
        dag_id: The DAG that owns the pipeline.
        run_id: The run to clear; empty: a new one is started.
        txn_id: The newest attempt of the unfinished epoch; empty: there is none.
        ledger_conn_id: Of two pipelines with one name in the DAG, the one with this connection; empty: it is not known.
    """

    pipeline: str
    number: int
    dag_id: str
    run_id: str
    txn_id: str
    ledger_conn_id: str = ""
    name = "retry"

    @classmethod
    def of(cls, ledger: Ledger, pipeline: str, ledger_conn_id: str = "") -> Retry:
        """The action as it stands now.

        Raises Refused if a run is at work, if Airflow cannot run the DAG, or if only a backfill goes on.
        """
        action, refusal = cls._found(ledger, pipeline, ledger_conn_id)
        if refusal:
            raise refusal()
        return action

    @classmethod
    def _found(cls, ledger: Ledger, pipeline: str, ledger_conn_id: str) -> tuple[Retry, Callable[[], Refused] | None]:
        """The action, and what makes the refusal if only a backfill goes on. Raises for the other reasons of ``of``."""
        dag_id, view = admin.owner_of(ledger, pipeline), unfinished(ledger)
        _dag(pipeline, dag_id)
        run = _known_run_of(ledger, view, dag_id)
        _require_ended(pipeline, run or newest_run(dag_id), newest_run(dag_id, RUNNING))
        action = cls(
            pipeline,
            ledger.newest_retry() + 1,
            dag_id,
            "",
            str(view.opened.txn_id) if view else "",
            ledger_conn_id,
        )
        cleared, refusal = action._to_clear(ledger, view, run[0] if run else None)
        return replace(action, run_id=cleared.run_id if cleared else ""), refusal

    def _to_clear(
        self, ledger: Ledger, view: EpochView | None, in_charge: Run | None
    ) -> tuple[Run | None, Callable[[], Refused] | None]:
        """The run to clear; None: a new one is started. And what makes the refusal, if neither would go on.

        To make it takes time, since it names dates by the timetable. The page often needs to know only that it is so.
        """
        by_interval = self._by_interval(ledger)
        needs_interval = by_interval and _plans(view)
        if view and not in_charge and self._belongs(view, by_interval) and (at := _planned_for(view)):
            in_charge = failed_run_at(self.dag_id, at.start)
            if in_charge is None:
                return None, partial(self._needs_run_of, ledger, view, at)
        run = in_charge or self._failed(ledger, view, needs_interval)
        halted = backfills.halted(run) if run else None
        if run and not (halted and halted.ended):
            return run, None
        if in_charge and halted and self._blocks(by_interval):
            return None, lambda: self._needs_backfill(*_back_in_charge(in_charge, halted, by_interval))
        if needs_interval:
            return None, lambda: self._needs_next(ledger, run, halted)
        return None, None

    def _needs_backfill(self, what: str, remedy: str | None) -> Refused:
        remedies = [remedy or codes.RETRY_NEEDS_BACKFILL.remedy]
        if _dag(self.pipeline, self.dag_id).is_paused:
            remedies.append(_paused_dag(self.dag_id))
        return Refused(
            f"{what} Nothing was changed.",
            code=codes.RETRY_NEEDS_BACKFILL,
            remedy=" ".join(remedies),
            pipeline=self.pipeline,
        )

    def _needs_run_of(self, ledger: Ledger, view: EpochView, at: Interval) -> Refused:
        """The refusal that names what makes another run of the interval of a run that Airflow has forgotten."""
        what = f"{in_words(view)} {_forgotten(ledger, view)}: only another run of its data interval, {at}, finishes it."
        return self._needs_backfill(what, _by_backfill(self.dag_id, at, _FINISHES) or _by_hand(at))

    def _by_interval(self, ledger: Ledger) -> bool:
        """Whether epochs belong to data intervals: as the DAG says today; else as the newest epoch was planned."""
        told = [_BOUNDS.search(str(task.get("source"))) for task in self._tasks()]
        if found := next(filter(None, told), None):
            return found[1] == "data_interval"
        opened = newest_opened(ledger)
        source = source_in(opened.source) if opened else None
        return is_by_interval(source)

    def _failed(self, ledger: Ledger, view: EpochView | None, needs_interval: bool) -> Run | None:
        """The failed run that takes the next epoch if it is cleared; None if no run does.

        With ``missed="refuse"`` that is the run of the next data interval only: a later one would fail again. A run
        whose epoch is complete, and behind which a task has failed, is cleared all the same.
        """
        newest = _newest_failed(ledger, view, self.dag_id, needs_interval)
        following = next_intervals.read_next(ledger, self.dag_id) if needs_interval and self._refuses_missed() else None
        if following is None or not (following.at or following.is_by_offsets):
            return newest
        behind = newest if newest and epoch_passed_on(ledger, newest) else None
        return following.failed_run(ledger) or behind

    def _needs_next(self, ledger: Ledger, run: Run | None, halted: Halted | None) -> Refused:
        """The refusal that names the backfill for the next data interval."""
        following = next_intervals.read_next(ledger, self.dag_id)
        return self._needs_backfill(*next_intervals.told(following, run, halted, refuses=self._refuses_missed()))

    def _refuses_missed(self) -> bool:
        """Whether a run fails if the intervals before its own were not read."""
        return any(_REFUSES_MISSED.search(str(task.get("source"))) for task in self._tasks())

    def _blocks(self, by_interval: bool) -> bool:
        """Whether no other run may finish an epoch."""
        chosen = {task.get("on_failed_epoch") for task in self._tasks()}
        return BLOCK in chosen or (by_interval and None in chosen)

    def _belongs(self, view: EpochView, by_interval: bool) -> bool:
        """Whether no run may have the unfinished epoch but its own, and others of the same data interval."""
        return not view.opened.command and view.opened.dag_id == self.dag_id and self._blocks(by_interval)

    def _tasks(self) -> list[Mapping[str, Any]]:
        return stored_own_tasks(self.pipeline, self.dag_id, self.ledger_conn_id)

    def told(self, ledger: Ledger) -> list[str]:
        """As ``Action.told``."""
        self._require_same(ledger)
        view, pause = unfinished(ledger), ledger.pause_in_force()
        return [
            self._what(ledger),
            self._becomes(ledger, view),
            *([f"{pausing.in_words(pause)} A run finishes what is in doubt, and takes no new epoch."] if pause else []),
            *([_paused_dag(self.dag_id)] if _dag(self.pipeline, self.dag_id).is_paused else []),
            *self._paused_backfill(),
        ]

    def _paused_backfill(self) -> list[str]:
        halted = backfills.halted(Run(self.dag_id, self.run_id)) if self.run_id else None
        return [f"The run is of {halted}: it does not start until you {halted.unpausing}."] if halted else []

    def _what(self, ledger: Ledger) -> str:
        if not self.run_id:
            return f"A new run of DAG {self.dag_id} will be started."
        run = Run(self.dag_id, self.run_id)
        return f"{self._which(ledger, run)} will be cleared, and Airflow will go on with the run."

    def _which(self, ledger: Ledger, run: Run) -> str:
        marked = marked_green(ledger, self.pipeline, run)
        if not marked and not not_green(run):
            return f"All tasks of {run}"
        names = ", ".join(sorted({task_id for task_id, _ in marked}))
        why = "that read its data interval again, as a command lets them" if may_read_again(ledger, run) else _MARKED
        too = f", and those {why} ({names})," if marked else ""
        return f"Of {run}, the tasks that failed or were skipped{too}"

    def _becomes(self, ledger: Ledger, view: EpochView | None) -> str:
        """What becomes of the unfinished epoch, or of new data."""
        run = Run(self.dag_id, self.run_id)
        if view is None and self.run_id and (epoch := epoch_passed_on(ledger, run)):
            new = "A run of another data interval does" if self._by_interval(ledger) else "For that, trigger the DAG"
            return f"Epoch {epoch} of {run} is complete: the run takes no new data. {new}."
        if view is not None and (why := self._left_alone(ledger, view)):
            return f"{in_words(view)} {why}"
        if view is not None and view.state is State.OPEN and not view.opened.command:
            return f"{in_words(view)} {self._of_open_attempt(ledger)}"
        return _unfinished_in_words(view)

    def _of_open_attempt(self, ledger: Ledger) -> str:
        again = operators_again(ledger, self.pipeline, Run(self.dag_id, self.run_id)) if self.run_id else {_OPENS}
        since = {task.get("task_type") for task in self._tasks()}  # the run may have had another layout
        if ALL_IN_ONE in again | since or _OPENS in again:
            return _OPENED_ANEW
        return next((told for operator, told in _GOES_ON.items() if operator in again), _OPENED_ANEW)

    def _left_alone(self, ledger: Ledger, view: EpochView) -> str:
        """Why the run fails and leaves the unfinished epoch as it is; empty if it finishes it."""
        owner, run = airflow_run(ledger, view.opened.run), Run(self.dag_id, self.run_id)
        if owner == run or not self._belongs(view, self._by_interval(ledger)) or _planned_for(view):
            return ""
        return (
            f"{_forgotten(ledger, view)}: another run fails, and leaves the epoch as it is. {_TAKE_OVER} See "
            "docs/intervals.md#when-a-run-fails."
        )

    def do(self, ledger: Ledger, by: Account) -> str:
        """As ``Action.do``."""
        self._require_same(ledger)
        run = Run(self.dag_id, self.run_id or f"retry__{by.at}")
        self._record(ledger, run, by)
        if self.run_id:
            clear(ledger, self.pipeline, run)
            return " ".join([f"Airflow runs the tasks of run {run.run_id} again.", *self._paused_backfill()])
        _start(self.pipeline, run, by)
        return f"Run {run.run_id} of DAG {self.dag_id} is queued."

    def _record(self, ledger: Ledger, run: Run, by: Account) -> None:
        view = unfinished(ledger)
        record = RetriedRecord(
            pipeline=self.pipeline,
            number=self.number,
            dag_id=run.dag_id,
            run_id=run.run_id,
            cleared=bool(self.run_id),
            epoch=view.number if view else 0,
            writer=new_writer(),
            **by.fields,
        )
        if ledger.put(record).writer != record.writer:
            raise self._race()

    def _require_same(self, ledger: Ledger) -> None:
        if Retry.of(ledger, self.pipeline, self.ledger_conn_id) != self:
            raise self._race()

    def _race(self) -> Refused:
        return Refused(
            "The pipeline has moved on, or somebody else has retried it, before this was confirmed. Nothing was "
            "changed.",
            code=codes.COMMAND_RACE,
            pipeline=self.pipeline,
        )


def _ignores(ledger: Ledger, view: EpochView | None, run: Run) -> bool:
    """Whether a command waits, and the run, if it is cleared, passes its complete epoch on and does not obey.

    Never for a run with an interval: a new run would have no interval, and fail.
    """
    waits = view is not None and view.opened.command is not None and source_by_interval(ledger, run) is None
    return waits and epoch_passed_on(ledger, run) is not None


def _unfinished_in_words(view: EpochView | None) -> str:
    if view is None:
        return "No epoch is unfinished: the run will take the next one."
    return in_words(view) if view.opened.command else f"{in_words(view)} {_BECOMES[view.state]}"


def _paused_dag(dag_id: str) -> str:
    return (
        f"DAG {dag_id} is paused in Airflow: nothing runs until you unpause it there (`airflow dags unpause {dag_id}`)."
    )


def _require_ended(pipeline: str, *runs: tuple[Run, str] | None) -> None:
    for run, state in filter(None, runs):
        if state in ACTIVE:
            raise _at_work(pipeline, run, state)


def _at_work(pipeline: str, run: Run, state: str) -> Refused:
    halted = backfills.halted(run) if state == QUEUED else None
    waits = f", and does not start: it is of {halted}" if halted else ""
    return Refused(
        f"{run} is {state}{waits}. Nothing was changed.",
        code=codes.RUN_AT_WORK,
        remedy=_starts_no_more(halted) if halted else None,
        pipeline=pipeline,
    )


def _starts_no_more(halted: Halted) -> str:
    if not halted.ended:
        return f"Let the run start: {halted.unpausing}."
    return (
        "Mark the run as failed in Airflow: nothing else lets it go on. Then try again: that starts another run, or "
        f"names the `{backfills.COMMAND}` that goes on."
    )


def needed_backfill(ledger: Ledger, pipeline: str, ledger_conn_id: str) -> Callable[[], str] | None:
    """What tells why only a backfill goes on, and its command; None if a retry does, or waits for something."""
    try:
        _, refusal = Retry._found(ledger, pipeline, ledger_conn_id)
    except Refused:
        return None
    return partial(_cause_and_remedy, refusal) if refusal else None


def _cause_and_remedy(refusal: Callable[[], Refused]) -> str:
    error = refusal()
    return f"{error.cause} {error.filled_remedy}"


def _back_in_charge(run: Run, halted: Halted, by_interval: bool) -> tuple[str, str | None]:
    """Why the run in charge of an epoch that no other run may have does not go on, and what does."""
    what, at = f"{run} is of {halted}: Airflow does not start it again.", interval_of_run(run)
    anew = backfills.is_by_partition(run.dag_id) or (at is not None and not taken_dates.is_dated(run, at))
    if anew and not by_interval:
        return what, f"A backfill would make another run. {_TAKE_OVER}"
    goes_on = _FINISHES if anew else "it clears the run, which goes on"
    return what, _by_backfill(run.dag_id, at, goes_on) if at else None


def _by_backfill(dag_id: str, at: Interval, goes_on: str) -> str | None:
    """How a backfill takes this interval, and what it does then; None if the DAG's timetable has no such interval."""
    command, others = backfills.of_interval(dag_id, at)
    first, takes = taken_dates.freeing(dag_id, at), f"Type `{command}`: {goes_on}."
    return next_intervals.joined(first, takes, others, next_intervals.ONE_BACKFILL) if command else None


def _by_hand(at: Interval) -> str:
    return (
        f"Start a run by hand for the data interval {at}, which the DAG's timetable does not have: that run finishes "
        f"the epoch. See docs/intervals.md#runs-by-hand. Or let any run finish it: {_TAKE_OVER} See "
        "docs/intervals.md#let-another-run-finish-an-epoch."
    )


def _forgotten(ledger: Ledger, view: EpochView) -> str:
    owner = airflow_run(ledger, view.opened.run)
    return f'Airflow no longer has {owner}, and the pipeline has `on_failed_epoch="block"`'


def _planned_for(view: EpochView) -> Interval | None:
    """The data interval that the unfinished epoch was planned for; None if it was not for an interval."""
    source = source_in(view.opened.source)
    return source.planned_for(view.opened.source_state) if isinstance(source, ByInterval) else None


def _plans(view: EpochView | None) -> bool:
    """Whether the next run plans new input: it finishes no epoch of another run, and brings no tables back."""
    return view is None or (view.opened.command is not None and not view.opened.restored_to)


# -- Airflow's database ---------------------------------------------------------------------------------------------


def _newest_failed(ledger: Ledger, view: EpochView | None, dag_id: str, needs_interval: bool) -> Run | None:
    """The newest run, if it failed and does something if it is cleared. ``needs_interval``: of those that have one."""
    newest = newest_run(dag_id, with_interval=needs_interval)
    return newest[0] if newest and newest[1] == FAILED and not _ignores(ledger, view, newest[0]) else None


def _known_run_of(ledger: Ledger, view: EpochView | None, dag_id: str) -> tuple[Run, str] | None:
    """The run in charge of the unfinished epoch, and its state; None if there is none that can be cleared."""
    if view is None or view.opened.command or view.opened.dag_id != dag_id:
        return None
    run = airflow_run(ledger, view.opened.run)
    state = state_of(run)
    return (run, state) if state else None


def _dag(pipeline: str, dag_id: str) -> DagModel:
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.get(DagModel, dag_id)
        if found is None or found.is_stale:
            raise no_dag(pipeline, dag_id)
        session.expunge(found)
    return found


def _start(pipeline: str, run: Run, by: Account) -> None:
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.sdk.exceptions import AirflowException
    from airflow.utils.types import DagRunTriggeredByType

    try:
        trigger_dag(
            run.dag_id,
            triggered_by=DagRunTriggeredByType.REST_API,
            triggering_user_name=by.who,
            run_id=run.run_id,
            note=by.why,
        )
    except (AirflowException, ValueError) as error:
        what = f"Airflow does not start a run of DAG {run.dag_id!r}: {error}."
        raise Refused(what, code=codes.RETRY_REFUSED, pipeline=pipeline) from error
