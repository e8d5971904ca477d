"""Keeps the log short: deltalake writes no checkpoint on its own here, so each epoch would slow the opening down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_epochs.delta.table import newest_checkpoint
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta.flush import update
from airflow_epochs.storage.files import Files

if TYPE_CHECKING:
    from deltalake import DeltaTable


def write_if_due(table: DeltaTable, files: Files, every: int) -> JsonDict:
    """Write a checkpoint unless the newest one is younger than ``every`` versions, then remove expired log entries.

    ``every=0`` switches it off.
    """
    if not every:
        return {}
    update(table, files)
    version = table.version()
    if version - max(newest_checkpoint(files), 0) < every:
        return {}
    table.create_checkpoint()
    # A checkpoint that does not survive would take the entries with it that are removed for its sake.
    files.sync([f"_delta_log/{version:020}.checkpoint.parquet", "_delta_log/_last_checkpoint"])
    if _is_cleaned(table):
        table.cleanup_metadata()
    return {"checkpoint": version}


def _is_cleaned(table: DeltaTable) -> bool:
    """Whether expired entries may go: a table with protected checkpoints keeps entries that an older protocol wrote."""
    if "checkpointProtection" in (table.protocol().writer_features or ()):
        return False
    return str(table.metadata().configuration.get("delta.enableExpiredLogCleanup", "true")).lower() == "true"
