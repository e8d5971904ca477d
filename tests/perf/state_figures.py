"""What state costs: an epoch that changes 1 % of the keys, beside one that writes the same sums without state.

Both read the same records from Kafka, parse and sum them; everything in one warm session, in turn. An epoch of the one
with state reads its touched keys from the table and stages their changes. Every sixth epoch is a fold.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from airflow_epochs import DeltaSink, KafkaSource, StateTable
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run
from airflow_epochs.testing import run_epoch
from stack.broker import Broker
from stack.jars import Jars, fetch
from tests.perf.apps.state import STATE
from tests.perf.figures import Figure, figure, stopwatch
from tests.perf.spark_figures import PARTITIONS, TOPIC, SameSpark, create_topic, warm_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APP = Path(__file__).parent / "apps" / "state.py"
AT_MOST = {100_000: 1.5, 1_000_000: 3.0, 10_000_000: 8.0}
"""Keys -> seconds over an epoch without state."""
WARM_UP = 100_000
"""Keys of the epochs in which Java compiles, and which are not measured."""
FOLD_AFTER = 5
"""Epochs of changes, each of 1 % of the keys."""


def figures() -> list[Figure]:
    jars = fetch("spark", "broker")
    with tempfile.TemporaryDirectory() as folder, warm_session(jars, Path(folder), "8g") as spark:
        _of(WARM_UP, jars, spark, Path(folder, "warm-up"))
        return [line for keys in AT_MOST for line in _of(keys, jars, spark, Path(folder, str(keys)))]


def _of(keys: int, jars: Jars, spark: SparkSession, folder: Path) -> list[Figure]:
    with Broker(folder / "broker", jars) as kafka:
        create_topic(kafka.bootstrap)
        lab = _Lab(keys, folder, kafka.bootstrap, spark)
        lab.begin()
        measured = [lab.epoch() for _ in range(FOLD_AFTER + 1)]
        assert [each.bytes > lab.whole_bytes / 2 for each in measured] == [False] * FOLD_AFTER + [True]
        without, changes, fold = [], [], measured[-1].state
        for each in measured[:-1]:
            without.append(each.without)
            changes.append(each.state)
        over = [ours - theirs for ours, theirs in zip(changes, without, strict=True)]
        name = f"state of {keys:.0e} keys".replace("e+0", "e")
        part = [each.bytes / lab.whole_bytes for each in measured[:-1]]
        return [
            figure(f"{name}: over an epoch without", "s", over, most=AT_MOST[keys], note="1 % of the keys change"),
            figure(f"{name}: an epoch", "s", changes),
            figure(f"{name}: bytes written ÷ all", "ratio", part, most=0.03, note="1 % of the keys change"),
            figure(f"{name}: a fold ÷ an epoch", "ratio", [fold / each for each in changes], most=5.0),
        ]


@dataclass(frozen=True)
class _Measured:
    without: float
    state: float
    bytes: int


@dataclass
class _Lab:
    keys: int
    folder: Path
    bootstrap: str
    spark: SparkSession
    runs: Iterator[int] = field(default_factory=count)
    whole_bytes: int = 0

    def begin(self) -> None:
        """Let the state begin with all keys, and warm up."""
        old = str(self.folder / "old")
        columns = ("id as key", "1L as n", "10L as total", "0L as last", "concat('customer-', id) as name")
        self.spark.range(self.keys).selectExpr(*columns).write.format("delta").save(old)
        self.whole_bytes = self.epoch().bytes

    def epoch(self) -> _Measured:
        """One epoch of each pipeline, over the same records."""
        self._produce(Random(next(self.runs)))
        with stopwatch() as without:
            self._run("sums", DeltaSink("sums", str(self.folder / "sums"), commit="deltalake"))
        table, initial = str(self.folder / "totals"), str(self.folder / "old")
        fold_at = 0.015 * (FOLD_AFTER - 0.5)  # a change takes more bytes than its share of the keys
        with stopwatch() as state:
            done = self._run(
                "totals", StateTable("totals", table, schema=STATE, keys=["key"], initial=initial, fold_at=fold_at)
            )
        return _Measured(without=without(), state=state(), bytes=done.receipts["totals"].bytes)

    def _run(self, name: str, sink: Any) -> Any:
        coordinator = Coordinator(
            TaskTry(
                pipeline=Pipeline(
                    wait_for_others=0,
                    name=name,
                    dag_id="bench",
                    source=KafkaSource(topics=[TOPIC], conn_id="kafka", max_wait=0),
                    sinks=(sink,),
                    transform=Transform(path=str(APP), function=name),
                ),
                ledger=Ledger(LocalStore(self.folder / "ledger"), name),
                env=SameSpark(self.spark, self.bootstrap),
            )
        )
        return run_epoch(coordinator, Run("bench", f"run{next(self.runs)}"))

    def _produce(self, dice: Random) -> None:
        """Three records of each of 1 % of the keys."""
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 10**7}
        )
        for number in range(self.keys // 100):
            value = json.dumps({"key": dice.randrange(self.keys), "amount": 3})
            for _ in range(3):
                producer.produce(TOPIC, value=value, partition=number % PARTITIONS)
        assert producer.flush(120) == 0
