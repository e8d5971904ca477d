"""What the versions of a table say in its log: which files they add, and why one of them cannot be read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from airflow_epochs import codes
from airflow_epochs.delta.log import actions_of, log_entry
from airflow_epochs.errors import Code
from airflow_epochs.model import JsonDict
from airflow_epochs.storage.files import Files

CHANGE_FEED = "delta.enableChangeDataFeed"
_SHOWN_MAX = 3


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version, by its log entry. ``adds`` and ``removes``: only those that change rows; ``cdc``: files of changes.

    ``keeps_feed``: whether the change data feed is on from this version on; None if the version does not say.
    """

    number: int
    adds: tuple[JsonDict, ...]
    removes: tuple[JsonDict, ...]
    cdc: tuple[JsonDict, ...]
    keeps_feed: bool | None
    operation: str
    timestamp_ms: int

    def files_read(self, *, feed: bool) -> list[str]:
        """The files that are read for this version, relative to the table, as far as they lie in it."""
        read = (self.cdc or (*self.adds, *self.removes)) if feed else self.adds
        return [path for each in read if ":/" not in (path := unquote(each["path"]))]


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """Why a version cannot be read; the end of a sentence that begins with the version."""

    version: int
    code: Code
    why: str


def digest_of(files: Files, number: int) -> str | None:
    """A digest of a log entry, which never changes; None if it is gone, or if there is none yet."""
    entry = files.read(log_entry(number)) if number >= 0 else None
    return None if entry is None else hashlib.sha256(entry).hexdigest()


def read_version(files: Files, number: int) -> Version | None:
    """One version; None if its log entry is gone."""
    entry = files.read(log_entry(number))
    if entry is None:
        return None
    actions = list(actions_of(entry))
    info: JsonDict = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    metadata = next((action["metaData"] for action in actions if "metaData" in action), None)
    return Version(
        number=number,
        adds=_that_change_rows(actions, "add"),
        removes=_that_change_rows(actions, "remove"),
        cdc=tuple(action["cdc"] for action in actions if "cdc" in action),
        keeps_feed=None if metadata is None else _is_on(metadata.get("configuration") or {}),
        operation=str(info.get("operation", "")),
        timestamp_ms=int(info.get("inCommitTimestamp") or info.get("timestamp") or 0),
    )


def _that_change_rows(actions: Iterable[JsonDict], kind: str) -> tuple[JsonDict, ...]:
    return tuple(action[kind] for action in actions if kind in action and action[kind].get("dataChange", True))


def _is_on(configuration: JsonDict) -> bool:
    return str(configuration.get(CHANGE_FEED, "")).lower() == "true"


def readable(
    files: Files, numbers: Sequence[int], *, feed: bool, feed_is_on: bool
) -> tuple[list[Version], Unreadable | None]:
    """The versions up to the first one that cannot be read, and why that one cannot.

    Args:
        files: The table's folder.
        numbers: The versions to read, ascending.
        feed: Whether their changes are read, or only what they append.
        feed_is_on: Whether the change data feed was on before the first of them.
    """
    found: list[Version] = []
    flaw = None
    for number in numbers:
        version = read_version(files, number)
        if version and version.keeps_feed is not None:
            feed_is_on = version.keeps_feed
        flaw = _flaw(number, version, feed, feed_is_on)
        if flaw or version is None:
            break
        found.append(version)
    return _with_files(files, found, flaw, feed)


def _flaw(number: int, version: Version | None, feed: bool, feed_is_on: bool) -> Unreadable | None:
    if version is None:
        return _gone(number)
    return _not_on(version) if feed and not feed_is_on else _unfit(version, feed)


def _gone(number: int) -> Unreadable:
    return Unreadable(version=number, code=codes.VERSIONS_GONE, why="its entry is gone from the table's log")


def _not_on(version: Version) -> Unreadable:
    return Unreadable(version=version.number, code=codes.CHANGE_FEED_OFF, why="the table did not record its changes")


def _unfit(version: Version, feed: bool) -> Unreadable | None:
    """Why a version does not only append rows; None if it does, or if all changes are read."""
    if feed or not (version.removes or any(add.get("deletionVector") for add in version.adds)):
        return None
    what = f"it updates or deletes rows ({version.operation or 'by an unknown operation'})"
    return Unreadable(version=version.number, code=codes.ROWS_CHANGED, why=what)


def _with_files(
    files: Files, versions: list[Version], flaw: Unreadable | None, feed: bool
) -> tuple[list[Version], Unreadable | None]:
    """The versions before the first one that lacks a file, and that as the flaw, if there is one."""
    needed = {version.number: version.files_read(feed=feed) for version in versions}
    missing = files.missing(dict.fromkeys(path for paths in needed.values() for path in paths))
    for index, version in enumerate(versions):
        if lost := [path for path in needed[version.number] if path in missing]:
            why = f"{len(lost)} of the files with its rows are gone, for example {', '.join(lost[:_SHOWN_MAX])}"
            return versions[:index], Unreadable(version=version.number, code=codes.VERSIONS_GONE, why=why)
    return versions, flaw
