"""The marker topic. It must keep markers at least as safely as the rows' topic keeps rows; if not, it is refused."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.kafka.cluster import Cluster, TopicFacts

PARTITIONS = 16
"""A new topic has one for the assignments, and one for each of fifteen sinks. More are added when they are needed."""
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": "86400000",  # old markers are compacted away once their segment is closed
    "min.cleanable.dirty.ratio": "0.1",
    "unclean.leader.election.enable": "false",
}


def create(cluster: Cluster, name: str, rows: TopicFacts) -> TopicFacts:
    """Create the topic with as many replicas as the rows' topic. If only markers were lost, rows would come twice."""
    return cluster.create(name, PARTITIONS, rows.replicas, _settings(rows))


def require_creatable(cluster: Cluster, name: str, rows: TopicFacts) -> None:
    """Ask the brokers whether ``create`` would do. Creates nothing."""
    cluster.require_creatable(name, PARTITIONS, rows.replicas, _settings(rows))


def _settings(rows: TopicFacts) -> dict[str, str]:
    return {**SETTINGS, "min.insync.replicas": str(rows.insync_min)}


def require_compacted(facts: TopicFacts) -> TopicFacts:
    """Raise Refused unless the topic is compacted, which keeps the newest marker of each key."""
    if facts.settings["cleanup.policy"] != "compact":
        raise Refused(
            f"The marker topic {facts.name} has cleanup.policy={facts.settings['cleanup.policy']}. Kafka would delete "
            "epoch markers.",
            code=codes.MARKER_TOPIC_SETTINGS,
            remedy=f"Set the policy: {facts.altering('cleanup.policy=compact')}. Clear the failed task. If Kafka has "
            "already deleted a marker, the task says so.",
        )
    return facts


def require_as_safe(markers: TopicFacts, rows: TopicFacts) -> None:
    """Raise Refused if a fault could destroy the markers and leave the rows."""
    if markers.replicas < rows.replicas:
        raise Refused(
            f"The marker topic {markers.name} has {markers.replicas} replicas, but topic {rows.name} has "
            f"{rows.replicas}. If Kafka lost the markers and kept the rows, the sink would send rows twice.",
            code=codes.MARKER_TOPIC_SETTINGS,
            remedy=f"Wait if partitions of {rows.name} are being moved just now: until that has ended, Kafka counts "
            f"old and new replicas. Otherwise give {markers.name} {rows.replicas} replicas, with "
            "kafka-reassign-partitions.sh, as docs/kafka-sink.md shows in 'A marker topic that is weaker than the "
            "topic'. Then clear the stage task. Never delete the marker topic.",
        )
    if wanted := ",".join(_weaker_settings(markers, rows)):
        raise Refused(
            f"The marker topic {markers.name} could lose markers while topic {rows.name} keeps the rows. It needs "
            f"{wanted}.",
            code=codes.MARKER_TOPIC_SETTINGS,
            remedy=f"Set it: {markers.altering(wanted)}. Clear the stage task. Never delete the marker topic.",
        )


def _weaker_settings(markers: TopicFacts, rows: TopicFacts) -> Iterator[str]:
    if markers.acknowledgers < rows.acknowledgers:
        yield f"min.insync.replicas={rows.insync_min}"
    if markers.elects_uncleanly and not rows.elects_uncleanly:
        yield "unclean.leader.election.enable=false"
