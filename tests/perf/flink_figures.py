"""Kafka to Delta in an epoch, with ``parse_json``, beside Flink's exactly-once Kafka to Parquet: the same records.

It is no part of ``make bench``, since it fetches Flink: ``make bench ONLY=flink_figures`` runs it. Flink's jobs run in
one warm process, with two slots and a checkpoint each 10 s. Both write the same columns.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import duckdb

from airflow_epochs.coordinator.coordinator import Transform
from stack.broker import Broker
from stack.jars import cache_folder, fetch, pyspark_home
from tests.perf.apps import json_rows
from tests.perf.figures import Figure, figure, ratios, timed_in_turn
from tests.perf.json_figures import an_order
from tests.perf.spark_figures import create_topic, epoch, produce_to, warm_session

HERE = Path(__file__).parent / "flink"
RECORDS = 1_000_000
TOPIC = "orders"
HADOOP = ("hadoop-client-api", "hadoop-client-runtime")


def figures() -> list[Figure]:
    classpath = _classpath()
    with (
        tempfile.TemporaryDirectory() as folder,
        Broker(Path(folder, "broker"), jars := fetch("spark", "broker")) as kafka,
    ):
        create_topic(kafka.bootstrap, TOPIC)
        produce_to(kafka.bootstrap, TOPIC, (json.dumps(an_order(number)) for number in range(RECORDS)))
        with (
            warm_session(jars, Path(folder)) as spark,
            _flink(classpath, Path(folder), kafka.bootstrap) as flink,
        ):
            transform = Transform(path=str(Path(json_rows.__file__)), function="orders_spark")
            runs: dict[str, Callable[[], object]] = {
                "epoch": lambda: epoch(spark, kafka.bootstrap, Path(folder, "epoch"), transform, RECORDS, TOPIC),
                "flink": lambda: flink.run(Path(folder, "files")),
            }
            return _told(timed_in_turn(runs))


def _told(seconds: dict[str, list[float]]) -> list[Figure]:
    what = "parse_json ÷ Flink's exactly-once Kafka to Parquet"
    return [
        figure(what, "ratio", ratios(seconds["epoch"], seconds["flink"]), least=0.8, note="rows/s"),
        *(figure(f"{name}: throughput", "M rows/s", [RECORDS / s / 1e6 for s in seconds[name]]) for name in seconds),
    ]


@dataclass
class Flink:
    """The process that runs Flink's jobs."""

    asks: IO[str]
    tells: IO[str]

    def run(self, folder: Path) -> None:
        """Run a job into a new folder, which must get all rows."""
        shutil.rmtree(folder, ignore_errors=True)
        self.asks.write(f"{folder}\n")
        self.asks.flush()
        assert self.tells.readline() == "done\n"
        assert duckdb.sql(f"select count(*) from read_parquet('{folder}/*')").fetchall() == [(RECORDS,)]


@contextmanager
def _flink(classpath: str, folder: Path, bootstrap: str) -> Iterator[Flink]:
    subprocess.run(["javac", "-cp", classpath, "-d", folder, HERE / "OrdersToParquet.java"], check=True)
    opened = ["--add-opens=java.base/java.util=ALL-UNNAMED", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
    command = ["java", "-Xmx3g", *opened, "-cp", f"{folder}:{classpath}", "OrdersToParquet", bootstrap, TOPIC]
    with (
        (folder / "flink.log").open("w") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdin and process.stdout
        try:
            yield Flink(process.stdin, process.stdout)
        finally:
            process.kill()


def _classpath() -> str:
    """Flink's jars, fetched once, and the Hadoop that pyspark has."""
    jars = cache_folder() / "flink"
    if not jars.exists():
        _fetch(jars)
    hadoop = [jar for name in HADOOP for jar in (pyspark_home() / "jars").glob(f"{name}-*.jar")]
    return ":".join([f"{jars}/*", *map(str, hadoop)])


def _fetch(jars: Path) -> None:
    ivy = next((pyspark_home() / "jars").glob("ivy-*.jar"))
    jars.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=jars.parent) as work:
        command = ["java", "-jar", str(ivy), "-cache", f"{work}/ivy", "-ivy", str(HERE / "ivy.xml"), "-confs", "flink"]
        command += ["-types", "jar", "bundle", "-retrieve", f"{work}/jars/[artifact]-[revision].[ext]"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        Path(work, "jars").rename(jars)
