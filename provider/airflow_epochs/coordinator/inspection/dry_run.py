"""A dry run: plays a complete epoch again with today's code, and shows how its rows differ from what it published.

Nothing is decided and nothing is committed. The epoch's facts come from its open record, as in a backfill: ranges,
state, watermarks, ``now`` and ``seed``. Code, sinks, expectations and ``dead_letters`` are today's. The rows are staged
as ``coordinator.inspection.unpublished`` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from airflow_epochs import codes, protocol, secrecy
from airflow_epochs.contracts import Row, Sink, SinkAttempt, Stateful, Telling
from airflow_epochs.coordinator import schemas, state_tables, users_vote
from airflow_epochs.coordinator.backfills.backfill import completed_by, require_input_of
from airflow_epochs.coordinator.inspection.row_difference import Difference, Tally, difference
from airflow_epochs.coordinator.inspection.unpublished import clear_away, staged
from airflow_epochs.coordinator.sink_specs import readable_spec
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Corrupt, NotApplied, Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import (
    CompleteRecord,
    DecisionKind,
    JsonDict,
    OpenRecord,
    Receipt,
    SinkPlan,
    Staged,
    StagedClaim,
    StageReport,
    Vote,
    VoteKind,
    reasons_against,
)
from airflow_epochs.names import DRY_RUN
from airflow_epochs.protocol import State
from airflow_epochs.sinks.participant import vote_against, vote_against_rows
from airflow_epochs.transforms.changes import DELETED


@dataclass(frozen=True, kw_only=True)
class SinkResult:
    """One sink in a dry run.

    Attributes:
        rows_then: How many rows the epoch published; None if it published no rows here.
        rows_now: How many rows were staged; None if no rows were.
        difference: The rows of only one side; None if the rows cannot be compared: ``note`` says why.
        deleted_then, deleted_now: How many changes of a state table are deletions. None for other sinks, or if the rows
            were not compared.
        broken: Condition of an expectation -> how many rows break it.
        dead_letters: How many rows became dead letters.
        vote: What the sink would vote on these rows; None if it is no sink of the pipeline any more.
        note: What the figures do not say.
    """

    sink: str
    rows_then: int | None = None
    rows_now: int | None = None
    difference: Difference | None = None
    deleted_then: int | None = None
    deleted_now: int | None = None
    broken: Mapping[str, int] = field(default_factory=dict)
    dead_letters: int = 0
    vote: Vote | None = None
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What came of a dry run. ``code_then``, ``code_now``: digests of the transform, as in ``OpenRecord``."""

    pipeline: str
    epoch: int
    code_then: str | None
    code_now: str | None
    decision: DecisionKind
    reasons: tuple[str, ...]
    sinks: tuple[SinkResult, ...]
    metrics: JsonDict
    warnings: tuple[str, ...]


def dry_run(task: TaskTry, epoch: int, sample: int) -> DryRun:
    """Stage the input of a complete epoch with the pipeline of ``task``, and compare. Publishes nothing.

    ``sample``: how many rows of each side to show, at most, for each sink.

    Raises:
        Refused: The epoch is not complete, or read no input. Nothing was staged.
        Corrupt: Some of what the epoch read is gone. Nothing was staged.
        NotApplied: Spark failed.
    """
    clear_away(task)
    complete = _complete(task.ledger, task.pipeline.name, epoch)
    recorded = _recorded(task, epoch)
    played = _played(task, recorded)
    _require_input(task, played)
    with staged(task, played) as report:
        return _Comparison(task, recorded, complete, played, report, sample).result()


# -- the epoch that is played ----------------------------------------------------------------------------------------


def _complete(ledger: Ledger, pipeline: str, epoch: int) -> CompleteRecord:
    if found := ledger.complete_record(epoch) if epoch >= 1 else None:
        return found
    if epoch != ledger.newest_complete() + 1 or ledger.view(epoch).open is None:
        raise Refused(
            f"The pipeline has no epoch {epoch}.",
            code=codes.EPOCH_UNKNOWN,
            remedy=f"Choose an epoch that `airflow epochs list {pipeline}` prints.",
        )
    state = ledger.view(epoch).state
    waits = " It has published some of its rows, or will." if state is State.IN_DOUBT else ""
    raise Refused(
        f"The epoch is {state.value}.{waits} There is nothing to compare with before it is complete.",
        code=codes.DRY_RUN_UNFINISHED,
        remedy="Choose a complete epoch that `airflow epochs list PIPELINE` prints. Or type `airflow epochs retry "
        "PIPELINE --why …`, or start a run: the epoch is then completed.",
        pipeline=pipeline,
        epoch=epoch,
    )


