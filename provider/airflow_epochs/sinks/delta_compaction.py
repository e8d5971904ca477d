"""Compaction of a Delta table: the rows of many small files in few larger ones, swapped by one log entry.

deltalake's own is not used: it commits two compactions that remove the same files, and every row is there twice. Here
the entry is written with put-if-absent, at a version up to which every entry was looked at, so that each file which
it removes is in the table, on any store and whoever else writes. Who loses to an entry that matters gives up: nothing
here is ever urgent.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_epochs.errors import OutcomeUnknown, Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta_log import StagedFile, actions_of, checked_stats, entry_of, log_entry
from airflow_epochs.sinks.delta_look import alters
from airflow_epochs.sinks.delta_publish import now_ms
from airflow_epochs.sinks.delta_shape import TableShape
from airflow_epochs.sinks.delta_table import newest_checkpoint
from airflow_epochs.sinks.parquet_batches import batches
from airflow_epochs.storage import Files

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

log = logging.getLogger(__name__)

TARGET_BYTES = 128 * 2**20
FILES_MIN = 4
"""Fewer small files than this in a partition are left alone."""
WORK_BYTES_MAX = 2 * 2**30
"""No more than this is rewritten at once; the rest is done next time."""
PARTITIONS_MAX = 32
ENTRIES_MAX = 500
"""Files older than so many versions are left alone. What is due comes at every so many epochs, so these are few."""
ROUNDS_MAX = 20
ROWS_AT_ONCE = 8_192
ROWS_IN_GROUP = 128 * 1_024
"""Larger row groups than this take more memory to write than a task should have."""
_PARALLEL_READS = 16
_MAPPED = frozenset({"columnMapping", "variantType", "variantType-preview"})


@dataclass(frozen=True)
class _Swap:
    """Files of one partition and what replaces them: their ``add`` actions, those to be removed as logged."""

    old: list[JsonDict]
    new: list[JsonDict]

    @property
    def paths(self) -> set[str]:
        return {unquote(add["path"]) for add in self.old}

    def entry(self, read_version: int) -> bytes:
        now = now_ms()
        removes = [{"remove": _removed(add, now)} for add in self.old]
        adds = [{"add": add} for add in self.new]
        return entry_of([{"commitInfo": self._info(read_version, now)}, *removes, *adds])

    def _info(self, read_version: int, now: int) -> JsonDict:
        metrics = {
            "numRemovedFiles": len(self.old),
            "numRemovedBytes": sum(add["size"] for add in self.old),
            "numAddedFiles": len(self.new),
            "numAddedBytes": sum(add["size"] for add in self.new),
        }
        return {
            "timestamp": now,
            "operation": "OPTIMIZE",
            "operationParameters": {"predicate": "[]", "partition": json.dumps(self.old[0]["partitionValues"])},
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
    shape, version = TableShape.of_table(table), table.version()
    totals = {"files_removed": 0, "files_added": 0, "bytes_rewritten": 0}
    for group in _crowded(live_files(files, version)):
        swap = _Swap(group, _rewritten(group, shape, files))
        landed = _swapped(swap, version, files)
        if landed is None:
            log.info("not compacted now: somebody else changed the files of %s", group[0]["partitionValues"])
            break
        version = landed
        totals["files_removed"] += len(swap.old)
        totals["files_added"] += len(swap.new)
        totals["bytes_rewritten"] += sum(add["size"] for add in swap.old)
    return totals


def live_files(files: Files, version: int) -> list[JsonDict]:
    """``add`` actions of files that are in the table at ``version`` and came with its newest entries; oldest first."""
    found: list[JsonDict] = []
    superseded: set[str] = set()
    for entry in _entries(files, version):
        actions = list(actions_of(entry))
        adds = [action["add"] for action in actions if "add" in action]
        found += [add for add in reversed(adds) if unquote(add["path"]) not in superseded]
        superseded |= _touched(actions)
    return found[::-1]


def _entries(files: Files, version: int) -> Iterator[bytes]:
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


def _crowded(live: list[JsonDict]) -> Iterator[list[JsonDict]]:
    """The small files of each partition that has many."""
    partitions: dict[str, list[JsonDict]] = {}
    for add in live:
        if add["size"] < TARGET_BYTES // 2 and not add.get("deletionVector") and _is_counted(add):
            partitions.setdefault(json.dumps(add["partitionValues"], sort_keys=True), []).append(add)
    budget = WORK_BYTES_MAX
    for group in sorted(partitions.values(), key=len, reverse=True)[:PARTITIONS_MAX]:
        sizes = accumulate(add["size"] for add in group)
        affordable = [add for add, so_far in zip(group, sizes, strict=True) if so_far <= budget]
        if len(affordable) >= FILES_MIN:
            budget -= sum(add["size"] for add in affordable)
            yield affordable


def _is_counted(add: JsonDict) -> bool:
    """Whether the log says how many rows a file has. Another writer need not, and then its loss would go unseen."""
    try:
        checked_stats(StagedFile.of(add))
    except Refused:
        return False
    return True


def _rewritten(group: list[JsonDict], shape: TableShape, files: Files) -> list[JsonDict]:
    """Write the rows of ``group`` into new files; the ``add`` actions that will name them.

    deltalake writes them, and their statistics, into a private table on the local disk. They are moved from there.
    """
    from deltalake import DeltaTable, Schema, WriterProperties, write_deltalake

    with TemporaryDirectory() as scratch:
        fields = [
            field | {"metadata": {}} for field in shape.schema["fields"] if field["name"] not in shape.partition_by
        ]
        private = DeltaTable.create(scratch, Schema.from_json(json.dumps({"type": "struct", "fields": fields})))
        write_deltalake(
            private,
            _rows(group, _arrow_schema(private), files),
            mode="append",
            target_file_size=TARGET_BYTES,
            writer_properties=WriterProperties(compression="ZSTD", max_row_group_size=ROWS_IN_GROUP),
        )
        written = [a["add"] for a in actions_of(Path(scratch, log_entry(1)).read_bytes()) if "add" in a]
        _require_same_count(group, written)
        return [_moved(add, group[0]["partitionValues"], Path(scratch), files) for add in written]


def _arrow_schema(table: DeltaTable) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def _rows(group: list[JsonDict], schema: pa.Schema, files: Files) -> pa.RecordBatchReader:
    """The rows of all files, in constant memory."""
    import pyarrow as pa

    read = (_as_of(batch, schema) for add in group for batch in _batches(unquote(add["path"]), files))
    return pa.RecordBatchReader.from_batches(schema, read)


def _batches(path: str, files: Files) -> Iterator[pa.RecordBatch]:
    with files.open(path) as opened:
        yield from batches(opened, ROWS_AT_ONCE)


def _as_of(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch as the table has it now: columns added later are NULL."""
    import pyarrow as pa

    have = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in have else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _require_same_count(group: list[JsonDict], written: list[JsonDict]) -> None:
    before, after = (sum(checked_stats(StagedFile.of(add))["numRecords"] for add in adds) for adds in (group, written))
    if before != after:
        raise Refused(
            f"Compaction of {len(group)} small files came to {after} rows; the table's log counts {before} in them.",
            remedy="Nothing was swapped. Another writer logged wrong counts: leave the table to Spark's OPTIMIZE, with "
            "`compact_every=0`, after you have compared its rows with what they should be.",
        )


def _moved(add: JsonDict, partition_values: JsonDict, scratch: Path, files: Files) -> JsonDict:
    # at the root: a folder named after the partition's value may need encoding, which Spark's VACUUM takes amiss
    name = f"part-{uuid.uuid4()}.zstd.parquet"
    files.upload(name, scratch / unquote(add["path"]))
    return add | {"path": name, "partitionValues": partition_values, "dataChange": False}


def _removed(add: JsonDict, now: int) -> JsonDict:
    kept = {key: add[key] for key in ("path", "partitionValues", "size", "tags") if key in add}
    return kept | {"deletionTimestamp": now, "dataChange": False, "extendedFileMetadata": True}


def _swapped(swap: _Swap, version: int, files: Files) -> int | None:
    """Write the swap as the next entry that is free; its version, or None if an entry before it does not allow it.

    Raises:
        OutcomeUnknown: It may be there. The rows are the same either way.
    """
    for read_version in range(version, version + ROUNDS_MAX):
        path, entry = log_entry(read_version + 1), swap.entry(read_version)
        if _written(path, entry, files):
            return None if newest_checkpoint(files) > read_version + 1 else read_version + 1
        if _forbids(files.read(path), swap):
            break
    for add in swap.new:
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
