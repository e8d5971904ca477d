"""Asks the brokers about a log's past: its leader epochs, the checksum of a batch, the size of its files.

kafka-python's admin client cannot ask for the first two. This module builds these requests itself, one per broker.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_epochs.sources.kafka.logs import Batch, Partition

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

BATCH_BYTES_MAX = (4 << 10, 64 << 10, 1 << 20)
"""Bytes that a broker may send per partition. It leaves out a larger batch; the next request allows the next size."""
ANSWER_BYTES_MAX = 16 << 20
"""Bytes of one answer. Batches beyond it are not compared. Leader epochs always are, and the check rests on them."""

WAIT_MS = 5_000
"""How long a broker may read from tiered storage, in ms. Before Kafka 3.8, it then answers without records."""

# Kafka's record batch, magic 2 (kafka.apache.org/documentation/#recordbatch):
# base offset, length, leader epoch, magic, CRC, attributes, last offset delta; timestamps and producer; count
_HEADER = struct.Struct(">qiibIhiqq14xi")
MAGIC = 2
_LOG_APPEND_TIME, _DELETE_HORIZON = 0x08, 0x40
"""The attribute that compaction sets in a batch with tombstones or transaction markers (KIP-534)."""


def epoch_ends(admin: KafkaAdminClient, epochs: Mapping[Partition, int]) -> dict[Partition, int | None]:
    """Per partition, the offset at which the records up to the leader epoch end (KIP-320).

    None: the log knows no epoch that late.
    """
    from kafka.protocol.consumer import OffsetForLeaderEpochRequest

    topic_of = OffsetForLeaderEpochRequest.OffsetForLeaderTopic

    def asked(topic: str, partition: int) -> Any:
        epoch = epochs[topic, partition]
        return topic_of.OffsetForLeaderPartition(partition=partition, current_leader_epoch=-1, leader_epoch=epoch)

    def request(partitions: Iterable[Partition]) -> Any:
        return OffsetForLeaderEpochRequest(replica_id=-1, topics=_by_topic(partitions, topic_of, asked))

    found: dict[Partition, int | None] = {}
    for answer in _ask(admin, list(epochs), request):
        for topic in answer.topics:
            for at in topic.partitions:
                _raise(at.error_code, topic.topic)
                found[topic.topic, at.partition] = at.end_offset if at.end_offset >= 0 else None
    return found


def batches(admin: KafkaAdminClient, offsets: Mapping[Partition, int]) -> dict[Partition, Batch]:
    """Per partition, the batch that holds the offset. Leaves out a batch that is gone or too large."""
    found: dict[Partition, Batch] = {}
    missing = dict(offsets)
    for bytes_max in BATCH_BYTES_MAX:
        left_out: dict[Partition, int] = {}
        for partition, answer in fetched(admin, missing, bytes_max):
            if answer is None:
                continue
            if batch := _batch_with(offsets[partition], answer.records):
                found[partition] = batch
            elif not answer.records:
                left_out[partition] = offsets[partition]
        missing = left_out
    return found


def log_sizes(admin: KafkaAdminClient, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Per partition, the bytes of its log on the disk of its leader. Leaves out partitions that moved a moment ago."""
    from kafka.protocol.admin import DescribeLogDirsRequest

    topic_of = DescribeLogDirsRequest.DescribableLogDirTopic

    def request(led: Iterable[Partition]) -> Any:
        numbers = _by_topic(led, topic_of, lambda _, partition: partition)
        return DescribeLogDirsRequest(topics=numbers, min_version=1)

    found: dict[Partition, int] = {}
    for answer in _ask(admin, partitions, request):
        _raise(getattr(answer, "error_code", 0) or 0, "the log directories")
        for topic in (topic for folder in answer.results for topic in folder.topics):
            current = (each for each in topic.partitions if not each.is_future_key)
            found |= {(topic.name, each.partition_index): each.partition_size for each in current}
    return found


