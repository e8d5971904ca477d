"""The checkpoint record as it fits into XCom, which Airflow keeps in its database: no more than 48 KB of JSON.

What is left out then is what grows with the number of partitions. All of it stands in the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import msgspec

from airflow_epochs.model import Checkpoint, JsonDict, Receipt

BYTES_MAX = 47 * 1024
"""Of the JSON as Airflow writes it, with blanks. Some air is left for what Airflow adds."""
ENTRIES_MAX = 100
"""A collection in a receipt's detail with more entries than this is left out first."""


def fitted(checkpoint: Checkpoint) -> Checkpoint:
    """The same, without long details of receipts, and then without ranges, if it is too large otherwise."""
    steps: list[Callable[[Checkpoint], Checkpoint]] = [_without_long_details, _without_ranges]
    for step in steps:
        if _size(checkpoint) <= BYTES_MAX:
            break
        checkpoint = step(checkpoint)
    return checkpoint


def _size(checkpoint: Checkpoint) -> int:
    return len(json.dumps(msgspec.to_builtins(checkpoint)))


def _without_long_details(checkpoint: Checkpoint) -> Checkpoint:
    return replace(checkpoint, receipts={sink: _shortened(receipt) for sink, receipt in checkpoint.receipts.items()})


def _shortened(receipt: Receipt) -> Receipt:
    long = {
        key for key, value in receipt.detail.items() if isinstance(value, (dict, list)) and len(value) > ENTRIES_MAX
    }
    if not long:
        return receipt
    kept: JsonDict = {key: value for key, value in receipt.detail.items() if key not in long}
    return replace(receipt, detail={**kept, "left_out": sorted(long)})


def _without_ranges(checkpoint: Checkpoint) -> Checkpoint:
    totals = {
        topic: {"partitions": len(ranges), "offsets": sum(r.end - r.start for r in ranges)}
        for topic, ranges in checkpoint.ranges.items()
    }
    return replace(checkpoint, ranges={}, totals=totals)
