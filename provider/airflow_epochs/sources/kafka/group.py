"""Whose a consumer group is: the pipeline's, or that of somebody who reads from where it stands. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_epochs.contracts import Position
from airflow_epochs.errors import Refused
from airflow_epochs.sources.kafka.logs import Partition

OURS = "airflow-epochs:"
"""How the metadata of an offset begins that a pipeline has committed; its name follows."""


def require_own_group(group: str, committed: Mapping[Partition, tuple[int, str]], position: Position | None) -> None:
    """Raise Refused if any of the group's offsets, with their metadata, is not a pipeline's.

    Version 0.1 wrote no metadata: where its last epoch began or ended, an offset is taken for its own.
    """
    ranges = position.ranges if position else {}
    known = {(topic, r.partition, at) for topic in ranges for r in ranges[topic] for at in (r.start, r.end)}
    strange = sorted(
        f"{topic}[{partition}]"
        for (topic, partition), (at, metadata) in committed.items()
        if not metadata.startswith(OURS) and (topic, partition, at) not in known
    )
    if strange:
        shown = ", ".join(strange[:20]) + (", …" if len(strange) > 20 else "")
        raise Refused(
            f"The consumer group {group} has offsets that no pipeline has committed: {shown}. Whoever reads from "
            "there would go on where this pipeline stands.",
            remedy="Choose a group_id for the KafkaSource that nobody else uses, or leave it out. If nobody reads with "
            "the group any more, delete it (kafka-consumer-groups.sh --delete).",
        )
