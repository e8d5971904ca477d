"""Which offsets complete epochs have read, over all commands that moved the input. Reads the ledger only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from airflow_epochs.contracts import Position
from airflow_epochs.coordinator.orders import Standing
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import commands_obeyed
from airflow_epochs.model import Command, OffsetRange, Ranges, ends_of, starts_of


def never_read(ledger: Ledger, at: Standing, again: Ranges, to: Position) -> tuple[Ranges, Ranges]:
    """``again`` in two parts: what no complete epoch has read, and the rest.

    ``to``: where the next epoch begins. Where nobody knows, offsets are in the rest: before a rebuilding, and of a
    topic or partition that was new in an epoch whose input no command moved.
    """
    new, old = again, dict[str, tuple[OffsetRange, ...]]()
    for read in _read_in_rows(ledger, at, to):
        old = _added(old, _each(new, read, _common))
        new = _each(new, read, _outside)
    return new, old


def _read_in_rows(ledger: Ledger, at: Standing, to: Position) -> Iterator[Mapping[tuple[str, int], OffsetRange]]:
    """What epochs have read, newest first: those between two commands that moved the input have read it without a gap.

    Without topics in whose place a command has put others since: their offsets stand for other records.
    """
    left = _left_by(commands_obeyed(ledger, at.order)) if at.order else set()
    last, unknown = at.before, ledger.rebuilt_to
    while last:
        number = last.moved_in or 1
        first = ledger.complete_record(number) if number > unknown else None
        begins = starts_of(Position.of(first).named_as_in(to)) if first else {}
        ends = ends_of(Position.of(last).named_as_in(to))
        yield {key: OffsetRange(key[1], begins.get(key, 0), end) for key, end in ends.items() if key[0] not in left}
        left |= _left_by(first.commands) if first else set()
        last = ledger.complete_record(number - 1)


def _left_by(commands: Sequence[Command]) -> set[str]:
    return {topic for command in commands for topic in command.left}


def _each(
    ranges: Ranges,
    read: Mapping[tuple[str, int], OffsetRange],
    part: Callable[[OffsetRange, OffsetRange], Iterator[OffsetRange]],
) -> Ranges:
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


def _added(ranges: Ranges, more: Ranges) -> Ranges:
    """Both together, in order; what joins another range becomes one with it."""
    found = {}
    for topic in sorted(ranges.keys() | more.keys()):
        joined: list[OffsetRange] = []
        for r in sorted((*ranges.get(topic, ()), *more.get(topic, ()))):
            if joined and (joined[-1].partition, joined[-1].end) == (r.partition, r.start):
                joined[-1] = joined[-1]._replace(end=r.end)
            else:
                joined.append(r)
        found[topic] = tuple(joined)
    return found
