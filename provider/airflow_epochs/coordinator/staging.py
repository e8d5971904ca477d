"""Stages an attempt: each try takes a fresh place per sink, puts them on record, then lets one Spark job fill them.

The places are fresh because the Spark job of a killed try may still be writing to its own. They are on record first, so
that clean-up finds whatever was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import (
    Confirming,
    Fitting,
    InFolder,
    LeavingOut,
    Located,
    Placing,
    Rejoining,
    Replacing,
    Sink,
    SinkAttempt,
    SparkJob,
    SparkRead,
    Stateful,
    Surrounded,
)
from airflow_epochs.coordinator import apart, code_changes, dead_letters, schemas, sink_calls, state_tables
from airflow_epochs.coordinator.backfills.backfill import replayed, require_input_of
from airflow_epochs.coordinator.recorded_sinks import is_own_place, may_stop
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused, located, tolerated
from airflow_epochs.expectations import QUARANTINE, ExpectedRowCount, ExpectedRows
from airflow_epochs.model import (
    RAN_AS,
    JsonDict,
    OpenRecord,
    Ranges,
    Staged,
    StagedClaim,
    StageReport,
    TransactionId,
    TryRecord,
    attempt_fields,
    records_upper_bound,
)
from airflow_epochs.spark import reports
from airflow_epochs.spark.driver.plans import (
    EventTimePlan,
    Fit,
    LettersPlan,
    Rules,
    SinkOutcome,
    StageOutcome,
    StagePlan,
    StateRead,
    TableRead,
    TransformFile,
)
from airflow_epochs.spark.driver.transform import to_return
from airflow_epochs.spark.driver.wire import as_json, from_json
from airflow_epochs.staged.digest import needs_statistics, needs_variants_by_json

log = secrecy.logger(__name__)

_ATTEMPTS_STOPPED = 2
"""How many of the newest attempts: tasks stop jobs of their own attempt, and of the last one that staged before it."""

PutTry = Callable[[TryRecord], object]


def stage_attempt(task: TaskTry, opened: OpenRecord, put_try: PutTry | None = None) -> StageReport:
    """Stage all sinks of an attempt: one try for the epoch's input, and one for each other input (backfills).

    ``put_try`` puts each try on record; by default the ledger does, as a try of its epoch.

    Raises:
        Refused: As ``apart.require_apart``; or the code has changed, and must be acknowledged. Nothing was staged.
        NotApplied, Corrupt: As ``stage_try``.
    """
    changed = code_changes.warning_of(task, opened)
    tries = [_Try.of(task, opened, sinks) for sinks in _by_input(opened)]
    tables, folders = dict(_tables(task, opened, tries)), dict(_folders(tries))
    apart.require_apart(task, opened, tables, folders, _tables_around(task, tries))
    reports = [_staged(task, opened, each, put_try=put_try) for each in tries]
    _release(task, opened)
    return StageReport(
        txn_id=opened.txn_id,
        try_id=reports[0].try_id,
        claims={name: claim for report in reports for name, claim in report.claims.items()},
        metrics=reports[0].metrics,
        warnings=(*changed, *(warning for report in reports for warning in report.warnings)),
        event_times=reports[0].event_times,
        code=code_changes.of_try(task, opened).digest,
    )


def _by_input(opened: OpenRecord) -> list[list[str]]:
    """The names of the sinks: first those that read the epoch's ranges, then one list for each other input."""
    found: dict[str, list[str]] = {}
    for sink in sorted(opened.sinks, key=lambda name: opened.sinks[name].ranges is not None):
        plan = opened.sinks[sink]
        found.setdefault(repr((opened.ranges_of(sink), plan.replayed_from)), []).append(sink)
    return list(found.values())


def stage_try(task: TaskTry, opened: OpenRecord, only: Sequence[str], *, promised: Staged | None = None) -> StageReport:
    """Stage some sinks of an attempt that all read the same ranges, in fresh places.

    Args:
        task: The try of the Airflow task that stages.
        opened: The attempt.
        only: The names of the sinks.
        promised: The rows that the sink voted for, if they are staged again after GLOBAL_COMMIT; else None. The DAG may
            have gained and lost other sinks since.

    Raises:
        NotApplied: Spark failed, or its report cannot be read. Its places are on record and will be swept.
        Corrupt: Some of the input is gone, or was replaced while Spark read it.
    """
    return _staged(task, opened, _Try.of(task, opened, only), promised)


