"""Which epoch read a record, made a version of a table, or wrote a file of it. Reads completion records only."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import unquote

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import newest_opened
from airflow_epochs.model import CompleteRecord
from airflow_epochs.names import normalised, resolved


def epochs_that_read(ledger: Ledger, topic: str, partition: int, offset: int) -> Iterator[CompleteRecord]:
    """The complete epochs whose input has the offset, newest first.

    There may be several if a command moved the pipeline back. If none ever did, the epoch is found by halving: an epoch
    begins where the one before ended.
    """
    newest = ledger.complete_record(ledger.newest_complete())
    if newest is None:
        return
    if newest.moved_in:
        yield from (record for record in _newest_first(ledger) if _has(record, topic, partition, offset))
        return
    low, high = 0, newest.txn.epoch
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _end(ledger.complete_record(middle), topic, partition) > offset else (middle, high)
    found = ledger.complete_record(high)
    if found and _has(found, topic, partition, offset):
        yield found


def epochs_that_made(ledger: Ledger, table: str, version: int) -> Iterator[tuple[str, CompleteRecord]]:
    """The sinks that write to the table, each with the epoch that this version shows. Later epochs have later versions.

    A version that a compaction or another writer made shows no epoch of its own.
    """
    for sink in _sinks_of(ledger, table):
        for record in _newest_first(ledger):
            receipt = record.receipts.get(sink)
            if receipt and receipt.version is not None and receipt.version <= version:
                if receipt.version == version:
                    yield sink, record
                break


def epoch_that_wrote(ledger: Ledger, file: str) -> tuple[str, CompleteRecord] | None:
    """The sink and the epoch that wrote this data file of a table; None if no epoch did, but a compaction, for example.

    ``file``: a path or URL, or the end of one, as ``_metadata.file_path`` of Spark or ``filename`` of DuckDB tells it.
    """
    parts = unquote(file).split("/")
    for record in _newest_first(ledger):
        for sink, receipt in record.receipts.items():
            place = (receipt.place or "").rstrip("/").split("/")[-2:]  # the ledger with the sink, and the try
            if len(place) == 2 and any(parts[n : n + 2] == place for n in range(len(parts))):
                return sink, record
    return None


def _sinks_of(ledger: Ledger, table: str) -> list[str]:
    opened, place = newest_opened(ledger), resolved(normalised(table))
    if opened is None:
        return []
    return [name for name, plan in opened.sinks.items() if resolved(normalised(str(plan.spec.get("table")))) == place]


def _newest_first(ledger: Ledger) -> Iterator[CompleteRecord]:
    for number in range(ledger.newest_complete(), 0, -1):
        if record := ledger.complete_record(number):
            yield record


def _has(record: CompleteRecord, topic: str, partition: int, offset: int) -> bool:
    return any(r.partition == partition and r.start <= offset < r.end for r in record.ranges.get(topic, ()))


def _end(record: CompleteRecord | None, topic: str, partition: int) -> int:
    """Where the epoch's input ends; -1 before the topic or partition was there, or if a rebuilding left no record."""
    return next((r.end for r in (record.ranges.get(topic, ()) if record else ()) if r.partition == partition), -1)
