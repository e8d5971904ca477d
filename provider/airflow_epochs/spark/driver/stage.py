"""The stage job: it reads the planned ranges once, runs the transform and stages every sink.

It runs in Spark's driver or in a Connect client. It makes no row visible: each sink writes into a private table of this
try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
from airflow_epochs.spark.driver.plans import Claim, InputMetrics, Rules, StageOutcome, StagePlan
from airflow_epochs.transforms.changes import LATE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession


LAST_MS = 253_402_300_799_999
"""The end of the year 9999. A producer can give a record a later time."""
BATCH = "epoch_input"
"""The name of the batch in Spark's plans."""
FROM_AVRO = "from_avro("
"""In Spark's plans. Its map of options is one object in the plans of all sinks, and not made for several threads: seen
as "requirement failed" while Spark planned two of them at once."""


def stage(spark: SparkSession, plan: StagePlan, secrets: dict[str, str]) -> StageOutcome:
    """Stage one epoch's rows in every sink.

    A sink that cannot take its rows reports a ``problem``; the others are staged all the same, so that the vote can
    name every problem.

    Raises:
        Refused: The transform is wrong; nothing was staged.
    """
    plan = replace(plan, state=delta_state.understood(spark, plan.state))
    epoch = transform.EpochContext.of(plan)
    with transform.loaded(plan.transform) as users:
        batch = source_read.batch(spark, plan, secrets).alias(BATCH)
        wanted = _input_metrics(plan)
        batch, observation = _observed(batch, wanted) if plan.measure_input else (batch, None)
        state = delta_state.frames(spark, plan.state)
        before = settings_changed.at_work(spark, plan.sinks)
        every = users(batch, epoch, plan.outputs, _needed(plan) if plan.again else None, state, _post(plan))
        changed = settings_changed.warnings(before, settings_changed.at_work(spark, plan.sinks))
        closed = delta_state.closed(plan.state, state)
        stage_sinks = {name: stagers.stager(told["kind"])(told, closed.get(name)) for name, told in plan.sinks.items()}
        if plan.nothing:
            every = {name: frame.where("false") for name, frame in every.items()}
        own = {name: every[name] for name in plan.sinks if name in every}  # fewer if one sink is staged again
        expectations.require_computable({n: own[n] for n in own if n != _post(plan)}, plan.expectations)
        expectations.require_computable(every, _quarantines(plan))
        analysed = determinism.analysed_plans(spark, own)
        uses, reads = _uses(analysed, epoch.clock)
        judged = letters.judged(plan, every)
        taken = {name: judged[name].rows if name in judged else own[name] for name in own if name != _post(plan)}
        frames = replay.with_earlier(spark, plan, secrets, users, taken, _post(plan)) if plan.earlier else taken
        frames = {name: letters.plain(frame) for name, frame in frames.items()}
        job = delta_session.prepare_staging(
            spark,
            _records_of_a_task(plan),
            files_of_0_1=plan.files_of_0_1,
            statistics=plan.statistics,
            variants_by_json=plan.variants_by_json,
            again=plan.again,
        )
        with (
            _read_once(batch, observation, reads, wanted) as input_metrics,
            _event_times(epoch.clock) as seen,
        ):
            fills = {sink: partial(stage_sinks[sink], spark, job) for sink in plan.sinks}
            in_turn = any(FROM_AVRO in text for text in analysed.values())
            audits = filling.filled(spark, plan, frames, fills, in_turn=in_turn)
            staged = {sink: audit.claim for sink, audit in audits.items()}
            post = letters.posted(plan, judged, batch, every, staged)  # the rows of the others are counted by now
            expectations.require_computable(post.frames, plan.expectations)
            audits |= filling.filled(spark, plan, post.frames, fills, in_turn=in_turn)
            post.require_all()
            staged = {sink: audit.claim for sink, audit in audits.items()}
            metrics = _metrics(input_metrics() if observation else {}, _rows_late(staged, analysed))
    doubts = (f"Sink {sink}: {text}" for sink, audit in audits.items() for text in audit.warnings)
    warnings = (
        *_warnings(analysed, own, users, uses),
        *changed,
        *_of_event_times(epoch.clock, seen),
        *delta_state.warnings(closed),
        *doubts,
    )
    broken = {sink: audit.counts for sink, audit in audits.items() if audit.counts}
    return StageOutcome(
        sinks=staged,
        metrics=metrics,
        warnings=warnings,
        event_times=seen.newest,
        broken=broken,
        letters=post.counts,
    )


def _post(plan: StagePlan) -> str | None:
    """The sink of the dead letters; None if there is none."""
    return plan.letters.sink if plan.letters else None


def _quarantines(plan: StagePlan) -> dict[str, Rules]:
    """Sink -> the expectations whose broken rows become dead letters."""
    fits = plan.letters.fits if plan.letters else {}
    return {sink: Rules(rows=fit.expected) for sink, fit in fits.items()}


def _needed(plan: StagePlan) -> set[str]:
    """The sinks whose rows are needed to stage those of the plan again: dead letters come from all of them."""
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
def _event_times(clock: event_times.Clock | None) -> Iterator[event_times.Seen]:
    if clock is None:
        yield event_times.Seen()
        return
    with clock.cached() as seen:
        yield seen


def _of_event_times(clock: event_times.Clock | None, seen: event_times.Seen) -> Iterator[str]:
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
def _read_once(
    batch: DataFrame, observation: Observation | None, uses: int, wanted: Sequence[Column]
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Read the source once, however often the sinks' plans use the batch. Yields a function that returns its metrics.

    A batch that is used once is not cached. With an ``observation``, Spark counts it as it flows: that costs 50 ns per
    record, 3 % of a typical epoch. A batch that is used more often is cached by an action of its own. If the sinks'
    jobs filled the cache, each would wait for partitions that another one computes, and the metrics of the first job
    to finish would lack the records that another one counted.
    """
    if uses == 1 and observation:
        yield lambda: observed.result(observation)
    elif uses <= 1:
        yield dict
    else:
        batch.persist()
        try:
            metrics = batch.agg(*wanted).collect()[0].asDict()
            yield lambda: metrics
        finally:
            batch.unpersist()


def _metrics(found: dict[str, Any], rows_late: int | None) -> InputMetrics:
    newest = found.get("newest")
    at = None if newest is None or newest > LAST_MS else datetime.fromtimestamp(newest / 1000, timezone.utc)
    return InputMetrics(
        rows_in=found.get("rows"),
        max_timestamp=at.isoformat(timespec="milliseconds") if at else None,
        rows_late=rows_late,
    )


def _rows_late(claims: dict[str, Claim], plans: dict[str, str]) -> int | None:
    """How many rows the sinks got that operators call late; None if no sink gets such rows."""
    taken = [claims[sink].content for sink, plan in plans.items() if f"SubqueryAlias {LATE}\n" in plan]
    return sum(content.rows for content in taken if content) if taken else None


def _warnings(
    plans: dict[str, str], frames: dict[str, DataFrame], users: transform.LoadedTransform, uses: int
) -> tuple[str, ...]:
    udfs = determinism.nondeterministic_udfs(users.module)
    texts = [
        text
        for sink, plan in plans.items()
        for text in determinism.warnings(sink, plan, udfs, dict(frames[sink].dtypes))
    ]
    if not uses:
        texts.append("The transform did not use the batch: no input row can be in any sink.")
    return tuple(texts)
