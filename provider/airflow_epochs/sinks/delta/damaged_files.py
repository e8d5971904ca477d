"""A file of the table that Spark cannot read any more, so that no MERGE can be committed: which, and what helps.

Spark flushes nothing. Where another program has not flushed what it wrote, a power cut can leave such a file. If the
table was only compacted since it has the file, the version before has all rows. Else rows are lost with the file, and
no record tells whose: other sinks and pipelines may have written since.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_epochs import codes
from airflow_epochs.contracts import backfill_from, waive_command
from airflow_epochs.delta.log import actions_of, entries
from airflow_epochs.delta.table import COMMITS_SEARCHED_MAX, STAGING_FOLDER, TableLocation, newest_after_checkpoint
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import JsonDict, TransactionId, attempt_fields
from airflow_epochs.names import normalised
from airflow_epochs.sinks.delta.lost_files import going_back
from airflow_epochs.storage.files import Files

if TYPE_CHECKING:
    from airflow_epochs.sinks.delta.sink import DeltaSink

_NAMED = re.compile(r"(?:reading file|footer for file:?) (\S+\.parquet)\b")
"""How Spark names a file that it cannot read."""
_MAGIC, _MAGIC_ENCRYPTED = b"PAR1", b"PARE"
"""The end of every Parquet file."""


@dataclass(frozen=True)
class Damage:
    """A file of the table that is gone, or no longer as it was written.

    Attributes:
        path: Below the table's folder.
        is_now: What is wrong with it.
        compacted_in: The version that compacted older files into this one; None if it or a later version changed rows
            or the table.
    """

    path: str
    is_now: str
    compacted_in: int | None


def damage_told(location: TableLocation, what: str) -> Damage | None:
    """The damaged file that Spark's error names; None if it names no file of the table, or a file that looks whole."""
    named = _NAMED.search(what)
    path = _below(location, named[1]) if named else None
    if path is None:
        return None
    size, compacted_in = _added(location.files, path)
    if size is None and path.startswith(f"{STAGING_FOLDER}/"):
        return None  # Spark's error names a staged file, which is no file of the table
    is_now = _fault(location.files, path, size)
    return Damage(path, is_now, compacted_in) if is_now else None


def _added(files: Files, path: str) -> tuple[int | None, int | None]:
    """The size of a file, and ``Damage.compacted_in``, by the oldest entry of the log that has the file."""
    size, compacted_in, is_changed = None, None, False
    for version, actions in _log_backwards(files):
        is_changed = is_changed or any(map(_changes, actions))
        if add := next((a["add"] for a in actions if "add" in a and unquote(a["add"]["path"]) == path), None):
            size, compacted_in = add["size"], None if is_changed else version
    return size, compacted_in


def _changes(action: JsonDict) -> bool:
    """Whether the action changes rows, or the table's metadata or protocol."""
    if "metaData" in action or "protocol" in action:
        return True
    return any(action[kind].get("dataChange", True) for kind in ("add", "remove", "cdc") if kind in action)


def _below(location: TableLocation, url: str) -> str | None:
    return normalised(unquote(url)).partition(f"{location.url.removeprefix('file://')}/")[2] or None


def _log_backwards(files: Files) -> Iterator[tuple[int, list[JsonDict]]]:
    newest = newest_after_checkpoint(files)
    versions = range(newest, max(-1, newest - COMMITS_SEARCHED_MAX), -1)
    for version, entry in zip(versions, entries(files, versions), strict=True):
        if entry is None:
            return
        yield version, list(actions_of(entry))


def _fault(files: Files, path: str, size: int | None) -> str | None:
    """What is wrong with a file that should have so many bytes; None if it looks whole."""
    if files.missing([path]):
        return "is gone"
    with files.open(path) as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(max(0, length - len(_MAGIC)))
        end = file.read()
    if size is not None and length != size:
        return f"has {length} bytes, of the {size} that were written"
    return None if end in (_MAGIC, _MAGIC_ENCRYPTED) else "does not end as a Parquet file ends"


def damaged(location: TableLocation, damage: Damage, txn: TransactionId, sink: DeltaSink) -> Corrupt:
    """The error for a commit that needs a file which is damaged."""
    return Corrupt(
        f"Spark cannot commit the rows of {txn} into {location.name}, because it cannot read a file of the table: "
        f"{damage.path} {damage.is_now}. Nothing was written now.",
        code=codes.DELTA_FILE_DAMAGED,
        remedy="Restore the file from a backup, or from the store's own versions of it. Then clear the commit task. If "
        f"there is no backup, {_way_out(location, damage, txn, sink)}",
        **attempt_fields(txn),
        sink=sink.name,
    )


def _way_out(location: TableLocation, damage: Damage, txn: TransactionId, sink: DeltaSink) -> str:
    if damage.compacted_in is not None:
        return (
            f"take the table back to what it was before version {damage.compacted_in}: "
            f"{going_back(location, damage.compacted_in)}. No row is lost by that, since the table was only compacted "
            "since then. Then clear the commit task."
        )
    return (
        f"rows are lost. Complete the epoch without this sink's rows (`{waive_command(txn, sink.name)}`), clear "
        "the commit task, and let the source be read again into a new table: give the sink another name and another "
        f"table, with {backfill_from('<the first epoch of the table>')}. If the source no longer has all of it, see "
        "docs/delta.md, 'Power cuts, and damaged files'."
    )
