"""The shell around the protocol: read the ledger, decide, perform one effect, record it. Knows nothing of Airflow.

One method per task of an epoch: ``open``, ``stage``, ``vote``, ``commit``, ``complete``, ``abort``. Each may be
called again at any time, in any order, by a retry, a clear or a zombie: it reads the ledger first, and then
repeats safely, does nothing, or fails with a sentence that says what to do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from airflow_epochs import codes, protocol, secrecy
from airflow_epochs.config import Pipeline, Transform
from airflow_epochs.contracts import Limits, Maintained, Perishable, Sink, SinkAttempt
from airflow_epochs.coordinator import agreement
from airflow_epochs.coordinator.cleanup import discard_attempt, sweep
from airflow_epochs.coordinator.joint_sinks import votes_of
from airflow_epochs.coordinator.opening import open_first, reopen
from airflow_epochs.coordinator.patience import leave_alone
from airflow_epochs.coordinator.reasons import reason_and_remedy
from airflow_epochs.coordinator.restaging import Promise
from airflow_epochs.coordinator.staging import stage_attempt, stop_earlier_tries
from airflow_epochs.coordinator.task import TaskTry, attempt_fields
from airflow_epochs.errors import Corrupt, EpochError, Fenced, NoNewData, Refused, tolerated
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
    VoteKind,
    agree,
    process_of,
)
from airflow_epochs.protocol import State, Step

__all__ = ["Coordinator", "Pipeline", "Transform"]

log = secrecy.logger(__name__)

OPEN_STEPS_MAX = 8
"""How many recovery steps one ``open`` takes before it gives up: each leaves the epoch in a later state."""


@dataclass(frozen=True)
class Coordinator:
    """Runs the protocol for one pipeline on behalf of one try of an Airflow task."""

    task: TaskTry

    # -- open -------------------------------------------------------------------------------------------------

    def open(self, run: Run, limits: Limits | None = None) -> OpenRecord | CompleteRecord:
        """The record of the epoch that this run works through: see ``open_epoch``."""
        view = self.open_epoch(run, limits)
        return view.complete or view.opened

    def open_epoch(self, run: Run, limits: Limits | None = None) -> EpochView:
        """The epoch that this run works through: one that was left behind, or else a new one.

        One that was aborted is opened again, with the same ranges. One in doubt is finished here and becomes this
        run's: the tasks that follow let it pass, so that what stands behind them is told of it. They do so with any
        complete epoch that the run had before. New data is for the next run then.

        Raises:
            NoNewData: No new input, and nothing was left behind. Nothing was opened.
            Fenced: Another run opened the epoch at the same moment.
            Corrupt: A sink or the source disagrees with the ledger. Nothing was opened.
        """
        identity = self.task.ledger.register(self.task.pipeline.dag_id, at=self.task.now(), writer=self.task.writer)
        for _ in range(OPEN_STEPS_MAX):
            view = self.task.ledger.view_of_next()
            self.task.ledger.require_no_gap(view.number)
            with self.task.unless_overtaken(view):
                if opened := self._decided_before(run) or self._open_step(view, identity, run, limits or Limits()):
                    self._sweep(opened.number - 1)  # whoever completed it may have died before it had
                    return opened
        raise Fenced(
            f"This run looked {OPEN_STEPS_MAX} times for an epoch to work on. Each time, another run of the pipeline "
            "had opened or ended it first.",
            code=codes.RUNS_COMPETE,
            pipeline=self.task.pipeline.name,
        )

    def _open_step(self, view: EpochView, identity: PipelineRecord, run: Run, limits: Limits) -> EpochView | None:
        """One step towards an attempt of this run; None if the ledger must be read again before the next one."""
        match protocol.RECOVERY[view.state]:
            case Step.PLAN:
                opened = open_first(self.task, view.number, identity, run, limits)
                return EpochView(number=view.number, open=opened)
            case Step.REOPEN:
                return EpochView(number=view.number, open=reopen(self.task, view, run))
            case Step.PRESUME_ABORT:
                if not leave_alone(self.task, view, run):
                    self._require_markers(view)
                    reason = f"found undecided by {run}{process_of(self.task.writer)}"
                    self._presume_abort(view, run, reason)
            case Step.ROLL_FORWARD:
                self._roll_forward(view, run)
            case Step.PROCEED:
                pass  # completed by somebody else between the two reads
        return None

    def _require_markers(self, view: EpochView) -> None:
        """Raise Corrupt unless the sinks of an undecided attempt, which need not be today's, show what came before it.

        One that has left the DAG since may be down, or gone: it is no obstacle unless it shows the epoch.
        """
        opened, before = view.opened, self.task.ledger.complete_record(view.number - 1)
        agreement.sinks_without(opened, self.task.pipeline.sinks, self.task.env)
        for name in sorted(opened.sinks.keys() & {sink.name for sink in self.task.pipeline.sinks}):
            previous = SinkAttempt.of(opened, name).previous
            receipt = before.receipts.get(name) if before else None
            agreement.require_marker(
                self.task.sink_of(opened, name), previous, self.task.pipeline.name, self.task.env, receipt
            )

    def _decided_before(self, run: Run) -> EpochView | None:
        """This run's own epoch if it is decided: it goes on in this run, and is opened for no second time."""
        number = self.task.ledger.epoch_of(run)
        if number is None:
            return None
        view = self.task.ledger.view(number)
        if view.complete:
            return self.task.passing(view)
        return view if view.state is State.IN_DOUBT and view.opened.run == run else None

    # -- stage ------------------------------------------------------------------------------------------------

    def stage(self, run: Run) -> Checkpoint:
        """Stage this run's attempt into places of its own; after an abort, open the next attempt first.

        A no-op once the attempt is decided GLOBAL_COMMIT.

        Raises:
            Fenced: Another run has the epoch. Nothing was staged.
            NotApplied: Spark failed. What was written is invisible and will be swept.
        """
        view = self.task.mine(run)
        if view.state in (State.IN_DOUBT, State.COMPLETE):
            return self.checkpoint(view)
        with self.task.unless_overtaken(view):
            opened = reopen(self.task, view, run) if view.state is State.ABORTED else view.opened
        stop_earlier_tries(self.task, opened.txn.epoch)
        report = stage_attempt(self.task, opened)
        complete = self.task.ledger.complete_record(view.number)
        if complete:  # somebody else ended the epoch meanwhile, and the sweeps of it may be over
            self._sweep(view.number)
            return self.checkpoint(EpochView(number=view.number, complete=complete), stage=report)
        return self.checkpoint(EpochView(number=view.number, open=opened), stage=report)

    # -- vote and decide --------------------------------------------------------------------------------------

    def vote(self, run: Run, report: StageReport | None) -> Checkpoint:
        """Collect every sink's vote and write the decision. A repeat returns the decision that stands.

        Called again after a GLOBAL_ABORT, it stages the next attempt first: "clear failed tasks" leaves a
        ``stage`` that succeeded alone.

        Raises:
            Refused: The decision is GLOBAL_ABORT; the message has every VOTE_ABORT's reason.
            Fenced: Another run has the epoch, or aborted this attempt.
        """
        view = self.task.mine(run)
        if view.state is State.ABORTED:
            report = self.stage(run).stage
            view = self.task.mine(run)
        if view.state is State.OPEN:
            with self.task.unless_overtaken(view):
                standing = self._decide(view.opened, run, report)
            if standing.writer == self.task.writer and standing.decision is DecisionKind.GLOBAL_COMMIT:
                return self.checkpoint(replace(view, decision=standing), stage=report)
            view = self.task.mine(run)
        if view.state is State.OPEN:
            raise self.task.fenced(view.opened)  # a newer attempt of this same run
        if view.state is State.ABORTED and view.decision:
            self._discard_attempt(view)
            raise _aborted(view.opened, view.decision)
        return self.checkpoint(view, stage=report)

    def _decide(self, opened: OpenRecord, run: Run, report: StageReport | None) -> DecisionRecord:
        if report is None or report.txn_id != opened.txn_id:
            raise Refused(
                "No rows are staged for this attempt."
                if report is None
                else f"The staged rows belong to {report.txn_id}, not to this attempt.",
                code=codes.NOTHING_STAGED,
                **attempt_fields(opened.txn),
            )
        agreement.sinks_without(opened, self.task.pipeline.sinks, self.task.env)
        votes = votes_of(opened, self.task.sinks_of(opened, opened.sinks), report, self.task.env)
        decision = protocol.decide(frozenset(opened.sinks), {sink: vote.vote for sink, vote in votes.items()})
        reasons = [f"{sink}: {vote.reason}" for sink, vote in votes.items() if vote.vote is VoteKind.VOTE_ABORT]
        self.task.env.reached("decision.put")
        reason = "; ".join(reasons) or "every sink voted VOTE_COMMIT"
        standing = self._put_decision(opened, decision, reason, votes, run)
        self.task.env.reached("decision.landed")
        return standing

    def _put_decision(
        self, opened: OpenRecord, decision: DecisionKind, reason: str, votes: dict[str, Vote], run: Run
    ) -> DecisionRecord:
        standing = self.task.ledger.put_decision(
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
            )
        )
        log.info("epoch %s: %s %s (%s)", opened.txn.epoch, standing.decision.value, opened.txn_id, standing.reason)
        return standing

    # -- commit -----------------------------------------------------------------------------------------------

    def commit(self, run: Run, sink: str) -> Checkpoint:
        """Make one sink show the epoch. A repeat returns the receipt that stands.

        Raises:
            Refused: There is no GLOBAL_COMMIT. Nothing was done.
            OutcomeUnknown, NotApplied: Try again; after GLOBAL_COMMIT the only way is forward.
            Corrupt: The sink cannot keep its promise, not even by staging the epoch again.
        """
        view = self.task.mine(run, of=[sink])
        if view.state is State.COMPLETE:
            return self.checkpoint(view)
        if view.state is not State.IN_DOUBT:
            raise _undecided(view)
        if sink not in view.epoch.unacknowledged:
            # Shown, waived, or added to the DAG after the attempt was opened: its turn is the next epoch.
            return self.checkpoint(view)
        try:
            receipt = self._commit_sink(view, sink)
        except EpochError as error:
            raise _in_doubt(error, view, [sink]) from error.__cause__
        return self.checkpoint(replace(view, receipts={**view.receipts, sink: receipt}))

    def _commit_sink(self, view: EpochView, sink: str) -> Receipt:
        assert view.decision and view.decision.decision is DecisionKind.GLOBAL_COMMIT
        self.task.env.reached(f"commit.{sink}")
        receipt = Promise(self.task, view, sink).keep()
        self.task.env.reached(f"committed.{sink}")
        log.info("epoch %s: sink %s shows %s", view.number, sink, receipt.txn_id)
        return self.task.ledger.put_receipt(receipt)

    def _roll_forward(self, view: EpochView, run: Run) -> None:
        """Finish an epoch that another run left in doubt. Whoever completes it has it, and tells of it."""
        self.task.ledger.put_run(view.opened.run, view.number)
        try:
            self._commit_sinks(view, view.epoch.unacknowledged)
        except Fenced:
            if self.task.ledger.complete_record(view.number):
                return  # somebody else was faster
            raise
        self._after_complete(self._put_complete(self.task.ledger.view(view.number), run, {}))

    def _commit_sinks(self, view: EpochView, sinks: Iterable[str]) -> None:
        """Let sinks show an epoch in doubt. One that is down keeps no other from showing it."""
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

    def complete(self, run: Run, metrics: JsonDict | None = None) -> Checkpoint:
        """Write the completion record; then what may fail or be repeated: acknowledge, sweep, maintain, prune.

        Raises:
            Refused: A sink has no receipt yet.
        """
        view = self.task.mine(run)
        if view.state is not State.COMPLETE:
            view = self._put_complete(self._without_tasks_committed(view), run, metrics or {})
        self._after_complete(view)
        return self.checkpoint(view)

    def _without_tasks_committed(self, view: EpochView) -> EpochView:
        """The epoch once the sinks show it that today's DAG has no commit tasks for: they were removed meanwhile."""
        removed = view.epoch.unacknowledged - {sink.name for sink in self.task.pipeline.sinks}
        if view.state is not State.IN_DOUBT or not removed:
            return view
        self._commit_sinks(view, removed)
        return self.task.ledger.view(view.number)

    def newest_complete(self) -> CompleteRecord:
        """The newest complete epoch: what hints (asset events, consumer offsets) carry, also if an old run is cleared.

        There must be one. It is looked for once per task: hints need no more.
        """
        return self._newest_complete

    @cached_property
    def _newest_complete(self) -> CompleteRecord:
        record = self.task.ledger.complete_record(self.task.ledger.newest_complete())
        assert record, "complete.json is never deleted"
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
                **attempt_fields(view.opened.txn),
            )
        opened = view.opened
        receipts = self._receipts_that_hold(view)
        waived = opened.sinks.keys() - receipts.keys()
        before = self.task.ledger.complete_record(view.number - 1) if view.number > 1 else None
        waived_before = {sink: before.may_show(sink) for sink in before.waived} if before else {}
        waived_ids = {
            sink: (*reversed(waived_before.get(sink, [])), *([opened.txn_id] if sink in waived else []))
            for sink in {*waived_before, *waived} - set(receipts)
        }
        if run != opened.run:
            self.task.ledger.put_run(run, view.number)  # first: a run that dies here finds the epoch that it completed
        self.task.env.reached("complete.put")
        self.task.ledger.put_complete(
            CompleteRecord(
                txn_id=opened.txn_id,
                ranges=opened.ranges,
                source_state=opened.source_state,
                receipts=receipts,
                markers={**(before.markers if before else {}), **dict.fromkeys(receipts, opened.txn_id)},
                opened_by=opened.run,
                completed_by=run,
                metrics=metrics,
                completed_at=self.task.now(),
                writer=self.task.writer,
                waived=tuple(sorted(waived_ids)),
                waived_ids=dict(sorted(waived_ids.items())),
            )
        )
        self.task.env.reached("complete.landed")
        log.info("epoch %s: complete (%s)", view.number, opened.txn_id)
        return self.task.ledger.view(view.number)

    def _receipts_that_hold(self, view: EpochView) -> dict[str, Receipt]:
        """The receipts, after every sink was asked once more. One that has lost its last commit since commits again.

        A failover to a replica that was late, or a file put back from a copy: the sink shows the epoch before, and the
        promise stands. A VACUUM that overlapped the commit: the sink shows the epoch without its rows. A waived sink
        that shows neither has no receipt any more.

        Raises:
            Corrupt: A sink shows neither this epoch nor the one before.
        """
        holding = {}
        for name, receipt in view.receipts.items():
            try:
                with self.task.unless_overtaken(view):
                    holding[name] = self._shown_again(view, name, receipt)
            except Corrupt:
                if not self.task.ledger.waiver(view.number, name):
                    raise
        return holding

    def _shown_again(self, view: EpochView, name: str, receipt: Receipt) -> Receipt:
        opened, sink = view.opened, self.task.sink_of(view.opened, name)
        lost = self._lost_since(receipt, sink, opened)
        if lost and not self.task.ledger.waiver(view.number, name):
            log.warning("epoch %s: sink %s has lost %s since its receipt: committing again", view.number, name, lost)
            return Promise(self.task, view, name).keep()
        agreement.require_marker(sink, opened.txn, self.task.pipeline.name, self.task.env, receipt, in_doubt=opened.txn)
        return receipt

    def _lost_since(self, receipt: Receipt, sink: Sink, opened: OpenRecord) -> str | None:
        """What the sink has lost, if it shows the epoch before, or the epoch without all its rows."""
        found = sink.last_committed(self.task.pipeline.name, self.task.env)
        if not agree(found, opened.txn):
            return "its commit" if agree(found, SinkAttempt.of(opened, sink.name).previous) else None
        return "rows" if isinstance(sink, Perishable) and sink.has_lost_rows(receipt, self.task.env) else None

    def _after_complete(self, view: EpochView) -> None:
        assert view.complete
        with tolerated("committing the consumer group's offsets"):
            self.task.pipeline.source.acknowledge(self.task.pipeline.name, self.newest_complete().ranges, self.task.env)
        pruned = view.number - self.task.pipeline.keep_epochs
        for epoch in (pruned, view.number - 1, view.number):  # of the first, the last time that its places are known
            self._sweep(epoch)
        for sink in self.task.pipeline.sinks:
            if isinstance(sink, Maintained):
                with tolerated(f"maintaining sink {sink.name}"):
                    sink.maintain(self.task.pipeline.name, view.number, self.task.env)
        with tolerated("pruning"):
            self.task.ledger.prune(pruned)

    def _sweep(self, epoch: int) -> None:
        with tolerated(f"sweeping epoch {epoch}"):
            sweep(self.task.ledger, epoch, self.task.pipeline.sinks, self.task.env)

    # -- abort ------------------------------------------------------------------------------------------------

    def abort(self, run: Run, reason: str) -> Refused:
        """Abort this run's undecided attempt and clear its places away.

        Returns:
            The error that says so, with the reason that stands in the ledger.

        Raises:
            NoNewData: Nothing to abort: nothing opened, decided GLOBAL_COMMIT, complete, or another run's.
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
            with self.task.unless_overtaken(view):
                agreement.sinks_without(view.open, self.task.pipeline.sinks, self.task.env)
            view = self._presume_abort(view, run, reason)
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
        """Clear an aborted attempt's places away. ``view`` was read after its GLOBAL_ABORT was written."""
        opened = view.opened
        with self.task.unless_overtaken(view):
            sinks = agreement.sinks_without(opened, self.task.pipeline.sinks, self.task.env)
        discard_attempt(self.task.ledger, opened, sinks, self.task.pipeline.sinks, self.task.env)

    # -- shared -----------------------------------------------------------------------------------------------

    def checkpoint(self, view: EpochView, stage: StageReport | None = None) -> Checkpoint:
        """The record that travels through XCom."""
        record = view.complete or view.opened
        return Checkpoint(
            pipeline=self.task.pipeline.name,
            epoch=view.number,
            attempt=record.txn.attempt,
            txn_id=record.txn_id,
            ranges=record.ranges,
            state=view.state.value,
            stage=stage,
            votes=view.decision.votes if view.decision else {},
            decision=_decision_of(view),
            reason=view.decision.reason if view.decision else None,
            receipts=view.complete.receipts if view.complete else view.receipts,
            metrics=view.complete.metrics if view.complete else _rows_out(view),
            warnings=view.open.warnings if view.open else (),
        )


