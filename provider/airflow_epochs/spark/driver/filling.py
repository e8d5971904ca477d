"""Fills the private tables of the sinks, several at once: each by a Spark job in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver import expectations
from airflow_epochs.spark.driver.delta import session as delta_session
from airflow_epochs.spark.driver.delta.layout import DEFAULT, FileLayout
from airflow_epochs.spark.driver.expectations import Audit
from airflow_epochs.spark.driver.plans import SinkOutcome, StagePlan
from airflow_epochs.spark.driver.wire import from_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def filled(
    spark: SparkSession,
    plan: StagePlan,
    frames: Mapping[str, DataFrame],
    fills: Mapping[str, Callable[[DataFrame], SinkOutcome]],
    *,
    in_turn: bool,
) -> dict[str, Audit]:
    """Fill the private table of each sink that ``frames`` has, and count the rows that break its expectations.

    Args:
        spark: The session.
        plan: The epoch's plan.
        frames: Sink -> its rows.
        fills: Sink -> the function that fills its table with the rows.
        in_turn: Fill one table after another.
    """
    tasks = {
        sink: _task(spark, plan, partial(expectations.audited, frame, plan.expectations.get(sink), fills[sink]))
        for sink, frame in frames.items()
    }
    return _run_all(spark, plan, tasks, in_turn=in_turn)


def _task(spark: SparkSession, plan: StagePlan, fill: Callable[[], Audit]) -> Callable[[], Audit]:
    def task() -> Audit:
        # The tag shows in Spark's UI whose job it is. A tag belongs to its thread, and this thread ends with the job.
        spark.addTag(f"epochs:{plan.pipeline}:{plan.epoch}:{plan.attempt}")
        return fill()

    return task


def _run_all(
    spark: SparkSession, plan: StagePlan, tasks: dict[str, Callable[[], Audit]], *, in_turn: bool
) -> dict[str, Audit]:
    """Run all tasks at once; but a session has one size of files, so tasks with another one run after these.

    ``in_turn``: run each of them alone.
    """
    audits: dict[str, Audit] = {}
    for shuffled_mib, sinks in _by_file_size(plan, tasks).items():
        delta_session.size_files(spark, shuffled_mib)
        for together in [[sink] for sink in sinks] if in_turn else [sinks]:
            audits |= _at_once(spark, {sink: tasks[sink] for sink in together})
    return audits


def _by_file_size(plan: StagePlan, sinks: Iterable[str]) -> dict[int, list[str]]:
    """The sinks by the size of their files. Sinks whose files nobody keeps join the first group."""
    layouts = {sink: plan.sinks[sink]["layout"] for sink in sinks}
    sizes = {sink: from_json(FileLayout, told).shuffled_mib for sink, told in layouts.items() if told}
    any_size = next(iter(sizes.values()), DEFAULT.shuffled_mib)
    found: dict[int, list[str]] = {}
    for sink in layouts:
        found.setdefault(sizes.get(sink, any_size), []).append(sink)
    return found


def _at_once(spark: SparkSession, tasks: dict[str, Callable[[], Audit]]) -> dict[str, Audit]:
    """If one raises, interrupt the others and raise its error."""
    with ThreadPoolExecutor(len(tasks), thread_name_prefix="stage") as pool:
        futures: dict[str, Future[Audit]] = {name: pool.submit(task) for name, task in tasks.items()}
        done, running = wait(futures.values(), return_when=FIRST_EXCEPTION)
        if running:
            spark.interruptAll()
        for future in done:
            future.result()
        return {name: future.result() for name, future in futures.items()}
