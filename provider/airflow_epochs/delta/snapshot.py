"""Looking at a table before a commit: what version is it at, and what does its marker say?

Through deltalake, which lists the log and reads a checkpoint; or on from an *anchor*, a log entry that was looked at
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
    Where,
    commit_in,
    find_commit,
    newest_checkpoint,
    open_table,
    read_marker,
)
from airflow_epochs.model import JsonDict, Marker
from airflow_epochs.storage.files import Files

ENTRIES_MAX = 1_000
"""With more entries than this after the anchor, deltalake is faster."""


@dataclass(frozen=True)
class Anchor:
    """A log entry and the marker as of its version. The digest tells whether it is still the same table's."""

    version: int
    digest: str
    marker: Marker | None

    def as_json(self) -> JsonDict:
        marker = [self.marker.epoch, self.marker.token] if self.marker else None
        return {"version": self.version, "digest": self.digest, "marker": marker}

    @classmethod
    def from_json(cls, value: Any) -> Anchor | None:
        """None also for what is no anchor: a look through deltalake tells as much."""
        try:
            marker = Marker(*value["marker"]) if value["marker"] else None
            return cls(value["version"], value["digest"], marker)
        except (KeyError, TypeError):
            return None


@dataclass(frozen=True)
class Look:
    """A table at its newest version.

    Attributes:
        version: -1 where there is no table.
        marker: Of the sink that looks.
        shape: None where there is no table, or where it is as it was at the anchor.
        anchor: From where the next look may go on.
        commit: The entry that brought the marker's epoch, if it was read on the way.
    """

    version: int
    marker: Marker | None
    shape: TableShape | None
    anchor: Anchor | None
    commit: FoundCommit | None


def look(where: Where, app: App) -> Look:
    """Through deltalake. Raises what ``open_table`` raises."""
    table, files = open_table(where), where.files
    if table is None:
        return Look(-1, None, None, None, None)
    version, marker = table.version(), read_marker(table, app, files)
    return Look(version, marker, TableShape.of_table(table), anchor_at(version, marker, files), None)


def anchor_at(version: int, marker: Marker | None, files: Files) -> Anchor | None:
    entry = files.read(log_entry(version))
    return None if entry is None else Anchor(version, _digest(entry), marker)


def look_on(anchor: Anchor, app: App, files: Files) -> Look | None:
    """From the anchor to the newest version; None where that cannot tell, and deltalake must be asked.

    That is: the anchor's entry is gone or another one stands there; the table was altered since; the log was
    cleaned up past the anchor.
    """
    entry = files.read(log_entry(anchor.version))
    if entry is None or _digest(entry) != anchor.digest:
        return None
    commit = None
    for version in range(anchor.version + 1, anchor.version + 1 + ENTRIES_MAX):
        if (entry := files.read(log_entry(version))) is None:
            cleaned_up = newest_checkpoint(files) >= version
            return None if cleaned_up else Look(version - 1, anchor.marker, None, anchor, commit)
        if alters(entry):
            return None
        anchor = replace(anchor, version=version, digest=_digest(entry))
        if found := _marker_in(entry, app):
            anchor = replace(anchor, marker=found)
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


def commit_of(seen: Look, app: App, files: Files) -> FoundCommit:
    """The entry that brought the marker's epoch."""
    found = seen.commit
    if found is None and seen.marker is not None:
        found = find_commit(files, app, seen.marker.epoch, seen.version)
    return found or FoundCommit.unknown()


def _digest(entry: bytes) -> str:
    return hashlib.sha256(entry).hexdigest()
