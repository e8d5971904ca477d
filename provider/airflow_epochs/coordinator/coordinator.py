"""The shell around the protocol: read the ledger, decide, perform one effect, record it. Does not know Airflow.

There is one method per task of an epoch: ``open``, ``stage``, ``vote``, ``commit``, ``complete``, ``abort``. A retry, a
clear or a zombie may call any of them again, at any time and in any order. Each reads the ledger first. Then it repeats
safely, does nothing, or fails with a sentence that says what to do.

The order of effects is what survives a crash: a record that announces an effect is put before it (open, try,
restaged, decision), and a record that reports an effect is put after it (receipt, completion). So a task that
finds a record knows what may have happened, and a task that finds no record knows what cannot have happened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Concatenate, ParamSpec, TypeVar

from airflow_epochs import codes, protocol, secrecy
from airflow_epochs.config import Pipeline, Transform
from airflow_epochs.contracts import Limits, Maintained, SinkAttempt
from airflow_epochs.coordinator import agreement, dead_letters, state_tables, users_vote
from airflow_epochs.coordinator.admin import pausing
from airflow_epochs.coordinator.backfills import backfill
from airflow_epochs.coordinator.cleanup import discard_attempt, sweep
from airflow_epochs.coordinator.completing import completion, receipts_that_hold
from airflow_epochs.coordinator.joint_sinks import votes_of
from airflow_epochs.coordinator.opening import open_first, reopen
from airflow_epochs.coordinator.reasons import reason_and_remedy
from airflow_epochs.coordinator.restaging import Promise
from airflow_epochs.coordinator.runs import blocking
from airflow_epochs.coordinator.runs.patience import leave_alone
from airflow_epochs.coordinator.staging import stage_attempt, stop_earlier_tries
from airflow_epochs.coordinator.task import TaskTry, history
from airflow_epochs.errors import EpochError, Fenced, NoNewData, Refused, located, tolerated
from airflow_epochs.ledger.queries import causes_of, given_up
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import (
    Checkpoint,
    CompleteRecord,
    DecisionKind,
    DecisionRecord,
    JsonDict,
    OpenRecord,
    PipelineRecord,
    Receipt,
    Run,
    StageReport,
    Vote,
    attempt_fields,
    process_of,
    reasons_against,
)
from airflow_epochs.protocol import State, Step

__all__ = ["Coordinator", "Pipeline", "Transform"]

log = secrecy.logger(__name__)

OPEN_STEPS_MAX = 8
"""How many recovery steps one ``open`` takes before it gives up. Each step leaves the epoch in a later state."""

P = ParamSpec("P")
T = TypeVar("T")


def _naming_the_pipeline(
    step: Callable[Concatenate[Coordinator, P], T],
) -> Callable[Concatenate[Coordinator, P], T]:
    """Let each error of a step name the pipeline, so that the commands of its remedy can be pasted.

    A source does not know for which pipeline it is asked.
    """

    @wraps(step)
    def named(coordinator: Coordinator, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with located(coordinator.task.pipeline.name):
            return step(coordinator, *args, **kwargs)

    return named


@dataclass(frozen=True)
class Coordinator:
    """Runs the protocol for one pipeline, in one try of an Airflow task."""

    task: TaskTry

    # -- open -------------------------------------------------------------------------------------------------

    def open(self, run: Run, limits: Limits | None = None) -> OpenRecord | CompleteRecord:
        """The open or completion record of the epoch that this run works on: see ``open_epoch``."""
        view = self.open_epoch(run, limits)
        return view.complete or view.opened

    @_naming_the_pipeline
    def open_epoch(self, run: Run, limits: Limits | None = None) -> EpochView:
        """Open the epoch that this run works on: one that an earlier run left unfinished, else a new one.

        An aborted epoch is opened again, with the same ranges. An epoch in doubt is completed here and becomes this
        run's epoch: the run's later tasks have nothing to do, and tasks behind them run as after any epoch. The same
        holds for a complete epoch that the run had before. In both cases, the next run takes the new data.

        Raises:
            NoNewData: There is no new input, and no unfinished epoch; or an operator has paused the pipeline. Nothing
                was opened.
            Fenced: Another run opened the epoch at the same moment.
            Corrupt: A sink or the source disagrees with the ledger. Nothing was opened.
        """
        identity = self.task.ledger.register(self.task.pipeline.dag_id, at=self.task.now(), writer=self.task.writer)
        for _ in range(OPEN_STEPS_MAX):
            view = self.task.ledger.view_of_next()
            self.task.ledger.require_no_gap(view.number)
            with self.task.unless_overtaken(view, run):
                if opened := self._decided_before(run) or self._open_step(view, identity, run, limits or Limits()):
                    self._sweep(opened.number - 1)  # the run that completed it may have died before its sweep
                    return opened
        raise Fenced(
            f"This run looked {OPEN_STEPS_MAX} times for an epoch to work on. Each time, another run of the pipeline "
            "had opened or ended it first.",
            code=codes.RUNS_COMPETE,
            pipeline=self.task.pipeline.name,
        )

    def _open_step(self, view: EpochView, identity: PipelineRecord, run: Run, limits: Limits) -> EpochView | None:
        """Take one recovery step. Returns this run's epoch; None if the ledger must be read again for the next step."""
        pausing.require_taken(self.task, view, run)
        if blocking.left_to_its_run(self.task, view, run):
            return None
        match protocol.RECOVERY[view.state]:
            case Step.PLAN:
                opened = open_first(self.task, view.number, identity, run, limits)
                return EpochView(number=view.number, open=opened)
            case Step.REOPEN:
                return EpochView(number=view.number, open=reopen(self.task, view, run, limits))
            case Step.PRESUME_ABORT:
                # A delay only. If the other run decides meanwhile, its decision wins and this put loses.
                if not leave_alone(self.task, view, run):
                    with located(**attempt_fields(view.opened.txn_id)):
                        self._require_markers(view)
                    reason = f"found undecided by {run}{process_of(self.task.writer)}"
                    self._presume_abort(view, run, reason)
            case Step.ROLL_FORWARD:
                self._roll_forward(view, run)
            case Step.PROCEED:
                pass  # another run completed the epoch after newest_complete() was read
        return None

    def _require_markers(self, view: EpochView) -> None:
        """Raise Corrupt unless the sinks of an undecided attempt show their previous epochs, or a late commit.

        A sink that was removed from the DAG since may be down or gone. It matters only if it shows this epoch.
        """
        opened, before = view.opened, self.task.ledger.complete_record(view.number - 1)
        agreement.sinks_without(opened, self.task.pipeline.sinks, self.task.env)
        for name in sorted(opened.sinks.keys() & {sink.name for sink in self.task.pipeline.sinks}):
            sink, receipt = self.task.sink_of(opened, name), before.receipts.get(name) if before else None
            previous = agreement.late_commit(sink, before, self.task.env) or SinkAttempt.of(opened, name).previous
            agreement.require_marker(
                sink, previous, self.task.pipeline.name, self.task.env, receipt, undecided=opened.txn_id
            )

    def _decided_before(self, run: Run) -> EpochView | None:
        """This run's own epoch if it is decided GLOBAL_COMMIT: this run goes on with it, and opens no second one."""
        number = self.task.ledger.epoch_of(run)
        if number is None:
            return None
        view = self.task.ledger.view(number)
        if view.complete:
            return self.task.passing(view)
        if number <= self.task.ledger.newest_complete():
            raise history(view)
        return view if view.state is State.IN_DOUBT and view.opened.run == run else None

    # -- stage ------------------------------------------------------------------------------------------------

    @_naming_the_pipeline
    def stage(self, run: Run, limits: Limits | None = None) -> Checkpoint:
        """Stage this run's attempt, in fresh places; after an abort, open the next attempt first, within ``limits``.

        Does nothing once the attempt is decided GLOBAL_COMMIT. A repeat stages again, in other places: the Spark job of
        a killed try may still be writing to its own. Or it goes on with that job, where Spark can (``Rejoining``).

        Raises:
            Fenced: Another run is in charge of the epoch. Nothing was staged.
            Refused: After an abort: another DAG has taken the pipeline over. Nothing was opened.
            NotApplied: Spark failed. No reader sees what was written; it will be swept.
        """
        view = self.task.mine(run)
        if view.state in (State.IN_DOUBT, State.COMPLETE):
            return self.checkpoint(view)
        pausing.require_taken(self.task, view, run)
        with self.task.unless_overtaken(view, run):
            opened = self._reopened(view, run, limits) if view.state is State.ABORTED else view.opened
        stop_earlier_tries(self.task, opened.txn_id.epoch, spared=opened.txn_id)
        with located(**attempt_fields(opened.txn_id)):
            report = stage_attempt(self.task, opened)
        complete = self.task.ledger.complete_record(view.number)
        if complete:  # another run completed the epoch meanwhile, and may have swept it before these places were there
            self._sweep(view.number)
            return self.checkpoint(EpochView(number=view.number, complete=complete), stage=report)
        return self.checkpoint(EpochView(number=view.number, open=opened), stage=report)

    def _reopened(self, view: EpochView, run: Run, limits: Limits | None) -> OpenRecord:
        """The next attempt of an aborted epoch. ``open`` asked for the owner, but that may be long ago."""
        identity = self.task.ledger.identity()
        assert identity, "an epoch was opened, so the pipeline is registered"
        self.task.ledger.require_owned_by(self.task.pipeline.dag_id, identity)
        return reopen(self.task, view, run, limits)

    # -- vote and decide --------------------------------------------------------------------------------------

    @_naming_the_pipeline
    def vote(self, run: Run, report: StageReport | None, limits: Limits | None = None) -> Checkpoint:
        """Collect every sink's vote and put the decision. A repeat returns the decision that stands.

        After a GLOBAL_ABORT, it first stages the next attempt, within ``limits``, because "clear failed tasks" does not
        clear a ``stage`` that succeeded.

        Raises:
            Refused: The decision is GLOBAL_ABORT; the error has the reason of every VOTE_ABORT.
            Fenced: Another run is in charge of the epoch, or has aborted this attempt.
        """
        view = self.task.mine(run)
        if view.state is State.ABORTED:
            report = self.stage(run, limits).stage
            view = self.task.mine(run)
        if view.state is State.OPEN:
            with located(**attempt_fields(view.opened.txn_id)), self.task.unless_overtaken(view, run):
                standing = self._decide(view.opened, run, report)
            # In every other case the epoch may be further on: another task's decision stands, or the attempt ended.
            if standing.writer == self.task.writer and standing.decision is DecisionKind.GLOBAL_COMMIT:
                return self.checkpoint(replace(view, decision=standing), stage=report)
            view = self.task.mine(run)
        if view.state is State.OPEN or (view.open and view.open.command):
            raise self.task.fenced(view.opened, run)  # a newer attempt: by another task of this run, or by a command
        if view.state is State.ABORTED and view.decision:
            self._discard_attempt(view)
            raise _aborted(view.opened, view.decision)
        return self.checkpoint(view, stage=report)

    def _decide(self, opened: OpenRecord, run: Run, report: StageReport | None) -> DecisionRecord:
        if report is None or report.txn_id != opened.txn_id:
            raise Refused(
                "No rows are staged for this attempt, or the XCom of the stage task was deleted."
                if report is None
                else f"The staged rows belong to {report.txn_id}, not to this attempt.",
                code=codes.NOTHING_STAGED,
                **attempt_fields(opened.txn_id),
            )
        # In an old copy of the ledger the attempt may be undecided although it was committed: the sinks tell.
        agreement.sinks_without(opened, self.task.pipeline.sinks, self.task.env)
        votes = votes_of(opened, self.task.sinks_of(opened, opened.sinks), report, self.task.env)
        votes = backfill.explained(opened, dead_letters.explained(self.task, opened, votes))
        asked = {**votes, **users_vote.against(self.task, opened, votes, report)}
        kinds = {name: vote.vote for name, vote in asked.items()}
        decision = protocol.decide(frozenset({*opened.sinks, *asked}), kinds)
        reasons = [f"{name}: {reason}" for name, reason in reasons_against(asked).items()]
        self.task.env.reached("decision.put")
        reason = "; ".join(reasons) or "every sink voted VOTE_COMMIT"
        standing = self._put_decision(opened, decision, reason, votes, run, report)
        self.task.env.reached("decision.landed")
        return standing

    def _put_decision(
        self,
        opened: OpenRecord,
        decision: DecisionKind,
        reason: str,
        votes: dict[str, Vote],
        run: Run,
        report: StageReport | None = None,
    ) -> DecisionRecord:
        # Reasons quote errors of sinks and Spark, and a record is kept for ever: no secret may stand in it.
        standing = self.task.ledger.put(
            DecisionRecord(
                txn_id=opened.txn_id,
                decision=decision,
                reason=secrecy.scrubbed(reason),
                votes={
                    sink: replace(vote, reason=vote.reason and secrecy.scrubbed(vote.reason))
                    for sink, vote in votes.items()
                },
                dag_id=run.dag_id,
                run_id=run.run_id,
                decided_at=self.task.now(),
                writer=self.task.writer,
                event_times=report.event_times if report else {},
                code=report.code if report else None,
                metrics=report.metrics if report else {},
            )
        )
        txn, kind = opened.txn_id, standing.decision.value
        log.info("epoch %s: %s %s (%s)", txn.epoch, kind, txn, causes_of(standing))
        return standing

    # -- commit -----------------------------------------------------------------------------------------------

    @_naming_the_pipeline
    def commit(self, run: Run, sink: str) -> Checkpoint:
        """Commit one sink and put its receipt. A repeat returns the receipt that stands.

        Raises:
            Refused: There is no GLOBAL_COMMIT. Nothing was done.
            OutcomeUnknown, NotApplied: Call again: after GLOBAL_COMMIT the only way is forward.
            Corrupt: The sink cannot keep its promise, not even if the epoch is staged again.
        """
        view = self.task.mine(run, of=[sink])
        if view.state is State.COMPLETE:
            return self._nothing_left(view, sink)
        if view.state is not State.IN_DOUBT:
            raise _undecided(view)
        if sink not in view.epoch.unacknowledged:
            return self._nothing_left(view, sink)
        try:
            receipt = self._commit_sink(view, sink)
        except EpochError as error:
            raise _in_doubt(error, view, [sink]) from error.__cause__
        return self.checkpoint(replace(view, receipts={**view.receipts, sink: receipt}))

    def _nothing_left(self, view: EpochView, sink: str) -> Checkpoint:
        """The checkpoint for a sink that has nothing to commit.

        It has a receipt or a waiver, or it was added to the DAG after ``open`` and begins with the next epoch.
        """
        found = self.checkpoint(view)
        if sink not in found.receipts:
            self.task.env.reached(f"left_out.{sink}")
        return found

    def _commit_sink(self, view: EpochView, sink: str) -> Receipt:
        assert view.decision and view.decision.decision is DecisionKind.GLOBAL_COMMIT
        self.task.env.reached(f"commit.{sink}")
        receipt = Promise(self.task, view, sink).keep()
        self.task.env.reached(f"committed.{sink}")
        log.info("epoch %s: sink %s shows %s", view.number, sink, receipt.txn_id)
        return self.task.ledger.put(receipt)

    def _roll_forward(self, view: EpochView, run: Run) -> None:
        """Complete an epoch that another run left in doubt. It becomes this run's epoch, which reports it."""
        # The other run may have died before it put its index: without it, a clear would open a second epoch for it.
        self.task.ledger.put_run(view.opened.run, view.number)
        try:
            self._commit_sinks(view, view.epoch.unacknowledged)
        except Fenced:
            if self.task.ledger.complete_record(view.number):
                return  # another run completed it first
            raise
        self._after_complete(self._put_complete(self.task.ledger.view(view.number), run, {}))

    def _commit_sinks(self, view: EpochView, sinks: Iterable[str]) -> None:
        """Commit sinks of an epoch in doubt. If one fails, the others are committed all the same."""
        failed: dict[str, EpochError] = {}
        for sink in sorted(sinks):
            try:
                self._commit_sink(view, sink)
            except Fenced:
                raise
            except EpochError as error:
                log.error("epoch %s is in doubt: sink %s. %s", view.number, sink, error)
                failed[sink] = error
        if failed:
            raise _in_doubt(next(iter(failed.values())), view, failed)

    # -- complete ---------------------------------------------------------------------------------------------

    @_naming_the_pipeline
    def complete(self, run: Run, metrics: JsonDict | None = None) -> Checkpoint:
        """Put the completion record; then do what may fail or be repeated: acknowledge, sweep, maintain, prune.

        Idempotent. A repeat only does the second part again.

        Raises:
            Refused: A sink has neither a receipt nor a waiver. The epoch stays in doubt.
            Corrupt: A sink that has a receipt no longer shows the epoch. The epoch stays in doubt.
        """
        view = self.task.mine(run)
        if view.state is not State.COMPLETE:
            view = self._put_complete(self._without_tasks_committed(view), run, metrics or {})
        self._after_complete(view)
        return self.checkpoint(view)

    def _without_tasks_committed(self, view: EpochView) -> EpochView:
        """The epoch, after committing the sinks that were removed from the DAG since: they have no commit task."""
        removed = view.epoch.unacknowledged - {sink.name for sink in self.task.pipeline.sinks}
        if view.state is not State.IN_DOUBT or not removed:
            return view
        self._commit_sinks(view, removed)
        return self.task.ledger.view(view.number)

    def newest_complete(self) -> CompleteRecord:
        """The newest completion record; there must be one.

        It is looked for once per task: hints need no more. A task that has put one does not look for it.
        """
        return self._newest_complete

    @cached_property
    def _newest_complete(self) -> CompleteRecord:
        record = self.task.ledger.complete_record(self.task.ledger.newest_complete())
        assert record, "complete.json of the newest epoch is never deleted"
        return record

    def _put_complete(self, view: EpochView, run: Run, metrics: JsonDict) -> EpochView:
        if view.complete:
            return view
        if view.state is not State.IN_DOUBT:
            raise _undecided(view)
        if missing := sorted(view.epoch.unacknowledged):
            raise Refused(
                f"The epoch cannot be completed yet. The ledger has no receipt of: {', '.join(missing)}.",
                code=codes.RECEIPT_MISSING,
                **attempt_fields(view.opened.txn_id),
            )
        with located(**attempt_fields(view.opened.txn_id)):
            receipts = receipts_that_hold(self.task, view)
        record = completion(self.task, view, receipts, run, metrics)
        if run != view.opened.run:
            self.task.ledger.put_run(run, view.number)  # first: if the run dies in between, it finds its epoch
        self.task.env.reached("complete.put")
        standing = self.task.ledger.put(record)
        if replace(standing, format=record.format) == record:  # this task's own: no later epoch began before it
            vars(self)["_newest_complete"] = standing
        self.task.env.reached("complete.landed")
        log.info("epoch %s: complete (%s)", view.number, view.opened.txn_id)
        return self.task.ledger.view(view.number)

    def _after_complete(self, view: EpochView) -> None:
        assert view.complete
        with tolerated("committing the consumer group's offsets", remedied=True):
            self.task.pipeline.source.acknowledge(self.task.pipeline.name, self.newest_complete().ranges, self.task.env)
        for epoch in (view.number - 1, view.number):
            self._sweep(epoch)
        for sink in self.task.pipeline.sinks:
            if isinstance(sink, Maintained):
                with tolerated(f"maintaining sink {sink.name}", remedied=True):
                    sink.maintain(self.task.pipeline.name, view.number, self.task.env)
        with tolerated("pruning"):  # ends at the first failure: a store that deletes nothing keeps every epoch
            for epoch in self.task.ledger.pruning.due(view.number - self.task.pipeline.keep_epochs):
                self._sweep(epoch, last=True)  # its places are on record for the last time
                self.task.ledger.pruning.prune(epoch)

    def _sweep(self, epoch: int, *, last: bool = False) -> None:
        with tolerated(f"sweeping epoch {epoch}"):
            sweep(self.task.ledger, epoch, self.task.pipeline.sinks, self.task.env, last=last)

    # -- abort ------------------------------------------------------------------------------------------------

    @_naming_the_pipeline
    def abort(self, run: Run, reason: str) -> Refused:
        """Abort this run's undecided attempt and clear its places away.

        Returns:
            The error that says so, with the reason that stands in the ledger.

        Raises:
            NoNewData: There is nothing to abort: the run opened no attempt, or another run opened a newer one, or the
                epoch is in doubt or complete.
        """
        view = self.task.view_of(run)
        if view.open is None or view.open.run != run:
            raise NoNewData(
                "This run has no attempt to abort.",
                code=codes.NOTHING_TO_ABORT,
                pipeline=self.task.pipeline.name,
                epoch=view.number,
            )
        if view.state is State.OPEN:
            with self.task.unless_overtaken(view, run):
                agreement.sinks_without(view.open, self.task.pipeline.sinks, self.task.env)
            view = self._presume_abort(view, run, reason)  # read back: nothing is deleted before GLOBAL_ABORT stands
        if view.state is not State.ABORTED or not view.decision:
            raise NoNewData(
                f"There is nothing to abort: the epoch is {view.state.value}.",
                code=codes.NOTHING_TO_ABORT,
                pipeline=self.task.pipeline.name,
                epoch=view.number,
            )
        stop_earlier_tries(self.task, view.number)
        self._discard_attempt(view)
        return _aborted(view.opened, view.decision)

    def _presume_abort(self, view: EpochView, run: Run, reason: str) -> EpochView:
        self.task.env.reached("abort.put")
        self._put_decision(view.opened, DecisionKind.GLOBAL_ABORT, reason, {}, run)
        return self.task.ledger.view(view.number)

    def _discard_attempt(self, view: EpochView) -> None:
        """Delete an aborted attempt's staging places. ``view`` must have been read after its GLOBAL_ABORT was put."""
        opened = view.opened
        with self.task.unless_overtaken(view, opened.run):
            sinks = agreement.sinks_without(opened, self.task.pipeline.sinks, self.task.env)
        discard_attempt(self.task.ledger, opened, sinks, self.task.pipeline.sinks, self.task.env)

    # -- shared -----------------------------------------------------------------------------------------------

    def checkpoint(self, view: EpochView, stage: StageReport | None = None) -> Checkpoint:
        """The checkpoint record of ``view``, which XCom carries to the next task."""
        record, waived = view.complete or view.opened, given_up(self.task.ledger, view)
        return Checkpoint(
            pipeline=self.task.pipeline.name,
            epoch=view.number,
            attempt=record.txn_id.attempt,
            txn_id=record.txn_id,
            ranges=record.ranges,
            state=view.state.value,
            stage=stage,
            votes=view.decision.votes if view.decision else {},
            decision=_decision_of(view),
            reason=view.decision.reason if view.decision else None,
            receipts=view.complete.receipts if view.complete else view.receipts,
            metrics=self._metrics(view, waived),
            warnings=view.open.warnings if view.open else (),
            waived=waived,
        )

    def _metrics(self, view: EpochView, waived: Collection[str]) -> JsonDict:
        """The metrics of a complete epoch; else the rows voted for. Both if a waived sink does not get its rows."""
        if view.complete is None:
            return _rows_out(view.decision)
        txn = view.complete.txn_id
        promised = _rows_out(self.task.ledger.decision_record(txn.epoch, txn.attempt)) if waived else {}
        return {**promised, **view.complete.metrics}


