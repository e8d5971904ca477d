"""The marker topic. It must keep markers at least as safely as the rows' topic keeps rows; if not, it is refused."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.kafka.cluster import Cluster, TopicFacts

PARTITIONS = 16
"""At first: one for the assignments, and one for each of fifteen sinks. More are added when they are needed."""
SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": "86400000",  # old markers are compacted away once their segment is closed
    "min.cleanable.dirty.ratio": "0.1",
    "unclean.leader.election.enable": "false",
}


def create(cluster: Cluster, name: str, rows: TopicFacts) -> TopicFacts:
    """Create it with as many replicas as the rows' topic: if only the markers were lost, rows would be sent twice."""
    settings = {**SETTINGS, "min.insync.replicas": str(rows.insync_min)}
    return cluster.create(name, PARTITIONS, rows.replicas, settings)


def require_compacted(facts: TopicFacts) -> TopicFacts:
    """Raise Refused unless the topic is compacted, which keeps the newest marker of each key."""
    if facts.settings["cleanup.policy"] != "compact":
        raise Refused(
            f"The marker topic {facts.name} has cleanup.policy={facts.settings['cleanup.policy']}: epoch markers would "
            "be lost.",
            code=codes.MARKER_TOPIC_SETTINGS,
            remedy=f"Set it right: kafka-configs.sh --alter --entity-type topics --entity-name {facts.name} "
            "--add-config cleanup.policy=compact. Then clear the task: if a marker is missing by now, it says so.",
        )
    return facts


def require_as_safe(markers: TopicFacts, rows: TopicFacts) -> None:
    """Raise Refused if a fault could destroy the markers and leave the rows."""
    if markers.replicas < rows.replicas:
        raise Refused(
            f"The marker topic {markers.name} has {markers.replicas} replicas, topic {rows.name} has {rows.replicas}: "
            "if the markers are lost and the rows are not, rows are sent twice.",
            code=codes.MARKER_TOPIC_SETTINGS,
            remedy=f"Give {markers.name} as many replicas, with kafka-reassign-partitions.sh as docs/kafka-sink.md "
            "shows in 'A marker topic that is weaker than the topic'; then clear the stage task. Never delete it.",
        )
    if wanted := ",".join(_weaker_settings(markers, rows)):
        raise Refused(
            f"The marker topic {markers.name} can lose what topic {rows.name} keeps: it needs {wanted}.",
            code=codes.MARKER_TOPIC_SETTINGS,
            remedy=f"Set it: kafka-configs.sh --alter --entity-type topics --entity-name {markers.name} "
            f"--add-config {wanted}. Then clear the stage task. Never delete the topic.",
        )


def _weaker_settings(markers: TopicFacts, rows: TopicFacts) -> Iterator[str]:
    if markers.acknowledgers < rows.acknowledgers:
        yield f"min.insync.replicas={rows.insync_min}"
    if markers.elects_uncleanly and not rows.elects_uncleanly:
        yield "unclean.leader.election.enable=false"
