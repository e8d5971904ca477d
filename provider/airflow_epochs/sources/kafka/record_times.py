"""Finds the first record of a time that readers of committed records see, from an offset on.

Brokers search a log from its beginning, and they count what such readers do not see: aborted records, and the markers
that end transactions, which have the time at which a broker wrote them. Where the brokers' answer is one of these, or
lies before the offset, this module reads on in the log. It decodes only batches whose newest record is of the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_epochs import secrecy
from airflow_epochs.sources.kafka.history import ANSWER_BYTES_MAX, MAGIC, WAIT_MS, Fetched, fetched
from airflow_epochs.sources.kafka.logs import Partition

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

log = secrecy.logger(__name__)

FIRST_BYTES, MORE_BYTES = 64 << 10, 4 << 20
"""Bytes that a broker may send per partition: to look at one batch, and at most, to read on."""
_GROWTH = 8


@dataclass(frozen=True)
class Round:
    """What one request to each broker has told.

    Attributes:
        found: Per partition, the record, or the offset if that was deleted a moment ago: the check of the ranges tells.
        further: Per other partition, the offset at which to read on.
        next_bytes: How many bytes a broker may send per partition in the next round.
    """

    found: dict[Partition, int]
    further: dict[Partition, int]
    next_bytes: int


def look(
    admin: KafkaAdminClient, ms: int, offsets: Mapping[Partition, int], told: Mapping[Partition, int], bytes_max: int
) -> Round:
    """Look for the first record at or after each offset with a time of ``ms`` or later.

    ``told``: the brokers' own answers. If the offset is such an answer, its record is right if readers see it.
    """
    answers = dict(fetched(admin, offsets, bytes_max, committed=True, wait_ms=WAIT_MS))
    sent = {at: answer for at, answer in answers.items() if answer is not None}
    looks = {at: _look(answer, ms, offsets[at], told.get(at) == offsets[at]) for at, answer in sent.items()}
    found = {at: offsets[at] for at in answers.keys() - sent.keys()}
    found |= {at: each.found for at, each in looks.items() if each.found is not None}
    further = {at: looks[at].further if at in looks else offsets[at] for at in offsets.keys() - found.keys()}
    if not found and further == offsets:
        _require_ends(offsets, sent)
    return Round(found, further, _next_bytes(bytes_max, sent))


def _require_ends(offsets: Mapping[Partition, int], sent: Mapping[Partition, Fetched]) -> None:
    """Raise KafkaTimeoutError, which may pass, if the brokers sent no batch of logs that go on behind ``offsets``.

    A broker sends at least one batch if any of its partitions has one. But one that throttles its clients leaves out
    partitions, and one that has waited in vain for tiered storage sends no records of them.
    """
    from kafka.errors import KafkaTimeoutError

    kept = {at: offset for at, offset in offsets.items() if at not in sent or offset < sent[at].stable_end}
    if kept:
        topic, partition = min(kept)
        raise KafkaTimeoutError(f"no record of {topic}[{partition}] from offset {kept[topic, partition]} on was sent")


def _next_bytes(bytes_max: int, answers: Mapping[Partition, Fetched]) -> int:
    """How many bytes a broker may send per partition in the next round. More than now if its answers had room left."""
    sent = sum(len(answer.records) for answer in answers.values())
    return bytes_max if sent > ANSWER_BYTES_MAX // 2 else min(bytes_max * _GROWTH, MORE_BYTES)


@dataclass(frozen=True)
class _FoundRecord:
    """The offset of the record that was found, or else the offset at which to read on."""

    found: int | None
    further: int


def _look(answer: Fetched, ms: int, offset: int, is_exact: bool) -> _FoundRecord:
    further = offset
    for batch, is_seen in _batches(answer):
        end = int(getattr(batch, "next_offset", batch.base_offset + 1))
        if end <= offset:
            continue
        if is_seen and is_exact and batch.base_offset <= offset:
            return _FoundRecord(offset, offset)
        if is_seen and (found := _first(batch, ms, offset)) is not None:
            return _FoundRecord(found, offset)
        further = end
    return _FoundRecord(None, further)


def _batches(answer: Fetched) -> Iterator[tuple[Any, bool]]:
    """The whole batches, each with whether readers of committed records see it, by the rules of Kafka's own clients."""
    from kafka.record.memory_records import MemoryRecords

    records, begun = MemoryRecords(answer.records), sorted(answer.aborted, key=lambda each: each[1])
    aborted: set[int] = set()
    while (batch := records.next_batch()) is not None:
        if batch.magic < MAGIC:  # from before Kafka 0.11, without transactions
            yield batch, True
            continue
        while begun and begun[0][1] <= batch.last_offset:
            aborted.add(begun.pop(0)[0])
        if batch.is_control_batch:
            aborted.discard(batch.producer_id)
        yield batch, not (batch.is_control_batch or (batch.is_transactional and batch.producer_id in aborted))


def _first(batch: Any, ms: int, offset: int) -> int | None:
    """The first record of the time in the batch. If the batch cannot be decoded here: its first record at all."""
    from kafka.errors import UnsupportedCodecError

    if batch.magic >= MAGIC and batch.max_timestamp < ms:
        return None
    try:
        if batch.magic < MAGIC:
            raise UnsupportedCodecError(f"format {batch.magic} of Kafka's records")
        return next((int(r.offset) for r in batch if r.offset >= offset and r.timestamp >= ms), None)
    except UnsupportedCodecError as error:
        log.warning(
            "the batch at offset %s cannot be decoded, so all of it counts as later: %s", batch.base_offset, error
        )
        return max(int(batch.base_offset), offset)
