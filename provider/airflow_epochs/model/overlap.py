"""Ranges of offsets beside others: what both have, what one of them has alone, and both together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from airflow_epochs.model.ranges import OffsetRange, Ranges

Spans = Mapping[tuple[str, int], OffsetRange]
"""Topic and partition -> offsets of it, half-open."""


def in_two(of: Ranges, read: Iterable[Spans]) -> tuple[Ranges, Ranges]:
    """``of`` in two parts: what lies outside all of ``read``, and the rest."""
    new, old = of, dict[str, tuple[OffsetRange, ...]]()
    for spans in read:
        old = added(old, _each(new, spans, _common))
        new = _each(new, spans, _outside)
    return new, old


def added(ranges: Ranges, more: Ranges) -> Ranges:
    """The union of both, in order. Ranges that touch or overlap become one."""
    found = {}
    for topic in sorted(ranges.keys() | more.keys()):
        joined: list[OffsetRange] = []
        for r in sorted((*ranges.get(topic, ()), *more.get(topic, ()))):
            if joined and joined[-1].partition == r.partition and r.start <= joined[-1].end:
                joined[-1] = joined[-1]._replace(end=max(joined[-1].end, r.end))
            else:
                joined.append(r)
        found[topic] = tuple(joined)
    return found


def _each(ranges: Ranges, read: Spans, part: Callable[[OffsetRange, OffsetRange], Iterator[OffsetRange]]) -> Ranges:
    """A part of each range, by what was read of its partition."""
    nothing = OffsetRange(0, 0, 0)
    found = {t: tuple(p for r in of for p in part(r, read.get((t, r.partition), nothing))) for t, of in ranges.items()}
    return {topic: of for topic, of in found.items() if of}


def _common(of: OffsetRange, read: OffsetRange) -> Iterator[OffsetRange]:
    start, end = max(of.start, read.start), min(of.end, read.end)
    if start < end:
        yield of._replace(start=start, end=end)


def _outside(of: OffsetRange, read: OffsetRange) -> Iterator[OffsetRange]:
    for start, end in ((of.start, min(of.end, read.start)), (max(of.start, read.end), of.end)):
        if start < end:
            yield of._replace(start=start, end=end)
