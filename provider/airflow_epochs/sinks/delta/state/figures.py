"""A state table at a glance: how large it is, what its newest epoch did, and how far event time has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_epochs.delta.log import actions_of, log_entry

if TYPE_CHECKING:
    from airflow_epochs.sinks.delta.state.recorded_states import StateRecords
    from airflow_epochs.sinks.delta.state.view import ReadableState


@dataclass(frozen=True, kw_only=True)
class StateFigures:
    """A state table as of a complete epoch. Instants are microseconds since 1970 (UTC).

    Attributes:
        keys: The number of keys.
        files, bytes: What the table consists of, with the rows that are no longer state.
        changed: Rows that the epoch changed or deleted; None if it staged the whole state, or if that is not known.
        dropped: Files that the epoch's commit dropped because all their rows had expired; None as in ``changed``.
        late: Rows of the epoch that operators called late; None if no sink got them, or if that was not measured.
        watermark: The epoch's watermark; None without one.
        next_expiry: When the next key expires; None if no key expires.
    """

    name: str
    epoch: int
    version: int
    keys: int
    files: int
    bytes: int
    changed: int | None
    dropped: int | None
    late: int | None
    watermark: int | None
    next_expiry: int | None


def figures(records: StateRecords, state: ReadableState) -> StateFigures:
    """The figures of a state. deltalake counts its keys, so this reads their columns.

    Raises:
        Refused: The version cannot be read any more.
    """
    keys, next_expiry = state.count()
    shown, is_change = records.shown, records.is_fold is False
    return StateFigures(
        name=state.name,
        epoch=state.epoch,
        version=state.version,
        keys=keys,
        files=state.files,
        bytes=state.bytes,
        changed=shown.receipts[state.name].rows if is_change else None,
        dropped=_files_dropped(state) if is_change else None,
        late=shown.metrics.get("rows_late"),
        watermark=shown.watermarks[0] if shown.watermarks else None,
        next_expiry=next_expiry,
    )


def _files_dropped(state: ReadableState) -> int | None:
    """How many files the epoch's commit dropped; None if its log entry has been cleaned up."""
    entry = state.location.files.read(log_entry(state.version))
    return None if entry is None else sum("remove" in action for action in actions_of(entry))
