"""What an epoch's files cost with zstd, beside snappy: bytes, and processor time of Spark. Kafka to Delta, in turn."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from airflow_epochs.coordinator.coordinator import Transform
from stack.broker import Broker
from stack.jars import fetch
from tests.perf.figures import RUNS, Figure, figure, ratios
from tests.perf.json_figures import APP, LOADS, Load
from tests.perf.spark_figures import create_topic, epoch, produce_to, warm_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODECS = ("snappy", "zstd")


def figures() -> list[Figure]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Broker(Path(folder, "broker"), jars := fetch("spark", "broker")) as kafka,
        warm_session(jars, Path(folder)) as spark,
    ):
        loads = [load for load in LOADS if not load.bad]
        return [each for load in loads for each in _compared(spark, kafka.bootstrap, Path(folder), load)]


def _compared(spark: SparkSession, bootstrap: str, folder: Path, load: Load) -> list[Figure]:
    create_topic(bootstrap, load.topic)
    produce_to(bootstrap, load.topic, load.values())
    run = partial(_epoch, spark, bootstrap, load)
    runs: dict[str, Callable[[], None]] = {codec: partial(run, folder / codec, codec) for codec in CODECS}
    seconds = _processor_seconds(runs)
    size = {codec: _bytes(folder / codec / "table") for codec in CODECS}
    return [
        figure(
            f"processor time of an epoch, zstd ÷ snappy: {load.shape}",
            "ratio",
            ratios(seconds["snappy"], seconds["zstd"]),
            most=1.2,
            note=f"{load.records:,} records",
        ),
        figure(f"bytes of files, zstd ÷ snappy: {load.shape}", "ratio", [size["zstd"] / size["snappy"]], most=0.6),
    ]


def _epoch(spark: SparkSession, bootstrap: str, load: Load, folder: Path, codec: str) -> None:
    transform = Transform(path=str(APP), function=f"{load.shape}_spark")
    epoch(spark, bootstrap, folder, transform, load.rows, load.topic, compression=codec)


def _processor_seconds(runs: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    """Of Spark's Java process, for each run, after three of each that do not count: Java compiles meanwhile."""
    (java,) = (each for each in psutil.Process().children(recursive=True) if each.name() == "java" and _is_spark(each))
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(3 + RUNS):
        for name, work in runs.items():
            before = sum(java.cpu_times()[:2])
            work()
            if number >= 3:
                seconds[name].append(sum(java.cpu_times()[:2]) - before)
    return seconds


def _is_spark(java: psutil.Process) -> bool:
    return any("SparkSubmit" in word for word in java.cmdline())


def _bytes(table: Path) -> int:
    return sum(file.stat().st_size for file in table.rglob("*.parquet"))
