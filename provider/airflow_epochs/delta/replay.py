"""Reads from a table's log the files of a version, with every field of their ``add`` actions, and the newest schema.

deltalake tells of a version's files only what it understands. Whoever writes ``add`` actions again must not lose the
rest. See Delta's protocol, "Action Reconciliation" and "Checkpoints".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_epochs.delta.log import actions_of, entries, entry_version, log_entry
from airflow_epochs.model import JsonDict

if TYPE_CHECKING:
    from airflow_epochs.storage.files import Files

FileKey = tuple[str, str]
"""A file's path, decoded, and the id of its deletion vector; empty without one."""

_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_ANY_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.(?:.+\.)?(?:parquet|json)")
"""A checkpoint: the kind that Spark writes for readers of every version, of several parts, or with sidecars (V2)."""
_ENTRIES_SEARCHED_MAX = 2_000
_MAPS = ("partitionValues", "tags")
_OF_METADATA = ("schemaString", "partitionColumns", "configuration")


class LogGone(Exception):
    """The log no longer tells the files of that version. Callers in this package handle this error."""


def live_files(files: Files, version: int) -> dict[FileKey, JsonDict]:
    """The ``add`` actions of all files of a version.

    Raises:
        LogGone: An entry or checkpoint that is needed is gone, or is of a kind that this module does not read.
    """
    start, parts = _checkpoint(files, version)
    live = {key_of(add): add for part in parts for add in _adds_in(files, part)}
    for number in range(start + 1, version + 1):
        for kind, action in _changes(files, number):
            if kind == "add":
                live[key_of(action)] = action
            else:
                live.pop(key_of(action), None)
    return live


def key_of(action: JsonDict) -> FileKey:
    """The identity of a file in an ``add`` or ``remove`` action."""
    vector = action.get("deletionVector") or {}
    parts = (vector.get(part) for part in ("pathOrInlineDv", "offset"))  # a checkpoint has NULL for no offset
    return unquote(action["path"]), ":".join(str(part) for part in parts if part is not None)


def _checkpoint(files: Files, version: int) -> tuple[int, list[str]]:
    """The newest whole checkpoint up to a version, and its files; -1 and no files if the log begins with entry 0."""
    parts: dict[int, dict[str, int]] = {}
    for name in files.names("_delta_log"):
        if (found := _CHECKPOINT.fullmatch(name)) and int(found[1]) <= version:
            parts.setdefault(int(found[1]), {})[name] = int(found[3] or 1)
    whole = [number for number, named in parts.items() if len(named) >= max(named.values())]
    newest = max(whole, default=-1)
    single = [name for name, count in parts.get(newest, {}).items() if count == 1]
    return newest, [f"_delta_log/{name}" for name in single[:1] or sorted(parts.get(newest, {}))]


def _adds_in(files: Files, checkpoint: str) -> Iterator[JsonDict]:
    import pyarrow.parquet as pq

    with files.open(checkpoint) as opened:
        parquet = pq.ParquetFile(opened)
        columns = [name for name in ("add", "sidecar") if name in parquet.schema_arrow.names]
        for row in (row for batch in parquet.iter_batches(columns=columns) for row in batch.to_pylist()):
            if row.get("sidecar"):
                raise LogGone(f"{checkpoint} has parts in other files (`sidecar`), which the provider does not read")
            if row["add"]:
                yield _without_nulls(row["add"])


def _without_nulls(add: dict[str, Any]) -> JsonDict:
    """A checkpoint's ``add`` action as a log entry has it: without parsed statistics, with maps as objects."""
    kept = {name: value for name, value in add.items() if value is not None and not name.endswith("_parsed")}
    return kept | {name: dict(kept[name]) for name in _MAPS if name in kept}


def _changes(files: Files, version: int) -> Iterator[tuple[str, JsonDict]]:
    entry = files.read(log_entry(version))
    if entry is None:
        raise LogGone(f"entry {version} of its log is gone")
    for action in actions_of(entry):
        for kind in ("add", "remove"):
            if kind in action:
                yield kind, action[kind]


def newest_schema(files: Files) -> JsonDict | None:
    """The newest schema in the log, for a table that deltalake cannot open; None if it was not found."""
    metadata = newest_metadata(files)
    return json.loads(metadata["schemaString"]) if metadata else None


def newest_metadata(files: Files) -> JsonDict | None:
    """The newest ``schemaString``, ``partitionColumns`` and ``configuration`` in the log; None if they were not found.

    The newest checkpoint has them if no entry after it does; older ones, if a part of that checkpoint is missing.
    """
    return next((found for found in _metadata(files, files.names("_delta_log")) if found), None)


def _metadata(files: Files, names: Iterable[str]) -> Iterator[JsonDict | None]:
    """The metadata in each entry and checkpoint, the newest first."""
    numbers = (entry_version(name) for name in names)
    known = sorted((number for number in numbers if number is not None), reverse=True)
    left, skipped = known[:_ENTRIES_SEARCHED_MAX], known[_ENTRIES_SEARCHED_MAX:]
    checkpoints: dict[int, list[str]] = {-1: []}  # below all entries
    for name in sorted(names):
        if found := _ANY_CHECKPOINT.fullmatch(name):
            checkpoints.setdefault(int(found[1]), []).append(f"_delta_log/{name}")
    for version in sorted(checkpoints, reverse=True):
        later = [number for number in left if number > version]
        yield from (_metadata_in(entry or b"") for entry in entries(files, later))
        if skipped and skipped[0] > version:  # one of these may have changed the schema of the checkpoint
            return
        yield from (_metadata_in_checkpoint(files, part) for part in checkpoints[version])
        left = left[len(later) :]


def _metadata_in(entry: bytes) -> JsonDict | None:
    found = (action.get("metaData") for action in actions_of(entry)) if b'"metaData"' in entry else ()
    return next((metadata for metadata in found if metadata), None)


def _metadata_in_checkpoint(files: Files, checkpoint: str) -> JsonDict | None:
    import pyarrow.parquet as pq

    if checkpoint.endswith(".json"):
        return _metadata_in(files.read(checkpoint) or b"")
    with files.open(checkpoint) as opened:
        parquet = pq.ParquetFile(opened)
        if "metaData" not in parquet.schema_arrow.names:  # a part of a checkpoint
            return None
        column = parquet.read(columns=[f"metaData.{name}" for name in _OF_METADATA]).column("metaData")
    found: list[JsonDict] = column.filter(column.is_valid()).to_pylist()
    return next((metadata for metadata in found if metadata["schemaString"]), None)
