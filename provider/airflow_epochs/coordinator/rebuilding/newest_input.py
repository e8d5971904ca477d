"""Which input the newest epoch had, as far as the ledger and the sinks tell. The next epoch goes on at its ends."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from airflow_epochs import codes
from airflow_epochs.contracts import Ends
from airflow_epochs.coordinator.backfills.backfill import begins_as, depends_on_epochs
from airflow_epochs.coordinator.rebuilding.evidence import LastEpochs, listed
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import Refused
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.model import (
    CompleteRecord,
    JsonDict,
    OffsetRange,
    Ranges,
    TransactionId,
    moved_in,
    starting_at_ends,
)


@dataclass(frozen=True, kw_only=True)
class NewestInput:
    """What is known of the newest epoch's input.

    Attributes:
        ranges: Its ranges. If its beginning is not known, each range is empty and stands at its end.
        source_state: What the source recorded with it; empty if it is not known.
        moved_in: As in ``CompleteRecord``, as far as it is known.
        backfill_from: As in ``RebuiltRecord``.
    """

    ranges: Ranges
    source_state: JsonDict = field(default_factory=dict)
    moved_in: int = 0
    backfill_from: int


def newest_input(
    task: TaskTry, completed: frozenset[int], txn: TransactionId, ends: Ends, left_out: LastEpochs
) -> NewestInput:
    """What is known of the input.

    Args:
        task: It has the ledger.
        completed: The epochs that the ledger has complete.
        txn: The transaction of the newest epoch.
        ends: Where it ended.
        left_out: The sinks left out, which lack its rows, and shall get them by a backfill.
    """
    known = _since_left_out(txn, ends, left_out) if left_out else _by_ledger(task.ledger, completed, txn, ends)
    if known is None:
        return NewestInput(ranges=_ranges_between(ends, ends) or {}, backfill_from=txn.epoch + 1)
    return known if _can_be_replayed(task, txn, known.ranges) else replace(known, backfill_from=txn.epoch + 1)


def _can_be_replayed(task: TaskTry, txn: TransactionId, ranges: Ranges) -> bool:
    """Whether a backfill can have the newest epoch. With state or event time, only its open record can give it that."""
    if not depends_on_epochs(task):
        return True
    opened = task.ledger.open_record(txn.epoch, txn.attempt)
    return opened is not None and opened.txn_id == txn and begins_as(opened, ranges)


# -- by the sinks that are left out -----------------------------------------------------------------------------------


def _since_left_out(txn: TransactionId, ends: Ends, left_out: LastEpochs) -> NewestInput | None:
    """The input that the sinks left out lack, as if the newest epoch had all of it; None if it is not known."""
    starts = _one_start(left_out)
    ranges = _ranges_between(starts, ends) if starts else None
    return NewestInput(ranges=ranges, backfill_from=txn.epoch) if ranges else None


def _one_start(left_out: LastEpochs) -> Ends | None:
    """Where all sinks that are left out ended; None if one of them shows no epoch, or does not know where it ended."""
    starts = [each.ends if each else None for each in left_out.values()]
    if any(each != starts[0] for each in starts):
        raise Refused(
            f"The sinks {', '.join(left_out)} that --without names ended at different offsets: {listed(left_out)}. "
            "Only one of these can be where they begin again. Nothing was changed.",
            code=codes.SINKS_DISAGREE,
            remedy="Restore newer copies of some of them, or copies of all of them that show one epoch. Then "
            "type the command again. Or take those that show no epoch out of the DAG until the command is done.",
        )
    return starts[0]


# -- by what is left of the ledger ------------------------------------------------------------------------------------


def _by_ledger(ledger: Ledger, completed: frozenset[int], txn: TransactionId, ends: Ends) -> NewestInput | None:
    """As the epoch's own records tell, or the completion record before it; None if neither does."""
    first, before = _first_known(ledger, completed, txn.epoch), ledger.complete_record(txn.epoch - 1)
    if known := _recorded(ledger, txn, before, first):
        return known
    ranges = _ranges_between(starting_at_ends(before.ranges), ends) if before else None
    if before is None or ranges is None:
        return None
    return NewestInput(ranges=ranges, backfill_from=first, moved_in=before.moved_in)


def _recorded(ledger: Ledger, txn: TransactionId, before: CompleteRecord | None, first: int) -> NewestInput | None:
    """The input as the ledger has it; None if it does not know the transaction. ``first``: see ``_first_known``."""
    complete, opened = ledger.complete_record(txn.epoch), ledger.open_record(txn.epoch, txn.attempt)
    record = next((each for each in (complete, opened) if each and each.txn_id == txn), None)
    if record is None:
        return None
    moved = record.moved_in if isinstance(record, CompleteRecord) else moved_in(record, before)
    return NewestInput(ranges=record.ranges, backfill_from=first, source_state=record.source_state, moved_in=moved)


def _first_known(ledger: Ledger, completed: frozenset[int], epoch: int) -> int:
    """The first epoch from which on all completion records are there, with true ranges."""
    rebuilt = ledger.rebuilt()
    least = rebuilt.backfill_from if rebuilt else 1
    while epoch > least and epoch - 1 in completed:
        epoch -= 1
    return epoch


# -- ranges, for both -------------------------------------------------------------------------------------------------


def _ranges_between(starts: Ends, ends: Ends) -> Ranges | None:
    """Half-open ranges up to ``ends``. A partition that ``starts`` lacks was new in its topic, and began at 0.

    None if ``starts`` cannot be where the epoch began: a topic was new, or a command moved the input.
    """
    found = {
        topic: tuple(
            OffsetRange(int(partition), starts.get(topic, {}).get(partition, 0), end)
            for partition, end in sorted(per_topic.items(), key=lambda each: int(each[0]))
        )
        for topic, per_topic in sorted(ends.items())
    }
    backwards = any(r.start > r.end for per_topic in found.values() for r in per_topic)
    return None if backwards or ends.keys() - starts.keys() else found
