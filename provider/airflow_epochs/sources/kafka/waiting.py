"""Describes records that cannot be read yet, because a transaction before them is still open. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

from airflow_epochs.sources.kafka.logs import Partition

SHOWN_MAX = 5


@dataclass(frozen=True, kw_only=True)
class OpenTransaction:
    """A producer's open transaction, as the brokers describe it.

    ``transactional_id`` and ``since_ms`` (milliseconds since 1970) are None if the brokers do not tell them.
    """

    producer_id: int
    producer_epoch: int
    transactional_id: str | None = None
    since_ms: int | None = None

    def __str__(self) -> str:
        name = (
            f"{self.transactional_id!r}, id {self.producer_id}" if self.transactional_id else f"id {self.producer_id}"
        )
        if self.since_ms is None or self.since_ms < 0:
            return f"the transaction of producer {name}"
        since = datetime.fromtimestamp(self.since_ms / 1000, timezone.utc).isoformat(timespec="seconds")
        return f"the transaction of producer {name}, open since {since}"


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The offsets of a partition that wait for an open transaction.

    They begin at ``start``, the last stable offset. ``records`` is their number: there are at most so many records.
    """

    topic: str
    partition: int
    start: int
    records: int
    transaction: OpenTransaction | None

    @property
    def of(self) -> Partition:
        """The topic and the partition's number."""
        return self.topic, self.partition

    def __str__(self) -> str:
        what = f"{self.records:,} {'record waits' if self.records == 1 else 'records wait'}"
        where = f"{self.topic}[{self.partition}] from offset {self.start} on"
        return f"{what} for {self.transaction or 'an open transaction'} ({where})"


def told(waiting: Sequence[Waiting]) -> str:
    """One sentence without its full stop. It names the partitions with the most records, and counts the others."""
    most = sorted(waiting, key=lambda each: (-each.records, each.of))
    more = f"; and {sum(each.records for each in most[SHOWN_MAX:]):,} more in {len(most) - SHOWN_MAX} partitions"
    return "; ".join(map(str, most[:SHOWN_MAX])) + (more if len(most) > SHOWN_MAX else "")


class Producing(NamedTuple):
    """A producer with an open transaction in a partition. ``begin`` is the transaction's first offset there."""

    begin: int
    producer_id: int
    producer_epoch: int


def blocking(
    producers: Mapping[Partition, Sequence[Producing]], known: Mapping[int, tuple[str, int]]
) -> dict[Partition, OpenTransaction]:
    """Per partition, the transaction that began first: it holds the last stable offset back.

    ``known`` holds, per producer id, the transactional id and the start of its transaction in ms since 1970.
    """
    found = {}
    for at, of in producers.items():
        if of:
            first = min(of)
            name, since_ms = known.get(first.producer_id, (None, None))
            found[at] = OpenTransaction(
                producer_id=first.producer_id,
                producer_epoch=first.producer_epoch,
                transactional_id=name,
                since_ms=since_ms,
            )
    return found
