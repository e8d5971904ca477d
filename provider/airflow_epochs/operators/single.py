"""All phases of several epochs in one Airflow task, for epochs every few seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout

from airflow_epochs import codes, secrecy
from airflow_epochs.config import FOR_SECONDS, require_bounds
from airflow_epochs.errors import EpochError, NoNewData, NotApplied, Refused, tolerated
from airflow_epochs.operators.announcing import AnnouncesSinks
from airflow_epochs.operators.base import NeedsTransform, try_number
from airflow_epochs.operators.epoch import CommitSinkOperator, OpenEpochOperator, assets_of
from airflow_epochs.operators.lineage import ReportsLineage
from airflow_epochs.operators.wording import in_one_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow.sdk import Context

    from airflow_epochs.coordinator.coordinator import Coordinator
    from airflow_epochs.model import Checkpoint, JsonDict, Run

log = secrecy.logger(__name__)


class EpochsOperator(ReportsLineage, AnnouncesSinks, NeedsTransform):
    """Opens, stages, votes on, commits and completes one epoch after another, until it has caught up.

    It calls what the operators of the single steps call, and the ledger has the same records. It ends when the source
    has no new data, after ``for_seconds``, after ``max_epochs``, or when Airflow stops the task; each time between two
    epochs. Whatever the source has, it ends after an epoch that brought tables back, and after the one of its data
    interval. A task that dies at any moment is continued by its retry, by a clear, or by the next run.

    The asset events, at the end of the task, carry the newest complete epoch. The XCom is the checkpoint of the task's
    last epoch.

    Args:
        for_seconds: After this many seconds it begins no further epoch, and waits no longer for data; None: 600. The
            DAG param of this name overrides it.
        max_epochs: After this many epochs of the run it ends; None: no limit. The DAG param of this name overrides it.
        kwargs: As ``EpochOperator``.
    """

    step = "epochs"
    retry_defaults = CommitSinkOperator.retry_defaults

    def __init__(self, *, for_seconds: float | None = None, max_epochs: int | None = None, **kwargs: Any) -> None:
        require_bounds(for_seconds, max_epochs)
        assets = assets_of(kwargs)
        super().__init__(**kwargs)
        self.assets = assets
        self.for_seconds = for_seconds or FOR_SECONDS
        self.max_epochs = max_epochs
        self._stopping = False
        self._decided = False

    def execute(self, context: Context) -> JsonDict:
        """Run the epochs; after a pause if earlier runs of the DAG failed."""
        from airflow_epochs.operators import phases
        from airflow_epochs.operators.backing_off import pause_of

        phases.warn_of_misspelled(context)
        time.sleep(pause_of(context))
        return super().execute(context)

    def _executed(self, context: Context) -> JsonDict:
        """As ``EpochOperator``. Before a decision, a connection that is missing is asked for as often as by ``open``.

        This task has as many retries as a commit, which go on for an hour: too long to report a misspelled name.
        """
        try:
            return super()._executed(context)
        except NotApplied as error:
            tries = OpenEpochOperator.retry_defaults["retries"]
            if error.code is codes.CONNECTION_MISSING and not self._decided and try_number(context) > tries:
                raise AirflowFailException(str(error)) from error
            raise

    def on_kill(self) -> None:
        """Begin no further epoch, and stop the Spark job that runs now. What it has written stays invisible."""
        self._stopping = True
        super().on_kill()

    def _locate(self, error: EpochError) -> None:
        error.remedy = in_one_task(error.remedy)
        super()._locate(error)

    def work(self, coordinator: Coordinator, run: Run, context: Context) -> Checkpoint:
        """Work on the run's epochs, from the one that it worked on last. Returns the checkpoint of its last one."""
        from airflow_epochs.coordinator.runs import series
        from airflow_epochs.ledger import run_ids
        from airflow_epochs.operators import phases

        ledger, bounds = coordinator.task.ledger, _Bounds.of(self, context["params"])
        phases.require_free_name(coordinator, run, context["params"])
        number = series.newest(ledger, run)
        checkpoint = self._epoch(coordinator, run_ids.nth(run, number), bounds, context)
        first = ledger.epoch_of(run) or checkpoint.epoch  # also after an earlier try, which has emitted no event
        ended = series.has_ended(ledger, run, number)
        if ended:
            log.info("%s had epoch %s already, and takes no new data: the next run does", run, checkpoint.epoch)
        while not ended and not self._stopping:
            number += 1
            at_its_end = series.is_at_its_end(coordinator.task, checkpoint.epoch)
            following = None if at_its_end else self._following(number, run, bounds, context)
            if following:
                coordinator, checkpoint = following
            else:
                series.put_end(ledger, run, number - 1, checkpoint.epoch)
                ended = True
        if ended:
            phases.name_epoch(coordinator, run, context["params"], checkpoint.epoch)
        self.announce(coordinator, context, checkpoint, first)
        log.info("this run has worked on epochs %s to %s", first, checkpoint.epoch)
        return checkpoint

    def _following(
        self, number: int, run: Run, bounds: _Bounds, context: Context
    ) -> tuple[Coordinator, Checkpoint] | None:
        """One more epoch, with a coordinator that has read nothing yet; None if the run has ended."""
        from airflow_epochs.coordinator.runs import series
        from airflow_epochs.ledger import run_ids

        if bounds.reached(number):
            return None
        coordinator = self._coordinator(context)
        try:
            return coordinator, self._epoch(coordinator, run_ids.nth(run, number), bounds, context)
        except NoNewData as caught_up:
            log.info("the run takes no further epoch: %s", caught_up)
        except Refused as error:
            if not series.has_next_run(coordinator.task, error):
                raise
            log.info("the run has ended, and takes no further epoch: %s", error.cause)
        return None

    def _epoch(self, coordinator: Coordinator, run: Run, bounds: _Bounds, context: Context) -> Checkpoint:
        """The phases of one epoch, one after another. Phases that were done before do nothing."""
        from airflow_epochs.operators import phases
        from airflow_epochs.operators.telling import told

        timed = _Timed(self._measured_phase(coordinator, context))
        self._decided = False
        limits = replace(phases.asked_limits(context["params"]), wait_at_most=bounds.left_s())
        with timed("open"):
            coordinator.open_epoch(run, limits)
        with self._aborting(coordinator, run):
            with timed("stage"):
                staged = phases.stage(coordinator, run, context["params"])
            with timed("vote"):
                coordinator.vote(run, staged.stage, phases.limits_again(context["params"]))
        self._decided = True
        self._commit(coordinator, run, timed)
        # If an earlier try has staged the rows, this one does not know for how long: the next epoch would be too large.
        metrics = {**staged.stage.metrics, "seconds": timed.seconds} if staged.stage else {}
        with timed("complete"):
            checkpoint = coordinator.complete(run, metrics)
        self.note_lineage(coordinator, checkpoint, {*checkpoint.receipts, *(sink.name for sink in self.sinks)})
        log.info("all steps have ended: %s", told("complete", checkpoint, sum(timed.seconds.values())))
        return replace(checkpoint, seconds=timed.seconds)

    def _measuring(self, coordinator: Coordinator, context: Context) -> AbstractContextManager[None]:
        """Sends no metrics: each phase of each epoch has metrics of its own."""
        return nullcontext()

    def _measured_phase(
        self, coordinator: Coordinator, context: Context
    ) -> Callable[[str], AbstractContextManager[None]]:
        from airflow_epochs.operators import metrics

        def of(phase: str) -> AbstractContextManager[None]:
            return metrics.measured(coordinator.task, phase, self.environment.phases, try_number(context))

        return of

    @contextmanager
    def _aborting(self, coordinator: Coordinator, run: Run) -> Iterator[None]:
        """After a failure, do what the task ``abort`` of the other layout does."""
        try:
            yield
        except (Exception, AirflowTaskTimeout) as error:  # the timeout is no Exception
            with tolerated("aborting the attempt"):
                self._abort(coordinator, run, error)
            raise

    def _abort(self, coordinator: Coordinator, run: Run, error: BaseException) -> None:
        from airflow_epochs.operators import causes, metrics

        before = len(self.environment.phases)
        try:
            log.info(
                "the attempt is aborted: %s",
                coordinator.abort(run, causes.reason(run, [causes.cause_of(error, self)])).cause,
            )
        except NoNewData as nothing:
            log.info("nothing is aborted: %s", nothing.cause)
        if "abort.put" in self.environment.phases[before:]:  # else the vote has aborted the attempt, and counted that
            metrics.count_abort(coordinator.task.pipeline.name, error)

    def _commit(self, coordinator: Coordinator, run: Run, timed: _Timed) -> None:
        """Commit every sink. If one fails, the others are committed all the same."""
        failed: EpochError | None = None
        for sink in self.sinks:
            try:
                with timed(f"commit.{sink.name}"):
                    coordinator.commit(run, sink.name)
            except EpochError as error:
                error.sink, error.remedy = error.sink or sink.name, in_one_task(error.remedy)
                log.error("the commit of sink %s failed: %s", error.sink, error)
                failed = failed or error
        if failed:
            raise failed


@dataclass(frozen=True)
class _Bounds:
    """When a task ends, by its own clock, although there is more data."""

    end: float
    epochs: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def of(cls, operator: EpochsOperator, params: Any) -> _Bounds:
        """The bounds by the run's params; else by the operator's arguments."""
        seconds = params.get("for_seconds") or operator.for_seconds
        return cls(time.monotonic() + seconds, params.get("max_epochs") or operator.max_epochs or float("inf"))

    def left_s(self) -> float:
        """How long the task may still wait for data."""
        return max(0.0, self.end - self.clock())

    def reached(self, number: int) -> bool:
        """Whether the n-th epoch of the run is one too many."""
        return number > self.epochs or self.left_s() == 0


@dataclass(frozen=True)
class _Timed:
    """How long the phases of an epoch took, by their names in the other layout. ``measured`` sends their metrics."""

    measured: Callable[[str], AbstractContextManager[None]]
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        with self.measured(phase):
            yield
        self.seconds[phase] = round(time.monotonic() - started, 3)
