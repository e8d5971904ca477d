"""A producer's request that comes late, after its transaction has ended: what it leaves behind hangs (KIP-664)."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from kafka.record.default_records import DefaultRecordBatchBuilder

from stack.broker import Broker
from tests.support.waiting import wait_until


@contextmanager
def unverified(admin: AdminClient) -> Iterator[None]:
    """The broker takes records of a transaction that it knows nothing of, as all brokers before Kafka 3.6."""
    name = "transaction.partition.verification.enable"
    change_broker(admin, ConfigEntry(name, "false", incremental_operation=AlterConfigOpType.SET))
    try:
        yield
    finally:
        change_broker(admin, ConfigEntry(name, None, incremental_operation=AlterConfigOpType.DELETE))


def change_broker(admin: AdminClient, entry: ConfigEntry) -> None:
    resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result()


class Late(NamedTuple):
    """Whose late request it is."""

    producer_id: int = 999_999
    epoch: int = 0
    sequence: int = 0


STRANGER = Late()


def append_open_transaction(
    broker: Broker, topic: str, partition: int, of: Late = STRANGER, headers: Sequence[tuple[str, bytes]] = ()
) -> None:
    """What a producer's late request leaves behind: a record of a transaction that no coordinator knows (KIP-664)."""
    batch = DefaultRecordBatchBuilder(2, 0, True, *of, 1 << 16)
    batch.append(0, int(time.time() * 1000), b"late", b"{}", list(headers))
    host, port = broker.bootstrap.split(":")
    request = _produce_request(topic, partition, bytes(batch.build()))

    def appended() -> bool:
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.makefile("rb")
            body = answer.read(*struct.unpack(">i", answer.read(4)))
        (error,) = struct.unpack_from(">h", body, 4 + 4 + 2 + len(topic) + 4 + 4)
        return bool(error == 0)

    wait_until(appended)  # the broker may not have heard yet that it need not verify


def _produce_request(topic: str, partition: int, records: bytes) -> bytes:
    """Version 7 of Kafka's Produce request, for one batch."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    head = struct.pack(">hhi", 0, 7, 1) + text("test") + text("a transaction")
    where = struct.pack(">hii", -1, 10_000, 1) + text(topic) + struct.pack(">ii", 1, partition)
    return head + where + struct.pack(">i", len(records)) + records
