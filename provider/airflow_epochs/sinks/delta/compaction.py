"""Compaction of a Delta table: the rows of many small files in few larger ones, swapped by one log entry.

deltalake's own is not used: it commits two compactions that remove the same files, and every row is there twice. Here
the entry is written with put-if-absent, at a version up to which every entry was looked at, so that each file which
it removes is in the table, on any store and whoever else writes. Who loses to an entry that matters gives up: nothing
here is ever urgent.

Whoever began before the swap and ends after it must notice, too. deltalake overlooks files that were removed without
a change of data: an overwrite, a DELETE or a z-order of its own would bring the removed rows back. What it never
overlooks is ``metaData``, so the swap says the table's metadata once more, as it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_epochs import secrecy
from airflow_epochs.delta.log import StagedFile, actions_of, checked_stats, entry_of, log_entry, remove_of
from airflow_epochs.delta.shape import TableShape, metadata_of
from airflow_epochs.delta.snapshot import alters
from airflow_epochs.delta.table import newest_checkpoint
from airflow_epochs.errors import OutcomeUnknown, Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta.publish import now_ms
from airflow_epochs.sinks.delta.rewrite import TARGET_BYTES, Rewritten, Small, rewritten
from airflow_epochs.storage.files import Files

if TYPE_CHECKING:
    from deltalake import DeltaTable

log = secrecy.logger(__name__)

SMALL_BYTES = TARGET_BYTES // 2
FILES_MIN = 4
"""Fewer small files than this in a partition are left alone."""
FILES_MAX = 20_000
"""No more small files than this are looked at; the rest is done next time."""
WORK_BYTES_MAX = 2 * 2**30
"""No more than this is rewritten at once; the rest is done next time."""
PARTITIONS_MAX = 32
ENTRIES_MAX = 500
"""Files older than so many versions are left alone. What is due comes at every so many epochs, so these are few."""
TOUCHED_MAX = 200_000
"""Nor is the log read back further than this many files."""
ROUNDS_MAX = 20
_PARALLEL_READS = 8
_MAPPED = frozenset({"columnMapping", "variantType", "variantType-preview"})


@dataclass(frozen=True)
class _Swap:
    """What one log entry replaces by what, and the ``metaData`` action of the table as it is."""

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
    """Whether a file's columns are the table's by name. If not, only Spark knows which is which."""
    features = {*(shape.reader_features or ()), *(shape.writer_features or ())}
    mapped = shape.properties.get("delta.columnMapping.mode", "none") != "none"
    return not mapped and not features & _MAPPED and len(shape.schema["fields"]) > len(shape.partition_by)


def compact(table: DeltaTable, files: Files) -> JsonDict:
    """Rewrite small files into larger ones, partition by partition, the worst first, within bounds.

    Killed or beaten on the way, it leaves files that no log entry names: VACUUM deletes them.
    """
    table.update_incremental()
    shape, version, metadata = TableShape.of_table(table), table.version(), metadata_of(table)
    totals, swaps = {"files_removed": 0, "files_added": 0, "bytes_rewritten": 0}, 0
    for crowd in _crowded(small_files(files, version)):
        group = _affordable(crowd, WORK_BYTES_MAX - totals["bytes_rewritten"])
        if len(group) < FILES_MIN or swaps == PARTITIONS_MAX:
            continue
        with rewritten(group, shape, files) as done:
            if len(done.old) < FILES_MIN:
                continue
            landed = _swapped(_Swap(done, metadata), version, files)
        if landed is None:
            log.info("not compacted now: somebody else changed the files of %s", group[0].add["partitionValues"])
            break
        version, swaps = landed, swaps + 1
        totals["files_removed"] += len(done.old)
        totals["files_added"] += len(done.new)
        totals["bytes_rewritten"] += sum(small.size for small in done.old)
    return totals


def small_files(files: Files, version: int) -> list[Small]:
    """Small files that are in the table at ``version`` and came with its newest entries; oldest first."""
    return list(islice(_newest_small(files, version), FILES_MAX))[::-1]


def _newest_small(files: Files, version: int) -> Iterator[Small]:
    superseded: set[int] = set()  # of hashes: one that is equal by chance costs a file its compaction, for now
    for entry in newest_entries(files, version):
        touched = set()
        for action in reversed(list(actions_of(entry))):
            for kind in ("add", "remove"):
                if kind in action:
                    touched.add(hash(unquote(action[kind]["path"])))
            if "add" in action and hash(unquote(action["add"]["path"])) not in superseded:
                yield from _small(action["add"])
        superseded |= touched
        if len(superseded) > TOUCHED_MAX:
            return


def _small(add: JsonDict) -> Iterator[Small]:
    """The file, if it is small and the log says how many rows it has.

    Another writer need not count them, and then their loss would go unseen.
    """
    if add["size"] >= SMALL_BYTES or add.get("deletionVector"):
        return
    try:
        rows = checked_stats(StagedFile.of(add))["numRecords"]
    except Refused:
        return
    yield Small(add={key: value for key, value in add.items() if key != "stats"}, rows=rows)


def newest_entries(files: Files, version: int) -> Iterator[bytes]:
    """Log entries from ``version`` backwards, up to one that was cleaned up."""
    versions = range(version, max(-1, version - ENTRIES_MAX), -1)
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        for start in range(0, len(versions), _PARALLEL_READS):
            for entry in pool.map(files.read, map(log_entry, versions[start : start + _PARALLEL_READS])):
                if entry is None:
                    return
                yield entry


def _touched(actions: Iterable[JsonDict]) -> set[str]:
    return {unquote(action[kind]["path"]) for action in actions for kind in ("add", "remove") if kind in action}


def _crowded(small: list[Small]) -> list[list[Small]]:
    """The small files of each partition that has many, the worst first."""
    partitions: dict[str, list[Small]] = {}
    for each in small:
        partitions.setdefault(json.dumps(each.add["partitionValues"], sort_keys=True), []).append(each)
    return sorted((group for group in partitions.values() if len(group) >= FILES_MIN), key=len, reverse=True)


def _affordable(group: list[Small], budget: int) -> list[Small]:
    sizes = accumulate(each.size for each in group)
    return [each for each, so_far in zip(group, sizes, strict=True) if so_far <= budget]


def _swapped(swap: _Swap, version: int, files: Files) -> int | None:
    """Write the swap as the next entry that is free; its version, or None if an entry before it does not allow it.

    Raises:
        OutcomeUnknown: It may be there. The rows are the same either way.
    """
    for path, local in swap.done.local.items():
        files.upload(path, local)
    for read_version in range(version, version + ROUNDS_MAX):
        path, entry = log_entry(read_version + 1), swap.entry(read_version)
        swap.done.restore(files)
        if _written(path, entry, files):
            swap.done.restore(files)
            return None if newest_checkpoint(files) > read_version + 1 else read_version + 1
        if _forbids(files.read(path), swap):
            break
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


def _forbids(entry: bytes | None, swap: _Swap) -> bool:
    """Whether an entry touches the files to be removed, or alters the table. One that is gone may have."""
    if entry is None:
        return True
    return alters(entry) or not swap.paths.isdisjoint(_touched(actions_of(entry)))
