"""Asks the coordinator of a consumer group who its members are, and what it has committed for good."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from airflow_epochs.sources.kafka.logs import Partition

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

_NOT_A_CLASSIC_GROUP = "Dead"
"""The state that brokers report for a group that does not exist, or has another protocol (KIP-848, KIP-1071)."""
_AT_REST = ("Empty", "Dead", "")
_STABLE_VERSIONS = (2, 7)
"""The lowest and the highest version of the request for offsets. 7 (Kafka 2.5) is the first that can wait for
transactions. New brokers still take it."""


def members(admin: KafkaAdminClient, group: str) -> list[str]:
    """The members of a consumer group, for people. Empty if nobody is in it, or if it does not exist.

    Raises KafkaError: The coordinator does not tell; some of these errors pass by themselves.
    """
    described: dict[str, Any] = admin.describe_groups([group])[group]
    _raise(described["error"], group)
    if described["group_state"] == _NOT_A_CLASSIC_GROUP:
        return _of_another_protocol(admin, group)
    return sorted(f"{each['client_id']} on {each['client_host'].lstrip('/')}" for each in described["members"])


def _of_another_protocol(admin: KafkaAdminClient, group: str) -> list[str]:
    """The state of a group with another protocol, in place of its members: kafka-python cannot ask for these."""
    listed = [each for each in admin.list_groups() if each["group_id"] == group]
    return [
        f"consumers of the protocol {each.get('group_type') or each['protocol_type']} (the group is {state})"
        for each in listed
        if (state := each.get("group_state") or "") not in _AT_REST
    ]


def _raise(error: str | None, group: str) -> None:
    """Raise kafka-python's ``error``, a text that begins with the code. A group that does not exist is no error."""
    from kafka.errors import GroupIdNotFoundError, for_code

    if not error:
        return
    found = re.match(r"\[Error (-?\d+)\]", error)
    kind = for_code(int(found[1]) if found else -1)
    if kind is not GroupIdNotFoundError:
        raise kind(f"{group}: {error}")


def committed(
    admin: KafkaAdminClient, group: str, partitions: Iterable[Partition] = ()
) -> dict[Partition, tuple[int, str]]:
    """The group's committed offsets with their metadata. Empty if the group does not exist.

    Args:
        admin: The client.
        group: The group.
        partitions: Partitions for which also a transaction counts that would commit the group's first offset.

    Raises UnstableOffsetCommitError, which may pass: a transaction has offsets of the group, and is not ended yet.
    """
    found = _fetched(admin, group, None)
    return {**found, **_fetched(admin, group, partitions)} if partitions else found


def _fetched(
    admin: KafkaAdminClient, group: str, partitions: Iterable[Partition] | None
) -> dict[Partition, tuple[int, str]]:
    """``partitions``: None for all that have an offset."""
    from kafka.protocol.consumer import OffsetFetchRequest

    lowest, highest = _STABLE_VERSIONS
    topics = None if partitions is None else _by_topic(partitions, OffsetFetchRequest.OffsetFetchRequestTopic)
    request = OffsetFetchRequest(
        group_id=group, topics=topics, require_stable=True, min_version=lowest, max_version=highest
    )

    async def ask() -> Any:
        return await admin._manager.send(request, node_id=await admin._find_coordinator_id(group))

    found = admin._parse_group_offsets(admin._manager.run(ask))
    return {(tp.topic, tp.partition): (at.offset, at.metadata or "") for tp, at in found.items() if at.offset >= 0}


def _by_topic(partitions: Iterable[Partition], topic_of: Any) -> list[Any]:
    found: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(partition)
    return [topic_of(name=topic, partition_indexes=of) for topic, of in found.items()]


def in_transaction(error: BaseException) -> bool:
    """Whether ``committed`` has failed because a transaction that has offsets of the group did not end."""
    from kafka.errors import UnstableOffsetCommitError

    return isinstance(error.__cause__, UnstableOffsetCommitError)
