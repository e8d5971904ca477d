"""What a table shows before a commit: its version, and its marker.

Through deltalake, which lists the log and reads a checkpoint; or on from a known *position*, a log entry that was read
when the rows were staged: log entries never change, so reading the few that follow it tells as much, and takes as
long at version 10,000 as at version 10.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from airflow_epochs.delta.log import actions_of, log_entry
from airflow_epochs.delta.shape import TableShape
from airflow_epochs.delta.table import (
    App,
    FoundCommit,
    TableLocation,
    commit_in,
    find_commit,
    newest_checkpoint,
    open_table,
    read_marker,
)
from airflow_epochs.model import JsonDict, Marker
from airflow_epochs.storage.files import Files

ENTRIES_MAX = 1_000
"""With more entries than this after the known position, deltalake is faster."""


@dataclass(frozen=True)
class LogPosition:
    """A log entry and the marker as of its version. The digest tells whether it is still the same table's."""

    version: int
    digest: str
    marker: Marker | None

    def as_json(self) -> JsonDict:
        marker = [self.marker.epoch, self.marker.token] if self.marker else None
        return {"version": self.version, "digest": self.digest, "marker": marker}

    @classmethod
    def from_json(cls, value: Any) -> LogPosition | None:
        """None also for what is no position: a snapshot through deltalake tells as much."""
        try:
            marker = Marker(*value["marker"]) if value["marker"] else None
            return cls(value["version"], value["digest"], marker)
        except (KeyError, TypeError):
            return None


@dataclass(frozen=True)
class Snapshot:
    """A table at its newest version.

    Attributes:
        version: -1 where there is no table.
        marker: Of the sink that asks.
        shape: None where there is no table, or where it is as it was at the known position.
        position: From where the next snapshot may go on.
        commit: The entry that brought the marker's epoch, if it was read on the way.
    """

    version: int
    marker: Marker | None
    shape: TableShape | None
    position: LogPosition | None
    commit: FoundCommit | None


def read_snapshot(location: TableLocation, app: App) -> Snapshot:
    """Through deltalake. Raises what ``open_table`` raises."""
    table, files = open_table(location), location.files
    if table is None:
        return Snapshot(-1, None, None, None, None)
    version, marker = table.version(), read_marker(table, app, files)
    return Snapshot(version, marker, TableShape.of_table(table), position_at(version, marker, files), None)


def position_at(version: int, marker: Marker | None, files: Files) -> LogPosition | None:
    entry = files.read(log_entry(version))
    return None if entry is None else LogPosition(version, _digest(entry), marker)


def snapshot_from(known: LogPosition, app: App, files: Files) -> Snapshot | None:
    """From a known position to the newest version; None where that cannot tell, and deltalake must be asked.

    That is: its entry is gone or another one stands there; the table was altered since; the log was
    cleaned up past it.
    """
    entry = files.read(log_entry(known.version))
    if entry is None or _digest(entry) != known.digest:
        return None
    commit = None
    for version in range(known.version + 1, known.version + 1 + ENTRIES_MAX):
        if (entry := files.read(log_entry(version))) is None:
            cleaned_up = newest_checkpoint(files) >= version
            return None if cleaned_up else Snapshot(version - 1, known.marker, None, known, commit)
        if alters(entry):
            return None
        known = replace(known, version=version, digest=_digest(entry))
        if found := _marker_in(entry, app):
            known = replace(known, marker=found)
            commit = commit_in(entry, app, found.epoch, version)
    return None


def alters(entry: bytes) -> bool:
    """Whether a log entry changes the table's schema, properties or protocol."""
    if b'"metaData"' not in entry and b'"protocol"' not in entry:
        return False
    return any("metaData" in action or "protocol" in action for action in actions_of(entry))


def _marker_in(entry: bytes, app: App) -> Marker | None:
    """The marker that an entry of ours sets. One that Spark has written has its transaction in the note only."""
    if app.epoch.encode() not in entry:
        return None
    versions = {action["txn"]["appId"]: action["txn"]["version"] for action in actions_of(entry) if "txn" in action}
    if app.epoch not in versions:
        return None
    epoch, token = versions[app.epoch], versions.get(app.token)
    if token is None:
        found = commit_in(entry, app, epoch, 0)
        token = found.token if found else None
    return Marker(epoch, token)


def commit_of(seen: Snapshot, app: App, files: Files) -> FoundCommit:
    """The entry that brought the marker's epoch."""
    found = seen.commit
    if found is None and seen.marker is not None:
        found = find_commit(files, app, seen.marker.epoch, seen.version)
    return found or FoundCommit.unknown()


def _digest(entry: bytes) -> str:
    return hashlib.sha256(entry).hexdigest()
