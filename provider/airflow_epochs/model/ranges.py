"""Ranges of offsets, where they begin and where they end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class OffsetRange(NamedTuple):
    """Offsets ``[start, end)`` of one partition: half-open. ``start == end``: nothing to read, the position stays."""

    partition: int
    start: int
    end: int


Ranges = dict[str, tuple[OffsetRange, ...]]
"""Topic -> one range for every known partition, ascending by partition."""


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """What the source had when an epoch was planned, and the epoch does not read. For people; no task reads it.

    Attributes:
        offsets: How many offsets can be read behind the epoch's ranges; at most as many are records.
        seconds: How long the first of them had waited, at most; None if the source does not tell.
    """

    offsets: int
    seconds: float | None = None


def records_upper_bound(ranges: Ranges) -> int:
    """The number of offsets in the ranges. Control records and gaps count too, so there are at most as many records."""
    return sum(r.end - r.start for per_topic in ranges.values() for r in per_topic)


def starts_of(ranges: Ranges) -> dict[tuple[str, int], int]:
    """Where the ranges begin: ``(topic, partition) -> first offset``."""
    return {(topic, r.partition): r.start for topic, of in ranges.items() for r in of}


def ends_of(ranges: Mapping[str, tuple[OffsetRange, ...]]) -> dict[tuple[str, int], int]:
    """The position after the ranges: ``(topic, partition) -> first offset not read``."""
    return {(topic, r.partition): r.end for topic, per_topic in ranges.items() for r in per_topic}


def empty_at_ends(ranges: Ranges) -> Ranges:
    """The position after the ranges, as ranges with nothing to read."""
    return {topic: tuple(r._replace(start=r.end) for r in of) for topic, of in ranges.items()}


def starting_at_ends(ranges: Ranges) -> dict[str, dict[str, int]]:
    """The position after the ranges, as ``starting`` takes it: topic -> partition -> first offset not read."""
    return {topic: {str(r.partition): r.end for r in per_topic} for topic, per_topic in ranges.items()}