@dataclass(frozen=True)
class _Try:
    """One try: sinks that read the same ranges, each with its fresh place. ``try_id`` is the random id of the try."""

    try_id: str
    sinks: dict[str, tuple[Sink, SinkAttempt]]
    places: dict[str, str]

    @classmethod
    def of(cls, task: TaskTry, opened: OpenRecord, only: Sequence[str]) -> _Try:
        """A try with fresh places for these sinks. Writes nothing."""
        try_id = task.draw_id()
        sinks = {name: (task.sink_of(opened, name), SinkAttempt.of(opened, name)) for name in only}
        places = {name: sink_calls.place_of(sink, attempt, try_id, task.env) for name, (sink, attempt) in sinks.items()}
        for name, (sink, attempt) in sinks.items():
            _require_recognised(sink, attempt, places[name], task)
        return cls(try_id, sinks, places)


def _require_recognised(sink: Sink, attempt: SinkAttempt, place: str, task: TaskTry) -> None:
    """Raise Refused unless the sink recognises its own place: commit would take it for a forgery, after the vote."""
    if not is_own_place(sink, attempt, place, task.env):
        raise Refused(
            f"The sink does not recognise the staging place {place!r}, which its own method `place` returned: the "
            "place does not contain the id of the try unchanged.",
            code=codes.STAGING_PLACE_UNRECOGNISED,
            sink=sink.name,
            **attempt_fields(attempt.txn),
        )


def _staged(
    task: TaskTry, opened: OpenRecord, this: _Try, promised: Staged | None = None, put_try: PutTry | None = None
) -> StageReport:
    source, name = task.pipeline.source, next(iter(this.sinks))
    # Hours may have passed since ``open``, and Spark does not notice a topic that was recreated meanwhile.
    if not opened.restored_to:
        require_input_of(task, opened, name)
    may_rejoin = promised is None and put_try is None
    with _naming_todays_sinks(task, opened, promised):
        this, told = (may_rejoin and _rejoined(task, opened, this)) or _begun(task, opened, this, promised, put_try)
    restored = {name: StagedClaim(place=this.places[name]) for name in this.sinks.keys() & opened.restores.keys()}
    report = reports.understood(StageOutcome, told, StagePlan.JOB, opened.txn_id) if told else StageOutcome(sinks={})
    # Between the check and Spark's last read a topic may have been recreated, or a log truncated, and filled again.
    if isinstance(source, Confirming) and not opened.restored_to:
        source.confirm(opened.ranges_of(name), opened.source_state, task.env)
    task.env.reached("stage.done")
    return StageReport(
        txn_id=opened.txn_id,
        try_id=this.try_id,
        claims={**restored, **{name: _claim(told) for name, told in report.sinks.items()}},
        metrics={
            **_metrics(report, dead_letters.sink_in(task, opened) if report.metrics.rows_in is not None else None),
            **_ran_as(task.env.spark),
        },
        warnings=tuple(map(secrecy.scrubbed, report.warnings)),
        event_times=report.event_times,
    )


@contextmanager
def _naming_todays_sinks(task: TaskTry, opened: OpenRecord, promised: Staged | None) -> Iterator[None]:
    """Let the error of a transform that does not fit the attempt say what fits the next one, which has today's sinks.

    The DAG and its transform may have changed together since ``open``. Promised rows stay with their attempt.
    """
    try:
        yield
    except Refused as error:
        today = {sink.name for sink in task.pipeline.sinks}
        if error.code is codes.TRANSFORM_RESULT and promised is None and today != opened.sinks.keys():
            had = ", ".join(map(repr, sorted(opened.sinks)))
            error.what += f" The attempt was opened with the sinks {had}. The DAG has other sinks now."
            error.remedy = (
                f"{to_return(today - {task.pipeline.dead_letters})} The DAG has these sinks now, and the next attempt "
                "will have them. If the transform does so already, do not change it. Then type `airflow epochs retry "
                f"{task.pipeline.name} --why …`, or let the next run take the same offsets."
            )
        raise


