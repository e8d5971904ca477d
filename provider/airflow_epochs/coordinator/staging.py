"""One try of staging: a fresh place per sink, on record before anything is written there, filled by one Spark job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import Confirming, Environment, Located, Planning, Sink, SinkAttempt, SparkJob
from airflow_epochs.coordinator.recorded_sinks import is_own_place, may_stop
from airflow_epochs.coordinator.task import TaskTry, attempt_fields
from airflow_epochs.errors import Refused, tolerated
from airflow_epochs.model import JsonDict, OpenRecord, Ranges, Staged, StagedClaim, StageReport, TryRecord
from airflow_epochs.spark.driver.plans import Claim, StageOutcome, StagePlan, TransformFile
from airflow_epochs.spark.driver.wire import as_json, from_json

log = secrecy.logger(__name__)


def stage_attempt(task: TaskTry, opened: OpenRecord) -> StageReport:
    """Fill fresh places of all sinks: one try for the epoch's input, and one for that of each backfill.

    Raises what ``stage_try`` raises.
    """
    tries = [_Try.of(task, opened, sinks) for sinks in _by_input(opened)]
    _require_own_tables(task, opened, tries)
    reports = [_staged(task, opened, each) for each in tries]
    return StageReport(
        txn_id=opened.txn_id,
        nonce=reports[0].nonce,
        claims={name: claim for report in reports for name, claim in report.claims.items()},
        metrics=reports[0].metrics,
        warnings=tuple(warning for report in reports for warning in report.warnings),
    )


def _by_input(opened: OpenRecord) -> list[list[str]]:
    """The sinks that read the epoch's own ranges, then those that read others, alike ones together."""
    found: dict[str, list[str]] = {}
    for sink in sorted(opened.sinks, key=lambda name: opened.sinks[name].ranges is not None):
        found.setdefault(repr(opened.ranges_of(sink)), []).append(sink)
    return list(found.values())


def stage_try(task: TaskTry, opened: OpenRecord, only: Sequence[str], *, promised: Staged | None = None) -> StageReport:
    """Fill fresh places of some sinks, all of which read the same ranges.

    Args:
        task: What does it.
        opened: The attempt.
        only: The sinks.
        promised: What was promised, where it is staged again. The DAG may have gained and lost other sinks since.

    Raises:
        NotApplied: Spark failed. What it wrote is on record and will be swept.
        Corrupt: Some of the input is gone, or was replaced while it was read.
    """
    return _staged(task, opened, _Try.of(task, opened, only), promised)


@dataclass(frozen=True)
class _Try:
    """What is staged in one go: some sinks that read the same ranges, each with its place."""

    nonce: str
    sinks: dict[str, tuple[Sink, SinkAttempt]]
    places: dict[str, str]

    @classmethod
    def of(cls, task: TaskTry, opened: OpenRecord, only: Sequence[str]) -> _Try:
        """Fresh places for these sinks. Writes nothing."""
        nonce = task.draw_nonce()
        sinks = {name: (task.sink_of(opened, name), SinkAttempt.of(opened, name)) for name in only}
        places = {name: sink.place(attempt, nonce, task.env) for name, (sink, attempt) in sinks.items()}
        for name, (sink, attempt) in sinks.items():
            _require_recognised(sink, attempt, places[name], task)
        return cls(nonce, sinks, places)


def _require_recognised(sink: Sink, attempt: SinkAttempt, place: str, task: TaskTry) -> None:
    """What is not recognised now would be taken for a forgery once it is promised."""
    if not is_own_place(sink, attempt, place, task.env):
        raise Refused(
            f"The sink does not recognise the staging place {place!r}, which its own method `place` returned: the "
            "place does not contain the id of the try unchanged.",
            code=codes.STAGING_PLACE_UNRECOGNISED,
            sink=sink.name,
            **attempt_fields(attempt.txn),
        )


