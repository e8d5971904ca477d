"""A table's version and marker before a commit.

They come from deltalake, which lists the log and reads a checkpoint. Or they are read on from a known *position*: a log
entry that was read when the rows were staged. Log entries never change, so the few later ones tell as much, and reading
them takes as long at version 10,000 as at version 10.
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
"""If more entries than this follow the known position, deltalake is faster."""


@dataclass(frozen=True)
class LogPosition:
    """A log entry, and the marker as of its version. The digest tells whether the table has been replaced."""

    version: int
    digest: str
    marker: Marker | None

    def is_at(self, version: int, entry: bytes) -> bool:
        """Whether the position is this log entry, and not an entry of another table."""
        return version == self.version and _digest(entry) == self.digest

    def as_json(self) -> JsonDict:
        """The position as JSON, for the staging table's user metadata."""
        marker = [self.marker.epoch, self.marker.token] if self.marker else None
        return {"version": self.version, "digest": self.digest, "marker": marker}

    @classmethod
    def from_json(cls, value: Any) -> LogPosition | None:
        """The inverse of ``as_json``; None for anything else, because deltalake can be asked instead."""
        try:
            marker = Marker(*value["marker"]) if value["marker"] else None
            return cls(value["version"], value["digest"], marker)
        except (KeyError, TypeError):
            return None


@dataclass(frozen=True)
class Snapshot:
    """A table at its newest version.

    Attributes:
        version: -1 if there is no table.
        marker: The marker of the sink that asks.
        shape: None if there is no table, or if it is unchanged since the known position.
        position: Where the next snapshot can continue.
        commit: The log entry that committed the marker's epoch, if it was read on the way.
    """

    version: int
    marker: Marker | None
    shape: TableShape | None
    position: LogPosition | None
    commit: FoundCommit | None


def read_snapshot(location: TableLocation, app: App) -> Snapshot:
    """The table through deltalake. Raises what ``open_table`` raises."""
    table, files = open_table(location), location.files
    if table is None:
        return Snapshot(-1, None, None, None, None)
    version, marker = table.version(), read_marker(table, app, location)
    return Snapshot(version, marker, TableShape.of_table(table), position_at(version, marker, files), None)


def position_at(version: int, marker: Marker | None, files: Files) -> LogPosition | None:
    """The position at ``version``; None if its log entry is gone."""
    entry = files.read(log_entry(version))
    return None if entry is None else LogPosition(version, _digest(entry), marker)


def snapshot_from(known: LogPosition, app: App, files: Files) -> Snapshot | None:
    """The table at its newest version, read on from a known position; None if only deltalake can tell.

    That is the case if the known entry is gone or has been replaced, the table has been altered since, the log has been
    cleaned up past the position, or too many entries follow.
    """
    entry = files.read(log_entry(known.version))
    if entry is None or not known.is_at(known.version, entry):
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
    """Whether a log entry sets the table's schema, properties or protocol."""
    if b'"metaData"' not in entry and b'"protocol"' not in entry:
        return False
    return any("metaData" in action or "protocol" in action for action in actions_of(entry))


def _marker_in(entry: bytes, app: App) -> Marker | None:
    """The marker that one of our entries sets. If Spark wrote the entry, only its user metadata has the transaction."""
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
    """The log entry that committed the marker's epoch."""
    found = seen.commit
    if found is None and seen.marker is not None:
        found = find_commit(files, app, seen.marker.epoch, seen.version)
    return found or FoundCommit.unknown()


def _digest(entry: bytes) -> str:
    return hashlib.sha256(entry).hexdigest()
