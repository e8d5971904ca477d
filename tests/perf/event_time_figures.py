"""What event time costs: an epoch whose rows move the watermark, beside the same epoch without.

Both parse the same records of Kafka; everything in one warm session, in turn. Rows that are watched are cached. So they
are parsed once, and what is used only once is cached for nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_epochs import DeltaSink, EventTime, KafkaSource
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

APP = Path(__file__).parent / "apps" / "event_times.py"
RECORDS = 400_000
MOST = 1.05
USES = {"one sink": ("rows",), "three sinks": ("rows", "large", "sums")}


def figures() -> list[Figure]:
    jars = fetch("spark", "broker")
    with tempfile.TemporaryDirectory() as folder, warm_session(jars, Path(folder), "8g") as spark:
        return [line for partitions in (4, 64) for line in _of(partitions, jars, spark, Path(folder, str(partitions)))]


def _of(partitions: int, jars: Jars, spark: SparkSession, folder: Path) -> list[Figure]:
    with Broker(folder / "broker", jars) as kafka:
        lab = _Lab(folder, kafka.bootstrap, spark)
        kafka.create_topic(lab.topic, partitions=partitions)
        lab.epoch()
        measured = [lab.epoch() for _ in range(RUNS)]
        name = f"event times of {partitions} partitions"
        return [
            figure(f"{name}, {uses}: an epoch ÷ one without", "ratio", [each[uses] for each in measured], most=MOST)
            for uses in USES
        ]


@dataclass
class _Lab:
    folder: Path
    bootstrap: str
    spark: SparkSession
    topic: str = "bench"
    runs: Iterator[int] = field(default_factory=count)

    def epoch(self) -> dict[str, float]:
        """One epoch of each pipeline over the same records: for each use, how much longer it takes with event time."""
        produce_orders(self.bootstrap, self.topic, RECORDS)
        found = {}
        for uses, sinks in USES.items():
            with stopwatch() as without:
                self._run(f"without_{len(sinks)}", sinks, None)
            with stopwatch() as watched:
                self._run(f"watched_{len(sinks)}", sinks, EventTime("1 min", tick=False))
            found[uses] = watched() / without()
        return found

    def _run(self, name: str, sinks: tuple[str, ...], event_time: EventTime | None) -> None:
        pipeline = Pipeline(
            wait_for_others=0,
            name=name,
            dag_id="bench",
            source=KafkaSource(topics=[self.topic], conn_id="kafka", max_wait=0),
            sinks=tuple(DeltaSink(sink, str(self.folder / name / sink), commit="deltalake") for sink in sinks),
            transform=Transform(path=str(APP), function=name),
            event_time=event_time,
        )
        ledger, env = Ledger(LocalStore(self.folder / "ledger"), name), SameSpark(self.spark, self.bootstrap)
        run_epoch(Coordinator(TaskTry(pipeline=pipeline, ledger=ledger, env=env)), Run("b", f"run{next(self.runs)}"))
