"""Which offsets a sink shows, over all commands that moved the input or brought tables back. Reads the ledger only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from airflow_epochs.contracts import Position
from airflow_epochs.coordinator.orders import Standing
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import REWIND, Command, CompleteRecord, OffsetRange, Ranges, ends_of, starts_of

Spans = Mapping[tuple[str, int], OffsetRange]
"""Topic and partition -> offsets of it, half-open."""


def in_two(of: Ranges, read: Iterable[Spans]) -> tuple[Ranges, Ranges]:
    """``of`` in two parts: what none of ``read`` has, and the rest."""
    new, old = of, dict[str, tuple[OffsetRange, ...]]()
    for spans in read:
        old = added(old, _each(new, spans, _common))
        new = _each(new, spans, _outside)
    return new, old


def read_in_rows(
    ledger: Ledger,
    at: Standing,
    to: Position,
    left: Collection[str],
    upto: int,
    sink: str | None = None,
    *,
    complete: Callable[[int], CompleteRecord | None],
) -> Iterator[Spans]:
    """What epochs up to ``upto`` have read, newest first: those between two moves have read it without a gap.

    Without topics in whose place a command has put others since: their offsets stand for other records. Where nobody
    knows, it counts as read: before a rebuilding, and of a topic or partition that was new in an epoch whose input no
    command moved.

    Args:
        ledger: The pipeline's ledger.
        at: Where the pipeline stands.
        to: Where the next epoch begins: its names of tables are taken.
        left: The topics that commands of the next epoch have left.
        upto: The newest epoch that counts.
        sink: Without the epochs whose rows went when the table of this sink was brought back; None: with all epochs.
        complete: ``ledger.complete_record``, which may remember: all sinks ask for the same records.
    """
    gone, last = set(left), at.before
    while last:
        number = last.moved_in or 1
        first = complete(number) if number > ledger.rebuilt_to else None
        newest = last if last.txn.epoch <= upto else complete(upto)
        if number <= upto and newest:
            yield _read_since(first, newest, to, gone)
            upto = _goes_on_from(ledger, first, sink) if first and _went_back(first, sink) else upto
        gone |= left_by(first.commands) if first else set()
        last = complete(number - 1)


def _read_since(first: CompleteRecord | None, newest: CompleteRecord, to: Position, gone: Collection[str]) -> Spans:
    begins = starts_of(Position.of(first).named_as_in(to)) if first else {}
    ends = ends_of(Position.of(newest).named_as_in(to))
    return {key: OffsetRange(key[1], begins.get(key, 0), end) for key, end in ends.items() if key[0] not in gone}


def _went_back(record: CompleteRecord, sink: str | None) -> bool:
    """Whether the epoch brought the table of the sink back."""
    rewinds = [each for each in record.commands if each.name == REWIND]
    return sink in record.receipts and bool(rewinds) and sink in rewinds[-1].restores


def _goes_on_from(ledger: Ledger, record: CompleteRecord, sink: str | None) -> int:
    """The epoch that the table has shown since. The one before, if the record that tells is pruned: nobody knows."""
    opened = ledger.open_record(record.txn.epoch, record.txn.attempt)
    return opened.restored_to if opened else record.txn.epoch - 1


def left_by(commands: Sequence[Command]) -> set[str]:
    """The topics in whose place these commands have put others."""
    return {topic for command in commands for topic in command.left}


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


def added(ranges: Ranges, more: Ranges) -> Ranges:
    """Both together, in order; what joins or overlaps another range becomes one with it."""
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
