"""What expectations and dead letters cost: an epoch with them, beside the same epoch without.

All parse the same records of Kafka; everything in one warm session, in turn. With ``dead_letters`` the records are
counted too, and one sink more votes and commits. Its rows are computed only if there are some.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from airflow_epochs import DeltaSink, KafkaSource, expect
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run
from airflow_epochs.testing import run_epoch
from stack.broker import Broker
from stack.jars import Jars, fetch
from tests.perf.figures import RUNS, Figure, figure, stopwatch
from tests.perf.spark_figures import SameSpark, produce_orders, warm_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = Path(__file__).parent / "apps" / "quality.py"
RECORDS = 400_000
EXPECTED = [expect("amount >= 0"), expect("key IS NOT NULL"), expect("note LIKE 'the%'", max_fraction=0.001)]
WITHOUT = "without"
PIPELINES: dict[str, tuple[str, dict[str, Any]]] = {
    WITHOUT: ("good", {}),
    "three expectations": ("good", {"expectations": {"rows": EXPECTED}}),
    "dead letters, no bad row": ("good", {"dead_letters": "rejected"}),
    "dead letters, 1 % bad rows": ("some_bad", {"dead_letters": "rejected"}),
}
"""What is measured -> function, options."""
MOST = {"three expectations": 1.05, "dead letters, no bad row": 1.25, "dead letters, 1 % bad rows": 2.5}


def figures() -> list[Figure]:
    jars = fetch("spark", "broker")
    with tempfile.TemporaryDirectory() as folder, warm_session(jars, Path(folder), "8g") as spark:
        return _of(jars, spark, Path(folder))


def _of(jars: Jars, spark: SparkSession, folder: Path) -> list[Figure]:
    with Broker(folder / "broker", jars) as kafka:
        lab = _Lab(folder, kafka.bootstrap, spark)
        kafka.create_topic(lab.topic, partitions=4)
        lab.epoch()
        measured = [lab.epoch() for _ in range(RUNS)]
    took = [each[WITHOUT].seconds for each in measured]
    return [
        *(line for what in MOST for line in _lines(what, measured)),
        figure("quality: an epoch without", "s", took, note=f"{RECORDS:,} records"),
    ]


def _lines(what: str, measured: list[dict[str, _Cost]]) -> list[Figure]:
    pairs = [(each[what], each[WITHOUT]) for each in measured]
    seconds = [ours.seconds / without.seconds for ours, without in pairs]
    cpu = [ours.cpu / without.cpu for ours, without in pairs]
    return [
        figure(f"{what}: an epoch ÷ one without", "ratio", seconds, most=MOST[what]),
        figure(f"{what}: its CPU time ÷ that of one without", "ratio", cpu),
    ]


@dataclass(frozen=True)
class _Cost:
    """Of one epoch. ``cpu``: seconds of this process, of Spark and of the broker."""

    seconds: float
    cpu: float


def _cpu() -> float:
    process = psutil.Process()
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return float(sum(each.user + each.system for each in times))


@dataclass
class _Lab:
    folder: Path
    bootstrap: str
    spark: SparkSession
    topic: str = "bench"
    runs: Iterator[int] = field(default_factory=count)

    def epoch(self) -> dict[str, _Cost]:
        """What one epoch of each pipeline costs, over the same records; in turn from another one on."""
        produce_orders(self.bootstrap, self.topic, RECORDS)
        found, first = {}, next(self.runs) % len(PIPELINES)
        for what in (*[*PIPELINES][first:], *[*PIPELINES][:first]):
            before = _cpu()
            with stopwatch() as seconds:
                self._run(what)
            found[what] = _Cost(seconds(), _cpu() - before)
        return found

    def _run(self, what: str) -> None:
        function, options = PIPELINES[what]
        name = f"p{[*PIPELINES].index(what)}"
        sinks = ("rows", "rejected") if "dead_letters" in options else ("rows",)
        pipeline = Pipeline(
            wait_for_others=0,
            name=name,
            dag_id="bench",
            source=KafkaSource(topics=[self.topic], conn_id="kafka", max_wait=0),
            sinks=tuple(DeltaSink(sink, str(self.folder / name / sink), commit="deltalake") for sink in sinks),
            transform=Transform(path=str(APP), function=function),
            **options,
        )
        ledger, env = Ledger(LocalStore(self.folder / "ledger"), name), SameSpark(self.spark, self.bootstrap)
        run_epoch(Coordinator(TaskTry(pipeline=pipeline, ledger=ledger, env=env)), Run("b", f"run{next(self.runs)}"))
