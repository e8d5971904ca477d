"""Where a pipeline stood after an earlier epoch: the offsets at which each partition went on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

from airflow_epochs import codes
from airflow_epochs.contracts import Position
from airflow_epochs.coordinator.orders.orders import BetweenEpochs
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import commands_obeyed
from airflow_epochs.model import Command, CompleteRecord, Ranges, ends_of, starts_of


def ends_after(ledger: Ledger, at: BetweenEpochs, number: int) -> dict[str, dict[int, int]]:
    """Where the pipeline stood after a complete epoch: topic -> partition -> first offset not read. Reads only.

    A partition that a later epoch was the first to read: where that epoch began.

    Raises:
        Refused: The epoch is not complete; or a command has put other topics in the place of those since, or waits to.
    """
    record = ledger.complete_record(number)
    if record is None or at.before is None:
        raise Refused(
            f"The pipeline has no complete epoch {number}.",
            code=codes.EPOCH_UNKNOWN,
            pipeline=at.newest.txn_id.pipeline,
        )
    _require_same_topics(ledger, at, at.before, number)
    offsets: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in sorted(ends_at(ledger, at, number, Position.of(at.order or at.before)).items()):
        offsets.setdefault(topic, {})[partition] = offset
    return offsets


def ends_at(ledger: Ledger, at: BetweenEpochs, number: int, last: Position) -> dict[tuple[str, int], int]:
    """As ``ends_after``, of the partitions of ``last``, whatever commands have done since. 0: before all epochs.

    Reads few records: between two moves, all epochs behind the first one that has a partition have it, too. A move to
    another cluster forgets topics, and a later one may bring them back.
    """
    ends, later = ends_of(_ranges_of(ledger, number, last)), _stretches(ledger, at, number)
    starts = cache(lambda epoch: starts_of(_ranges_of(ledger, epoch, last)))
    found = {each: ends[each] if each in ends else _began(each, later, starts) for each in ends_of(last.ranges)}
    return {partition: offset for partition, offset in found.items() if offset is not None}


def _ranges_of(ledger: Ledger, epoch: int, last: Position) -> Ranges:
    record = ledger.complete_record(epoch) if epoch else None
    return Position.of(record).named_as_in(last) if record else {}


def _stretches(ledger: Ledger, at: BetweenEpochs, number: int) -> list[range]:
    """The epochs behind ``number``, oldest first, cut where a command moved the input."""
    cuts = [at.epoch, *(epoch for epoch, _ in _moves(ledger, at.before, number)), number + 1]
    return [range(first, end) for first, end in pairwise(reversed(cuts))]


def _began(
    partition: tuple[str, int], stretches: Sequence[range], starts: Callable[[int], Mapping[tuple[str, int], int]]
) -> int | None:
    """Where the first of the epochs that have the partition began in it; None if no epoch has it."""
    for epochs in stretches:
        first = bisect_left(epochs, True, key=lambda epoch: partition in starts(epoch))
        if first < len(epochs):
            return starts(epochs[first])[partition]
    return None


def _moves(ledger: Ledger, before: CompleteRecord | None, number: int) -> Iterator[tuple[int, CompleteRecord | None]]:
    """The epochs behind ``number`` whose input a command moved, newest first, with their records."""
    while before and before.moved_in > number:
        yield before.moved_in, ledger.complete_record(before.moved_in)
        before = ledger.complete_record(before.moved_in - 1)


def _require_same_topics(ledger: Ledger, at: BetweenEpochs, before: CompleteRecord, number: int) -> None:
    """Raise Refused if a command has put other topics in the place of those, or will with the next epoch."""
    if at.order and _leaves_topics(commands_obeyed(ledger, at.order)):
        raise _other_topics(at, number, f"moves the pipeline to other topics in epoch {at.epoch}", "Name")
    for moved, record in _moves(ledger, before, number):
        if record and _leaves_topics(record.commands):
            what = f"moved the pipeline to other topics in epoch {moved}"
            raise _other_topics(at, number, what, f"Name epoch {moved} or a later one,")


def _leaves_topics(commands: Sequence[Command]) -> bool:
    return any(command.left for command in commands)


def _other_topics(at: BetweenEpochs, number: int, what: str, remedy: str) -> Refused:
    return Refused(
        f"The command `reset-source` {what}. The offsets of epoch {number} mean nothing there.",
        code=codes.OFFSETS_UNUSABLE,
        remedy=f"{remedy} a time, or offsets.",
        pipeline=at.newest.txn_id.pipeline,
    )
