"""What a version of a table says in its log entry: which files it adds, which columns the table has from then on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from airflow_epochs.delta.log import actions_of, entries, log_entry, operation_of
from airflow_epochs.delta.shape import renamed
from airflow_epochs.model import JsonDict
from airflow_epochs.sources.delta.bounds import FilesSize
from airflow_epochs.sources.delta.columns import Columns
from airflow_epochs.sources.delta.taken_back import Back, led_back
from airflow_epochs.spark.driver.delta.schema import maps_columns
from airflow_epochs.storage.files import Files

CHANGE_FEED = "delta.enableChangeDataFeed"


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version, by its log entry. ``adds`` and ``removes``: only those that change rows; ``cdc``: files of changes.

    ``keeps_feed``: whether the change data feed is on from this version on; None if the version does not say.
    ``columns``: the table's columns from this version on; None if the version does not say. ``renamed``: the columns
    that files call by another name. ``back``: how it leads the table back; None if it does not.
    """

    number: int
    adds: tuple[JsonDict, ...]
    removes: tuple[JsonDict, ...]
    cdc: tuple[JsonDict, ...]
    keeps_feed: bool | None
    columns: Columns | None
    renamed: tuple[str, ...] | None
    operation: str
    timestamp_ms: int
    back: Back | None

    def size(self, *, feed: bool) -> FilesSize:
        """How many files are read for this version, and their bytes."""
        read = self._read(feed=feed)
        return FilesSize(len(read), sum(int(each.get("size") or 0) for each in read))

    def files_read(self, *, feed: bool) -> list[str]:
        """The files that are read for this version, relative to the table, as far as they lie in it."""
        return [path for each in self._read(feed=feed) if ":/" not in (path := unquote(each["path"]))]

    def _read(self, *, feed: bool) -> tuple[JsonDict, ...]:
        return (self.cdc or (*self.adds, *self.removes)) if feed else self.adds


def digest_of(files: Files, number: int) -> str | None:
    """A digest of a log entry, which never changes; None if the entry is gone, or not written yet."""
    entry = files.read(log_entry(number)) if number >= 0 else None
    return None if entry is None else hashlib.sha256(entry).hexdigest()


def read_version(files: Files, number: int) -> Version | None:
    """One version; None if its log entry is gone."""
    entry = files.read(log_entry(number))
    return None if entry is None else _version_in(entry, number)


def _version_in(entry: bytes, number: int) -> Version:
    actions = list(actions_of(entry))
    info: JsonDict = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    metadata = next((action["metaData"] for action in actions if "metaData" in action), None)
    return Version(
        number=number,
        adds=_that_change_rows(actions, "add"),
        removes=_that_change_rows(actions, "remove"),
        cdc=tuple(action["cdc"] for action in actions if "cdc" in action),
        keeps_feed=None if metadata is None else records_changes(metadata.get("configuration") or {}),
        columns=None if metadata is None else _columns_of(metadata),
        renamed=None if metadata is None else _renamed_of(metadata),
        operation=operation_of(actions)[0],
        timestamp_ms=int(info.get("inCommitTimestamp") or info.get("timestamp") or 0),
        back=led_back(actions),
    )


def _columns_of(metadata: JsonDict) -> Columns:
    return Columns(json.loads(metadata["schemaString"]), tuple(metadata["partitionColumns"]))


def _renamed_of(metadata: JsonDict) -> tuple[str, ...]:
    mapped = maps_columns(metadata.get("configuration") or {})
    return tuple(renamed(json.loads(metadata["schemaString"]))) if mapped else ()


def _that_change_rows(actions: Iterable[JsonDict], kind: str) -> tuple[JsonDict, ...]:
    return tuple(action[kind] for action in actions if kind in action and action[kind].get("dataChange", True))


def records_changes(properties: JsonDict) -> bool:
    """Whether a table with these properties has the change data feed."""
    return str(properties.get(CHANGE_FEED, "")).lower() == "true"


# -- looking through many versions -----------------------------------------------------------------------------------


def next_shape(files: Files, number: int, until: int) -> int:
    """The first version after ``number`` that may have another feed or other columns; ``until`` if no version may.

    Only ``metaData`` changes them. A version that has it may be unreadable because of its own change: then the next one
    differs from it. A version whose entry is gone may have had it.
    """
    versions = range(number, until)
    changes = (at for at, entry in zip(versions, entries(files, versions), strict=True) if _may_have_metadata(entry))
    return max(number + 1, next(changes, until))


def keeps_shape(files: Files, number: int, until: int) -> bool:
    """Whether no version after ``number`` and before ``until`` may have got another feed or other columns."""
    return not any(map(_may_have_metadata, entries(files, range(number + 1, until))))


def next_with_files(files: Files, number: int, until: int, *, feed: bool) -> int:
    """The first version after ``number`` that has all its files; ``until`` if no version has.

    A version that lacks a file cannot be read in any case. So the table need not be opened at each version, which costs
    a hundred times as much as to read a log entry. A version whose entry is gone is not judged here.
    """
    versions = range(number + 1, until)
    for at, entry in zip(versions, entries(files, versions), strict=True):
        if entry is None or not files.missing(_version_in(entry, at).files_read(feed=feed)):
            return at
    return until


def _may_have_metadata(entry: bytes | None) -> bool:
    return entry is None or b'"metaData"' in entry
