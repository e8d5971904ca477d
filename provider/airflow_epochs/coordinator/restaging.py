"""Keeps a sink's promise after GLOBAL_COMMIT: commits the staged rows, and stages them again if they are gone.

A VACUUM deletes staged files that are old enough, because no table refers to them yet. The promise stands, so the same
ranges are staged into a fresh place. That place replaces the lost one only if the sink's digest of its rows equals the
digest in the decision, and only after a record says so. The effects, in order:

    try record → Spark → the vote's checks, digests compared → <sink>.restaged.<n>.json → commit, same transaction id

The same happens if the commit was done and its rows have vanished since. The sink then replaces the lost rows, and its
marker stays.

A task that loses the put of that record deletes its own place and obeys the winner. A late task that has read the
ledger before may still commit the lost place, if its files come back. The sink commits only one of the two, because
both have the same transaction id. So clean-up follows what the sink has committed (``Receipt.place``), not the records.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Adapting, Environment, Sink, SinkAttempt, Stateful
from airflow_epochs.coordinator import agreement, code_changes, joint_sinks
from airflow_epochs.coordinator.backfills import late_backfills
from airflow_epochs.coordinator.code_changes import TransformCode
from airflow_epochs.coordinator.recorded_sinks import is_own_place, untrusted
from airflow_epochs.coordinator.staging import stage_try, stop_earlier_tries
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, RowsGone, RowsLost, cause_and_remedy, tolerated
from airflow_epochs.event_time import times_after
from airflow_epochs.ledger.keys import attempt_key, restaged_key
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import (
    CLOSED,
    STORED,
    EventTimes,
    OpenRecord,
    Receipt,
    RestagedRecord,
    Staged,
    StagedClaim,
    TransactionId,
    Vote,
    attempt_fields,
)

log = secrecy.logger(__name__)


def event_times(ledger: Ledger, view: EpochView) -> EventTimes:
    """The newest event times up to this epoch: of the epoch before, or the one that comes back, and of its own rows."""
    before = ledger.complete_record(view.opened.restored_to or view.number - 1)
    seen = view.decision.event_times if view.decision else {}
    return times_after(before, seen, view.opened.ranges, view.opened.now)


@dataclass(frozen=True)
class Promise:
    """The promise that the sink ``name`` gave with its VOTE_COMMIT, in an epoch in doubt."""

    task: TaskTry
    view: EpochView
    name: str

    def keep(self) -> Receipt:
        """Commit the sink, with its group, and return its receipt. Idempotent: a repeat returns the same receipt.

        Raises:
            NotApplied, OutcomeUnknown: Call again.
            Fenced: Another task has completed the epoch.
            Corrupt: The sink shows another transaction; or its rows are gone, and staging again did not bring the same
                rows. Nothing was changed.
        """
        group = [Promise(self.task, self.view, name) for name in self._group]
        for _ in group:  # each sink of the group may have to be staged again, once
            staged = {promise.name: promise.staged() for promise in group}
            try:
                return self._commit(group, staged)
            except RowsGone as gone:
                log.warning("epoch %s: sink %s must be staged again: %s", self.view.number, gone.sink, gone.what)
                lost = next((promise for promise in group if promise.name == gone.sink), self)
                with self.task.unless_overtaken(self.view):
                    lost._staged_again(staged[lost.name], gone)
        return self._commit(group, {promise.name: promise.staged() for promise in group})

    def staged(self) -> Staged:
        """The staged rows to commit: as the newest restaged record names them, else as the vote does.

        Raises:
            Corrupt: A record names other rows than the vote, or a place that this attempt cannot have made.
        """
        again = self._on_record()
        if again:
            return self._in_own_place(again[-1].staged, restaged_key(self.view.number, self.name, again[-1].number))
        return self._in_own_place(self._voted, attempt_key(self.view.number, self._opened.txn_id.attempt, "decision"))

    def _in_own_place(self, staged: Staged, key: str) -> Staged:
        """``staged``. Raises Corrupt, naming the record, unless this attempt can have made its place."""
        if not is_own_place(self._sink, self._attempt, staged.place, self._env):
            raise untrusted(self._opened, key, self.name, f"{staged.place!r} is not a staging place of this attempt")
        return staged

    def _on_record(self) -> list[RestagedRecord]:
        records = self.task.ledger.restaged(self.view.number, self.name)
        if any(r.txn_id != self._opened.txn_id or not r.staged.has_rows_of(self._voted) for r in records):
            raise Corrupt(
                "The record of the rows that were staged again contradicts the decision: it has another transaction or "
                "other rows. Somebody mixed files of two backups, or changed a file.",
                code=codes.LEDGER_CONTRADICTS,
                sink=self.name,
                **attempt_fields(self._opened.txn_id),
            )
        return records

    def _commit(self, group: list[Promise], staged: dict[str, Staged]) -> Receipt:
        for promise in group:
            promise._require_not_overtaken()
        try:
            return self._committed(group, staged, {})
        except Corrupt as error:
            late = {promise.name: txn for promise in group if (txn := promise._late_commit())}
            if not late:
                raise
            if doubled := next((p for p in group if p.name in late and p._is_doubled_by(late[p.name])), None):
                raise late_backfills.found(doubled.task, doubled._opened, doubled._sink, late[doubled.name]) from error
            return self._committed(group, staged, late)

    def _committed(self, group: list[Promise], staged: dict[str, Staged], late: dict[str, TransactionId]) -> Receipt:
        """``late``: what some of the sinks show in place of their previous transactions."""
        times = self._event_times()
        attempts = {p.name: replace(p._attempt, event_times=times) for p in group}
        attempts |= {name: replace(attempts[name], previous=txn) for name, txn in late.items()}
        those = [(p._sink, attempts[p.name], staged[p.name]) for p in group]
        with self.task.unless_overtaken(self.view):
            return joint_sinks.commit(those, self._env)[self.name]

    def _late_commit(self) -> TransactionId | None:
        """A waived transaction of the sink that landed after this epoch was opened, or its fence.

        None for a state table: this epoch's changes were computed without those.
        """
        before = self.task.ledger.complete_record(self.view.number - 1)
        return None if isinstance(self._sink, Stateful) else agreement.late_commit(self._sink, before, self._env)

    def _is_doubled_by(self, shown: TransactionId) -> bool:
        """Whether this epoch stages the rows of ``shown`` once more. A fence has no rows."""
        before = self.task.ledger.complete_record(self.view.number - 1)
        return self._is_backfill and before is not None and shown in before.may_show(self.name)

    def _require_not_overtaken(self) -> None:
        """Raise Corrupt if a waived commit of another name has brought rows of this backfill since it was opened."""
        if self._is_backfill:
            with self.task.unless_overtaken(self.view):
                late_backfills.require_not_overtaken(self.task, self._opened, self._sink)

    def _event_times(self) -> EventTimes:
        """The event times that a sink stores with its commit. Costs a call only in a pipeline with an event time."""
        if not self._opened.watermarks:
            return {}
        return event_times(self.task.ledger, self.view)

    # -- staging again ------------------------------------------------------------------------------------------

    def _staged_again(self, lost: Staged, gone: RowsGone) -> None:
        """Stage the rows of ``lost`` again and put the record that replaces it, unless another task did so first.

        Raises:
            Corrupt: The new rows are not the rows voted for, or other code made them, and the sink still lacks them.
        """
        before = self._on_record()
        standing = before[-1].staged if before else self._voted
        if standing != lost or self._is_shown(gone):
            return
        self._env.reached(f"restage.{self.name}")
        stop_earlier_tries(self.task, self.view.number, self.name)
        try_id, vote = self._restaged(gone)
        difference = _difference(self._voted, vote)
        doubtful = not difference and self._other_code(vote)
        if vote.staged and not difference and not doubtful and not self.task.ledger.complete_record(self.view.number):
            standing = self._put_on_record(vote.staged, len(before) + 1)
        if vote.staged != standing:
            self._clear_away(self._sink.place(self._attempt, try_id, self._env))
        if (difference or doubtful) and not self._is_shown(gone):
            raise self._asking(gone) if doubtful else self._not_those(gone, difference)

    def _restaged(self, gone: RowsGone) -> tuple[str, Vote]:
        try:
            report = stage_try(self.task, self._opened, [self.name], promised=self._voted)
        except Corrupt as error:
            raise self._broken(gone, f"The provider cannot stage these rows again: {error.what}") from error
        for warning in report.warnings:
            log.warning("warning while the rows of sink %s were staged again: %s", self.name, warning)
        # Sinks that commit together also vote together: rows of one may refer to rows of another.
        others = {name: Promise(self.task, self.view, name).staged() for name in self._group if name != self.name}
        claims = {name: StagedClaim(place=staged.place) for name, staged in others.items()}
        both = replace(report, claims={**claims, **report.claims})
        votes = joint_sinks.votes_of(self._opened, self._sinks(self._group), both, self._env, promised=True)
        return report.try_id, votes[self.name]

    def _put_on_record(self, staged: Staged, number: int) -> Staged:
        self._env.reached("restaged.put")
        standing = self.task.ledger.put(
            RestagedRecord(
                txn_id=self._opened.txn_id,
                sink=self.name,
                number=number,
                staged=staged,
                at=self.task.now(),
                writer=self.task.writer,
            )
        )
        self._env.reached("restaged.landed")
        log.info(
            "epoch %s: sink %s commits the rows staged again at %s", self.view.number, self.name, standing.staged.place
        )
        return standing.staged

    def _clear_away(self, place: str) -> None:
        """Delete a place that no decision or restaged record names: no task can have committed it."""
        with tolerated(f"deleting the staging place {place}"):
            self._sink.discard(self._attempt, place, self._env, published=False)

    def _is_shown(self, gone: RowsGone) -> bool:
        """Whether another task has committed this transaction meanwhile. False if rows were lost after the commit."""
        if isinstance(gone, RowsLost):
            return False
        before = self.task.ledger.complete_record(self.view.number - 1)
        receipt = before.receipts.get(self.name) if before else None
        return agreement.shows(self._sink, self._opened.txn_id, self._attempt.previous, self._env, receipt)

    def _broken(self, gone: RowsGone, why: str) -> Corrupt:
        txn = self._opened.txn_id
        first = f" first {gone.undo}; then" if isinstance(gone, RowsLost) else ""
        return Corrupt(
            f"{gone.what} {why} Nothing was changed.",
            code=codes.RESTAGED_OTHERWISE,
            remedy="Restore the files from a backup, or undo the change that the message names. If it names no "
            "change, a table or a file that the transform reads beside the batch has changed: put that back as it was. "
            f"Then clear the commit task. If neither is possible,{first} run `airflow epochs waive {txn.pipeline} "
            f"{txn.epoch} {self.name} --why …`: the epoch is then completed without this sink's rows.",
            sink=self.name,
            **attempt_fields(txn),
        )

    def _not_those(self, gone: RowsGone, difference: str | None) -> Corrupt:
        changed = " The transform's code has changed since its rows were staged." if self._code_changed else ""
        differ = "The rows that were staged again differ from the rows that the sink voted for"
        return self._broken(gone, f"{differ}: {difference}.{changed}{self._as_judged}")

    @property
    def _as_judged(self) -> str:
        """What else must be as at the vote where rows become dead letters: no record keeps what was expected then."""
        assert self.view.decision
        letters = self.view.decision.metrics.get("dead_letter_sink")
        if not (self.task.pipeline.dead_letters or letters):
            return ""
        version = " So must be the version of the provider, which makes the column `row` of dead letters."
        return (
            " The rows can be equal only if `dead_letters`, and what is expected with "
            f'`otherwise="quarantine"`, are what they were at the vote.{version if letters == self.name else ""}'
        )

    def _asking(self, gone: RowsGone) -> Corrupt:
        then, now = self._code_then, self._code_now
        back = (
            f"Let `transform` of the DAG name the function {then.function} again"
            if then.digest == now.digest
            else "Put the transform's file, and the files that it imports, back to their state when the epoch's rows "
            "were staged"
        )
        return Corrupt(
            f"{gone.what} The provider staged the rows again, and their digest is the one of the vote. But the "
            f"transform's code has changed since its rows were staged ({code_changes.told(then, now)}), so the rows "
            "may differ. Nothing was changed.",
            code=codes.RESTAGED_BY_OTHER_CODE,
            remedy=f"{back}. Then clear the commit task: it stages the same offsets again with that code. Bring the "
            "new code back when the epoch is complete.",
            sink=self.name,
            **attempt_fields(self._opened.txn_id),
        )

    def _other_code(self, vote: Vote) -> bool:
        """Whether other code made these rows than the rows voted for, without a known reason for the change.

        If the DAG gained or lost a sink, the transform had to change. Then an equal digest of all values is enough.
        """
        if not self._code_changed:
            return False
        same_sinks = {sink.name for sink in self.task.pipeline.sinks} == set(self._opened.sinks)
        return same_sinks or None in (self._voted.content, vote.staged and vote.staged.content)

    @property
    def _code_changed(self) -> bool:
        return code_changes.differ(self._code_then, self._code_now)

    @cached_property
    def _code_then(self) -> TransformCode:
        """The code that made the rows of the vote."""
        assert self.view.decision
        place, decided = self._voted.place, self.view.decision.code
        return code_changes.of_rows(self.task.ledger, self._opened, self.name, place, decided)

    @property
    def _code_now(self) -> TransformCode:
        return code_changes.of_try(self.task, self._opened)

    # -- the sink and its attempt -------------------------------------------------------------------------------

    @cached_property
    def _group(self) -> list[str]:
        """The sinks that commit together with this one, itself included, in the DAG's order; no other that is waived.

        A receipt is no reason to leave a sink out: a failover may have lost its commit since. One that still shows the
        epoch is found so, and does nothing.
        """
        together = joint_sinks.group_of(self.name, self._sinks(self._opened.sinks.keys() - self.view.waived.keys()))
        return [name for name in together if name == self.name or not self._is_waived(name)]

    def _is_waived(self, name: str) -> bool:
        return self.task.ledger.waiver(self.view.number, name) is not None

    def _sinks(self, names: Collection[str]) -> dict[str, Sink]:
        return self.task.sinks_of(self._opened, names)

    @property
    def _is_backfill(self) -> bool:
        """Whether this epoch's rows may contain rows of earlier epochs, which a backfill takes along."""
        return self._opened.sinks[self.name].ranges is not None

    @property
    def _opened(self) -> OpenRecord:
        return self.view.opened

    @property
    def _voted(self) -> Staged:
        assert self.view.decision
        voted = self.view.decision.votes[self.name].staged
        assert voted, "VOTE_COMMIT always has staged"
        return voted

    @property
    def _sink(self) -> Sink:
        """The sink as the ledger describes it, with today's options that do not affect rows (``Adapting``)."""
        sink = self.task.sink_of(self._opened, self.name)
        today = next((each for each in self.task.pipeline.sinks if each.name == self.name), None)
        return sink.with_todays(today) if isinstance(sink, Adapting) and type(today) is type(sink) else sink

    @property
    def _attempt(self) -> SinkAttempt:
        return SinkAttempt.of(self._opened, self.name)

    @property
    def _env(self) -> Environment:
        return self.task.env


def _difference(promised: Staged, vote: Vote) -> str | None:
    """How the rows that were staged again differ from the rows of the vote; None if they do not."""
    if vote.staged is None:
        return cause_and_remedy(vote.reason or "")[0].rstrip(".")
    if lacking := sorted({*promised.detail.get(STORED, ())} - {*vote.staged.detail.get(STORED, ())}):
        return f"the table lacks {', '.join(lacking)}"
    if CLOSED in promised.detail and vote.staged.detail.get(CLOSED) != promised.detail[CLOSED]:
        return "its operator stands at another place, and so it has closed another part of the state"
    if vote.staged.has_rows_of(promised):
        return None
    if vote.staged.rows != promised.rows:
        return f"{vote.staged.rows} rows instead of {promised.rows}"
    if None not in (vote.staged.content, promised.content):
        return "the number of rows is the same, but values, columns or the table differ"
    if vote.staged.files != promised.files:
        return f"the number of rows is the same, but they are in {vote.staged.files} files instead of {promised.files}"
    return "the numbers of rows and files are the same, but sizes, statistics, columns or the table differ"
