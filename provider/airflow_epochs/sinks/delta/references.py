"""Finds the files of a staging place that the table refers to, before any of them is deleted.

The log is read from its newest entry backwards, to one that is older than the place: a commit of an earlier epoch of
the same sink, because an attempt is opened after it; or the entry that was the newest when the rows were staged. A file
that an entry on the way adds *or removes* is kept: older versions with it can be read as long as the log entries exist.
If the log has been cleaned up before that point, the files of the newest version count as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from airflow_epochs import codes
from airflow_epochs.delta.log import actions_of, log_entry
from airflow_epochs.delta.snapshot import LogPosition
from airflow_epochs.delta.table import App, CannotOpen, TableLocation, open_table
from airflow_epochs.errors import NotApplied
from airflow_epochs.model import JsonDict

ENTRIES_MAX = 1_000
"""This many log entries are read at most. Older places are left to VACUUM."""
_OF_THE_LOG = re.compile(r"(\d{20})\.(json|checkpoint\..*)")


def referenced(
    location: TableLocation, app: App, epoch: int, place: str, anchor: LogPosition | None = None
) -> set[str]:
    """The files below ``place``, relative to the table, that some readable version of the table has.

    Args:
        location: The table.
        app: The name under which the sink signs.
        epoch: The epoch that the place was made for.
        place: The place, relative to the table.
        anchor: The table's newest entry before anything was written there, if that is known.

    Raises:
        NotApplied: The log does not allow an answer.
    """
    files, found = location.files, set[str]()
    newest = max((int(name[1]) for name in map(_OF_THE_LOG.fullmatch, files.names("_delta_log")) if name), default=-1)
    for version in range(newest, max(-1, newest - ENTRIES_MAX), -1):
        entry = files.read(log_entry(version))
        if entry is None:
            return found | _in_newest_version(location, place)
        actions = list(actions_of(entry))
        logged = (action[kind]["path"] for action in actions for kind in ("add", "remove") if kind in action)
        found |= _below(place, logged)
        is_anchor = anchor is not None and anchor.is_at(version, entry)
        if version == 0 or is_anchor or _is_of_an_earlier_epoch(actions, app, epoch):
            return found
    if newest < 0:
        return found
    raise _unknown(location, place, f"it would have to read more than {ENTRIES_MAX} entries of the table's log")


def _below(place: str, logged: Iterable[str]) -> set[str]:
    """The logged paths below ``place``, relative to the table. Absolute paths count as well."""
    parts = (unquote(path).partition(f"{place}/") for path in logged)
    return {between + rest for _, between, rest in parts if between}


def _is_of_an_earlier_epoch(actions: list[JsonDict], app: App, epoch: int) -> bool:
    signed = [action["txn"] for action in actions if "txn" in action]
    return any(txn["appId"] == app.epoch and txn["version"] < epoch for txn in signed)


def _in_newest_version(location: TableLocation, place: str) -> set[str]:
    try:
        table = open_table(location)
    except CannotOpen as error:
        raise _unknown(location, place, f"deltalake cannot open the table: {error}") from error
    if table is None:
        raise _unknown(location, place, "entries of the table's log are missing")
    return _below(place, table.file_uris())


def _unknown(location: TableLocation, place: str, why: str) -> NotApplied:
    return NotApplied(
        f"The provider cannot tell whether {location.name} refers to the files at {place}: {why}. It deleted no file.",
        code=codes.DELTA_REFERENCES_UNKNOWN,
    )
