"""Compaction of a Delta table: rewrites many small files into a few larger ones, and swaps them by one log entry.

It does not use deltalake's compaction: if two of those remove the same files, both commit, and every row is there
twice. Here put-if-absent writes the entry at version N+1 only after all entries up to N have been read. So every file
that the entry removes is still in the table, on any store, whatever other writers do. If another writer's entry
conflicts, compaction gives up: it is never urgent.

A writer that began before the swap and commits after it must notice the swap as well. deltalake does not notice removed
files that are marked as no change of data: its overwrite, DELETE or z-order would then bring the removed rows back. It
always notices ``metaData``, so the swap repeats the table's metadata unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_epochs import secrecy
from airflow_epochs.delta.log import StagedFile, actions_of, checked_stats, entries, entry_of, log_entry, remove_of
from airflow_epochs.delta.shape import TableShape, metadata_of
from airflow_epochs.delta.snapshot import alters
from airflow_epochs.delta.table import newest_checkpoint
from airflow_epochs.errors import OutcomeUnknown, Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta.flush import flush_files_of, paths_of, update
from airflow_epochs.sinks.delta.publish import now_ms
from airflow_epochs.sinks.delta.rewrite import Rewritten, Small, rewritten
from airflow_epochs.spark.driver.delta.layout import DEFAULT, FileLayout
from airflow_epochs.spark.driver.delta.schema import maps_columns
from airflow_epochs.storage.files import Files

if TYPE_CHECKING:
    from deltalake import DeltaTable

log = secrecy.logger(__name__)

FILES_MIN = 4
"""A partition with fewer small files than this is left alone."""
FILES_MAX = 20_000
"""At most this many small files are considered in one run; the rest wait for the next."""
WORK_BYTES_MAX = 2 * 2**30
"""At most this many bytes are rewritten in one run; the rest wait for the next."""
PARTITIONS_MAX = 32
ENTRIES_MAX = 500
"""The log is read back this many versions; older small files are left alone. Regular compaction leaves few of them."""
TOUCHED_MAX = 200_000
"""The log is read back only until this many files have been seen."""
ROUNDS_MAX = 20
_MAPPED = frozenset({"columnMapping", "variantType", "variantType-preview"})


@dataclass(frozen=True)
class _Swap:
    """One log entry's content: the files it removes and adds, and the table's ``metaData`` action, unchanged."""

    done: Rewritten
    metadata: JsonDict

    @property
    def paths(self) -> set[str]:
        return {small.path for small in self.done.old}

    def entry(self, read_version: int) -> bytes:
        now = now_ms()
        removes = [{"remove": remove_of(small.add, now)} for small in self.done.old]
        adds = [{"add": add} for add in self.done.new]
        return entry_of([{"commitInfo": self._info(read_version, now)}, self.metadata, *removes, *adds])

    def _info(self, read_version: int, now: int) -> JsonDict:
        old, new = self.done.old, self.done.new
        metrics = {
            "numRemovedFiles": len(old),
            "numRemovedBytes": sum(small.size for small in old),
            "numAddedFiles": len(new),
            "numAddedBytes": sum(add["size"] for add in new),
        }
        return {
            "timestamp": now,
            "operation": "OPTIMIZE",
            "operationParameters": {"predicate": "[]", "partition": json.dumps(old[0].add["partitionValues"])},
            "readVersion": read_version,
            "isBlindAppend": False,
            "operationMetrics": {name: str(value) for name, value in metrics.items()},
            "engineInfo": "airflow-provider-epochs",
        }


def rewritable(shape: TableShape) -> bool:
    """Whether files name their columns as the table does. With column mapping, only Spark can match them."""
    features = {*(shape.reader_features or ()), *(shape.writer_features or ())}
    return (
        not maps_columns(shape.properties)
        and not features & _MAPPED
        and len(shape.schema["fields"]) > len(shape.partition_by)
    )


def small_bytes(layout: FileLayout) -> int:
    """Files that are smaller than this are compacted."""
    return layout.file_bytes // 2


def compact(table: DeltaTable, files: Files, layout: FileLayout = DEFAULT) -> JsonDict:
    """Rewrite small files into larger ones, one partition after another, the one with the most files first.

    Returns how many files were removed and added, and the bytes rewritten. If the task is killed, or another writer
    wins, files remain that no log entry names; VACUUM deletes them.
    """
    update(table, files)
    shape, version, metadata = TableShape.of_table(table), table.version(), metadata_of(table)
    totals, swaps = {"files_removed": 0, "files_added": 0, "bytes_rewritten": 0}, 0
    touched: set[str] = set()  # by other writers, since the small files were listed
    for crowd in _crowded(small_files(files, version, layout)):
        group = _affordable(crowd, WORK_BYTES_MAX - totals["bytes_rewritten"])
        if len(group) < FILES_MIN or swaps == PARTITIONS_MAX:
            continue
        if not touched.isdisjoint(small.path for small in group):
            _left_alone(group)
            continue
        with rewritten(group, shape, files, layout) as done:
            if len(done.old) < FILES_MIN:
                continue
            landed = _swapped(_Swap(done, metadata), version, files, touched)
        if landed is None:
            _left_alone(group)
            break
        version, swaps = landed, swaps + 1
        totals["files_removed"] += len(done.old)
        totals["files_added"] += len(done.new)
        totals["bytes_rewritten"] += sum(small.size for small in done.old)
    return totals


def _left_alone(group: list[Small]) -> None:
    log.info("partition %s is not compacted now: another writer changed its files", group[0].add["partitionValues"])


def small_files(files: Files, version: int, layout: FileLayout = DEFAULT) -> list[Small]:
    """Small files in the table at ``version`` that its newest entries added; oldest first."""
    return list(islice(_newest_small(files, version, small_bytes(layout)), FILES_MAX))[::-1]


def _newest_small(files: Files, version: int, limit: int) -> Iterator[Small]:
    superseded: set[int] = set()  # hashes of paths: if two collide, a file merely misses this compaction
    for entry in newest_entries(files, version):
        touched = set()
        for action in reversed(list(actions_of(entry))):
            for kind in ("add", "remove"):
                if kind in action:
                    touched.add(hash(unquote(action[kind]["path"])))
            if "add" in action and hash(unquote(action["add"]["path"])) not in superseded:
                yield from _small(action["add"], limit)
        superseded |= touched
        if len(superseded) > TOUCHED_MAX:
            return


def _small(add: JsonDict, limit: int) -> Iterator[Small]:
    """The file, if it is small, lies in the table's folder, and the log counts its rows.

    A shallow clone names the files of its original. Other writers need not count rows. Without a count, lost rows would
    not be noticed.
    """
    if add["size"] >= limit or add.get("deletionVector") or not paths_of(add):
        return
    try:
        rows = checked_stats(StagedFile.of(add))["numRecords"]
    except Refused:
        return
    yield Small(add={key: value for key, value in add.items() if key != "stats"}, rows=rows)


def newest_entries(files: Files, version: int) -> Iterator[bytes]:
    """Log entries from ``version`` backwards, until one has been cleaned up."""
    for entry in entries(files, range(version, max(-1, version - ENTRIES_MAX), -1)):
        if entry is None:
            return
        yield entry


def _touched(actions: Iterable[JsonDict]) -> set[str]:
    return {unquote(action[kind]["path"]) for action in actions for kind in ("add", "remove") if kind in action}


def _crowded(small: list[Small]) -> list[list[Small]]:
    """The small files of each partition that has at least ``FILES_MIN``; the partition with the most comes first."""
    partitions: dict[str, list[Small]] = {}
    for each in small:
        partitions.setdefault(json.dumps(each.add["partitionValues"], sort_keys=True), []).append(each)
    return sorted((group for group in partitions.values() if len(group) >= FILES_MIN), key=len, reverse=True)


def _affordable(group: list[Small], budget: int) -> list[Small]:
    sizes = accumulate(each.size for each in group)
    return [each for each, so_far in zip(group, sizes, strict=True) if so_far <= budget]


def _swapped(swap: _Swap, version: int, files: Files, touched: set[str]) -> int | None:
    """Write the swap at the next free version, and return it; None if other writers prevent that.

    ``touched`` gets the files that other writers' entries before it add and remove. These entries do not concern this
    swap, but perhaps the next one, which begins at the version that this one returns.

    Raises:
        OutcomeUnknown: The entry may have been written. The table's rows are the same either way.
    """
    for path, local in swap.done.local.items():
        files.upload(path, local)
    for read_version in range(version, version + ROUNDS_MAX):
        path, entry = log_entry(read_version + 1), swap.entry(read_version)
        swap.done.restore(files)
        if _written(path, entry, files):
            swap.done.restore(files)
            return None if newest_checkpoint(files) > read_version + 1 else read_version + 1
        other = files.read(path)
        if other is None or _forbids(other, swap):  # a missing entry might forbid it
            break
        flush_files_of(files, other)
        files.sync([path])  # as the entry that follows makes its name durable
        touched |= _touched(actions_of(other))
    for add in swap.done.new:
        files.delete(add["path"])
    return None


def _written(path: str, entry: bytes, files: Files) -> bool:
    try:
        return files.write_new(path, entry) or files.read(path) == entry
    except OutcomeUnknown:
        if files.read(path) == entry:
            return True
        raise


def _forbids(entry: bytes, swap: _Swap) -> bool:
    """Whether an entry touches the files to be removed, or alters the table."""
    return alters(entry) or not swap.paths.isdisjoint(_touched(actions_of(entry)))
