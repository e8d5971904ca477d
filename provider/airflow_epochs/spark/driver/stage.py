"""The stage job: it reads the planned ranges once, runs the transform and stages every sink.

It runs in Spark's driver or in a Connect client. It makes no row visible: each sink writes into a private table of this
try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import Refused
from airflow_epochs.spark.driver import determinism, kafka_read, observed, transform
from airflow_epochs.spark.driver.delta import session as delta_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession

log = secrecy.logger(__name__)

JsonDict = dict[str, Any]
StageSink = Callable[["SparkSession", JsonDict, "DataFrame"], JsonDict]

STAGERS = {
    "delta": "airflow_epochs.spark.driver.delta.jobs:stage_sink",
    "delta_change": "airflow_epochs.spark.driver.delta.merge:stage_sink",
}
"""Kind of a sink's plan -> the function that stages the sink: ``(spark, plan, frame) -> {"place", "problem",
"content"}``."""

BATCH = "epoch_input"
"""The name of the batch in Spark's plans."""


def stage(spark: SparkSession, args: JsonDict, secrets: dict[str, str]) -> JsonDict:
    """Stage one epoch's rows in every sink.

    Returns:
        ``sinks``: per sink ``place``, ``problem``, ``content``; ``metrics``; ``warnings``. A sink that cannot take
        its rows reports a ``problem``; the others are staged all the same, so that the vote can name every problem.

    Raises:
        Refused: The transform is wrong; nothing was staged.
    """
    sinks: dict[str, JsonDict] = args["sinks"]
    stagers = {name: _stager(plan["kind"]) for name, plan in sinks.items()}
    epoch = transform.EpochContext.of(args)
    with transform.loaded(args["transform"]) as users:
        batch = kafka_read.batch(spark, args["read"], secrets).alias(BATCH)
        batch, observation = _observed(batch) if args["measure_input"] else (batch, None)
        outputs = args.get("outputs", sinks)
        every = users(batch, epoch, outputs, sinks if args.get("again") else None)
        frames = {name: every[name] for name in sinks}  # fewer if one sink is staged again
        plans = determinism.analysed_plans(spark, frames)
        uses = sum(plan.count(f"SubqueryAlias {BATCH}\n") for plan in plans.values())
        of_all = _of_all_sinks(spark, args)
        with _read_once(batch, observation, uses) as input_metrics:
            tasks = {
                sink: _job(spark, args, stagers[sink], {**plan, **of_all}, frames[sink]) for sink, plan in sinks.items()
            }
            staged = _staged(spark, tasks)
            metrics = _metrics(input_metrics()) if observation else {}
    return {
        "sinks": staged,
        "metrics": metrics,
        "warnings": _warnings(plans, users, uses),
    }


def _of_all_sinks(spark: SparkSession, args: JsonDict) -> JsonDict:
    """Set the session up for all sinks' plans, and return the part that they have in common.

    Version 0.1 promised rows by a digest of their files. Staged again, such rows need the same layout of files.
    """
    files_of_0_1 = args.get("files_of_0_1", False)
    defaults = delta_session.prepare_staging(spark, files_of_0_1=files_of_0_1)
    return {
        "defaults": defaults,
        "records": kafka_read.planned(args["read"]),
        **({"optimize_write": False} if files_of_0_1 else {}),
    }


def _stager(kind: str) -> StageSink:
    if kind not in STAGERS:
        raise Refused(
            f"Spark's driver cannot stage a sink of kind {kind!r}. It can stage {', '.join(sorted(STAGERS))}.",
            code=codes.SPARK_VERSION_MIXED,
        )
    module, function = STAGERS[kind].split(":")
    return cast(StageSink, getattr(import_module(module), function))


def _input_metrics() -> tuple[Column, Column]:
    """The batch's metrics. The newest timestamp is in ms since 1970: a number has no time zone to get wrong."""
    from pyspark.sql import functions as F

    return F.count(F.lit(1)).alias("rows"), F.unix_millis(F.max("timestamp")).alias("newest")


def _observed(batch: DataFrame) -> tuple[DataFrame, Observation]:
    from pyspark.sql import Observation

    observation = Observation(BATCH)
    return batch.observe(observation, *_input_metrics()), observation


@contextmanager
def _read_once(batch: DataFrame, observation: Observation | None, uses: int) -> Iterator[Callable[[], JsonDict]]:
    """Read Kafka once, however often the sinks' plans use the batch. Yields a function that returns its metrics.

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
            metrics = batch.agg(*_input_metrics()).collect()[0].asDict()
            yield lambda: metrics
        finally:
            batch.unpersist()


def _job(
    spark: SparkSession, args: JsonDict, stager: StageSink, plan: JsonDict, frame: DataFrame
) -> Callable[[], JsonDict]:
    def job() -> JsonDict:
        # The tag shows in Spark's UI whose job it is. A tag belongs to its thread, and this thread ends with the job.
        spark.addTag(f"epochs:{args['pipeline']}:{args['epoch']}:{args['attempt']}")
        claim = stager(spark, plan, frame)
        return {"place": claim["place"], "problem": claim.get("problem"), "content": claim.get("content")}

    return job


def _staged(spark: SparkSession, jobs: dict[str, Callable[[], JsonDict]]) -> dict[str, JsonDict]:
    """Run all jobs at once. If one raises, interrupt the others and raise its error."""
    with ThreadPoolExecutor(len(jobs), thread_name_prefix="stage") as pool:
        futures: dict[str, Future[JsonDict]] = {name: pool.submit(job) for name, job in jobs.items()}
        done, running = wait(futures.values(), return_when=FIRST_EXCEPTION)
        if running:
            spark.interruptAll()
        for future in done:
            future.result()
        return {name: future.result() for name, future in futures.items()}


def _metrics(rows_in: dict[str, Any]) -> JsonDict:
    newest = rows_in.get("newest")
    return {
        "rows_in": rows_in.get("rows"),
        "max_timestamp": None
        if newest is None
        else datetime.fromtimestamp(newest / 1000, timezone.utc).isoformat(timespec="milliseconds"),
    }


def _warnings(plans: dict[str, str], users: transform.LoadedTransform, uses: int) -> list[str]:
    udfs = determinism.nondeterministic_udfs(users.module)
    texts = [text for sink, plan in plans.items() for text in determinism.warnings(sink, plan, udfs)]
    if not uses:
        texts.append("The transform did not use the batch: no input row can be in any sink.")
    return texts
