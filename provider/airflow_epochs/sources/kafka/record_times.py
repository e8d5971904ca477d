"""Finds the first record of a time that readers of committed records see, from an offset on.

Brokers search a log from its beginning, and they count what such readers do not see: aborted records, and the markers
that end transactions, which have the time at which a broker wrote them. Where the brokers' answer is one of these, or
lies before the offset, this module reads on in the log. It decodes only batches whose newest record is of the time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_epochs import secrecy
from airflow_epochs.sources.kafka.history import MAGIC, Fetched, fetched
from airflow_epochs.sources.kafka.logs import Partition

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

log = secrecy.logger(__name__)

FIRST_BYTES, MORE_BYTES = 64 << 10, 4 << 20
"""Bytes that a broker may send per partition: to look at one batch, and to read on."""


def first_records(
    admin: KafkaAdminClient, ms: int, offsets: Mapping[Partition, int], exact: Collection[Partition]
) -> dict[Partition, int | None]:
    """Per partition, the first record at or after the offset with a time of ``ms`` or later; None if there is none yet.

    ``exact``: the partitions whose offset is the brokers' own answer, so that it is right unless nobody sees it.
    """
    found: dict[Partition, int | None] = {}
    left: dict[Partition, int] = dict(offsets)
    for at, answer in fetched(admin, offsets, FIRST_BYTES, committed=True):
        look = _look(answer, ms, offsets[at], at in exact)
        left[at] = look.further
        if look.found is not None:
            found[at] = look.found
    return found | {at: _further(admin, ms, at, offset) for at, offset in left.items() if at not in found}


def _further(admin: KafkaAdminClient, ms: int, at: Partition, offset: int) -> int | None:
    while True:
        answers = dict(fetched(admin, {at: offset}, MORE_BYTES, committed=True))
        if at not in answers:
            return offset  # deleted a moment ago: the check of the ranges tells
        look = _look(answers[at], ms, offset)
        if look.found is not None:
            return look.found
        if look.further == offset:
            return None
        offset = look.further


@dataclass(frozen=True)
class _Look:
    """The record that was found, and the offset at which to read on if none was."""

    found: int | None
    further: int


def _look(answer: Fetched, ms: int, offset: int, is_exact: bool = False) -> _Look:
    further = offset
    for batch, is_seen in _batches(answer):
        end = int(getattr(batch, "next_offset", batch.base_offset + 1))
        if end <= offset:
            continue
        if is_seen and is_exact and batch.base_offset <= offset:
            return _Look(offset, offset)
        if is_seen and (found := _first(batch, ms, offset)) is not None:
            return _Look(found, offset)
        further = end
    return _Look(None, further)


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
    """The first record of the time in the batch. Of a batch that cannot be decoded here: the first record of all."""
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
