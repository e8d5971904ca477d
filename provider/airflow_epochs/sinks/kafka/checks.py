"""The vote's checks on topics and records: everything that the commit will need.

Each raises Refused if the check fails, and NotApplied if the brokers do not answer; then there is no vote yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.model import Shown, TransactionId, compare
from airflow_epochs.sinks.kafka.cluster import Cluster, TopicFacts
from airflow_epochs.sinks.kafka.compression import compresses
from airflow_epochs.sinks.kafka.marker import MarkerRecord, Markers
from airflow_epochs.sinks.kafka.producer import RECORD_BYTES_MAX
from airflow_epochs.sinks.kafka.rows import KafkaRecord, size_of

NAMED_MAX = 3
"""At most this many unfit records are named."""
LARGE_OFFSET, KEY_BYTES_MAX = 10**12, 127
PATIENT_MS = 10_000
"""A topic that checks timestamps must allow records to be this old."""


def require_topic(cluster: Cluster, name: str) -> TopicFacts:
    """The topic. Requires that it exists, and can have as many replicas in sync as a write needs."""
    facts = cluster.topic(name)
    if facts is None:
        raise Refused(
            f"The Kafka cluster at {', '.join(cluster.access.servers)} does not have the topic {name}.",
            code=codes.TOPIC_MISSING,
        )
    if facts.replicas < facts.insync_min and not cluster.waits_for_its_replicas_only():
        raise Refused(
            f"Topic {name} has {facts.replicas} replicas and min.insync.replicas={facts.insync_min}. Brokers before "
            "Kafka 3.7 reject every record for such a topic.",
            code=codes.TOPIC_SETTINGS,
            remedy="Give the topic more replicas, or lower the setting: "
            f"{facts.altering(f'min.insync.replicas={facts.replicas}')}. Clear the stage task.",
        )
    return facts


def is_patient(facts: TopicFacts) -> bool:
    """Whether the topic takes records that are some seconds old: the client stamps each when it queues it."""
    stamped = facts.settings.get("message.timestamp.type") == "CreateTime"
    return not stamped or _bound_ms(facts) >= PATIENT_MS


def _bound_ms(facts: TopicFacts) -> int:
    return int(facts.settings.get("message.timestamp.before.max.ms", PATIENT_MS))


def require_timestamps(facts: TopicFacts) -> None:
    """Check that the topic takes records that are some seconds old."""
    if not is_patient(facts):
        bound = _bound_ms(facts)
        raise Refused(
            f"Topic {facts.name} has message.timestamp.before.max.ms={bound}: it rejects a record that takes longer "
            f"than {bound} ms from the sink to the broker.",
            code=codes.TOPIC_SETTINGS,
            remedy=f"Raise the setting to {PATIENT_MS} or more, or let the brokers set the time: "
            f"{facts.altering('message.timestamp.type=LogAppendTime')}. Clear the stage task.",
        )


def require_time(needed_s: float, timeout_s: int) -> None:
    """Check that reading the rows and making records of them, as the commit does too, leaves time to send them."""
    if needed_s >= timeout_s:
        raise Refused(
            f"The sink cannot send the rows within transaction_timeout={timeout_s} s: it took {needed_s:.0f} s to make "
            "the records, without sending them.",
            code=codes.TRANSACTION_TIMEOUT_SHORT,
        )


def require_rights(facts: TopicFacts, *operations: str) -> None:
    """Check that the user may do all of ``operations``, as far as the brokers say."""
    missing = [name for name in operations if facts.allowed is not None and not {name, "ALL"} & facts.allowed]
    if missing:
        raise Refused(
            f"The connection's user lacks these rights on topic {facts.name}: {', '.join(missing)}.",
            code=codes.KAFKA_FORBIDDEN,
            remedy="Grant the user these rights, and the others that docs/kafka-sink.md lists. Clear the stage task.",
        )


def require_records(records: Iterable[KafkaRecord], facts: TopicFacts) -> None:
    """Check that the topic takes every record. Makes and measures all of them."""
    bytes_max = min(facts.record_bytes_max, RECORD_BYTES_MAX)
    problems = (
        f"row {number} {problem}"
        for number, record in enumerate(records)
        if (problem := _problem(record, bytes_max, facts))
    )
    if named := list(islice(problems, NAMED_MAX)):
        raise Refused(
            f"Topic {facts.name} cannot take the rows: {'; '.join(named)}{' …' if len(named) == NAMED_MAX else ''}.",
            code=codes.TOPIC_ROWS_UNFIT,
        )


def _problem(record: KafkaRecord, bytes_max: int, facts: TopicFacts) -> str | None:
    key, _, partition, _ = record
    if (size := size_of(record)) > bytes_max:
        limit = _limit(facts) if bytes_max < RECORD_BYTES_MAX else f"the sink sends at most {bytes_max}"
        return f"makes a record of {size} bytes, but {limit}"
    if partition is not None and not 0 <= partition < facts.partitions:
        return f"is for partition {partition}, but the topic has {facts.partitions} partitions"
    if key is None and facts.is_compacted:
        return "has no key, but the topic has cleanup.policy=compact"
    return None


def _limit(facts: TopicFacts) -> str:
    limit = f"the topic has {facts.limit}={facts.batch_bytes_max}"
    if not compresses(facts.compression):
        return limit
    return f"{limit} and compression.type={facts.compression}, so only {facts.record_bytes_max} surely fit"


def require_room(markers: TopicFacts, rows: TopicFacts, marker: MarkerRecord) -> None:
    """Check that the marker topic takes the marker, which grows with the partitions of the topic and of the input."""
    if (size := _size_at_most(marker, rows)) > markers.record_bytes_max:
        raise _too_large(markers, rows, f"may have {size} bytes", markers.record_bytes_max, size)


def require_taken(markers: TopicFacts, rows: TopicFacts, marker: MarkerRecord, key: str) -> None:
    """As ``require_room``, for a marker with known ``offsets``, after the vote: somebody may have changed the topics.

    The epoch is promised. So a marker that may fit, compressed by the brokers, is sent.

    ``key``: as ``Markers.key``.
    """
    if (size := size_of((key.encode(), marker.encoded(), None, []))) > markers.batch_bytes_max:
        raise _too_large(markers, rows, f"has {size} bytes", markers.batch_bytes_max, _size_at_most(marker, rows))


def _size_at_most(marker: MarkerRecord, rows: TopicFacts) -> int:
    """The marker's size if the epoch has rows in each partition."""
    ranges = {str(partition): [LARGE_OFFSET, LARGE_OFFSET] for partition in range(rows.partitions)}
    return size_of((b"", replace(marker, offsets=ranges).encoded(), None, [])) + KEY_BYTES_MAX


def _too_large(markers: TopicFacts, rows: TopicFacts, what: str, bytes_max: int, at_most: int) -> Refused:
    return Refused(
        f"The marker of the epoch {what}: topic {rows.name} has {rows.partitions} partitions, and the marker names "
        f"each that gets rows, and each partition of the input. The marker topic {markers.name} takes at most "
        f"{bytes_max} bytes. No row is visible.",
        code=codes.MARKER_TOO_LARGE,
        remedy=f"Raise what the marker topic takes: {markers.raising(2 * at_most)}. Clear the failed task.",
    )


def require_marker(found: MarkerRecord | None, previous: TransactionId | None, markers: Markers) -> None:
    """Check that the topic shows the sink's previous epoch, and no other."""
    if compare(found.txn_id if found else None, previous) is not Shown.EXPECTED:
        raise Refused(
            f"The marker of {markers.key} in topic {markers.topic} is {found.txn_id if found else 'missing'}, but the "
            f"last epoch of this sink in the ledger is {previous or 'none'}.",
            code=codes.MARKER_CHANGED,
        )