def _begun(
    task: TaskTry, opened: OpenRecord, this: _Try, promised: Staged | None, put_try: PutTry | None
) -> tuple[_Try, JsonDict]:
    """The try, on record, and the report of its Spark job; the report is empty if no sink needs one."""
    session, code = task.env.spark.new_session(), code_changes.of_try(task, opened)
    (put_try or task.ledger.put)(  # first: clean-up deletes only places that are on record
        TryRecord(
            txn_id=opened.txn_id,
            try_id=this.try_id,
            places=this.places,
            session=session,
            started_at=task.now(),
            code=code.digest,
            function=code.function,
        )
    )
    plans = {
        name: sink_calls.plan_of(sink, attempt, this.try_id, this.places[name], task.env)
        for name, (sink, attempt) in this.sinks.items()
    }
    task.env.reached("stage.start")
    filled = {name: plan for name, plan in plans.items() if name not in opened.restores}
    if not filled:
        return this, {}
    return this, task.env.spark.run(_stage_job(task, opened, this, filled, promised), session)


def _rejoined(task: TaskTry, opened: OpenRecord, this: _Try) -> tuple[_Try, JsonDict] | None:
    """An earlier try of the same sinks whose Spark job has outlived its task, and its report; None: no such try.

    Its rows were staged by the same code from the same input, in places that are on record.
    """
    if not (spark := outliving(task)):
        return None
    for earlier in _rejoinable(task, opened, this):
        if told := spark.rejoin(earlier.session):
            log.info("epoch %s: going on with the earlier try %s", opened.txn_id.epoch, earlier.try_id)
            return replace(this, try_id=earlier.try_id, places=dict(earlier.places)), told
        with tolerated(f"stopping the earlier try {earlier.try_id}"):
            task.env.spark.stop(earlier.session)
    return None


def _rejoinable(task: TaskTry, opened: OpenRecord, this: _Try) -> list[TryRecord]:
    """The tries of the attempt that staged these sinks with today's code."""
    return [
        each
        for each in _tries(task, opened)
        if set(each.places) == set(this.sinks) and code_changes.is_of_today(task, opened, each)
    ]


def _tries(task: TaskTry, opened: OpenRecord) -> list[TryRecord]:
    """The tries of the attempt whose records may name a session."""
    today = task.env.spark.new_session()
    return [each for each in task.ledger.tries_of(opened) if may_stop(each, today)]


def _release(task: TaskTry, opened: OpenRecord) -> None:
    """Forget the reports of all tries of an attempt that is staged."""
    if spark := outliving(task):
        for earlier in _tries(task, opened):
            spark.release(earlier.session)


def outliving(task: TaskTry) -> Rejoining | None:
    """Spark, if its stage jobs outlive their task."""
    spark: object = task.env.spark
    return spark if isinstance(spark, Rejoining) and spark.outlives() else None


def _metrics(report: StageOutcome, letters: str | None) -> JsonDict:
    """The metrics. ``letters``: the sink of the dead letters; None: no sink, or the records read were not counted."""
    known = {name: value for name, value in as_json(report.metrics).items() if value is not None}
    found = {"broken": report.broken, "dead_letters": report.letters, "dead_letter_sink": letters}
    return known | {name: value for name, value in found.items() if value}


def _ran_as(spark: object) -> JsonDict:
    return {RAN_AS: app} if isinstance(spark, Placing) and (app := spark.ran_as()) else {}


def _claim(told: SinkOutcome) -> StagedClaim:
    return StagedClaim(
        place=told.place,
        problem=told.problem and secrecy.scrubbed(told.problem),
        unmet=told.unmet and secrecy.scrubbed(told.unmet),
        content=as_json(told.content) if told.content else None,
    )


def _folders(tries: Sequence[_Try]) -> Iterator[tuple[str, str]]:
    """Sink name and folder, of each sink whose table is one."""
    for each in tries:
        for name, (sink, _) in each.sinks.items():
            if isinstance(sink, InFolder):
                yield name, sink.folder_of(each.places[name])


def _tables_around(task: TaskTry, tries: Sequence[_Try]) -> Iterator[tuple[str, str, str]]:
    """For each sink without an epoch: its name, a table whose folder contains its table, and its folder in there."""
    for each in tries:
        for name, (sink, attempt) in each.sinks.items():
            if attempt.previous is None and isinstance(sink, Surrounded):
                for outer, inner in sink.tables_around(each.places[name], task.env):
                    yield name, outer, inner


def _tables(task: TaskTry, opened: OpenRecord, tries: Sequence[_Try]) -> Iterator[tuple[str, str]]:
    """Sink name and table, of each sink that can tell its table. One sink alone is not asked: a database may answer."""
    for each in tries if len(opened.sinks) > 1 else ():
        for name, (sink, attempt) in each.sinks.items():
            if isinstance(sink, Located):
                yield name, sink.table_of(attempt, each.places[name], task.env)


