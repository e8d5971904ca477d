"""The stage job: it reads the planned ranges once, runs the transform and stages every sink.

It runs in Spark's driver or in a Connect client. It makes no row visible: each sink writes into a private table of this
try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_epochs.spark.driver import (
    determinism,
    event_times,
    expectations,
    filling,
    letters,
    observed,
    replay,
    settings_changed,
    source_read,
    stagers,
    transform,
)
from airflow_epochs.spark.driver.delta import session as delta_session
from airflow_epochs.spark.driver.delta import state as delta_state
from airflow_epochs.spark.driver.expectations import Audit
from airflow_epochs.spark.driver.plans import InputMetrics, Rules, SinkOutcome, StageOutcome, StagePlan, StateRead
from airflow_epochs.transforms.changes import LATE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession


LAST_MS = 253_402_300_799_999
"""The end of the year 9999. A producer can give a record a later time."""
BATCH = "epoch_input"
"""The name of the batch in Spark's plans."""
FROM_AVRO = "from_avro("
"""How plans show Avro's decoder. Its map of options is one object in the plans of all sinks, and not thread-safe:
Spark failed with "requirement failed" when it planned two of them at once."""


def stage(spark: SparkSession, plan: StagePlan, secrets: dict[str, str]) -> StageOutcome:
    """Stage one epoch's rows in every sink.

    A sink that cannot take its rows reports a ``problem``; the others are staged all the same, so that the vote can
    name every problem.

    Raises:
        Refused: The transform is wrong; nothing was staged.
    """
    plan = replace(plan, state=delta_state.understood(spark, plan.state))
    with transform.loaded(plan.transform) as users:
        given = _given(spark, plan, secrets)
        returned = _returned(spark, plan, users, given)
        _require_computable(plan, returned)
        analysed = determinism.analysed_plans(spark, returned.own)
        uses, reads = _uses(analysed, given.clock)
        judged = letters.judged(plan, returned.every)
        frames = _to_stage(spark, plan, secrets, users, returned.own, judged)
        fill = _filler(spark, plan, returned.closed, in_turn=any(FROM_AVRO in text for text in analysed.values()))
        with _read_once(given, reads) as input_metrics, _event_times(given.clock) as seen:
            audits = fill(frames)
            # The rows of the others are counted by now.
            post = letters.posted(plan, judged, given.batch, returned.every, _claims(audits))
            expectations.require_computable(post.frames, plan.expectations)
            audits |= fill(post.frames)
            post.require_all()
            metrics = _metrics(input_metrics(), _rows_late(_claims(audits), analysed))
    return StageOutcome(
        sinks=_claims(audits),
        metrics=metrics,
        warnings=(
            *_warnings(analysed, returned.own, users, is_used=uses > 0 or plan.again),  # again: one of several sinks
            *returned.warnings,
            *_of_event_times(given.clock, seen),
            *delta_state.warnings(returned.closed),
            *_doubts(audits),
        ),
        event_times=seen.newest,
        broken=_broken(audits, post),
        letters=post.counts,
    )


@dataclass(frozen=True)
class _Given:
    """The arguments of the transform, and how its input is counted.

    Attributes:
        epoch: The context.
        batch: The epoch's input.
        state: State table -> the state.
        metrics: What is counted of the batch.
        observation: Counts it as the batch flows; None if that is not wanted.
    """

    epoch: transform.EpochContext
    batch: DataFrame
    state: dict[str, DataFrame]
    metrics: Sequence[Column]
    observation: Observation | None

    @property
    def clock(self) -> event_times.Clock | None:
        return self.epoch.clock


@dataclass(frozen=True)
class _Returned:
    """What the transform returned.

    Attributes:
        every: Sink -> its rows. If one sink is staged again, more sinks than the plan has.
        own: The rows of the plan's sinks; fewer than ``every`` if one sink is staged again.
        closed: The plan's states, with what the transform has closed.
        warnings: Warnings about changes of the session.
    """

    every: dict[str, DataFrame]
    own: dict[str, DataFrame]
    closed: dict[str, StateRead]
    warnings: Sequence[str]


