"""A file of the table that Spark cannot read any more, so that no MERGE can be committed: which, and what helps.

Spark flushes nothing. Where another program has not flushed what it wrote, a power cut can leave such a file. The log
tells since which version the table has it. The version before is whole, as long as a VACUUM has not deleted its files.
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
from airflow_epochs.delta.table import (
    COMMITS_SEARCHED_MAX,
    STAGING_FOLDER,
    App,
    TableLocation,
    newest_after_checkpoint,
)
from airflow_epochs.errors import Corrupt
from airflow_epochs.model import JsonDict, TransactionId, attempt_fields
from airflow_epochs.sinks.delta.lost_files import going_back
from airflow_epochs.sinks.delta.modes import UPSERT
from airflow_epochs.storage.files import Files

if TYPE_CHECKING:
    from airflow_epochs.sinks.delta.sink import DeltaSink

_NAMED = re.compile(r"(?:reading file|footer for file:?) (\S+\.parquet)\b")
"""How Spark names a file that it cannot read."""
_MAGIC, _MAGIC_ENCRYPTED = b"PAR1", b"PARE"
"""The end of every Parquet file."""


@dataclass(frozen=True)
class Damage:
    """A file of the table that is not what was written.

    Attributes:
        path: Below the table's folder.
        is_now: What is wrong with it.
        version: Since when the table has it; None if the log does not tell any more.
        first_epoch: The first of the sink's epochs that was committed in that version or later; None: none was.
    """

    path: str
    is_now: str
    version: int | None
    first_epoch: int | None


@dataclass(frozen=True)
class _Addition:
    """How the log's oldest entry that has a file adds it; all None if none has it any more.

    ``version``, ``first_epoch``: as in ``Damage``.
    """

    size: int | None = None
    version: int | None = None
    first_epoch: int | None = None


def damage_told(location: TableLocation, app: App, what: str) -> Damage | None:
    """The damaged file that Spark's error names; None if it names none of the table's, or one that looks whole."""
    named = _NAMED.search(what)
    path = _below(location, named[1]) if named else None
    if path is None:
        return None
    added = _added(location.files, app, path)
    if added.size is None and path.startswith(f"{STAGING_FOLDER}/"):
        return None  # staged rows, which are no file of the table
    is_now = _fault(location.files, path, added.size)
    return Damage(path, is_now, added.version, added.first_epoch) if is_now else None


def _added(files: Files, app: App, path: str) -> _Addition:
    epochs: set[int] = set()
    found = _Addition()
    for version, actions in _log_backwards(files):
        epochs |= {a["txn"]["version"] for a in actions if a.get("txn", {}).get("appId") == app.epoch}
        if add := next((a["add"] for a in actions if "add" in a and unquote(a["add"]["path"]) == path), None):
            is_older = bool(add.get("deletionVector"))  # an entry that is gone added it without one
            found = _Addition(add["size"], None if is_older else version, min(epochs, default=None))
    return found


def _below(location: TableLocation, url: str) -> str | None:
    return unquote(url).partition(f"{location.url.removeprefix('file://')}/")[2] or None


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
    since = f", which the table has since version {damage.version}," if damage.version is not None else ""
    return Corrupt(
        f"Spark cannot commit the rows of {txn} into {location.name}, because it cannot read a file of the table: "
        f"{damage.path}{since} {damage.is_now}. Nothing was written now.",
        code=codes.DELTA_FILE_DAMAGED,
        remedy="Restore the file from a backup, or from the store's own versions of it. Then clear the commit task. If "
        f"there is no backup, {_way_out(location, damage, txn, sink)}",
        **attempt_fields(txn),
        sink=sink.name,
    )


def _way_out(location: TableLocation, damage: Damage, txn: TransactionId, sink: DeltaSink) -> str:
    """What helps without the file. The epochs that are taken back with it are read again."""
    waive = f"complete the epoch without this sink's rows (`{waive_command(txn, sink.name)}`), clear the commit task"
    if damage.version is None:
        first = backfill_from("<the first epoch of the table>")
        return f"{waive}, and give the sink another name and another table, with {first}."
    back = going_back(location, damage.version)
    if damage.first_epoch is None:
        return f"take the table back, with all that others have written since: {back}. Then clear the commit task."
    return (
        f"let no new epoch begin (`airflow epochs pause {txn.pipeline} --why …`), and take the table back, with all "
        f"that was written since epoch {damage.first_epoch}, also by others: {back}. Then {waive}, and "
        f"{_reading_again(damage.first_epoch, txn, sink)} At last type `airflow epochs unpause {txn.pipeline} --why …`."
    )


def _reading_again(first_epoch: int, txn: TransactionId, sink: DeltaSink) -> str:
    """How the sink gets the input from an epoch on again. Only an upsert may be filled where the table has markers."""
    if sink.how.mode == UPSERT:
        return (
            f"give the sink another name, with {backfill_from(first_epoch)}: the next run reads these epochs from the "
            "source again, for this sink alone."
        )
    start = f"--to-epoch {first_epoch - 1}" if first_epoch > 1 else "--offsets FILE"
    return (
        f"let the pipeline read these epochs again (`airflow epochs rewind {txn.pipeline} {start} --why …`). Its other "
        "sinks get their rows once more, and two changes of a key may meet in one epoch: see docs/operations.md, "
        "'Reading again'."
    )
