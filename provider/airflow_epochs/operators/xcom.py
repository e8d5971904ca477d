"""Writes the checkpoint record to XCom and reads it: 48 KB of JSON or less, as Airflow keeps XComs in its database.

A record that is too large loses what grows with the number of partitions. The ledger still has all of it. Only the
event times of ``stage`` stay, some 26 bytes for each partition: the vote puts them on record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import msgspec

from airflow_epochs import secrecy
from airflow_epochs.ledger.codec import from_plain, to_json, to_plain
from airflow_epochs.model import Checkpoint, JsonDict, Receipt

log = secrecy.logger(__name__)

BYTES_MAX = 47 * 1024
"""The largest XCom: JSON with blanks, as Airflow writes it. The rest of the 48 KB is for what Airflow adds."""
ENTRIES_MAX = 100
"""A receipt loses the collections in its detail that have more entries than this."""


def to_xcom(checkpoint: Checkpoint) -> JsonDict:
    """The checkpoint in plain JSON types, 48 KB or less without event times.

    Airflow's own serialisation would wrap every tuple. ``StageReport.try_id`` has the key ``nonce``, which version 0.1
    writes and reads.
    """
    value: JsonDict = json.loads(to_json(fitted(checkpoint)))
    if value["stage"]:
        value["stage"]["nonce"] = value["stage"].pop("try_id")
    return value


def from_xcom(value: object) -> Checkpoint:
    """The inverse of ``to_xcom``. Raises msgspec.ValidationError for a value that is no checkpoint record."""
    match value:
        case {"stage": {"nonce": try_id, **stage}, **others}:
            value = {**others, "stage": {**stage, "try_id": try_id}}
    return from_plain(value, Checkpoint, strict=False)


def checkpoints_in(value: object) -> Iterator[Checkpoint]:
    """The checkpoints of the tasks before: of one, of several, or of a mapped one, whose XComs are a lazy sequence.

    A value that is no checkpoint is left out, with a warning: the facts are in the ledger.
    """
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        for each in value:
            yield from checkpoints_in(each)
    elif value:
        try:
            yield from_xcom(value)
        except msgspec.ValidationError as error:
            log.warning("an XCom of a task before is no checkpoint (%s): its measurements are left out", error)


def fitted(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint as it is if it is small enough; else without long receipt details; else also without ranges."""
    steps: list[Callable[[Checkpoint], Checkpoint]] = [_without_long_details, _without_ranges]
    for step in steps:
        if _size(checkpoint) <= BYTES_MAX:
            break
        checkpoint = step(checkpoint)
    return checkpoint


def _size(checkpoint: Checkpoint) -> int:
    return len(json.dumps(to_plain(checkpoint)))


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