def _given(spark: SparkSession, plan: StagePlan, secrets: dict[str, str]) -> _Given:
    batch = source_read.batch(spark, plan, secrets).alias(BATCH)
    metrics = _input_metrics(plan)
    batch, observation = _observed(batch, metrics) if plan.measure_input else (batch, None)
    epoch = transform.EpochContext.of(plan)
    return _Given(epoch, batch, delta_state.frames(spark, plan.state), metrics, observation)


def _returned(spark: SparkSession, plan: StagePlan, users: transform.LoadedTransform, given: _Given) -> _Returned:
    needed = _needed(plan) if plan.again else None
    before = settings_changed.at_work(spark, plan.sinks)
    every = users(given.batch, given.epoch, plan.outputs, needed, given.state, _post(plan))
    changed = settings_changed.warnings(before, settings_changed.at_work(spark, plan.sinks))
    closed = delta_state.closed(plan.state, given.state)
    if plan.nothing:
        every = {name: frame.where("false") for name, frame in every.items()}
    return _Returned(every, {name: every[name] for name in plan.sinks if name in every}, closed, changed)


def _require_computable(plan: StagePlan, returned: _Returned) -> None:
    expectations.require_computable(_without(returned.own, _post(plan)), plan.expectations)
    expectations.require_computable(returned.every, _quarantines(plan))


def _to_stage(
    spark: SparkSession,
    plan: StagePlan,
    secrets: dict[str, str],
    users: transform.LoadedTransform,
    own: dict[str, DataFrame],
    judged: Mapping[str, letters.Judged],
) -> dict[str, DataFrame]:
    """The rows that each sink takes, of all epochs of the plan. Dead letters come later."""
    post = _post(plan)
    rows = {name: judged[name].rows if name in judged else frame for name, frame in _without(own, post).items()}
    if plan.earlier:
        rows = replay.with_earlier(spark, plan, secrets, users, rows, post)
    return {name: letters.plain(frame) for name, frame in rows.items()}


def _without(frames: dict[str, DataFrame], sink: str | None) -> dict[str, DataFrame]:
    return {name: frame for name, frame in frames.items() if name != sink}


def _filler(
    spark: SparkSession, plan: StagePlan, closed: Mapping[str, StateRead], *, in_turn: bool
) -> Callable[[Mapping[str, DataFrame]], dict[str, Audit]]:
    """Set the session up, and return what fills the private tables with the rows of some sinks."""
    job = delta_session.prepare_staging(
        spark,
        _records_of_a_task(plan),
        files_of_0_1=plan.files_of_0_1,
        statistics=plan.statistics,
        variants_by_json=plan.variants_by_json,
        again=plan.again,
    )
    fills = {
        name: partial(stagers.stager(told["kind"])(told, closed.get(name)), spark, job)
        for name, told in plan.sinks.items()
    }
    return partial(filling.filled, spark, plan, fills=fills, in_turn=in_turn)


def _claims(audits: Mapping[str, Audit]) -> dict[str, SinkOutcome]:
    return {sink: audit.claim for sink, audit in audits.items()}


def _broken(audits: Mapping[str, Audit], post: letters.Posted) -> dict[str, dict[str, int]]:
    """``StageOutcome.broken``: counts from the audits, and from dead letters, which were not audited."""
    found = {sink: dict(counts) for sink, counts in post.broken.items()}
    for sink, audit in audits.items():
        of = found.setdefault(sink, {})
        for condition, rows in audit.counts.items():
            of[condition] = of.get(condition, 0) + rows
    return {sink: counts for sink, counts in found.items() if counts}


def _doubts(audits: Mapping[str, Audit]) -> Iterator[str]:
    return (f"Sink {sink}: {text}" for sink, audit in audits.items() for text in audit.warnings)


def _post(plan: StagePlan) -> str | None:
    """The sink of the dead letters; None if the pipeline has no such sink."""
    return plan.letters.sink if plan.letters else None


def _quarantines(plan: StagePlan) -> dict[str, Rules]:
    """Sink -> the expectations whose broken rows become dead letters."""
    fits = plan.letters.fits if plan.letters else {}
    return {sink: Rules(rows=fit.expected) for sink, fit in fits.items()}


def _needed(plan: StagePlan) -> set[str]:
    """The sinks whose rows are needed to stage the plan's sinks: dead letters may come from other sinks, too."""
    sinks = set(plan.sinks)
    return sinks | plan.letters.fits.keys() if plan.letters and plan.letters.sink in sinks else sinks


