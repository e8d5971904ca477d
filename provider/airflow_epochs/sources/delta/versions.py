"""What the versions of a table say in its log: which files they add, and why one of them cannot be read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from airflow_epochs import codes
from airflow_epochs.delta.log import actions_of, entries, log_entry
from airflow_epochs.delta.shape import PHYSICAL_NAME, TableShape, renamed
from airflow_epochs.delta.table import TableLocation
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import JsonDict
from airflow_epochs.sources.delta.bounds import NO_BOUNDS, Bounds, Size
from airflow_epochs.sources.delta.table_now import TableNow
from airflow_epochs.spark.driver.delta.schema import maps_columns
from airflow_epochs.storage.files import Files

CHANGE_FEED = "delta.enableChangeDataFeed"
_PARTS = ("type", "elementType", "keyType", "valueType")


@dataclass(frozen=True)
class Columns:
    """``schema``: as Spark writes it."""

    schema: JsonDict
    partition_by: tuple[str, ...]

    @classmethod
    def of(cls, shape: TableShape) -> Columns:
        """Those of a table."""
        return cls(shape.schema, shape.partition_by)


@dataclass(frozen=True, kw_only=True)
class Version:
    """One version, by its log entry. ``adds`` and ``removes``: only those that change rows; ``cdc``: files of changes.

    ``keeps_feed``: whether the change data feed is on from this version on; None if the version does not say.
    ``columns``: the table's from this version on; None if the version does not say. ``renamed``: those that files call
    by another name.
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

    def size(self, *, feed: bool) -> Size:
        """Of the files that are read for this version."""
        read = self._read(feed=feed)
        return Size(len(read), sum(int(each.get("size") or 0) for each in read))

    def files_read(self, *, feed: bool) -> list[str]:
        """The files that are read for this version, relative to the table, as far as they lie in it."""
        return [path for each in self._read(feed=feed) if ":/" not in (path := unquote(each["path"]))]

    def _read(self, *, feed: bool) -> tuple[JsonDict, ...]:
        return (self.cdc or (*self.adds, *self.removes)) if feed else self.adds


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A version that cannot be read, and the error that says why."""

    version: int
    error: Corrupt


def digest_of(files: Files, number: int) -> str | None:
    """A digest of a log entry, which never changes; None if it is gone, or if there is none yet."""
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
        keeps_feed=None if metadata is None else _is_on(metadata.get("configuration") or {}),
        columns=None if metadata is None else _columns_of(metadata),
        renamed=None if metadata is None else _renamed_of(metadata),
        operation=str(info.get("operation", "")),
        timestamp_ms=int(info.get("inCommitTimestamp") or info.get("timestamp") or 0),
    )


def next_shape(files: Files, number: int, until: int) -> int:
    """The first version after ``number`` that may have another feed or other columns; ``until`` if there is none.

    Only ``metaData`` changes them. A version that has it may be unreadable because of its own change: then the next one
    differs from it. A version whose entry is gone may have had it.
    """
    versions = range(number, until)
    changes = (at for at, entry in zip(versions, entries(files, versions), strict=True) if _may_have_metadata(entry))
    return max(number + 1, next(changes, until))


def next_with_files(files: Files, number: int, until: int, *, feed: bool) -> int:
    """The first version after ``number`` that lacks no file; ``until`` if there is none.

    A version that lacks one cannot be read, whatever else is true of it. So the table need not be opened at each: an
    opened table costs a hundred times as much as an entry. A version whose entry is gone is not judged here.
    """
    versions = range(number + 1, until)
    for at, entry in zip(versions, entries(files, versions), strict=True):
        if entry is None or not files.missing(_version_in(entry, at).files_read(feed=feed)):
            return at
    return until


def _may_have_metadata(entry: bytes | None) -> bool:
    return entry is None or b'"metaData"' in entry


def _columns_of(metadata: JsonDict) -> Columns:
    return Columns(json.loads(metadata["schemaString"]), tuple(metadata["partitionColumns"]))


def _renamed_of(metadata: JsonDict) -> tuple[str, ...]:
    mapped = maps_columns(metadata.get("configuration") or {})
    return tuple(renamed(json.loads(metadata["schemaString"]))) if mapped else ()


def _that_change_rows(actions: Iterable[JsonDict], kind: str) -> tuple[JsonDict, ...]:
    return tuple(action[kind] for action in actions if kind in action and action[kind].get("dataChange", True))


def _is_on(configuration: JsonDict) -> bool:
    return str(configuration.get(CHANGE_FEED, "")).lower() == "true"


def readable(
    now: TableNow, numbers: Sequence[int], *, feed: bool, bounds: Bounds = NO_BOUNDS
) -> tuple[list[Version], Unreadable | None]:
    """The versions up to the first one that cannot be read, and that one.

    Args:
        now: The table.
        numbers: The versions to read, ascending.
        feed: Whether their changes are read, or only what they append.
        bounds: The first version with which these are exceeded is the last one of interest: no later one is looked at.
    """
    found: list[Version] = []
    flaw, size = None, Size()
    shape = now.known_shape_at(numbers[0]) if numbers and (feed or now.shape.may_have_mapped) else None
    feed_is_on = shape is None or _is_on(shape.properties)
    other_names = tuple(shape.renamed) if shape and maps_columns(shape.properties) else ()
    for number in numbers:
        version = read_version(now.location.files, number)
        if version and version.keeps_feed is not None:
            feed_is_on = version.keeps_feed
        flaw = _flaw(now.location.name, number, version, feed_is_on if feed else None)
        if version and version.renamed is not None:
            other_names = version.renamed
        if version and not flaw:
            if feed:
                flaw = _flaw_of_columns(now, version, found, shape)
            else:
                flaw = _flaw_of_names(now, version, found, other_names)
        if flaw or version is None:
            break
        found.append(version)
        size += version.size(feed=feed)
        if bounds.exceeded_by(size):
            break
    return _with_files(now.location, found, flaw, feed)


def _flaw_of_names(
    now: TableNow, version: Version, earlier: Sequence[Version], names: Sequence[str]
) -> Unreadable | None:
    """Of a version whose rows would lose values: Spark looks for columns in files by their names of today.

    ``names``: the columns that the files call by another name. A column may be renamed meanwhile, so the rows before
    such a version are read by the names of their time, in an epoch that ends there.
    """
    if not names or not any(each.adds for each in (*earlier, version)):
        return None
    return Unreadable(version=version.number, error=_other_names(now.location.name, version.number, names[0]))


def _flaw_of_columns(
    now: TableNow, version: Version, earlier: Sequence[Version], shape: TableShape | None
) -> Unreadable | None:
    """Of a version of a feed that Spark refuses or reads wrongly, since the table has got other columns.

    Spark reads the rows that a version adds and deletes with one set of columns: those of the last version that is read
    where the table maps columns, and otherwise those of today. Partition columns that the files of a version were not
    partitioned by are NULL in them, and no error says so.

    Args:
        now: The table.
        version: The version.
        earlier: The versions that are read together with it, before it.
        shape: The shape from the first one on that is read; None if the log no longer tells it.
    """
    if flaw := _flaw_of_its_own_change(now, version):
        return flaw
    return _flaw_behind(now, version, earlier, shape) if earlier else _flaw_of_the_first(now, version, shape)


def _flaw_of_its_own_change(now: TableNow, version: Version) -> Unreadable | None:
    """Of a version that deletes rows which have other columns than it leaves."""
    before = now.known_shape_at(version.number - 1) if version.columns and (version.removes or version.cdc) else None
    if before and version.columns and (why := _difference(Columns.of(before), version.columns, or_gone=False)):
        return Unreadable(version=version.number, error=_other_columns(now, version.number, f"it {why}"))
    return None


def _flaw_of_the_first(now: TableNow, version: Version, shape: TableShape | None) -> Unreadable | None:
    if shape and (why := _difference(Columns.of(shape), Columns.of(now.shape), or_gone=True)):
        if maps_columns(now.shape.properties) and shape.partition_by == now.shape.partition_by:
            return None
        return Unreadable(version=version.number, error=_other_columns(now, version.number, f"a later version {why}"))
    return None


def _flaw_behind(
    now: TableNow, version: Version, earlier: Sequence[Version], shape: TableShape | None
) -> Unreadable | None:
    """Of a version that changes a column, or removes one; it may add some.

    Spark does not read the changes before such a version together with those after it.
    """
    if version.columns is None:
        return None
    first = earlier[0].number
    known = [each.columns for each in earlier if each.columns] or [Columns.of(shape or now.shape_at(first))]
    if name := changed_column(known[-1].schema, version.columns.schema):
        why = f"it removes or changes the column {name}, so it is not read together with version {first}"
        return Unreadable(version=version.number, error=_other_columns(now, version.number, why))
    return None


def _difference(columns: Columns, later: Columns, *, or_gone: bool) -> str | None:
    """What keeps Spark from reading rows of both together."""
    if columns.partition_by != later.partition_by:
        return "partitions the table by other columns"
    name = changed_column(columns.schema, later.schema, or_gone=or_gone)
    return f"removes or changes the column {name}" if name else None


def changed_column(schema: JsonDict, later: JsonDict, *, or_gone: bool = True) -> str | None:
    """A column of ``schema`` that has another type in the ``later`` one, ``or_gone`` from it; None if there is none.

    A struct may have got fields.
    """
    now = {field["name"]: field for field in later["fields"]}
    then = {field["name"]: field for field in schema["fields"] if or_gone or field["name"] in now}
    return next((name for name, field in then.items() if not _extends(now.get(name), field)), None)


def _extends(now: Any, then: Any) -> bool:
    """Whether a field or a type has what it had before."""
    if not isinstance(now, dict) or not isinstance(then, dict):
        return bool(now == then)
    if then.get("type") == "struct" and now.get("type") == "struct":
        return changed_column(then, now) is None
    same_files = (now.get("metadata") or {}).get(PHYSICAL_NAME) == (then.get("metadata") or {}).get(PHYSICAL_NAME)
    return same_files and all(_extends(now.get(part), then[part]) for part in _PARTS if part in then)


def _flaw(table: str, number: int, version: Version | None, feed_is_on: bool | None) -> Unreadable | None:
    """``feed_is_on``: None if the feed is not read."""
    if version is None:
        return Unreadable(version=number, error=_gone(table, number, "its entry is gone from the table's log"))
    if feed_is_on is not None:
        return None if feed_is_on else Unreadable(version=number, error=_not_on(table, number))
    if version.removes or any(add.get("deletionVector") for add in version.adds):
        return Unreadable(version=number, error=_changes_rows(table, version))
    return None


def _with_files(
    table: TableLocation, versions: list[Version], flaw: Unreadable | None, feed: bool
) -> tuple[list[Version], Unreadable | None]:
    """The versions before the first one that lacks a file, and that one as the flaw, if there is one."""
    needed = {version.number: version.files_read(feed=feed) for version in versions}
    missing = table.files.missing(dict.fromkeys(path for paths in needed.values() for path in paths))
    for index, version in enumerate(versions):
        if lost := [path for path in needed[version.number] if path in missing]:
            why = f"{len(lost)} of the files with its rows are gone, for example {lost[0]}"
            return versions[:index], Unreadable(version=version.number, error=_gone(table.name, version.number, why))
    return versions, flaw


# -- errors ----------------------------------------------------------------------------------------------------------


def _cannot(table: str, number: int, why: str) -> str:
    return f"Version {number} of the table {table}, which the pipeline has yet to read, cannot be read: {why}."


def _gone(table: str, number: int, why: str) -> Corrupt:
    return Corrupt(
        _cannot(table, number, why),
        code=codes.VERSIONS_GONE,
        remedy="Put the files back, and clear the failed task. To accept the loss instead, run `airflow epochs skip "
        "PIPELINE --to-available --why …`: it goes on with the next version that can be read, prints which versions "
        "are lost, and asks. Then clear the failed task. If the table still has the rows, in files that OPTIMIZE has "
        "written, and rows may come twice, run `airflow epochs reset-source PIPELINE --starting earliest --why …` "
        "instead: it reads the whole table again.",
    )


def _changes_rows(table: str, version: Version) -> Corrupt:
    what = f"it updates or deletes rows ({version.operation or 'by an unknown operation'})"
    return Corrupt(
        _cannot(table, version.number, what),
        code=codes.ROWS_CHANGED,
        remedy="Leave this version out, with all rows that it adds: run `airflow epochs skip PIPELINE --to-available "
        "--why …`, which prints the version, and asks. If the table had the property delta.enableChangeDataFeed=true "
        "before this version, you can set changes='feed' in the DAG instead: then its changes are read. Then clear the "
        "failed task.",
    )


def _other_columns(now: TableNow, number: int, why: str) -> Corrupt:
    return Corrupt(
        _cannot(now.location.name, number, why),
        code=codes.COLUMNS_CHANGED,
        remedy="Leave these changes out: run `airflow epochs skip PIPELINE --to-available --why …`. It goes on with "
        "the first version that can be read, prints which versions are lost, and asks. Or run `airflow epochs "
        "reset-source PIPELINE --starting earliest --why …`: it reads the whole table, as inserts. Then clear the "
        "failed task.",
    )


def _other_names(table: str, number: int, column: str) -> Corrupt:
    why = f"the table mapped its columns then, and its files call the column {column} by another name"
    return Corrupt(
        _cannot(table, number, why),
        code=codes.COLUMNS_CHANGED,
        remedy="Leave this version out, with all rows that it adds: run `airflow epochs skip PIPELINE --to-available "
        "--why …`. It goes on with the first version that can be read, prints which versions are lost, and asks. Or "
        "run `airflow epochs reset-source PIPELINE --starting earliest --why …`: it reads the whole table again, also "
        "rows that were read before. Then clear the failed task.",
    )


def _not_on(table: str, number: int) -> Corrupt:
    return Corrupt(
        _cannot(table, number, "the table did not record its changes"),
        code=codes.CHANGE_FEED_OFF,
        remedy="Set the table property delta.enableChangeDataFeed=true: changes are on record from then on. Then run "
        "`airflow epochs skip PIPELINE --to-available --why …`: it goes on with the first version that has them, "
        "prints which versions are lost, and asks. Or run `airflow epochs reset-source PIPELINE --starting earliest "
        "--why …`: it reads the whole table, as inserts. Then clear the failed task.",
    )
