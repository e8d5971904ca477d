"""Epochs as plain values: one as JSON, many as JSON lines or as rows of a table. Reads only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from airflow_epochs.ledger.codec import to_plain
from airflow_epochs.ledger.epoch_records import epoch_records
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.queries import EpochRow, accounts, unfinished, waivers
from airflow_epochs.ledger.view import EpochView
from airflow_epochs.model import JsonDict

_FIGURES = ("rows", "files", "bytes", "version")


def oldest_first(ledger: Ledger, most: int | None) -> Iterator[EpochView]:
    """The newest ``most`` epochs, all if it is None, oldest first. One that is not complete comes last."""
    newest, last = ledger.newest_complete(), unfinished(ledger)
    of_complete = newest if most is None else most - (last is not None)
    for number in range(max(1, newest - of_complete + 1), newest + 1):
        view = ledger.view(number)
        if view.complete:  # else the ledger was rebuilt since
            yield view
    if last:
        yield last


def document(ledger: Ledger, view: EpochView) -> JsonDict:
    """All records of an epoch, of aborted attempts too, as far as they are kept."""
    records = epoch_records(ledger, view)
    told = replace(view, waived=records.waived)
    accounted = accounts(view.complete) if view.complete else {}
    return {
        "state": view.state.value,
        **to_plain(told),
        **to_plain({"attempts": records.attempts, "restaged": records.restaged}),
        **({"accounting": to_plain(accounted)} if accounted else {}),
    }


def summary(pipeline: str, ledger: Ledger, view: EpochView) -> JsonDict:
    """An epoch at a glance: numbers and texts, and lists of flat values."""
    row, record = EpochRow.of(ledger, view), view.complete or view.opened
    run = view.complete.opened_by if view.complete else view.opened.run
    receipts = view.complete.receipts if view.complete else view.receipts
    seconds = (view.complete.metrics.get("seconds") or {}) if view.complete else {}
    waived = waivers(ledger, view)
    return {
        "pipeline": pipeline,
        "epoch": row.number,
        "state": row.state.value,
        "attempt": row.attempt,
        "transaction": str(row.txn_id),
        "dag": run.dag_id,
        "run": run.run_id,
        "at": row.at,
        "offsets": row.offsets,
        "read": row.read,
        "rows": row.rows,
        "dead_letters": row.dead_letters,
        "seconds": round(sum(seconds.values()), 3) if seconds else None,
        "code": row.code,
        "ranges": [
            {"topic": topic, "partition": r.partition, "start": r.start, "end": r.end}
            for topic, of_topic in sorted(record.ranges.items())
            for r in of_topic
        ],
        "sinks": [
            *(
                {"sink": sink, "waived": False, **{name: getattr(receipt, name) for name in _FIGURES}}
                for sink, receipt in sorted(receipts.items())
            ),
            *({"sink": sink, "waived": True} for sink in sorted(waived.keys() - receipts.keys())),
        ],
    }
