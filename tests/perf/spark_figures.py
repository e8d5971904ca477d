"""Rows per second of an epoch beside Structured Streaming ``availableNow``: Kafka to Delta, one warm session.

The epoch does all that a pipeline does (open, stage, vote, commit, complete) against a ledger on the local disk.
Both parse JSON and write one Delta table; both run in this process's classic session, in turn.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_epochs import DeltaSink, KafkaSource
from airflow_epochs.contracts import Connection, SparkJob
from airflow_epochs.coordinator.coordinator import Coordinator, Pipeline, Transform
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import JsonDict, Run
from airflow_epochs.sources.kafka.reader import CONSUMER_DEFAULTS
from airflow_epochs.testing import run_epoch
from stack import spark as stack_spark
from stack.broker import Broker
from stack.jars import Jars, fetch
from tests.perf.apps import parse
from tests.perf.figures import JIT_RUNS, Figure, figure, ratios, timed_in_turn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 3_000_000
PARTITIONS = 4
TOPIC = "bench"
TRANSFORM = Path(__file__).parent / "apps" / "parse.py"


def figures() -> list[Figure]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Broker(Path(folder, "broker"), jars := fetch("spark", "broker")) as kafka,
    ):
        create_topic(kafka.bootstrap)
        produce(kafka.bootstrap, RECORDS)
        with warm_session(jars, Path(folder)) as spark:
            return _compare(spark, kafka.bootstrap, Path(folder))


def _compare(spark: SparkSession, bootstrap: str, folder: Path) -> list[Figure]:
    transform = Transform(path=str(TRANSFORM), function="transform")
    runs: dict[str, Callable[[], object]] = {
        "plain": lambda: available_now(spark, bootstrap, folder / "plain", {}, parse.parsed),
        "tuned": lambda: available_now(spark, bootstrap, folder / "tuned", CONSUMER_DEFAULTS, parse.parsed),
        "epoch": lambda: epoch(spark, bootstrap, folder / "epoch", transform, RECORDS),
    }
    seconds = timed_in_turn(runs, warm_up=JIT_RUNS)
    rates = {name: [RECORDS / each / 1e6 for each in samples] for name, samples in seconds.items()}
    ours = seconds["epoch"]
    return [
        figure(
            "epoch ÷ availableNow as it comes", "ratio", ratios(ours, seconds["plain"]), least=1.15, note="rows/s, 3 M"
        ),
        figure("epoch ÷ availableNow, same consumer settings", "ratio", ratios(ours, seconds["tuned"]), least=1.0),
        *(figure(f"{name}: throughput", "M rows/s", samples) for name, samples in rates.items()),
    ]


@contextmanager
def warm_session(jars: Jars, folder: Path, memory: str = "3g") -> Iterator[SparkSession]:
    """Spark with Delta and Kafka in this process, for the time of the block."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable  # the first python3 on the PATH need not have pyarrow
    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", memory)
    for key, value in stack_spark.settings(jars).items():
        builder = builder.config(key, value)
    spark = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def available_now(
    spark: SparkSession,
    bootstrap: str,
    folder: Path,
    settings: dict[str, str],
    parsed: Callable[[DataFrame], DataFrame],
    topic: str = TOPIC,
) -> None:
    """One streaming query over a whole topic, into a new table."""
    shutil.rmtree(folder, ignore_errors=True)
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    stream = stream.option("startingOffsets", "earliest").option("kafka.isolation.level", "read_committed")
    writer = parsed(stream.options(**settings).load()).writeStream.format("delta").trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "table")).awaitTermination()


def epoch(
    spark: SparkSession,
    bootstrap: str,
    folder: Path,
    transform: Transform,
    rows: int,
    topic: str = TOPIC,
    **options: Any,
) -> None:
    """One epoch of a whole topic, into a new table, which must get so many rows. ``options``: of its sink."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    coordinator = Coordinator(
        TaskTry(
            pipeline=Pipeline(
                wait_for_others=0,
                name="bench",
                dag_id="bench",
                source=KafkaSource(topics=[topic], conn_id="kafka"),
                sinks=(DeltaSink("table", str(folder / "table"), **options),),
                transform=transform,
            ),
            ledger=Ledger(LocalStore(folder / "ledger"), "bench"),
            env=SameSpark(spark, bootstrap),
        )
    )
    done = run_epoch(coordinator, Run("bench", "run"))
    assert done.receipts["table"].rows == rows


@dataclass
class SameSpark:
    """An environment whose jobs run in this process's Spark, each in a session of its own, as behind a Connect server.

    So the settings of a stage job do not hold for the streaming query that it is compared with.
    """

    session: SparkSession
    bootstrap: str

    @property
    def spark(self) -> SameSpark:
        return self

    def connection(self, conn_id: str) -> Connection:
        return Connection(conn_id=conn_id, conn_type="kafka", extra={"bootstrap.servers": self.bootstrap})

    def reached(self, phase: str) -> None:
        pass

    def new_session(self) -> JsonDict:
        return {}

    def cancel(self) -> None:
        pass

    def stop(self, session: JsonDict) -> None:
        pass

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        from airflow_epochs.spark.driver.jobs import run
        from airflow_epochs.spark.driver.kafka_read import SESSION_CONF

        own = self.session.newSession()
        for key, value in SESSION_CONF.items():
            own.conf.set(key, value)
        return run(own, job.kind, job.args, job.secrets)


def create_topic(bootstrap: str, topic: str = TOPIC) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})  # must outlive the future
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()


def produce(bootstrap: str, records: int) -> None:
    produce_to(bootstrap, TOPIC, map(_record, range(records)))


def produce_to(bootstrap: str, topic: str, values: Iterable[str | bytes]) -> None:
    """Append records to a topic, a partition after the other."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "compression.type": "lz4"})
    for number, value in enumerate(values):
        _send(producer, topic, value, number % PARTITIONS)
    assert producer.flush(120) == 0


def produce_orders(bootstrap: str, topic: str, records: int) -> None:
    """Append orders of 1,000 keys to a topic, wherever the producer puts them."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 10**7})
    for number in range(records):
        order = {"key": number % 1000, "amount": 3, "ts": "2026-01-01T00:00:00Z", "note": f"the order {number}"}
        producer.produce(topic, value=json.dumps(order))
    assert producer.flush(120) == 0


def _record(number: int) -> str:
    return json.dumps(
        {
            "id": number,
            "cust": number % 1000,
            "amt": number * 0.5,
            "ts": 1_700_000_000_000 + number,
            "note": f"some text here {number % 77}",
        }
    )


def _send(producer: Any, topic: str, value: str | bytes, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, value=value, partition=partition)
            return
        except BufferError:
            producer.poll(0.1)