def _stage_job(
    task: TaskTry, opened: OpenRecord, this: _Try, plans: dict[str, JsonDict], promised: Staged | None
) -> SparkJob:
    name = next(iter(plans))
    first = opened.sinks[name].replayed_from
    read = task.pipeline.source.spark_read(opened.ranges_of(name) if first is None else opened.ranges, task.env)
    again, backfills = promised is not None, opened.sinks[name].ranges is not None
    outputs = tuple(sorted([sink.name for sink in task.pipeline.sinks] if again else opened.sinks))
    own = _stage_plan(task, opened, read, outputs, state_tables.reads(task, opened))
    letters = _letters(task, opened, outputs, backfills=backfills)
    plan = replace(
        own,
        again=again,
        files_of_0_1=promised is not None and promised.content is None,
        statistics=promised is not None and needs_statistics(promised),
        variants_by_json=promised is not None and needs_variants_by_json(promised),
        measure_input=task.pipeline.measure_input or task.pipeline.dead_letters is not None,
        sinks=plans,
        earlier=() if first is None else tuple(_earlier_plans(task, opened, first, outputs)),
        replaces_by=_replaces_by(this),
        expectations={} if again or opened.restored_to else _expectations(task, this, letters),
        nothing=bool(opened.restored_to),
        letters=letters,
    )
    return SparkJob(
        kind=plan.JOB,
        args=as_json(plan),
        secrets=read.secrets,
        secrets_of=read.secrets_of,
        files=(task.pipeline.transform.path,),
        description=f"stage {opened.txn_id}",
    )


def _letters(task: TaskTry, opened: OpenRecord, outputs: Sequence[str], *, backfills: bool) -> LettersPlan | None:
    """Where dead letters go. A backfill's job makes none: the sink of the dead letters is in another job."""
    name = task.pipeline.dead_letters
    if name is None or name not in outputs or name not in opened.sinks:
        return None
    has_none = backfills or dead_letters.sink_in(task, opened) is None
    fits = {} if has_none else {sink: _fit(task, sink, each) for sink, each in _judged_sinks(task, opened, name)}
    return LettersPlan(sink=name, as_records=_fit(task, name, task.sink_of(opened, name)).is_topic, fits=fits)


def _judged_sinks(task: TaskTry, opened: OpenRecord, letters: str) -> Iterator[tuple[str, Sink]]:
    """The sinks whose rows may become dead letters. A row that is left out of a state would be missed later."""
    for name, plan in opened.sinks.items():
        sink = task.sink_of(opened, name)
        if name != letters and plan.ranges is None and not isinstance(sink, Stateful):
            yield name, sink


def _fit(task: TaskTry, name: str, sink: Sink) -> Fit:
    """What the sink's destination takes, and the expectations that a row must meet."""
    told = {}
    if isinstance(sink, Fitting):
        with located(task.pipeline.name, sink=name):
            told = sink.fit(task.pipeline.name, task.env)
    fit = from_json(Fit, told) if told else Fit(utf8=False)
    expected = task.pipeline.expectations.get(name, ())
    rules = (each for each in expected if isinstance(each, ExpectedRows) and each.otherwise == QUARANTINE)
    return replace(fit, expected=tuple(replace(rule, show=()) for rule in rules))


def _earlier_plans(task: TaskTry, opened: OpenRecord, first: int, outputs: tuple[str, ...]) -> Iterator[StagePlan]:
    """What the transform gets of each epoch that is replayed for a backfill."""
    for earlier in replayed(task, first, opened.txn_id.epoch):
        read = task.pipeline.source.spark_read(earlier.ranges, task.env)
        known = replace(earlier, schemas=earlier.schemas or opened.schemas)
        yield _stage_plan(task, known, read, outputs, state_tables.reads(task, earlier, by=opened))


def _replaces_by(this: _Try) -> dict[str, tuple[str, ...]]:
    return {
        name: tuple(sink.replaces_by() or ()) for name, (sink, _) in this.sinks.items() if isinstance(sink, Replacing)
    }


