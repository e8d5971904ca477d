"""Entries of a Delta log: actions, our user metadata, added files. See Delta's protocol, "Actions"."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.storage.files import Files

USER_METADATA_KEY = "airflow_epochs"
"""Our key in the JSON of ``userMetadata``."""
_PARALLEL_READS = 8
_VERSION = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, kw_only=True)
class StagedFile:
    """A Parquet file that an entry adds. ``path``: relative to the table, decoded; ``logged_path``: as in the log."""

    path: str
    logged_path: str
    size: int
    partition_values: dict[str, str | None]
    stats: str
    modified_ms: int

    @classmethod
    def of(cls, add: JsonDict) -> StagedFile:
        """The file of an ``add`` action."""
        return cls(
            path=unquote(add["path"]),
            logged_path=add["path"],
            size=int(add["size"]),
            partition_values=dict(add["partitionValues"]),
            stats=add.get("stats") or "",
            modified_ms=int(add["modificationTime"]),
        )


def log_entry(version: int, table: str = "") -> str:
    """The path of a log entry, relative to the root of the files that hold ``table``."""
    return f"{table}/_delta_log/{version:020}.json".lstrip("/")


def checksum_entry(version: int, table: str = "") -> str:
    """The path of the version checksum, relative to the root of the files that hold ``table``."""
    return f"{table}/_delta_log/{version:020}.crc".lstrip("/")


def checksum_without_files(protocol: JsonDict, metadata: JsonDict) -> bytes:
    """The version checksum of a table without files. See Delta's protocol, "Version Checksum File".

    ``protocol``, ``metadata``: the content of the version's actions.
    """
    sizes = {"tableSizeBytes": 0, "numFiles": 0, "numMetadata": 1, "numProtocol": 1}
    nothing: JsonDict = {"setTransactions": [], "domainMetadata": [], "allFiles": []}
    return json.dumps({**sizes, **nothing, "metadata": metadata, "protocol": protocol}).encode()


def entry_version(name: str) -> int | None:
    """The version of the log entry with this file name; None if it is not a log entry."""
    found = _VERSION.fullmatch(name)
    return int(found[1]) if found else None


def entries(files: Files, versions: Sequence[int]) -> Iterator[bytes | None]:
    """The log entries of these versions, in their order; None for one that has been cleaned up. Reads a few ahead."""
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        for start in range(0, len(versions), _PARALLEL_READS):
            yield from pool.map(files.read, map(log_entry, versions[start : start + _PARALLEL_READS]))


def actions_of(entry: bytes) -> Iterator[JsonDict]:
    """The actions of one log entry.

    Raises:
        ValueError: The entry is not JSON.
    """
    for line in entry.splitlines():
        if line.strip():
            yield json.loads(line)


def entry_of(actions: Iterable[JsonDict]) -> bytes:
    """The inverse of ``actions_of``."""
    return "\n".join(json.dumps(action, separators=(",", ":")) for action in actions).encode()


def remove_of(add: JsonDict, now: int) -> JsonDict:
    """A ``remove`` action for a file whose rows are in other files now. It says that no data changes."""
    kept = {key: add[key] for key in ("path", "partitionValues", "size", "tags", "deletionVector") if key in add}
    return kept | {"deletionTimestamp": now, "dataChange": False, "extendedFileMetadata": True}


def operation_of(actions: list[JsonDict]) -> tuple[str, JsonDict]:
    """An entry's operation and its parameters, as ``DESCRIBE HISTORY`` names them; empty if it does not tell."""
    info: JsonDict = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    return str(info.get("operation", "")), info.get("operationParameters") or {}


def number_in(text: object) -> int | None:
    """The whole number in an operation's parameter, which writers spell in different ways; None if it is no number."""
    try:
        return int(str(text))
    except ValueError:
        return None


def user_metadata_of(action: JsonDict) -> JsonDict | None:
    """Our part of the ``userMetadata`` of a ``commitInfo`` action; None for other actions, or without our part."""
    try:
        ours = json.loads(action["commitInfo"]["userMetadata"])[USER_METADATA_KEY]
    except (KeyError, ValueError, TypeError):
        return None
    return ours if isinstance(ours, dict) else None


def rows_of(file: StagedFile) -> int:
    """The number of rows of a file whose statistics have been checked."""
    return int(json.loads(file.stats)["numRecords"])


def checked_stats(file: StagedFile) -> Any:
    """The file's statistics, parsed.

    Raises:
        Refused: They are damaged or not strict JSON. If they contain NaN, deltalake can no longer open the table.
    """
    try:
        stats = json.loads(file.stats, parse_constant=_no_constant)
        if (
            isinstance(stats["numRecords"], int)
            and stats["numRecords"] >= 0
            and not isinstance(stats["numRecords"], bool)
        ):
            return stats
    except (ValueError, KeyError, TypeError) as error:
        raise _bad_stats(file) from error
    raise _bad_stats(file)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _bad_stats(file: StagedFile) -> Refused:
    return Refused(
        f"The statistics of the staged file {file.path} are damaged or not strict JSON.",
        code=codes.STAGED_STATISTICS,
    )