@dataclass(frozen=True)
class Fetched:
    """What a broker sent of a partition's log, from a batch on that has the offset.

    Attributes:
        records: Batches; the last one may be cut off.
        aborted: Producer id and first offset of each aborted transaction there, if only committed ones were wanted.
        stable_end: The last stable offset.
    """

    records: bytes
    aborted: tuple[tuple[int, int], ...]
    stable_end: int


def fetched(
    admin: KafkaAdminClient,
    offsets: Mapping[Partition, int],
    bytes_max: int,
    *,
    committed: bool = False,
    wait_ms: int = 0,
) -> Iterator[tuple[Partition, Fetched | None]]:
    """Per partition, what is in its log from the offset on; None if its log does not have the offset.

    There may be no records although the log has some, and a broker that throttles its clients leaves partitions out.
    ``committed``: only up to the last stable offset. It has aborted records too, and names their transactions.
    ``wait_ms``: how long each broker may read from tiered storage.
    """
    from kafka.errors import OffsetOutOfRangeError, for_code
    from kafka.protocol.consumer import FetchRequest

    topic_of = FetchRequest.FetchTopic

    def asked(topic: str, partition: int) -> Any:
        return topic_of.FetchPartition(
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=offsets[topic, partition],
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=bytes_max,
        )

    def request(partitions: Iterable[Partition]) -> Any:
        return FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=0,  # so a broker waits for nothing that is on its disk
            max_bytes=ANSWER_BYTES_MAX,
            isolation_level=int(committed),
            session_id=0,
            session_epoch=-1,  # no fetch session
            topics=_by_topic(partitions, topic_of, asked),
            forgotten_topics_data=[],
            rack_id="",
            min_version=4,
            max_version=12,  # the last version that names topics; later ones take ids
        )

    for answer in _ask(admin, list(offsets), request):
        for topic in answer.responses:
            for at in topic.partitions:
                is_there = for_code(at.error_code) is not OffsetOutOfRangeError  # deleted or truncated a moment ago
                yield (topic.topic, at.partition_index), _fetched(at, topic.topic) if is_there else None


def _fetched(at: Any, topic: str) -> Fetched:
    _raise(at.error_code, topic)
    aborted = tuple((each.producer_id, each.first_offset) for each in at.aborted_transactions or ())
    return Fetched(bytes(at.records or b""), aborted, at.last_stable_offset)


def _batch_with(offset: int, records: bytes) -> Batch | None:
    if len(records) < _HEADER.size:
        return None
    base, _, _, magic, crc, attributes, last_delta, first_ms, last_ms, count = _HEADER.unpack_from(records)
    if magic != MAGIC or not base <= offset <= base + last_delta:
        return None  # a format from before Kafka 0.11, or compaction has removed the offset
    is_whole = count == last_delta + 1 and not attributes & _DELETE_HORIZON
    return Batch(crc, is_whole, ms=last_ms if attributes & _LOG_APPEND_TIME else first_ms)


def _ask(
    admin: KafkaAdminClient, partitions: Iterable[Partition], request: Callable[[Iterable[Partition]], Any]
) -> list[Any]:
    """Send one request to every broker that leads one of the partitions."""
    from kafka import TopicPartition

    wanted = [TopicPartition(*partition) for partition in partitions]

    async def ask_all() -> list[Any]:
        leaders = await admin._async_get_leader_for_partitions(wanted)
        return [
            await admin._manager.send(request(tuple(tp) for tp in led), node_id=leader)
            for leader, led in leaders.items()
        ]

    answers: list[Any] = admin._manager.run(ask_all) if wanted else []
    return answers


def _by_topic(partitions: Iterable[Partition], topic_of: Any, asked: Callable[[str, int], Any]) -> list[Any]:
    found: dict[str, list[Any]] = {}
    for topic, partition in sorted(partitions):
        found.setdefault(topic, []).append(asked(topic, partition))
    return [topic_of(topic=topic, partitions=found[topic]) for topic in found]


def _raise(code: int, topic: str) -> None:
    from kafka.errors import for_code

    if code:
        raise for_code(code)(topic)