def _expectations(task: TaskTry, this: _Try, letters: LettersPlan | None) -> dict[str, Rules]:
    """The rules for the rows that these sinks stage. Called before the vote only: rows voted for are not judged again.

    A row in quarantine becomes a dead letter (``_fit``). It aborts its epoch where nothing takes dead letters: in a
    backfill, and in an attempt without a sink for them (``dead_letters``).
    """
    judged = letters.fits if letters else {}
    keys = _replaces_by(this)
    expected = task.pipeline.expectations
    return {
        name: _rules(expected[name], keys.get(name, ()), has_quarantine=name in judged)
        for name in this.sinks
        if name in expected
    }


def _rules(
    expected: Sequence[ExpectedRows | ExpectedRowCount], keys: tuple[str, ...], *, has_quarantine: bool
) -> Rules:
    """The rules for one sink. ``keys``: the columns that a message shows where an expectation names no columns."""
    rows = [each for each in expected if isinstance(each, ExpectedRows)]
    counted = [
        replace(each, otherwise="abort") if each.otherwise == QUARANTINE else each
        for each in rows
        if not has_quarantine or each.otherwise != QUARANTINE
    ]
    return Rules(
        rows=tuple(replace(each, show=each.show or keys) for each in counted),
        counts=tuple(each for each in expected if isinstance(each, ExpectedRowCount)),
    )


def _stage_plan(
    task: TaskTry, opened: OpenRecord, read: SparkRead, outputs: tuple[str, ...], state: dict[str, StateRead]
) -> StagePlan:
    """What the transform gets of one epoch; no sink takes it yet."""
    transform = task.pipeline.transform
    return StagePlan(
        txn_id=str(opened.txn_id),
        pipeline=task.pipeline.name,
        epoch=opened.txn_id.epoch,
        attempt=opened.txn_id.attempt,
        now=opened.now,
        seed=opened.seed,
        read=read.options,
        table=from_json(TableRead, read.table) if read.table else None,
        transform=TransformFile(path=transform.path, function=transform.function),
        outputs=outputs,
        sinks={},
        watermarks=opened.watermarks,
        event_time=_event_time_plan(task, opened),
        state=state,
        registry=schemas.read(task, opened),
        connection=read.secrets_of,
    )


def _event_time_plan(task: TaskTry, opened: OpenRecord) -> EventTimePlan | None:
    if task.pipeline.event_time is None:
        return None
    return EventTimePlan(
        partitions={
            topic: tuple(r.partition for r in per_topic)
            for topic, per_topic in _with_event_times(task, opened.ranges).items()
        },
        newest_allowed=task.pipeline.event_time.newest_allowed(opened.now),
        depth=task.pipeline.event_time.depth,
    )


def _with_event_times(task: TaskTry, ranges: Ranges) -> Ranges:
    """The ranges, without topics that the source no longer reads and that have no record in this epoch.

    Else a transform of one topic would have to tell topics apart as long as their positions are kept: for good.
    """
    source = task.pipeline.source
    if not isinstance(source, LeavingOut):
        return ranges
    read = {
        topic: of for topic, of in ranges.items() if records_upper_bound({topic: of}) or not source.leaves_out(topic)
    }
    return read or ranges


def stop_earlier_tries(
    task: TaskTry, epoch: int, only: str | None = None, *, spared: TransactionId | None = None
) -> None:
    """Stop the Spark jobs that killed tries of the epoch may have left running, and forget their reports.

    A failure is logged. Jobs of attempts before the last two are not looked at: tasks of their own attempt, or of the
    next one, have stopped them. If one runs on, it ends by itself: no task reads what it writes, and a sweep deletes
    that.

    ``only``: stop just the tries that staged this sink and no other. ``spared``: the id of the attempt whose jobs a new
    try may go on with.
    """
    if spared and not outliving(task):
        spared = None
    for earlier in task.ledger.tries(epoch, newest=_ATTEMPTS_STOPPED):
        if earlier.txn_id == spared or (only is not None and set(earlier.places) != {only}):
            continue
        with tolerated(f"stopping the earlier try {earlier.try_id}"):
            if may_stop(earlier, task.env.spark.new_session()):
                task.env.spark.stop(earlier.session)
                if only is None and (lasting := outliving(task)):  # no task goes on with a job of another attempt
                    lasting.release(earlier.session)
            else:
                log.warning("an earlier Spark job may still run: %s", _not_stopped(earlier))


def _not_stopped(earlier: TryRecord) -> str:
    return (
        f"The earlier try {earlier.try_id} is not stopped: its record is not signed, and names connection "
        f"{earlier.session.get('conn_id')!r}, which the DAG does not use. If it was yours, its job runs to its end, "
        "and no task reads what it writes."
    )
