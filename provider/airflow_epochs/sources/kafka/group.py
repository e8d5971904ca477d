"""Tells a pipeline's consumer group from a group that other consumers read with. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_epochs import codes
from airflow_epochs.contracts import Position
from airflow_epochs.errors import Refused
from airflow_epochs.sources.kafka.logs import Partition

OURS = "airflow-epochs:"
"""The beginning of the metadata of every offset that a pipeline commits. The pipeline's name follows."""


def require_own_group(
    group: str, committed: Mapping[Partition, tuple[int, str]], position: Position | None, servers: Sequence[str]
) -> None:
    """Raise Refused if anything but a pipeline has committed one of the group's offsets.

    Each committed offset comes with its metadata, which names the pipeline. Version 0.1 wrote no metadata: an offset
    counts as this pipeline's if the pipeline's last epoch began or ended there. ``servers``: the brokers, for the
    remedy.
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
            f"The consumer group {group} has offsets that no pipeline has committed: {shown}. The pipeline would "
            "overwrite them, and consumers of this group would continue at the pipeline's position.",
            code=codes.GROUP_FOREIGN,
            remedy="Choose a `group_id` for the KafkaSource that no other program uses, or leave it out. If no program "
            "uses the group any more, you can delete it instead: `kafka-consumer-groups.sh --bootstrap-server "
            f"{','.join(servers)} --delete --group {group}`. Clear the failed task.",
        )
