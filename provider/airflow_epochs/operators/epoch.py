"""One operator per step of an epoch. Each calls the coordinator; ``operators.base`` has what they have in common."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import Asset, TriggerRule

from airflow_epochs.config import Transform
from airflow_epochs.errors import EpochError, Refused
from airflow_epochs.operators.announcing import AnnouncesSinks
from airflow_epochs.operators.base import EpochOperator, NeedsTransform
from airflow_epochs.operators.deferral import (
    GRACE_S,
    LOOK_AGAIN_S,
    TRIGGER_FAILED,
    WORTH_DEFERRING_S,
    Wait,
    is_timeout,
)
from airflow_epochs.operators.lineage import ReportsLineage

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_epochs.contracts import Awaited, Limits, RunsOn
    from airflow_epochs.coordinator.coordinator import Coordinator
    from airflow_epochs.ledger.view import EpochView
    from airflow_epochs.model import Checkpoint, JsonDict, Run

__all__ = [
    "AbortEpochOperator",
    "CommitSinkOperator",
    "CompleteEpochOperator",
    "EpochOperator",
    "OpenEpochOperator",
    "StageEpochOperator",
    "VoteEpochOperator",
]


class OpenEpochOperator(NeedsTransform):
    """Finishes what earlier runs left behind, or opens a new epoch for this run. Skips if there is no new data.

    A run works on one epoch. If that epoch is complete already, the tasks that follow succeed and leave it as it is.

    The DAG params ``max_records``, ``max_bytes``, ``min_records``, ``max_delay``, ``target_duration`` and ``starting``
    override the source's own settings. A name in ``savepoint`` must be free: ``complete`` gives it to the epoch.

    Args:
        deferrable: Whether it waits for data in the triggerer, where no worker slot is held. What wakes it up is only a
            hint: it looks and decides anew. So a lost, doubled or late event changes nothing but the time.
        kwargs: As ``EpochOperator``.
    """

    step = "open"

    def __init__(self, *, deferrable: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self._wait = Wait()

    def execute(self, context: Context) -> JsonDict:
        """Run the step, from the beginning of its wait; after a pause if earlier runs of the DAG failed."""
        from airflow_epochs.operators import phases
        from airflow_epochs.operators.backing_off import pause_of

        phases.warn_of_misspelled(context)
        pause = pause_of(context)
        if pause and self.deferrable:
            self._defer_until(datetime.now(timezone.utc) + timedelta(seconds=pause), pause)
        time.sleep(pause)
        return self.open_now(context)

    def open_now(self, context: Context, event: object = None) -> JsonDict:
        """Run the step anew, after a moment that it waited for elsewhere. By its own clock, it may be too early."""
        self._wait = Wait()
        return self._told(context)

    def look_again(self, context: Context, event: JsonDict | None = None, **waited: Any) -> JsonDict:
        """Run the step anew, after a wait elsewhere."""
        self._wait = Wait.after(event, **waited)
        return self._told(context)

    def resume_execution(self, next_method: str, next_kwargs: JsonDict | None, context: Context) -> Any:
        """Go on after the wait. If its trigger failed, or nothing woke this task, it waits here, as without one."""
        if next_method != TRIGGER_FAILED:
            return super().resume_execution(next_method, next_kwargs, context)
        self.log.warning("the wait in the triggerer ended without an event: %s", next_kwargs)
        self._wait = Wait.after_failure(next_kwargs or {})
        return self._told(context)

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        """Open or recover this run's epoch, and return its checkpoint."""
        from airflow_epochs.operators import phases

        phases.require_free_name(coordinator, run, context["params"])
        return coordinator.checkpoint(self._newest(coordinator, run, phases.asked_limits(context["params"])))

    def _newest(self, coordinator: Coordinator, run: Run, limits: Limits) -> EpochView:
        """The run's newest epoch: in the other layout, it may have had several."""
        from airflow_epochs.coordinator.runs import series

        opened = self._opened(coordinator, run, limits)
        newest = series.as_known(coordinator.task, run, begins=True) if opened.complete else run
        return opened if newest == run else self._opened(coordinator, newest, limits)

    def _opened(self, coordinator: Coordinator, run: Run, limits: Limits) -> EpochView:
        from airflow_epochs.contracts import NotYet

        wait = self._wait
        if self.deferrable and not wait.here:
            try:
                return coordinator.open_epoch(run, replace(limits, defers=True))
            except NotYet as early:
                awaited = early.awaited
            wait = self._wait_until(awaited) if isinstance(awaited, datetime) else self._wait_for(awaited)
        return coordinator.open_epoch(run, wait.here_within(limits))

    def _wait_until(self, moment: datetime) -> Wait:
        """Wait in the triggerer. If the moment is near, return how to wait here."""
        left_s = Wait(end=moment).left_s
        if left_s <= WORTH_DEFERRING_S:
            return self._wait
        self._defer_until(moment, left_s)

    def _defer_until(self, moment: datetime, left_s: float) -> NoReturn:
        from airflow.providers.standard.triggers.temporal import DateTimeTrigger

        self.defer(
            trigger=DateTimeTrigger(moment),
            method_name=self.open_now.__name__,
            timeout=timedelta(seconds=left_s + GRACE_S),
        )

    def _wait_for(self, awaited: Awaited) -> Wait:
        """Wait in the triggerer. If little is left of the wait, return how to wait here."""
        from airflow_epochs.triggers.records import RecordsTrigger

        wait = self._wait.at_most(awaited.max_wait_s)
        if wait.left_s <= WORTH_DEFERRING_S:
            return wait
        self.defer(
            trigger=RecordsTrigger.of(awaited, wait.until, wait.quiet_s),
            method_name=self.look_again.__name__,
            kwargs=wait.to_kwargs(),
            timeout=timedelta(seconds=wait.left_s + GRACE_S),
        )