def _recorded(task: TaskTry, epoch: int) -> OpenRecord:
    """The attempt that completed the epoch."""
    try:
        found = completed_by(task, epoch)
    except Corrupt as gone:
        raise _gone(task, epoch, gone) from gone
    if found.restored_to:
        raise _unsuitable(task, epoch, "It read no input: it only brought earlier versions of tables back")
    return found


def _played(task: TaskTry, recorded: OpenRecord) -> OpenRecord:
    """An attempt with the epoch's facts and today's sinks, which belongs to no ledger.

    State is staged as changes, also if the epoch staged all of it: only changes say what the code did.
    """
    states = [sink.name for sink in task.pipeline.sinks if isinstance(sink, Stateful)]
    if missing := [name for name in states if name not in recorded.state]:
        raise _unsuitable(task, recorded.txn_id.epoch, f"It read no state {missing[0]!r}, which the pipeline has today")
    return replace(
        recorded,
        txn_id=recorded.txn_id.with_nonce(task.draw_id()),
        ledger_id=f"{DRY_RUN}{task.draw_id()}",
        source=task.pipeline.source.spec(),
        transform=str(task.pipeline.transform),
        code=task.pipeline.transform.digest,
        sinks={sink.name: _plan(task, sink, recorded.sinks.get(sink.name)) for sink in task.pipeline.sinks},
        state={name: replace(recorded.state[name], fold=False) for name in states},
        warnings=(),
        schemas=recorded.schemas or schemas.asked(task, on_record=False),
    )


def _plan(task: TaskTry, sink: Sink, then: SinkPlan | None) -> SinkPlan:
    """The plan for a sink. One that was backfilled in that epoch gets the same wide input again."""
    spec = readable_spec(sink, task.pipeline)
    return replace(then, spec=spec) if then else SinkPlan(spec=spec, previous=None)


def _require_input(task: TaskTry, played: OpenRecord) -> None:
    try:
        for sink in played.sinks:
            require_input_of(task, played, sink)
        state_tables.reads(task, played)
    except Corrupt as gone:
        raise _gone(task, played.txn_id.epoch, gone) from gone


def _gone(task: TaskTry, epoch: int, gone: Corrupt) -> Corrupt:
    return Corrupt(
        f"Epoch {epoch} cannot be played again. {gone.what}",
        code=codes.DRY_RUN_GONE,
        pipeline=task.pipeline.name,
        epoch=epoch,
    )


def _unsuitable(task: TaskTry, epoch: int, why: str) -> Refused:
    return Refused(
        f"Epoch {epoch} cannot be played again. {why}.",
        code=codes.DRY_RUN_UNSUITABLE,
        pipeline=task.pipeline.name,
        epoch=epoch,
    )


