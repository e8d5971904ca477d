"""Lists the records that one epoch has sent to a topic, and the records of staged rows, in one form.

The partition is left out: for a row without key, it follows from the row's number in the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_epochs import codes
from airflow_epochs.contracts import Row
from airflow_epochs.errors import Refused
from airflow_epochs.model import Receipt
from airflow_epochs.sinks.kafka.cluster import Cluster
from airflow_epochs.sinks.kafka.committed_records import PartitionLog
from airflow_epochs.sinks.kafka.rows import HEADER, KafkaRecord


def of_epoch(cluster: Cluster, topic: str, receipt: Receipt, source: str) -> Iterator[Row]:
    """``Telling.rows_of``. ``source``: the first part of the value of ``HEADER`` in the epoch's records."""
    facts = cluster.topic(topic)
    if facts is None or facts.id != receipt.detail.get("topic_id", facts.id):
        raise _untold(topic, "it is not the topic any more that got them")
    if "offsets" not in receipt.detail or (receipt.rows and not receipt.detail["offsets"]):  # a marker put by hand
        raise _untold(topic, "the receipt does not say where they are")
    told = 0
    for partition, (start, end) in sorted(receipt.detail["offsets"].items()):
        log = PartitionLog(cluster=cluster, topic=topic, partition=int(partition))
        beginning, _ = log.bounds()
        if beginning > start:
            raise _untold(topic, f"retention has deleted partition {partition} up to offset {beginning}")
        for message in log.between(start, end):
            headers = message.headers() or []
            if (dict(headers).get(HEADER) or b"").startswith(f"{source}/".encode()):
                told += 1
                yield _row(message.key(), message.value(), headers)
    if facts.is_compacted and told < receipt.rows:
        raise _untold(topic, "the topic is compacted, and newer records have taken the place of some of them")


def of_records(records: Iterator[KafkaRecord]) -> Iterator[Row]:
    """``Telling.rows_staged``."""
    return (_row(key, value, headers) for key, value, _, headers in records)


def _row(key: bytes | None, value: bytes | None, headers: Any) -> Row:
    others = [(name, content) for name, content in headers if name != HEADER]
    return {"key": key, "value": value, "headers": others or None}


def _untold(topic: str, why: str) -> Refused:
    return Refused(f"The records of one epoch in topic {topic} cannot be listed: {why}.", code=codes.DRY_RUN_UNTOLD)
