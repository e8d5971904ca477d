"""Describes records that cannot be read yet, because a transaction before them is still open. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_epochs.kafka.open_transactions import OpenTransaction
from airflow_epochs.sources.kafka.logs import Partition

SHOWN_MAX = 5


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The offsets of a partition that wait for an open transaction.

    They begin at ``start``, the last stable offset. ``records`` is the number of offsets: there may be fewer records.
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
