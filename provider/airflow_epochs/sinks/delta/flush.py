"""Make what Spark has committed on a local disk survive a power cut: Spark flushes nothing, neither rows nor log.

A receipt says that the rows are there. They are if the commit's own files are, and all of the log that a reader needs
to come to that commit: the newest checkpoint and each entry since, no matter who wrote them.
"""

from __future__ import annotations

import base64
import re
import uuid
from urllib.parse import unquote

from airflow_epochs.delta.log import actions_of, log_entry
from airflow_epochs.delta.table import newest_checkpoint
from airflow_epochs.model import JsonDict
from airflow_epochs.storage.files import Files

_LOG = "_delta_log"
_VERSIONED = re.compile(r"(\d{20})\..*(json|parquet|crc)")
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_AS_B85 = str.maketrans(_Z85, _B85)
_UUID_LENGTH = 20
"""Of a UUID in Z85."""


def flush_commit(files: Files, version: int) -> None:
    """Flush what the log entry ``version`` names, then the log up to it. Files that are gone by now need nothing."""
    files.sync(files_of(files.read(log_entry(version)) or b""))
    files.sync(_log_since_checkpoint(files))


def files_of(entry: bytes) -> list[str]:
    """The files below the table's folder that a log entry adds: data, change data and deletion vectors."""
    return paths_of(*(action[kind] for action in actions_of(entry) for kind in ("add", "cdc") if kind in action))


def paths_of(*named: JsonDict) -> list[str]:
    """The files below the table's folder that actions name: their own, and those of their deletion vectors."""
    vectors = [_file_of(file["deletionVector"]) for file in named if file.get("deletionVector")]
    paths = [*(unquote(file["path"]) for file in named), *vectors]
    return [path for path in paths if path and not path.startswith("/") and ":/" not in path]


def _file_of(vector: JsonDict) -> str | None:
    """The file of a deletion vector that is named by a UUID, after a prefix. Others lie in the log, or elsewhere."""
    if vector["storageType"] != "u":
        return None
    prefix, name = vector["pathOrInlineDv"][:-_UUID_LENGTH], vector["pathOrInlineDv"][-_UUID_LENGTH:]
    return f"{prefix}/deletion_vector_{uuid.UUID(bytes=base64.b85decode(name.translate(_AS_B85)))}.bin".lstrip("/")


def _log_since_checkpoint(files: Files) -> list[str]:
    checkpoint = newest_checkpoint(files)
    versions = {name: found[1] for name in files.names(_LOG) if (found := _VERSIONED.fullmatch(name))}
    needed = [f"{_LOG}/{name}" for name, version in versions.items() if int(version) >= checkpoint]
    return [*needed, f"{_LOG}/_last_checkpoint"]