def _records_of_a_task(plan: StagePlan) -> int:
    reads = (*plan.earlier, plan)
    return sum(map(source_read.planned, reads)) // sum(map(source_read.tasks, reads))


def _uses(plans: dict[str, str], clock: event_times.Clock | None) -> tuple[int, int]:
    """How often the sinks' plans use the batch, and how often Spark computes it: rows with event times are cached."""
    uses = sum(text.count(f"SubqueryAlias {BATCH}\n") for text in plans.values())
    cached = sum(text.count(f"SubqueryAlias {event_times.WATCHED}\n") for text in plans.values())
    return uses, uses - cached + (clock.count if clock else 0)


@contextmanager
def _event_times(clock: event_times.Clock | None) -> Iterator[event_times.SeenEventTimes]:
    if clock is None:
        yield event_times.SeenEventTimes()
        return
    with clock.cached() as seen:
        yield seen


def _of_event_times(clock: event_times.Clock | None, seen: event_times.SeenEventTimes) -> Iterator[str]:
    if clock and not clock.count:
        yield (
            "The transform did not call `epoch.event_time(rows, column)`, so the watermark does not move, and no "
            "window closes."
        )
    if seen.ahead:
        yield (
            f"{seen.ahead} rows have an event time further ahead of the epoch's `now` than `max_ahead` of EventTime. "
            "They do not move the watermark."
        )


def _input_metrics(plan: StagePlan) -> list[Column]:
    """The batch's metrics. The newest timestamp is in ms since 1970: a number has no time zone to get wrong."""
    from pyspark.sql import functions as F

    rows = F.count(F.lit(1)).alias("rows")
    # A column `timestamp` of a table may be anything.
    return [rows] if plan.table else [rows, F.unix_millis(F.max("timestamp")).alias("newest")]


def _observed(batch: DataFrame, metrics: Sequence[Column]) -> tuple[DataFrame, Observation]:
    from pyspark.sql import Observation

    observation = Observation(BATCH)
    return batch.observe(observation, *metrics), observation


@contextmanager
def _read_once(given: _Given, uses: int) -> Iterator[Callable[[], dict[str, Any]]]:
    """Read the source once, however often the sinks' plans use the batch. Yields a function that returns its metrics.

    Without an observation, there are no metrics. A batch that is used once is not cached: Spark counts it as it flows,
    which costs 50 ns per record, 3 % of a typical epoch. A batch that is used more often is cached by its own action.
    If the sinks' jobs filled the cache, each would wait for partitions that another one computes, and the metrics of
    the first job to finish would lack the records that another one counted.
    """
    observation = given.observation
    if uses > 1:
        given.batch.persist()
        try:
            counted = given.batch.agg(*given.metrics).collect()[0].asDict()
            yield lambda: counted if observation else {}
        finally:
            given.batch.unpersist()
    elif uses == 1 and observation:
        yield lambda: observed.result(observation)
    else:
        yield dict


def _metrics(found: dict[str, Any], rows_late: int | None) -> InputMetrics:
    newest = found.get("newest")
    at = None if newest is None or newest > LAST_MS else datetime.fromtimestamp(newest / 1000, timezone.utc)
    return InputMetrics(
        rows_in=found.get("rows"),
        max_timestamp=at.isoformat(timespec="milliseconds") if at else None,
        rows_late=rows_late,
    )


def _rows_late(claims: dict[str, SinkOutcome], plans: dict[str, str]) -> int | None:
    """How many rows the sinks got that operators call late; None if no sink gets such rows."""
    taken = [claims[sink].content for sink, plan in plans.items() if f"SubqueryAlias {LATE}\n" in plan]
    return sum(content.rows for content in taken if content) if taken else None


def _warnings(
    plans: dict[str, str], frames: dict[str, DataFrame], users: transform.LoadedTransform, *, is_used: bool
) -> tuple[str, ...]:
    udfs = determinism.nondeterministic_udfs(users.module)
    texts = [
        text
        for sink, plan in plans.items()
        for text in determinism.warnings(sink, plan, udfs, dict(frames[sink].dtypes))
    ]
    if not is_used:
        texts.append("The transform did not use the batch: no input row can be in any sink.")
    return tuple(texts)
