"""What Spark would stage of a topic, without Spark: the planned offsets are read here, as Spark would read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from airflow_epochs.contracts import SparkJob
from airflow_epochs.model import JsonDict
from airflow_epochs.spark.driver.plans import InputMetrics, SinkOutcome, StageOutcome, StagePlan
from airflow_epochs.spark.driver.wire import as_json, from_json
from tests.support.delta_world import stage_with_deltalake
from tests.support.faults_disk import DiskSpark


class TopicSpark(DiskSpark):
    """Stages what lies in a topic, too. Its records are JSON with ``source`` and ``payload``."""

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        plan = from_json(StagePlan, job.args)
        if "startingOffsets" not in plan.read:
            return super().run(job, session)
        rows, claims = _consumed(plan.read), {}
        for name, told in plan.sinks.items():
            self.reached("staging.downstream")
            claims[name] = SinkOutcome(place=stage_with_deltalake(told, rows).place)
        return as_json(StageOutcome(sinks=claims, metrics=InputMetrics(rows_in=len(rows))))


def _consumed(options: Mapping[str, str]) -> pa.Table:
    """The committed records in the offsets that Spark is told to read."""
    starts, ends = (json.loads(options[name]) for name in ("startingOffsets", "endingOffsets"))
    rows: list[Any] = []
    for topic, offsets in starts.items():
        for partition, start in offsets.items():
            rows += _between(options["kafka.bootstrap.servers"], topic, int(partition), start, ends[topic][partition])
    columns = {name: [row[name] for row in rows] for name in ("source", "partition", "offset", "payload")}
    kinds = {"source": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "payload": pa.string()}
    return pa.table({name: pa.array(column, kinds[name]) for name, column in columns.items()})


def _between(bootstrap: str, topic: str, partition: int, start: int, end: int) -> list[Any]:
    options = {"bootstrap.servers": bootstrap, "group.id": "chain", "isolation.level": "read_committed"}
    consumer = Consumer({**options, "enable.partition.eof": True, "enable.auto.commit": False, "fetch.wait.max.ms": 10})
    consumer.assign([TopicPartition(topic, partition, start)])
    rows = []
    while (message := consumer.poll(20)) is not None and not message.error() and message.offset() < end:
        rows.append({**json.loads(message.value()), "partition": partition, "offset": message.offset()})
    consumer.close()
    return rows
