"""Which offsets a sink shows, over all commands that moved the input or changed its table. Reads the ledger only."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from airflow_epochs.contracts import Position
from airflow_epochs.coordinator.orders.orders import BetweenEpochs
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import REWIND, Command, CompleteRecord, OffsetRange, Spans, ends_of, starts_of


def read_in_rows(
    ledger: Ledger,
    at: BetweenEpochs,
    to: Position,
    left: Collection[str],
    upto: int,
    sink: str | None = None,
    *,
    complete: Callable[[int], CompleteRecord | None],
) -> Iterator[Spans]:
    """What epochs up to ``upto`` have read, newest first: those between two moves have read it without a gap.

    A sink counts as if it had got all that they have read, also if it was waived in some of them, or came later.

    Without topics in whose place a command has put others since: their offsets stand for other records. Where nobody
    knows, it counts as read: before a rebuilding, and of a topic or partition that was new in an epoch whose input no
    command moved.

    Args:
        ledger: The pipeline's ledger.
        at: Where the pipeline stands.
        to: Where the next epoch begins: its names of tables are taken.
        left: The topics that commands of the next epoch have left.
        upto: The newest epoch that counts.
        sink: Without the epochs whose rows this sink lacks since its table was brought back, or the sink was taken as
            it was; None: with all epochs.
        complete: ``ledger.complete_record``, which may remember: all sinks ask for the same records.
    """
    gone, last = set(left), at.before
    while last:
        number = max(last.moved_in or 1, last.adopted_in.get(sink or "", 0))
        first = complete(number) if number > ledger.rebuilt_to else None
        newest = last if last.txn_id.epoch <= upto else complete(upto)
        if number <= upto and newest:
            yield _read_since(first, newest, to, gone)
            upto = _shown_then(ledger, first, complete(number - 1), sink) if first and sink else upto
        gone |= left_by(first.commands) if first else set()
        last = complete(number - 1)


def _read_since(first: CompleteRecord | None, newest: CompleteRecord, to: Position, gone: Collection[str]) -> Spans:
    begins = starts_of(Position.of(first).named_as_in(to)) if first else {}
    ends = ends_of(Position.of(newest).named_as_in(to))
    return {key: OffsetRange(key[1], begins.get(key, 0), end) for key, end in ends.items() if key[0] not in gone}


def _shown_then(ledger: Ledger, record: CompleteRecord, before: CompleteRecord | None, sink: str) -> int:
    """The newest epoch before this one whose rows the sink has shown since.

    If the open record that tells was pruned, the epoch just before. ``before``: the record of the epoch before this
    one.
    """
    epoch, lacks = record.txn_id.epoch, [each.lacks[sink] for each in record.commands if sink in each.lacks]
    if record.adopted_in.get(sink) == epoch:
        if lacks:
            return lacks[-1][0] - 1
        if before and not before.has_had(sink):
            return 0  # a state that began then
    opened = ledger.open_record(epoch, record.txn_id.attempt) if _went_back(record, sink) else None
    return opened.restored_to if opened else epoch - 1


def _went_back(record: CompleteRecord, sink: str) -> bool:
    """Whether the epoch brought the table of the sink back."""
    rewinds = [each for each in record.commands if each.name == REWIND]
    return sink in record.receipts and bool(rewinds) and sink in rewinds[-1].restores


def left_by(commands: Sequence[Command]) -> set[str]:
    """The topics in whose place these commands have put others."""
    return {topic for command in commands for topic in command.left}