def _undecided(view: EpochView) -> Refused:
    return Refused(
        f"The attempt has no GLOBAL_COMMIT: it is {view.state.value}.",
        code=codes.NOT_DECIDED,
        **attempt_fields(view.opened.txn_id),
    )


def _aborted(opened: OpenRecord, decision: DecisionRecord) -> Refused:
    what, remedy = reason_and_remedy(decision)
    return Refused(
        f"The attempt was aborted (GLOBAL_ABORT), and no sink shows its rows. {what}",
        code=codes.GLOBAL_ABORT,
        remedy=remedy or None,
        **attempt_fields(opened.txn_id),
    )


def _in_doubt(error: EpochError, view: EpochView, sinks: Iterable[str]) -> EpochError:
    """The same error, whose text now begins with the epoch in doubt and the sinks that it waits for."""
    if not isinstance(error, Fenced):
        txn = view.opened.txn_id
        error.pipeline, error.epoch, error.attempt = txn.pipeline, txn.epoch, txn.attempt
        error.what = f"The epoch is in doubt: it waits for sink {', '.join(sinks)}. {error.what}"
        if "epochs waive" in error.remedy and not view.opened.state.keys().isdisjoint(sinks):
            error.remedy += state_tables.AFTER_A_WAIVER
    return error


def _rows_out(decision: DecisionRecord | None) -> JsonDict:
    """The metric ``rows_out``: sink name -> rows, as the votes counted them. Empty before the decision."""
    votes = decision.votes if decision else {}
    rows = {sink: vote.staged.rows for sink, vote in votes.items() if vote.staged}
    return {"rows_out": rows} if rows else {}


def _decision_of(view: EpochView) -> DecisionKind | None:
    if view.complete:
        return DecisionKind.GLOBAL_COMMIT
    return view.decision.decision if view.decision else None
