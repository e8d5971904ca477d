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
from airflow_epochs.sinks.kafka.marker import MarkerRecord, Markers
from airflow_epochs.sinks.kafka.producer import RECORD_BYTES_MAX
from airflow_epochs.sinks.kafka.rows import Record, size_of

NAMED_MAX = 3
"""At most this many unfit records are named."""
LARGE_OFFSET, KEY_BYTES_MAX = 10**12, 127
PATIENT_MS = 10_000
"""A topic that checks timestamps must allow records to be this old."""


def require_topic(cluster: Cluster, name: str) -> TopicFacts:
    """The topic, if it exists and can have as many replicas in sync as a write needs."""
    facts = cluster.topic(name)
    if facts is None:
        raise Refused(
            f"There is no topic {name} in the cluster at {', '.join(cluster.access.servers)}.",
            code=codes.TOPIC_MISSING,
            remedy="Create it, or correct the sink's topic or conn_id; then clear the stage task.",
        )
    if facts.replicas < facts.insync_min and not cluster.waits_for_its_replicas_only():
        raise Refused(
            f"Topic {name} has {facts.replicas} replicas and min.insync.replicas={facts.insync_min}: brokers before "
            "Kafka 3.7 take nothing for it.",
            code=codes.TOPIC_SETTINGS,
            remedy=f"Give the topic more replicas, or lower it: kafka-configs.sh --alter --entity-type topics "
            f"--entity-name {name} --add-config min.insync.replicas={facts.replicas}. Then clear the stage task.",
        )
    return facts


def require_timestamps(facts: TopicFacts) -> None:
    """Check that the topic takes records that are some seconds old: the client stamps each when it queues it."""
    if facts.settings.get("message.timestamp.type") != "CreateTime":
        return
    bound = int(facts.settings.get("message.timestamp.before.max.ms", PATIENT_MS))
    if bound < PATIENT_MS:
        raise Refused(
            f"Topic {facts.name} has message.timestamp.before.max.ms={bound}: it refuses records on their way for "
            "longer than that.",
            code=codes.TOPIC_SETTINGS,
            remedy=f"Raise it to {PATIENT_MS} or more, or let the brokers set the time: kafka-configs.sh --alter "
            f"--entity-type topics --entity-name {facts.name} --add-config message.timestamp.type=LogAppendTime. Then "
            "clear the stage task.",
        )


def require_time(needed_s: float, timeout_s: int) -> None:
    """Check that reading the rows and making records of them, as the commit does too, leaves time to send them."""
    if needed_s >= timeout_s:
        raise Refused(
            f"The rows take longer to send than transaction_timeout={timeout_s} s: making the records alone took "
            f"{needed_s:.0f} s.",
            code=codes.TRANSACTION_TIMEOUT,
            remedy="Raise transaction_timeout of the sink, and the brokers' transaction.max.timeout.ms if that is "
            "less; or take fewer records per epoch, with max_records of the source. Then clear the stage task.",
        )


def require_rights(facts: TopicFacts, *operations: str) -> None:
    """Check that the user may do all of ``operations``, as far as the brokers say."""
    missing = [name for name in operations if facts.allowed is not None and not {name, "ALL"} & facts.allowed]
    if missing:
        raise Refused(
            f"The connection's user lacks rights on topic {facts.name}: {', '.join(missing)}.",
            code=codes.KAFKA_FORBIDDEN,
            remedy="Grant them, and what else docs/kafka-sink.md lists; then clear the stage task.",
        )


def require_records(records: Iterable[Record], facts: TopicFacts) -> None:
    """Check that the topic takes every record. Makes and measures all of them."""
    bytes_max = min(facts.record_bytes_max, RECORD_BYTES_MAX)
    problems = (
        f"row {number} {problem}"
        for number, record in enumerate(records)
        if (problem := _problem(record, bytes_max, facts))
    )
    if named := list(islice(problems, NAMED_MAX)):
        raise Refused(
            f"Topic {facts.name} does not take the rows: {'; '.join(named)}{' …' if len(named) == NAMED_MAX else ''}.",
            code=codes.TOPIC_ROWS_UNFIT,
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


def require_room(markers: TopicFacts, rows: TopicFacts, marker: MarkerRecord) -> None:
    """Check that the marker topic takes the marker, which grows with the partitions of the topic and of the input."""
    ranges = {str(partition): [LARGE_OFFSET, LARGE_OFFSET] for partition in range(rows.partitions)}
    size = size_of((b"", replace(marker, offsets=ranges).encoded(), None, [])) + KEY_BYTES_MAX
    if size > markers.record_bytes_max:
        raise Refused(
            f"The marker of the epoch may have {size} bytes, for {rows.partitions} partitions, and the marker topic "
            f"{markers.name} takes {markers.record_bytes_max}.",
            code=codes.MARKER_TOO_LARGE,
            remedy=f"Let it take more: kafka-configs.sh --alter --entity-type topics --entity-name {markers.name} "
            f"--add-config max.message.bytes={2 * size}. Then clear the stage task.",
        )


def require_marker(found: MarkerRecord | None, previous: TransactionId | None, markers: Markers) -> None:
    """Check that the topic shows the sink's previous epoch, and no other."""
    if compare(found.txn if found else None, previous) is not Shown.EXPECTED:
        raise Refused(
            f"The marker of {markers.key} in topic {markers.topic} is {found.txn_id if found else 'missing'}, but the "
            f"ledger says that its last epoch is {previous or 'none'}.",
            code=codes.MARKER_CHANGED,
            remedy="Find out who else sends under these names, or whether the ledger or the topics were restored. See "
            "docs/kafka-sink.md, 'The marker topic'.",
        )
