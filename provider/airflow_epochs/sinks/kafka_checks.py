"""The vote's checks on topics and records: what the commit will need, looked at before the promise.

Each raises Refused; NotApplied where the brokers do not answer, and then there is no vote yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from airflow_epochs.errors import Refused
from airflow_epochs.model import TransactionId
from airflow_epochs.sinks.kafka_cluster import Cluster, TopicFacts
from airflow_epochs.sinks.kafka_marker import MarkerRecord, Markers
from airflow_epochs.sinks.kafka_producer import RECORD_BYTES_MAX
from airflow_epochs.sinks.kafka_rows import Record, size_of

NAMED_MAX = 3
"""So many records that do not fit are named."""


def require_topic(cluster: Cluster, name: str) -> TopicFacts:
    """The topic exists, and enough brokers hold it to acknowledge a write."""
    facts = cluster.topic(name)
    if facts is None:
        raise Refused(
            f"There is no topic {name} in the cluster at {', '.join(cluster.access.servers)}.",
            remedy="Create it, or correct the sink's topic or conn_id; then clear the stage task.",
        )
    needed = int(facts.settings.get("min.insync.replicas", "1"))
    if facts.replicas < needed:
        raise Refused(
            f"Topic {name} has {facts.replicas} replicas and min.insync.replicas={needed}: nothing can be written.",
            remedy="Give the topic more replicas, or lower min.insync.replicas; then clear the stage task.",
        )
    return facts


def require_rights(facts: TopicFacts, *operations: str) -> None:
    """The user may do all of ``operations``, as far as the brokers say."""
    missing = [name for name in operations if facts.allowed is not None and not {name, "ALL"} & facts.allowed]
    if missing:
        raise Refused(
            f"The connection's user lacks rights on topic {facts.name}: {', '.join(missing)}.",
            remedy="Grant them, and what else docs/kafka-sink.md lists; then clear the stage task.",
        )


def require_records(records: Iterable[Record], facts: TopicFacts) -> None:
    """Every record is one that the topic takes. Makes and measures them all."""
    bytes_max = min(facts.record_bytes_max, RECORD_BYTES_MAX)
    problems = (
        f"row {number} {problem}"
        for number, record in enumerate(records)
        if (problem := _problem(record, bytes_max, facts))
    )
    if named := list(islice(problems, NAMED_MAX)):
        raise Refused(
            f"Topic {facts.name} does not take the rows: {'; '.join(named)}{' …' if len(named) == NAMED_MAX else ''}.",
            remedy="Correct the transform or the topic's settings; then clear the stage task.",
        )


def _problem(record: Record, bytes_max: int, facts: TopicFacts) -> str | None:
    key, _, partition, _ = record
    if (size := size_of(record)) > bytes_max:
        limit = f"max.message.bytes={bytes_max}" if bytes_max < RECORD_BYTES_MAX else f"at most {bytes_max} are sent"
        return f"makes a record of {size} bytes ({limit})"
    if partition is not None and not 0 <= partition < facts.partitions:
        return f"is for partition {partition}, there are {facts.partitions}"
    if key is None and facts.is_compacted:
        return "has no key (cleanup.policy=compact)"
    return None


def require_marker(found: MarkerRecord | None, previous: TransactionId | None, markers: Markers) -> None:
    """The topic shows the sink's previous epoch, no other."""
    if (found.txn_id if found else None) != (str(previous) if previous else None):
        raise Refused(
            f"The marker of {markers.key} in topic {markers.topic} is {found.txn_id if found else 'missing'}, but the "
            f"ledger says that its last epoch is {previous or 'none'}.",
            remedy="Find out who else sends under these names, or whether the ledger or the topics were restored. See "
            "docs/kafka-sink.md, 'The marker topic'.",
        )
