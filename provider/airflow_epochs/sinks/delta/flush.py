"""Make what others have written to a table on a local disk survive a power cut. Spark and deltalake flush nothing.

A receipt says that the rows are there. They are if all files of the table are, and all of the log that a reader needs
to come to that commit: the newest checkpoint and each entry since, no matter who wrote them. A log entry that survives
without the files that it adds makes the table unreadable, so no entry is flushed before its files.
"""

from __future__ import annotations

import base64
import re
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_epochs import secrecy
from airflow_epochs.delta.log import actions_of, entries
from airflow_epochs.delta.table import App, TableLocation, find_commit, newest_after_checkpoint, newest_checkpoint
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.storage.files import Files, is_local

if TYPE_CHECKING:
    from deltalake import DeltaTable

log = secrecy.logger(__name__)

_LOG = "_delta_log"
_SIDECARS = f"{_LOG}/_sidecars"
_VERSIONED = re.compile(r"(\d{20})\..*(json|parquet|crc)")
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_AS_B85 = str.maketrans(_Z85, _B85)
_UUID_LENGTH = 20
"""The length of a UUID in Z85."""
_V2 = re.compile(r"/\d{20}\.checkpoint\.[0-9a-f]{8}-[0-9a-f-]{27}\.(json|parquet)$")
_RECENT = 100
"""How many of the newest entries are flushed if no checkpoint is among them: a reader then needs all, maybe many."""


def flush_after(location: TableLocation, app: App, epoch: int | None, newest: int | None = None) -> None:
    """Flush what was written to the table behind the commit of ``epoch``, whose receipt says that the rest is flushed.

    ``newest``: the newest version, if it is known. Nothing is done if it is that commit's, so that a commit takes as
    long at version 10,000 as at version 10. Nor in an object store, which acknowledges only durable writes.
    """
    if not is_local(location.url):
        return
    files = location.files
    newest = newest_after_checkpoint(files) if newest is None else newest
    found = find_commit(files, app, epoch, newest) if epoch is not None else None
    flushed = found.version if found else None
    if flushed is None or newest > flushed or newest_checkpoint(files) >= flushed:
        flush_log(files, flushed, app)


def flush_since(location: TableLocation, flushed: int | None) -> None:
    """``flush_log`` for a table wherever it is. Call it before an entry makes the names of others' files durable."""
    if is_local(location.url):
        flush_log(location.files, flushed)


def flush_log(files: Files, flushed: int | None, app: App | None = None) -> None:
    """Flush the files of each log entry after version ``flushed``, then the part of the log that a reader needs.

    None: it is not known what is flushed. Then the newest entries count: nobody has waited for the older ones. Files
    that are gone by now need nothing. An entry that lands meanwhile is left to the next flush. ``app``: the sink whose
    own files must be flushed. Files of other writers may belong to a user whose files this one may not open: then it
    only warns.
    """
    checkpoint = newest_checkpoint(files)
    names = {name: int(found[1]) for name in files.names(_LOG) if (found := _VERSIONED.fullmatch(name))}
    newest = max(names.values(), default=-1)
    recent = max(0, checkpoint, newest - _RECENT)
    first = max(0, newest - _RECENT) if flushed is None else flushed + 1
    added = entries(files, range(first, newest + 1))
    for entry in filter(None, added):
        flush_files_of(files, entry, is_own=app is not None and _is_of(app, entry))
    needed = [name for name, version in names.items() if version == checkpoint or version >= min(first, recent)]
    of_log = [f"{_LOG}/{name}" for name in (*needed, "_last_checkpoint")]
    files.sync([*_sidecars(files, of_log), *of_log])


def update(table: DeltaTable, files: Files) -> None:
    """Bring a table up to date, and flush the new entries: a checkpoint or entry that follows relies on them."""
    seen = table.version()
    table.update_incremental()
    if table.version() > seen and is_local(table.table_uri):
        flush_log(files, seen)


def flush_files_of(files: Files, entry: bytes, *, is_own: bool = False) -> None:
    """Flush the files that a log entry adds. If this user may not open files of other writers, only warn."""
    try:
        files.sync(files_of(entry))
    except Refused as refused:
        if is_own:
            raise
        log.warning("files that another program has added to the table may not survive a power cut: %s", refused.what)


def _is_of(app: App, entry: bytes) -> bool:
    return any(action.get("txn", {}).get("appId") == app.epoch for action in actions_of(entry))


def files_of(entry: bytes) -> list[str]:
    """The files below the table's folder that a log entry adds: data, change data and deletion vectors."""
    return paths_of(*(action[kind] for action in actions_of(entry) for kind in ("add", "cdc") if kind in action))


def paths_of(*named: JsonDict) -> list[str]:
    """The files below the table's folder that actions name: data files, and the files of their deletion vectors."""
    vectors = [_file_of(file["deletionVector"]) for file in named if file.get("deletionVector")]
    paths = [*(unquote(file["path"]) for file in named), *vectors]
    return [path for path in paths if path and not path.startswith("/") and ":/" not in path]


def _file_of(vector: JsonDict) -> str | None:
    """The file of a deletion vector that is named by a UUID, after a prefix. Others lie in the log, or elsewhere."""
    if vector["storageType"] != "u":
        return None
    prefix, name = vector["pathOrInlineDv"][:-_UUID_LENGTH], vector["pathOrInlineDv"][-_UUID_LENGTH:]
    return f"{prefix}/deletion_vector_{uuid.UUID(bytes=base64.b85decode(name.translate(_AS_B85)))}.bin".lstrip("/")


def _sidecars(files: Files, of_log: list[str]) -> list[str]:
    """The files below the table's folder to which checkpoints of the newer kind (V2) refer."""
    return [f"{_SIDECARS}/{name}" for path in of_log if _V2.search(path) for name in _named_in(files, path)]


def _named_in(files: Files, checkpoint: str) -> list[str]:
    """The sidecars that one checkpoint names. A name with a folder is not a sidecar of this table.

    Readers pass over a checkpoint that nobody can read, and take the log instead.
    """
    try:
        actions = list(_actions_in(files, checkpoint))
    except (ValueError, OSError) as error:
        log.warning("the checkpoint %s cannot be read: %s", checkpoint, error)
        return []
    return [unquote(action["sidecar"]["path"]) for action in actions if action.get("sidecar")]


def _actions_in(files: Files, checkpoint: str) -> Iterable[JsonDict]:
    if checkpoint.endswith(".json"):
        return actions_of(files.read(checkpoint) or b"")
    import pyarrow.parquet as pq

    with files.open(checkpoint) as opened:
        found: list[JsonDict] = pq.read_table(opened, columns=["sidecar"]).to_pylist()
        return found