class UndecidedStep(NeedsTransform):
    """A step before the decision. If it fails, ``abort`` aborts the attempt, with its cause on record."""

    def _noting(self, context: Context) -> AbstractContextManager[None]:
        from airflow_epochs.operators import causes

        return causes.noted(context, self)


class StageEpochOperator(UndecidedStep):
    """Runs the Spark micro-batch. It makes every sink's rows durable where no reader sees them.

    Args:
        deferrable: Whether it waits in the triggerer for an application that YARN runs in cluster mode: no worker slot
            is held then. What wakes it up is only a hint. Other ways to run Spark hold the slot as ever.
        kwargs: As ``EpochOperator``.
    """

    step = "stage"
    retry_defaults = {"retries": 2, "retry_delay": timedelta(seconds=5)}

    def __init__(self, *, deferrable: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self._here = False
        self._awaited: str | None = None

    def execute(self, context: Context) -> JsonDict:
        """Run the step, or go on with the application that an earlier try has submitted."""
        self._here, self._awaited = False, None
        return self._told(context)

    def look_again(self, context: Context, event: JsonDict | None = None) -> JsonDict:
        """Run the step anew, after a wait elsewhere."""
        self._awaited = (event or {}).get("job")
        return self._told(context)

    def resume_execution(self, next_method: str, next_kwargs: JsonDict | None, context: Context) -> Any:
        """Go on after the wait. If its trigger failed, this task waits here; if nothing fired, it defers again."""
        if next_method != TRIGGER_FAILED:
            return super().resume_execution(next_method, next_kwargs, context)
        self.log.warning("the wait in the triggerer ended without an event: %s", next_kwargs)
        self._here = not is_timeout(next_kwargs or {})
        return self._told(context)

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        """Stage all sinks, and log Spark's warnings."""
        from airflow_epochs.contracts import Following, Rejoining, RunsOn
        from airflow_epochs.operators import phases

        spark: object = self.environment.spark
        if isinstance(spark, Rejoining):
            spark.follow(Following(elsewhere=self.deferrable and not self._here, awaited=self._awaited))
        try:
            return phases.stage(coordinator, run, context["params"])
        except RunsOn as submitted:
            self.log.info("%s; this task waits for its end in the triggerer", submitted)
            self._defer(submitted)

    def _defer(self, submitted: RunsOn) -> NoReturn:
        from airflow_epochs.triggers.application import ApplicationTrigger

        self.defer(
            trigger=ApplicationTrigger(submitted.addresses, submitted.job),
            method_name=self.look_again.__name__,
            timeout=timedelta(seconds=LOOK_AGAIN_S),
        )


class VoteEpochOperator(UndecidedStep):
    """Verifies each sink's staged rows and writes the decision. Fails on GLOBAL_ABORT, with the reasons.

    ``checkpoint`` must be the stage operator's output. If this task is cleared after a GLOBAL_ABORT, and ``stage`` is
    not, it stages the next attempt itself.
    """

    step = "vote"

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        """Collect the votes and decide, on the newest stage report in ``checkpoint``."""
        from airflow_epochs.operators import phases

        staged = [checkpoint.stage for checkpoint in self._checkpoints if checkpoint.stage]
        limits = phases.limits_again(context["params"])
        return coordinator.vote(run, staged[-1] if staged else None, limits)


class CommitSinkOperator(ReportsLineage, NeedsTransform):
    """Makes one sink show the epoch. It retries often: after GLOBAL_COMMIT the only way is forward."""

    step = "commit"
    retry_defaults = {
        "retries": 20,
        "retry_delay": timedelta(seconds=2),
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(minutes=5),
    }
    template_fields = (*EpochOperator.template_fields, "sink")

    def __init__(self, *, sink: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sink = sink
        self.step = f"commit.{sink}"  # type: ignore[misc]  # the name of the measurement, one per sink

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        """Commit this operator's sink."""
        checkpoint = coordinator.commit(run, self.sink)
        self.note_lineage(coordinator, checkpoint, [self.sink])
        return checkpoint

    def _locate(self, error: EpochError) -> None:
        super()._locate(error)
        error.sink = error.sink or self.sink

    def _transform(self, beside_dag: Path) -> Transform:
        """The transform's file is optional here: only lost rows, which must be staged again, need it."""
        try:
            return super()._transform(beside_dag)
        except Refused as missing:
            self.log.warning("rows that were lost cannot be staged again without the transform: %s", missing)
            return Transform.parse(self.transform)


class CompleteEpochOperator(AnnouncesSinks):
    """Closes the epoch and emits one asset event per sink. Pass all commit operators' outputs as ``checkpoint``."""

    step = "complete"
    retry_defaults = CommitSinkOperator.retry_defaults

    def __init__(self, *, trigger_rule: str = TriggerRule.NONE_FAILED_MIN_ONE_SUCCESS, **kwargs: Any) -> None:
        assets = assets_of(kwargs)
        super().__init__(trigger_rule=trigger_rule, **kwargs)
        self.assets = assets

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        """Complete the epoch; the asset events carry the newest complete epoch, which may be a later one."""
        from airflow_epochs.operators import phases

        seconds, metrics = self._measurements()  # from XCom, which may be stale: only measurements, no facts
        checkpoint = coordinator.complete(run, {**metrics, "seconds": seconds})
        phases.name_epoch(coordinator, run, context["params"], checkpoint.epoch)
        self.announce(coordinator, context, checkpoint)
        return checkpoint


class AbortEpochOperator(EpochOperator):
    """Aborts this run's undecided attempt, and then fails on purpose.

    The failure makes the run red, and lets "clear failed tasks" clear this task too. Skips if there is nothing to
    abort. If neither ``stage`` nor ``vote`` failed, the scheduler skips this task without starting a process: Airflow
    3.3 notices a task that skips itself up to 5 s late, and ``complete`` would wait for it.
    """

    step = "abort"

    def __init__(self, *, trigger_rule: str = TriggerRule.ONE_FAILED, **kwargs: Any) -> None:
        super().__init__(trigger_rule=trigger_rule, **kwargs)

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        """Abort, then raise the error with the reason that the ledger records."""
        from airflow_epochs.operators import causes

        raise coordinator.abort(run, causes.reason(run, causes.noted_by(context, self.upstream_task_ids)))


def assets_of(kwargs: dict[str, Any]) -> dict[str, Asset]:
    """An asset for each sink, also entered as an outlet into the operator's arguments ``kwargs``.

    ``default_args`` in ``kwargs`` come from the DAG and its groups; Airflow has merged them. It uses them only
    for arguments that are not given.
    """
    assets = {sink.name: Asset(sink.asset_uri(kwargs["pipeline"])) for sink in kwargs["sinks"]}
    given = kwargs.get("outlets", (kwargs.get("default_args") or {}).get("outlets")) or []
    users = given if isinstance(given, Collection) else [given]
    kwargs["outlets"] = [*users, *assets.values()]  # the user's list may serve other tasks
    return assets