def _undecided(view: EpochView) -> Refused:
    return Refused(
        f"The attempt has no GLOBAL_COMMIT: it is {view.state.value}.",
        code=codes.NOT_DECIDED,
        **attempt_fields(view.opened.txn),
    )


def _aborted(opened: OpenRecord, decision: DecisionRecord) -> Refused:
    what, remedy = reason_and_remedy(decision)
    return Refused(
        f"The attempt was aborted (GLOBAL_ABORT), and no sink shows its rows. {what}",
        code=codes.GLOBAL_ABORT,
        remedy=f"{remedy} {_AGAIN}" if remedy else None,
        **attempt_fields(opened.txn),
    )


_AGAIN = "Then clear the failed tasks of the run, or let the next run take the same offsets."


def _in_doubt(error: EpochError, view: EpochView, sinks: Iterable[str]) -> EpochError:
    """The error of a commit, which names first what is being waited for."""
    if not isinstance(error, Fenced):
        txn = view.opened.txn
        error.pipeline, error.epoch, error.attempt = txn.pipeline, txn.epoch, txn.attempt
        error.what = f"The epoch is in doubt: it waits for sink {', '.join(sinks)}. {error.what}"
    return error


def _rows_out(view: EpochView) -> JsonDict:
    """Rows per sink, as the votes counted them; nothing before there is a decision to commit."""
    votes = view.decision.votes if view.decision else {}
    rows = {sink: vote.staged.rows for sink, vote in votes.items() if vote.staged}
    return {"rows_out": rows} if rows else {}


def _decision_of(view: EpochView) -> DecisionKind | None:
    if view.complete:
        return DecisionKind.GLOBAL_COMMIT
    return view.decision.decision if view.decision else None
