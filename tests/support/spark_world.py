"""What tests of the Spark side share: topics with records, stage jobs, an environment of plain connections."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from airflow_epochs import codes
from airflow_epochs.contracts import SinkAttempt, SparkJob
from airflow_epochs.errors import EpochError, NotApplied
from airflow_epochs.model import TransactionId
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sources.kafka.reader import CONSUMER_DEFAULTS
from airflow_epochs.spark.driver.plans import StagePlan, TransformFile
from airflow_epochs.spark.driver.wire import as_json
from tests.support.environment import Environment

APPS = Path(__file__).parents[1] / "apps"
MANY = "select sum(id % 7) as n from range(0, 10000000000000, 1, 1)"
"""Runs for hours, in one task, so that a server of two cores has one left. Cut off, the task ends at once: it looks
every 1,000 rows, and a single row of a join may take long."""
SLOW = f"""
    from pathlib import Path
    def f(batch, epoch):
        Path({{flag!r}}).touch()
        return batch.sparkSession.sql("{MANY}")
"""
"""A transform that runs for hours, or until it is cut off, once it has touched a file."""
MASTER = "local[2]"
"""Of applications that are submitted."""
FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    # the logs of a thousand tables, each with its plans, would fill the heap: an hour long, by default
    "spark.databricks.delta.delta.log.cacheSize": "50",
    # VACUUM lists with as many Spark tasks as this says; the default of 10,000 takes 40 s here
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
}
"""Of tables with a few rows, queries are compiled for longer than they run."""
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
"""Spark's defaults for queries that run for longer than they are compiled. Only compiled ones can be cut off midway."""
LEGACY = {
    "spark.sql.parquet.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.parquet.int96RebaseModeInWrite": "LEGACY",
}
"""Of a server that writes dates before 1582 in the calendar of that time."""
CORRECTED = dict.fromkeys(LEGACY, "CORRECTED")
IGNORING = {"spark.sql.files.ignoreMissingFiles": "true", "spark.sql.files.ignoreCorruptFiles": "true"}
"""Of a server that leaves out the rows of files that it cannot read."""


@contextmanager
def settings(session: Any, values: dict[str, str]) -> Iterator[None]:
    """A session as a server could have set it up; afterwards as before."""
    before = {key: session.conf.get(key, None) for key in values}
    try:
        for key, value in values.items():
            session.conf.set(key, value)
        yield
    finally:
        for key, given in before.items():
            if given is None:
                session.conf.unset(key)
            else:  # unset, the key would have Spark's default, not the server's value
                session.conf.set(key, given)


@dataclass(frozen=True)
class Topic:
    """A topic whose records are all there is to read."""

    name: str
    bootstrap: str
    ends: tuple[int, ...]

    def read(self) -> dict[str, str]:
        partitions = [str(partition) for partition in range(len(self.ends))]
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            "assign": json.dumps({self.name: [int(partition) for partition in partitions]}),
            "startingOffsets": json.dumps({self.name: dict.fromkeys(partitions, 0)}),
            "endingOffsets": json.dumps({self.name: dict(zip(partitions, self.ends, strict=True))}),
            "failOnDataLoss": "true",
            "kafka.isolation.level": "read_committed",
            **CONSUMER_DEFAULTS,
        }


def produce(bootstrap: str, values: Sequence[str]) -> Topic:
    """A new topic with these values, alternating between its two partitions."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"spark-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result()
    producer = Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(values):
        producer.produce(name, value=value, partition=number % 2)
    assert producer.flush(10) == 0
    return Topic(name, bootstrap, ((len(values) + 1) // 2, len(values) // 2))


def batch_of(session: Any, values: Sequence[bytes | None]) -> Any:
    """A batch of Kafka, with these values in one partition."""
    rows = [("clicks", 0, number, value) for number, value in enumerate(values)]
    return session.createDataFrame(rows, "topic string, partition int, offset long, value binary")


def in_utc(row: Any) -> dict[str, Any]:
    """A row of Spark's, whose times have no zone in Python."""
    return {
        name: value.astimezone(dt.timezone.utc) if isinstance(value, dt.datetime) else value
        for name, value in row.asDict(recursive=True).items()
    }


def delta_plan(table: Path, txn: TransactionId) -> dict[str, Any]:
    """What the Delta sink asks of Spark for a table that does not exist yet."""
    attempt = SinkAttempt(txn=txn, ledger_id="1" * 32, previous=None)
    plan: dict[str, Any] = DeltaSink("sink", str(table)).plan_stage(attempt, uuid.uuid4().hex, Environment())
    return plan


def stage_job(
    topic: Topic | None,
    transform: str,
    tables: dict[str, Path],
    *,
    secrets: dict[str, str] | None = None,
    secrets_of: str = "",
    **fields: Any,
) -> SparkJob:
    """A stage job. ``transform`` is ``path:function``; ``fields`` replace those of the plan."""
    path, _, function = transform.rpartition(":")
    txn = TransactionId("p", 3, 2, uuid.uuid4().hex)
    plan = StagePlan(
        txn_id=str(txn),
        pipeline="p",
        epoch=3,
        attempt=2,
        now="2026-01-02T03:04:05+00:00",
        seed=77,
        read=topic.read() if topic else {},
        transform=TransformFile(path=path, function=function),
        outputs=tuple(tables),
        sinks={name: delta_plan(table, txn) for name, table in tables.items()},
    )
    return SparkJob(
        kind=plan.JOB,
        args=as_json(replace(plan, **fields)),
        secrets=secrets or {},
        secrets_of=secrets_of,
        files=(path,),
        description="a test",
    )


def hasty(read: dict[str, str], bootstrap: str) -> dict[str, str]:
    """The options of a read of other brokers that gives up after a second or two, not after minutes."""
    limits = {"kafka.default.api.timeout.ms": "600", "kafka.request.timeout.ms": "500", "fetchOffset.numRetries": "1"}
    return {**read, **limits, "kafka.bootstrap.servers": bootstrap}


def tells_of_unreached_brokers(error: EpochError, servers: str) -> bool:
    """Whether an error of a stage job tells all that a reader needs: cause, connection, and who must reach what."""
    cause = f"Spark gets no answer from Kafka at {servers} (connection 'kafka_default')."
    remedy = "Spark's machines, of the driver and of the executors, can reach the addresses in the connection and every"
    told = cause in error.what and f"{remedy} address that the brokers advertise" in error.remedy
    return told and error.code is codes.KAFKA_UNREACHABLE and type(error) is NotApplied


def staged_rows(table: Path) -> list[dict[str, Any]]:
    """The rows in the one place staged for ``table``, read without Spark."""
    from deltalake import DeltaTable

    (log,) = table.glob("epochs/*/*/_delta_log")
    rows: list[dict[str, Any]] = DeltaTable(str(log.parent)).to_pyarrow_table().to_pylist()
    return rows