def _staged(task: TaskTry, opened: OpenRecord, this: _Try, promised: Staged | None = None) -> StageReport:
    source, ranges = task.pipeline.source, opened.ranges_of(next(iter(this.sinks)))
    nonce, session = this.nonce, task.env.spark.new_session()
    # Hours may have passed since open; Spark itself would not notice a topic that was recreated meanwhile.
    source.check(ranges, opened.source_state, task.env)
    task.ledger.put_try(  # before anything is written there: what is on record is cleared away
        TryRecord(
            txn_id=opened.txn_id,
            nonce=nonce,
            places=this.places,
            session=session,
            started_at=task.now(),
        )
    )
    plans = {
        name: planned(sink, attempt, nonce, this.places[name], task.env) for name, (sink, attempt) in this.sinks.items()
    }
    task.env.reached("stage.start")
    report = from_json(StageOutcome, task.env.spark.run(_stage_job(task, opened, ranges, plans, promised), session))
    # Between the check and Spark's last read a topic may have been recreated, or a log truncated, and filled again.
    if isinstance(source, Confirming):
        source.confirm(ranges, opened.source_state, task.env)
    task.env.reached("stage.done")
    return StageReport(
        txn_id=opened.txn_id,
        nonce=nonce,
        claims={name: _claim(told) for name, told in report.sinks.items()},
        metrics=as_json(report.metrics) if report.metrics else {},
        warnings=tuple(map(secrecy.scrubbed, report.warnings)),
    )


def planned(sink: Sink, attempt: SinkAttempt, nonce: str, place: str, env: Environment) -> JsonDict:
    """What Spark needs to fill the place of this try."""
    if isinstance(sink, Planning):
        return sink.plan_stage_at(attempt, place, env)
    return sink.plan_stage(attempt, nonce, env)


def _claim(told: Claim) -> StagedClaim:
    return StagedClaim(
        place=told.place,
        problem=told.problem and secrecy.scrubbed(told.problem),
        content=as_json(told.content) if told.content else None,
    )


def _require_own_tables(task: TaskTry, opened: OpenRecord, tries: Sequence[_Try]) -> None:
    """Two names of one table, which only the disk, the catalog or the database knows for one, are two sinks on it."""
    if len(opened.sinks) == 1:
        return
    taken: dict[str, str] = {}
    for name, table in _tables(task, tries):
        if taken.setdefault(table, name) != name:
            raise Refused(
                f"The sinks {taken[table]!r} and {name!r} write to the same place: {table}.",
                code=codes.SINKS_COLLIDE,
                **attempt_fields(opened.txn),
            )


def _tables(task: TaskTry, tries: Sequence[_Try]) -> Iterator[tuple[str, str]]:
    """The sinks that can tell where they write, and what they tell."""
    for each in tries:
        for name, (sink, attempt) in each.sinks.items():
            if isinstance(sink, Located):
                yield name, sink.table_of(attempt, each.places[name], task.env)


def _stage_job(
    task: TaskTry, opened: OpenRecord, ranges: Ranges, plans: dict[str, JsonDict], promised: Staged | None
) -> SparkJob:
    read = task.pipeline.source.spark_read(ranges, task.env)
    transform = task.pipeline.transform
    plan = StagePlan(
        txn_id=opened.txn_id,
        pipeline=task.pipeline.name,
        epoch=opened.txn.epoch,
        attempt=opened.txn.attempt,
        now=opened.now,
        seed=opened.seed,
        read=read.options,
        transform=TransformFile(path=transform.path, function=transform.function),
        outputs=tuple(sorted([sink.name for sink in task.pipeline.sinks] if promised else opened.sinks)),
        again=promised is not None,
        files_of_0_1=promised is not None and promised.content is None,
        measure_input=task.pipeline.measure_input,
        sinks=plans,
    )
    return SparkJob(
        kind=plan.JOB,
        args=as_json(plan),
        secrets=read.secrets,
        secrets_of=read.secrets_of,
        files=(transform.path,),
        description=f"stage {opened.txn_id}",
    )


def stop_earlier_tries(task: TaskTry, epoch: int, only: str | None = None) -> None:
    """End what killed tries of the epoch may still be running on Spark; ``only`` those of one sink alone."""
    for earlier in task.ledger.tries(epoch):
        if only is not None and set(earlier.places) != {only}:
            continue
        with tolerated(f"stopping the earlier try {earlier.nonce}"):
            if may_stop(earlier, task.env.spark.new_session()):
                task.env.spark.stop(earlier.session)
            else:
                log.warning("%s", _not_stopped(earlier))


def _not_stopped(earlier: TryRecord) -> str:
    return (
        f"The earlier try {earlier.nonce} is not stopped: its record is not signed, and names connection "
        f"{earlier.session.get('conn_id')!r}, which the DAG does not use. If it was yours, its job runs to its end, "
        "and nobody looks at what it writes."
    )