# -- the comparison --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Comparison:
    """Compares the rows that the epoch published (``recorded``) with the rows that the dry run staged (``played``)."""

    task: TaskTry
    recorded: OpenRecord
    complete: CompleteRecord
    played: OpenRecord
    report: StageReport
    sample: int

    def result(self) -> DryRun:
        found = [self._of(name) for name in sorted({*self.played.sinks, *self.complete.receipts})]
        votes = {each.sink: each.vote for each in found if each.vote}
        votes |= users_vote.against(self.task, self.played, votes, self.report)
        kinds = {name: vote.vote for name, vote in votes.items()}
        return DryRun(
            pipeline=self.task.pipeline.name,
            epoch=self.played.txn_id.epoch,
            code_then=self.complete.code or self.recorded.code,
            code_now=self.played.code,
            decision=protocol.decide(frozenset(votes), kinds),
            reasons=tuple(f"{name}: {secrecy.scrubbed(reason)}" for name, reason in reasons_against(votes).items()),
            sinks=tuple(found),
            metrics=self.report.metrics,
            warnings=self.report.warnings,
        )

    def _of(self, name: str) -> SinkResult:
        receipt, claim = self.complete.receipts.get(name), self.report.claims.get(name)
        known = SinkResult(
            sink=name,
            rows_then=receipt.rows if receipt else None,
            rows_now=_rows_in(claim),
            broken=self.report.metrics.get("broken", {}).get(name, {}),
            dead_letters=self.report.metrics.get("dead_letters", {}).get(name, 0),
        )
        if claim is None:
            return replace(known, note="It is no sink of the pipeline any more.")
        if against := vote_against_rows(claim):
            return replace(known, vote=against, note=self._without_rows(known))
        return self._compared(known, receipt, claim)

    def _compared(self, known: SinkResult, receipt: Receipt | None, claim: StagedClaim) -> SinkResult:
        then, now = Tally(), Tally()
        marks = [DELETED] if known.sink in self.played.state else []
        try:
            rows_now = now.counted(self._rows_now(known.sink, claim), marks)
            rows_then = then.counted(self._rows_then(known.sink, receipt), marks)
            found = difference(rows_then, rows_now, self.sample)
            _require_all(known.rows_then, then, "its receipt says")
            _require_all(known.rows_now, now, "Spark has staged")
        except _Untold as untold:
            return self._for(replace(known, note=str(untold), rows_now=_first(now.rows or None, known.rows_now)), claim)
        except (Refused, Corrupt) as no:
            return replace(known, vote=vote_against(no))
        known = replace(known, rows_now=now.rows, difference=found, note=self._absence(receipt, known.sink))
        if marks:
            known = replace(known, deleted_then=then.marked[DELETED], deleted_now=now.marked[DELETED])
        return self._for(known, claim)

    def _for(self, known: SinkResult, claim: StagedClaim) -> SinkResult:
        """The sink's result with its vote for these rows."""
        staged = Staged(place=claim.place, version=0, files=0, rows=known.rows_now or 0, bytes=0, digest="")
        return replace(known, vote=Vote(vote=VoteKind.VOTE_COMMIT, staged=staged))

    def _rows_now(self, name: str, claim: StagedClaim) -> Iterator[Row]:
        sink = self.task.sink_of(self.played, name)
        if not isinstance(sink, Telling):
            return
        try:
            yield from sink.rows_staged(SinkAttempt.of(self.played, name), claim.place, self.task.env)
        except Refused as no:
            if no.code is codes.DRY_RUN_UNTOLD:
                raise _Untold(f"{no.what} They were only counted.") from no
            raise

    def _rows_then(self, name: str, receipt: Receipt | None) -> Iterator[Row]:
        if receipt is None:
            return
        sink = self.task.sink_of(self.recorded, name)
        if not isinstance(sink, Telling):
            raise _Untold("This kind of sink cannot list the rows of one epoch. They were only counted.")
        pin = self.recorded.state.get(name)
        if pin and pin.fold:
            raise _Untold(
                "The epoch staged the whole state (a fold), and the dry run only its changes. They cannot be compared."
            )
        try:
            yield from sink.rows_of(receipt, self.task.pipeline.name, self.task.env)
        except NotApplied as error:
            raise _Untold(f"{error.what} They were only counted.") from error

    def _absence(self, receipt: Receipt | None, name: str) -> str:
        if receipt is not None:
            return ""
        waived = name in self.complete.waived
        return "The epoch was completed without this sink." if waived else "The epoch had no such sink."

    def _without_rows(self, known: SinkResult) -> str:
        return "" if known.rows_now is not None else "No rows were staged, so there is nothing to compare."


class _Untold(Exception):
    """The rows of the two sides cannot be compared. This error never leaves the module."""


def _require_all(expected: int | None, found: Tally, who_says: str) -> None:
    if expected is not None and found.rows != expected:
        raise _Untold(
            f"There are {found.rows} rows, but {who_says} {expected}: somebody deleted rows since. They were only "
            "counted."
        )


def _rows_in(claim: StagedClaim | None) -> int | None:
    return int(claim.content["rows"]) if claim and claim.content else None


def _first(*numbers: int | None) -> int | None:
    return next((each for each in numbers if each is not None), None)
