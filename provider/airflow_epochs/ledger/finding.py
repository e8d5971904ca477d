"""Which epoch read a record, made a version of a table, or wrote a file of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import newest_opened, unfinished
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import CompleteRecord, OpenRecord, Receipt
from airflow_epochs.names import normalised, resolved

_PLACE = re.compile(r"([1-9][0-9]{0,18})-[0-9]+-[0-9a-f]{32}")
"""The last folder of a staging place: the epoch, its attempt and the try."""


def epochs_that_read(ledger: Ledger, topic: str, partition: int, offset: int) -> Iterator[CompleteRecord]:
    """The complete epochs whose input has the offset, newest first.

    There may be several if a command moved the pipeline back. If no command ever did, the epoch is found by halving: an
    epoch begins where the one before ended. Before a rebuilding, records may be missing, so there each one is looked
    at.
    """
    newest = ledger.complete_record(ledger.newest_complete())
    if newest is None:
        return
    if newest.moved_in:
        yield from (record for record in _newest_first(ledger) if _has(record, topic, partition, offset))
        return
    rebuilt = ledger.rebuilt_to
    if found := _halved(ledger, max(0, rebuilt - 1), newest.txn_id.epoch, (topic, partition, offset)):
        yield found
    else:
        yield from (record for record in _newest_first(ledger, rebuilt - 1) if _has(record, topic, partition, offset))


def unfinished_that_reads(ledger: Ledger, topic: str, partition: int, offset: int) -> EpochView | None:
    """The epoch that was opened with the offset, and is not complete; None if there is none."""
    view = unfinished(ledger)
    return view if view and not view.opened.command and _has(view.opened, topic, partition, offset) else None


def _halved(ledger: Ledger, low: int, high: int, of: tuple[str, int, int]) -> CompleteRecord | None:
    """The epoch after ``low``, up to ``high``, whose input has the offset of a partition of a topic."""
    topic, partition, offset = of
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _end(ledger.complete_record(middle), topic, partition) > offset else (middle, high)
    found = ledger.complete_record(high)
    return found if found and _has(found, topic, partition, offset) else None


def epochs_that_made(
    ledger: Ledger, table: str, version: int, *, removed: bool = False
) -> Iterator[tuple[str, CompleteRecord]]:
    """The sink that made this version of the table, with the epoch that it shows. Later epochs have later versions.

    A version that a compaction or another writer made shows no epoch of its own.

    ``removed``: look for sinks, too, that the DAG does not have any more. That may take as long as the history.
    """
    place = resolved(normalised(table))
    today = _sinks_of(ledger, place)
    for record in _newest_first(ledger) if today or removed else ():
        versions = {
            sink: receipt.version
            for sink, receipt in record.receipts.items()
            if receipt.version is not None and _is_of(receipt, place, known=sink in today)
        }
        yield from ((sink, record) for sink, made in versions.items() if made == version)
        if versions and min(versions.values()) <= version:
            return


def _is_of(receipt: Receipt, place: str, *, known: bool) -> bool:
    """Whether the receipt is of this table. ``known``: the answer for a receipt that names no table."""
    table = receipt.detail.get("table")
    return resolved(normalised(str(table))) == place if table else known


def epoch_that_wrote(ledger: Ledger, file: str, *, thoroughly: bool = False) -> tuple[str, CompleteRecord] | None:
    """The sink and the epoch that wrote this data file of a table; None if no epoch did, but a compaction, for example.

    Args:
        ledger: The ledger.
        file: A path or URL, or the end of one, as ``_metadata.file_path`` of Spark or ``filename`` of DuckDB tells it.
        thoroughly: Look at every epoch, since a sink of the user's own may name its folders otherwise. That may take as
            long as the history.
    """
    parts = unquote(file).split("/")
    named = [int(found[1]) for part in parts if (found := _PLACE.fullmatch(part))]
    for record in _newest_first(ledger) if thoroughly else filter(None, map(ledger.complete_record, named)):
        for sink, receipt in record.receipts.items():
            place = (receipt.place or "").rstrip("/").split("/")[-2:]  # the ledger with the sink, and the try
            if len(place) == 2 and any(parts[n : n + 2] == place for n in range(len(parts))):
                return sink, record
    return None


def _sinks_of(ledger: Ledger, place: str) -> list[str]:
    opened = newest_opened(ledger)
    if opened is None:
        return []
    return [name for name, plan in opened.sinks.items() if resolved(normalised(str(plan.spec.get("table")))) == place]


def _newest_first(ledger: Ledger, newest: int | None = None) -> Iterator[CompleteRecord]:
    """The completion records that are there. ``newest``: where to begin; else with the newest one."""
    for number in range(ledger.newest_complete() if newest is None else newest, 0, -1):
        if record := ledger.complete_record(number):
            yield record


def _has(record: CompleteRecord | OpenRecord, topic: str, partition: int, offset: int) -> bool:
    return any(r.partition == partition and r.start <= offset < r.end for r in record.ranges.get(topic, ()))


def _end(record: CompleteRecord | None, topic: str, partition: int) -> int:
    """Where the epoch's input ends; -1 before the topic or partition was there."""
    return next((r.end for r in (record.ranges.get(topic, ()) if record else ()) if r.partition == partition), -1)
