"""The producer that sends epochs: its settings, and how it comes to own its transactional id."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_epochs.sinks.kafka.cluster import Cluster, TopicFacts

if TYPE_CHECKING:
    from confluent_kafka import Producer

QUEUE_KBYTES = 32 * 1024
"""What the producer holds of rows that are not acknowledged, in bytes …"""
QUEUE_MESSAGES = 50_000
"""… and in rows, each of which costs half a kilobyte beside its bytes."""
MESSAGE_TIMEOUT_S = 300
"""How long a record may stay unacknowledged, through restarts of brokers, before the transaction is given up."""
BATCH_BYTES = 1_000_000
RECORD_BYTES_MIN = 1_000
"""The least that the client accepts as its own limit."""
RECORD_BYTES_MAX = 32 << 20
"""The largest record that is sent, whatever the topic takes: the producer must be able to hold two."""
SLICE_S = 1.0
"""Longest call into the client: a signal is heard after it."""


def producer_options(sink_id: str, timeout_s: int, tuning: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a producer under the transactional id ``sink_id``."""
    return {
        "linger.ms": 20,
        **tuning,
        "transactional.id": sink_id,
        "transaction.timeout.ms": timeout_s * 1000,
        "message.timeout.ms": min(timeout_s, MESSAGE_TIMEOUT_S) * 1000,
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": "murmur2_random",  # as Kafka's Java clients
        "queue.buffering.max.messages": QUEUE_MESSAGES,
        "queue.buffering.max.kbytes": QUEUE_KBYTES,
        "delivery.report.only.error": True,
    }


def within(options: Mapping[str, Any], *topics: TopicFacts) -> dict[str, Any]:
    """The settings, with batches that all the topics take: brokers check batches, not records."""
    limits = [topic.record_bytes_max for topic in topics]
    largest = min(max(*limits, RECORD_BYTES_MIN), RECORD_BYTES_MAX)
    return {
        **options,
        "batch.size": min(int(options.get("batch.size", BATCH_BYTES)), *limits),  # from a batch's second record on
        "message.max.bytes": largest,  # the client's own check; the vote's is the one per topic
        "queue.buffering.max.kbytes": max(QUEUE_KBYTES, 2 * largest // 1024),
    }


def transactional(cluster: Cluster, options: Mapping[str, Any], topic: str) -> Producer:
    """A producer whose transactional id is its own now: every earlier transaction of it has ended, and is fenced.

    Raises:
        Refused: The brokers do not accept the timeout, or the user may not use the id.
        NotApplied: They do not answer.
    """
    from confluent_kafka import KafkaException

    producer = cluster.producer(options)
    deadline = time.monotonic() + cluster.access.timeout_s
    with cluster.asking(f"begin transactions under the id {options['transactional.id']}"):
        # Connected first: by itself, the client looks for the transaction's coordinator twice a second only. And asked
        # twice: the first answer may come by the bootstrap connection, which the client then gives up.
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
    """What a producer is told whose transactional id is another's now, or whose transaction was ended for it."""
    from confluent_kafka import KafkaError

    return {KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED}
