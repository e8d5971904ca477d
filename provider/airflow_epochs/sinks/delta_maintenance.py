"""Upkeep of a Delta table after an epoch is complete: few small files, a short log. Nothing here is ever urgent.

Commits leave one file or more per epoch and partition, and deltalake writes no checkpoint on its own here. Without
upkeep, opening the table and committing to it get slower with every epoch.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta_table import Where, newest_checkpoint
from airflow_epochs.storage import is_local

if TYPE_CHECKING:
    from deltalake import DeltaTable

log = logging.getLogger(__name__)

TARGET_BYTES = 128 * 2**20
FILES_MIN = 4
"""Fewer small files than this in a partition are left alone."""
WORK_BYTES_MAX = 2 * 2**30
"""No more than this is rewritten at once; the rest is done next time."""
PARTITIONS_MAX = 32


@dataclass
class _Partition:
    values: dict[str, str | None]
    files: int = 0
    bytes: int = 0


def checkpoint_if_due(table: DeltaTable, where: Where, every: int) -> JsonDict:
    """Write a checkpoint unless the newest one is younger than ``every`` versions, then remove expired log entries."""
    table.update_incremental()
    version = table.version()
    if version - max(newest_checkpoint(where.files), 0) < every:
        return {}
    table.create_checkpoint()
    if table.metadata().configuration.get("delta.enableExpiredLogCleanup", "true").lower() == "true":
        table.cleanup_metadata()
    return {"checkpoint": version}


def compact(table: DeltaTable, where: Where) -> JsonDict:
    """Rewrite small files into larger ones, partition by partition, the worst first, within bounds.

    One process at a time: deltalake 1.6 does not see that another compaction has removed the same files, adds its own
    result beside the other one's, and every row is there twice. The lock is the kernel's, so that a process that is
    killed lets go of it, and one that is stopped does not. An object store has no such lock: nothing is compacted.
    """
    if not is_local(where.url):
        log.info("not compacted: deltalake cannot do that safely in an object store. Use Spark's OPTIMIZE, alone")
        return {}
    with _alone(Path(where.url)) as alone:
        if not alone:
            log.info("not compacted now: another process is compacting %s", where.name)
            return {}
        table.update_incremental()  # it may be older than the compaction that has just ended
        return _compact(table)


@contextmanager
def _alone(table: Path) -> Iterator[bool]:
    """Whether no other process of ours compacts the table during the block; does not wait."""
    folder = os.open(table / "_delta_log", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(folder)


def _compact(table: DeltaTable) -> JsonDict:
    worst = sorted(_crowded(table), key=lambda partition: -partition.files)
    totals = {"files_removed": 0, "files_added": 0, "bytes_rewritten": 0}
    for partition in worst[:PARTITIONS_MAX]:
        if totals["bytes_rewritten"] + partition.bytes > WORK_BYTES_MAX:
            log.info("not compacted now: %d files, %d bytes in %s", partition.files, partition.bytes, partition.values)
            continue
        _compact_one(table, partition, totals)
    return totals


def _compact_one(table: DeltaTable, partition: _Partition, totals: dict[str, int]) -> None:
    from deltalake import PostCommitHookProperties

    filters: Any = [(name, "=", value if value is not None else "") for name, value in partition.values.items()]
    metrics = table.optimize.compact(
        partition_filters=filters or None,
        target_size=TARGET_BYTES,
        max_concurrent_tasks=1,
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
    )
    totals["files_removed"] += metrics["numFilesRemoved"]
    totals["files_added"] += metrics["numFilesAdded"]
    totals["bytes_rewritten"] += partition.bytes


def _crowded(table: DeltaTable) -> Iterable[_Partition]:
    """Partitions with many small files."""
    found: dict[str, _Partition] = {}
    for values, size in _files(table):
        if size < TARGET_BYTES // 2:
            partition = found.setdefault(json.dumps(values, sort_keys=True), _Partition(values))
            partition.files += 1
            partition.bytes += size
    return [partition for partition in found.values() if partition.files >= FILES_MIN]


def _files(table: DeltaTable) -> Iterator[tuple[dict[str, str | None], int]]:
    columns = table.metadata().partition_columns
    actions: Any = table.get_add_actions(flatten=True)
    sizes = actions["size_bytes"].to_pylist()
    values = [actions[f"partition.{name}"].to_pylist() for name in columns]
    for row, size in enumerate(sizes):
        yield {name: _as_text(column[row]) for name, column in zip(columns, values, strict=True)}, int(size)


def _as_text(value: object) -> str | None:
    return None if value is None else str(value)
