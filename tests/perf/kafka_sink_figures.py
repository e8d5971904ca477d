"""Sending an epoch: the Kafka sink against a bare producer of confluent-kafka that sends the same records.

Both send the same keys, values and headers in one transaction, with the same settings, to a broker on this machine, and
both from nothing: connecting and ``init_transactions`` count, in the way that is quickest. The bare producer has its
records in memory already, as bytes; the sink reads them from staging, looks at its marker and writes the new one.
"""

from __future__ import annotations

import tempfile
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer

from airflow_epochs import KafkaSink
from airflow_epochs.sinks.kafka.producer import producer_options
from airflow_epochs.sinks.kafka.rows import HEADER
from stack.broker import Broker
from stack.jars import fetch
from tests.perf.figures import RUNS, Figure, figure, ratios, stopwatch
from tests.support.kafka_sink_world import Feed, memory_to_commit, world_at

ROWS = 600_000
TOPIC = "bench"


def figures() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder, "broker"), fetch()) as broker:
        broker.create_topic(TOPIC, partitions=2)
        data = _data()
        feed = Feed(KafkaSink("events", TOPIC, staging=f"{folder}/staging"), world_at(broker.bootstrap), "bench")
        texts = zip(data["key"].to_pylist(), data["value"].to_pylist(), strict=True)
        records = [(key.encode(), value.encode()) for key, value in texts]
        ours, bare = [], []
        for _ in range(RUNS + 1):  # the first warms up
            ours.append(_sink(feed, data))
            bare.append(_bare(broker.bootstrap, records))
        speeds = [ROWS / seconds for seconds in ours[1:]]
        attempt = feed.attempt()
        peak = memory_to_commit(feed, broker.bootstrap, attempt, feed.staged(attempt, data))
    return [
        figure("Kafka sink: rows sent, of 200 bytes", "rows/s", speeds),
        figure("Kafka sink ÷ bare producer, same records", "ratio", ratios(ours[1:], bare[1:]), least=0.8),
        figure("Kafka sink: memory of the process that sends", "MB", [peak], most=300),
    ]


def _data() -> pa.Table:
    keys = [f"customer-{number % 10_007}" for number in range(ROWS)]
    return pa.table({"key": keys, "value": [f"{number:0200}" for number in range(ROWS)]})


def _sink(feed: Feed, data: pa.Table) -> float:
    attempt = feed.attempt()
    staged = feed.staged(attempt, data)
    with stopwatch() as seconds:
        feed.commit(attempt, staged)
    feed.sink.discard(attempt, staged.place, feed.world, published=True)
    return seconds()


def _bare(bootstrap: str, records: list[tuple[bytes, bytes]]) -> float:
    """One transaction with the same settings, headers and order, and nothing else."""
    options: dict[str, Any] = {"bootstrap.servers": bootstrap, **producer_options(uuid.uuid4().hex, 900, {})}
    with stopwatch() as seconds:
        producer = Producer(options)
        for _ in range(2):  # as the sink does; or it would look for the coordinator after half a second
            producer.list_topics(TOPIC, timeout=30)
        producer.init_transactions(30)
        producer.begin_transaction()
        for number, (key, value) in enumerate(records):
            headers = [(HEADER, b"bench/events/1/%d" % number)]
            while True:
                try:
                    producer.produce(TOPIC, value, key, headers=headers)
                    break
                except BufferError:
                    producer.poll(0.1)
            if not number % 1_000:
                producer.poll(0)
        producer.commit_transaction(120)
    return seconds()
