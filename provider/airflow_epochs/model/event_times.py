"""The newest event times of partitions, and the watermarks that follow from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PartitionTime:
    """The newest event time of a partition's rows, in microseconds since 1970 (UTC).

    ``seen``: the ``now`` of the last epoch that had rows of this partition with an event time.
    """

    newest: int
    seen: str


EventTimes = dict[str, dict[str, PartitionTime]]
"""Topic -> partition, as text -> its newest event time."""
Watermarks = tuple[int | None, ...]
"""The watermark of an epoch, then those of the epochs before, newest first: microseconds since 1970 (UTC).

One more than stateful operators may stand one behind another. None: no row with an event time had been seen by then.
"""
