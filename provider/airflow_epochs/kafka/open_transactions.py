"""Finds the open transactions that hold back readers of committed records, from what the brokers tell (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

from airflow_epochs import secrecy
from airflow_epochs.errors import NotApplied
from airflow_epochs.kafka.client import KafkaClient

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

log = secrecy.logger(__name__)

Partition = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class OpenTransaction:
    """A producer's open transaction, as the brokers describe it.

    Attributes:
        transactional_id, since_ms: (milliseconds since 1970) None if the brokers do not tell them.
        known: Whether a coordinator tells that the transaction is under way in the partition. A coordinator without a
            leader, or one that hides the transaction from this user, does not tell.
        hangs: Whether no coordinator will end it, as far as is sure: see ``open_in``.
        begin: Its first offset in the partition.
        coordinator_epoch: The coordinator's epoch at the newest end of a transaction of the producer in the partition;
            -1 without one. The brokers refuse an end with a smaller epoch.
    """

    producer_id: int
    producer_epoch: int
    transactional_id: str | None = None
    since_ms: int | None = None
    known: bool = False
    hangs: bool = False
    begin: int = -1
    coordinator_epoch: int = -1

    def __str__(self) -> str:
        name = (
            f"{self.transactional_id!r}, id {self.producer_id}" if self.transactional_id else f"id {self.producer_id}"
        )
        if self.since_ms is None or self.since_ms < 0:
            return f"the transaction of producer {name}"
        since = datetime.fromtimestamp(self.since_ms / 1000, timezone.utc).isoformat(timespec="seconds")
        return f"the transaction of producer {name}, open since {since}"

    def abort_command(self, at: Partition, servers: Sequence[str]) -> str:
        """The command that ends it in a partition. Only for one whose producer is gone for good."""
        topic, partition = at
        where = " ".join(f"-b {server}" for server in servers)
        coordinator = f" --coordinator-epoch {self.coordinator_epoch}" if self.coordinator_epoch >= 0 else ""
        return (
            f"python -m kafka.admin {where} transactions abort -t {topic} -p {partition} "
            f"--producer-id {self.producer_id} --producer-epoch {self.producer_epoch}{coordinator}"
        )


class Producing(NamedTuple):
    """A producer with an open transaction in a partition. ``begin`` is the transaction's first offset there."""

    begin: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int = -1


class Coordinated(NamedTuple):
    """A transaction, as its coordinator describes it."""

    transactional_id: str
    since_ms: int
    partitions: frozenset[Partition]


def blocking_in(client: KafkaClient, partitions: Sequence[Partition]) -> dict[Partition, OpenTransaction]:
    """Per partition, the transaction that blocks it. Empty if brokers are older than Kafka 3.0 or do not tell."""
    return {at: of[0] for at, of in open_in(client, partitions).items()}


def open_in(
    client: KafkaClient, partitions: Sequence[Partition], owner: str | None = None
) -> dict[Partition, list[OpenTransaction]]:
    """Per partition that has any, its open transactions. Empty if brokers are older than Kafka 3.0 or do not tell.

    ``owner``: the transactional id whose transactions belong into the partitions. A list of transactions can leave out
    one that is under way. So one hangs only if the owner's coordinator answers, does not tell of it either, and the
    transaction is still open then.
    """
    try:
        producers = client.ask("describe producers", lambda admin: open_producers(admin, partitions))
        ids = sorted({each.producer_id for of in producers.values() for each in of})
        known = client.ask("describe transactions", lambda admin: transactions_of(admin, ids))
        owned = _of_owner(client, owner) if ids and owner else {}
        if owned:
            now = client.ask("describe producers", lambda admin: open_producers(admin, partitions))
            producers = {at: [each for each in of if each in now.get(at, ())] for at, of in producers.items()}
    except (NotApplied, ValueError) as error:  # ValueError: kafka-python does not know the transaction's state
        log.info("the brokers do not tell which transactions are open: %s", error)
        return {}
    return open_transactions(producers, {**known, **owned}, owner_answers=bool(owned))


def _of_owner(client: KafkaClient, owner: str) -> dict[int, Coordinated]:
    try:
        return client.ask("describe transactions", lambda admin: _described(admin, {owner}))
    except (NotApplied, ValueError) as error:
        log.info("the coordinator of %s does not tell of its transaction: %s", owner, error)
        return {}


def open_producers(admin: KafkaAdminClient, partitions: Iterable[Partition]) -> dict[Partition, list[Producing]]:
    """Per partition, the producers with an open transaction in it."""
    from kafka import TopicPartition

    described = admin.describe_producers([TopicPartition(*partition) for partition in partitions])
    return {
        (tp.topic, tp.partition): [
            Producing(
                each.current_transaction_start_offset, each.producer_id, each.producer_epoch, each.coordinator_epoch
            )
            for each in state.active_producers
            if each.current_transaction_start_offset >= 0
        ]
        for tp, state in described.items()
    }


def transactions_of(admin: KafkaAdminClient, producer_ids: Sequence[int]) -> dict[int, Coordinated]:
    """Per producer id, what its coordinator says.

    Leaves out a producer if no coordinator knows it, if its coordinator has no leader or still loads, or if this user
    may not describe its transactional id: the brokers do not say which.
    """
    if not producer_ids:
        return {}
    listed = admin.list_transactions(producer_id_filters=list(producer_ids))
    return _described(admin, {each.transactional_id for of in listed.values() for each in of})


def _described(admin: KafkaAdminClient, transactional_ids: set[str]) -> dict[int, Coordinated]:
    described = admin.describe_transactions(transactional_ids)
    return {
        each.producer_id: Coordinated(
            name, each.transaction_start_time_ms, frozenset((at.topic, at.partition) for at in each.topic_partitions)
        )
        for name, each in described.items()
    }


def open_transactions(
    producers: Mapping[Partition, Sequence[Producing]], known: Mapping[int, Coordinated], *, owner_answers: bool = False
) -> dict[Partition, list[OpenTransaction]]:
    """Per partition that has any, its open transactions. The one that began first holds the last stable offset back."""
    return {at: [_told(at, each, known, owner_answers) for each in sorted(of)] for at, of in producers.items() if of}


def _told(at: Partition, one: Producing, known: Mapping[int, Coordinated], owner_answers: bool) -> OpenTransaction:
    found = known.get(one.producer_id)
    under_way = found is not None and at in found.partitions
    return OpenTransaction(
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        transactional_id=found.transactional_id if found else None,
        since_ms=found.since_ms if found else None,
        known=under_way,
        hangs=owner_answers and not under_way,
        begin=one.begin,
        coordinator_epoch=one.coordinator_epoch,
    )
