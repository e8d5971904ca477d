"""The producer that sends epochs: its settings, and how it takes over its transactional id."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_epochs.sinks.kafka.cluster import Cluster, TopicFacts

if TYPE_CHECKING:
    from confluent_kafka import Producer

QUEUE_KBYTES = 32 * 1024
"""How many bytes of unacknowledged rows the producer holds …"""
QUEUE_MESSAGES = 50_000
"""… and how many rows. Each row takes half a kilobyte besides its own bytes."""
BATCH_BYTES = 1_000_000
RECORD_BYTES_MIN = 1_000
"""The smallest value that the client accepts for ``message.max.bytes``."""
RECORD_BYTES_MAX = 32 << 20
"""The largest record that is sent, whatever the topic takes: the producer must be able to hold two of them."""
SLICE_S = 1.0
"""The longest call into the client. Python handles a signal only after the call."""


def producer_options(sink_id: str, timeout_s: int, tuning: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a producer with the transactional id ``sink_id``."""
    return {
        "linger.ms": 20,
        **tuning,
        "transactional.id": sink_id,
        "transaction.timeout.ms": timeout_s * 1000,
        "message.timeout.ms": timeout_s * 1000,  # not less: a quota may hold a full queue back for longer
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": "murmur2_random",  # as in Kafka's Java clients
        "queue.buffering.max.messages": QUEUE_MESSAGES,
        "queue.buffering.max.kbytes": QUEUE_KBYTES,
        "delivery.report.only.error": True,
    }


def within(options: Mapping[str, Any], *topics: TopicFacts) -> dict[str, Any]:
    """The settings, with batches small enough for all topics: brokers check the size of a batch, not of a record."""
    limits = [topic.record_bytes_max for topic in topics]
    largest = min(max(RECORD_BYTES_MIN, *(topic.batch_bytes_max for topic in topics)), RECORD_BYTES_MAX)
    return {
        **options,
        "batch.size": min(int(options.get("batch.size", BATCH_BYTES)), *limits),  # a single record may be larger
        "message.max.bytes": largest,  # checked by the client; the vote checks each topic's own limit
        "queue.buffering.max.kbytes": max(QUEUE_KBYTES, 2 * largest // 1024),
    }


def transactional(cluster: Cluster, options: Mapping[str, Any], topic: str) -> Producer:
    """A producer that owns its transactional id: earlier transactions have ended, earlier producers are fenced.

    Raises:
        Refused: The brokers do not accept the timeout, or the user may not use the id.
        NotApplied: The brokers do not answer.
    """
    from confluent_kafka import KafkaException

    producer = cluster.producer(options)
    deadline = time.monotonic() + cluster.access.timeout_s
    with cluster.asking(f"begin transactions under the id {options['transactional.id']}"):
        # Connect first: otherwise the client looks for the transaction's coordinator only twice a second. Ask twice:
        # the first answer may come through the bootstrap connection, which the client then closes.
        for _ in range(2):
            producer.list_topics(topic, timeout=cluster.access.timeout_s)
        while True:
            try:
                producer.init_transactions(SLICE_S)
                return producer
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise


def fenced() -> set[int]:
    """The errors of a producer whose id another producer has taken over, or whose transaction the brokers ended."""
    from confluent_kafka import KafkaError

    return {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
