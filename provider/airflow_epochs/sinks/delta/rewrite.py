"""Writes the rows of many small Parquet files into few larger ones: the part of compaction that touches rows.

deltalake writes the new files and their statistics into a private table on the local disk, from which they are
uploaded. They stay on the disk until no new upload can be needed.

FLOAT and DOUBLE get no statistics, neither in the log nor in a file's footer: deltalake's maximum ignores NaN. Spark
and DuckDB take NaN for the greatest number, and by that maximum would skip rows that they look for.
"""

from __future__ import annotations

import io
import json
import uuid
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import unquote

from airflow_epochs import codes, secrecy
from airflow_epochs.delta.log import StagedFile, actions_of, checked_stats, log_entry
from airflow_epochs.delta.shape import TableShape
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta.parquet_fit import misfit
from airflow_epochs.spark.driver.delta.layout import FileLayout
from airflow_epochs.staged import parquet_batches
from airflow_epochs.staged.parquet_calendar import misread
from airflow_epochs.storage.files import Files

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, WriterProperties

log = secrecy.logger(__name__)

ROWS_AT_ONCE = 8_192
ROWS_IN_GROUP = 128 * 1_024
"""Writing larger row groups takes too much memory for a task."""
_WHOLE_BYTES = 2 * 2**20
"""Files up to this size are read whole and ahead of time."""
_READ_AHEAD = 8


@dataclass(frozen=True, kw_only=True)
class Small:
    """A small file of the table: its ``add`` action without statistics, and the row count from the statistics."""

    add: JsonDict
    rows: int

    @property
    def path(self) -> str:
        """The file's path relative to the table, percent-decoded."""
        return unquote(self.add["path"])

    @property
    def size(self) -> int:
        """The file's size in bytes."""
        return int(self.add["size"])


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """Old files of one partition, and the new files with their rows: ``add`` actions, and paths on the local disk."""

    old: list[Small]
    new: list[JsonDict]
    local: dict[str, Path] = field(repr=False)

    def restore(self, files: Files) -> None:
        """Upload the new files that are missing: until a log entry names them, VACUUM may delete them.

        After the swap nothing deletes them, so a few rounds are enough.
        """
        for _ in range(3):
            gone = files.missing(self.local)
            if not gone:
                return
            log.warning("%s files that compaction wrote have been deleted: uploading them again", len(gone))
            for path in gone:
                files.upload(path, self.local[path])


@contextmanager
def rewritten(group: list[Small], shape: TableShape, files: Files, layout: FileLayout) -> Iterator[Rewritten]:
    """Write the rows of those files of ``group`` that fit the table's columns. The other files are left alone."""
    from deltalake import DeltaTable, Schema, write_deltalake

    with TemporaryDirectory() as scratch:
        fields = [
            field | {"metadata": {}} for field in shape.schema["fields"] if field["name"] not in shape.partition_by
        ]
        private = DeltaTable.create(scratch, Schema.from_json(json.dumps({"type": "struct", "fields": fields})))
        schema = _arrow_schema(private)
        taken: list[Small] = []
        write_deltalake(
            private,
            _rows(group, schema, shape.partition_by, files, taken),
            mode="append",
            target_file_size=layout.file_bytes,
            writer_properties=_writer_properties(schema, layout),
        )
        written = [a["add"] for a in actions_of(Path(scratch, log_entry(1)).read_bytes()) if "add" in a]
        _require_same_count(taken, written)
        yield _named(taken, written, Path(scratch), layout.codec)


def _arrow_schema(table: DeltaTable) -> pa.Schema:
    import pyarrow as pa

    return pa.schema(table.schema().to_arrow())


def _writer_properties(schema: pa.Schema, layout: FileLayout) -> WriterProperties:
    """Writer properties without statistics of floating-point numbers.

    deltalake cannot name a part of a nested column. So if one such part is floating-point, no nested column gets any.
    """
    import pyarrow.types as kinds
    from deltalake import ColumnProperties, WriterProperties

    told, untold = (ColumnProperties(statistics_enabled=level) for level in ("PAGE", "NONE"))
    nested = [field for field in schema if kinds.is_nested(field.type)]
    flat = [field for field in schema if not kinds.is_nested(field.type)]
    return WriterProperties(
        compression=layout.codec.upper(),
        max_row_group_size=ROWS_IN_GROUP,
        default_column_properties=untold if any(_has_floats(field.type) for field in nested) else told,
        column_properties={field.name: untold if _has_floats(field.type) else told for field in flat},
    )


def _has_floats(kind: pa.DataType) -> bool:
    import pyarrow.types as kinds

    return kinds.is_floating(kind) or any(_has_floats(kind.field(part).type) for part in range(kind.num_fields))


def _rows(
    group: list[Small], schema: pa.Schema, partition_by: tuple[str, ...], files: Files, taken: list[Small]
) -> pa.RecordBatchReader:
    """The rows of all files that fit the table, in constant memory. ``taken`` collects those files."""
    import pyarrow as pa

    def batches() -> Iterator[pa.RecordBatch]:
        # Most files have the same columns, and checking them takes as long as reading them. Compare their text: pyarrow
        # finds two Parquet schemas equal even if their nested columns have different names.
        fitting = None
        for small, opened in _opened(group, files):
            with opened, parquet_batches.reader(opened) as parquet:
                columns = str(parquet.schema)
                if problem := _problem(parquet, None if columns == fitting else schema, partition_by):
                    log.info("%s is not compacted: %s", small.path, problem)
                    continue
                fitting = columns
                taken.append(small)
                for batch in parquet_batches.batches_of(parquet, opened, ROWS_AT_ONCE):
                    yield _as_of(batch, schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _problem(parquet: Any, schema: pa.Schema | None, partition_by: tuple[str, ...]) -> str | None:
    """Why a file is left alone; None if it fits. ``schema`` is the table's; None skips the check of the columns."""
    if schema is not None and (problem := misfit(parquet.metadata, parquet.schema_arrow, schema, partition_by)):
        return problem
    if columns := misread(parquet.metadata):
        return f"{', '.join(columns)} may have dates in the calendar of old"
    return None


def _opened(group: list[Small], files: Files) -> Iterator[tuple[Small, BinaryIO]]:
    """Each file, opened. Small ones are read ahead, because a store takes longer to answer than to send them."""
    ahead: deque[tuple[Small, Future[bytes | None] | None]] = deque()
    with ThreadPoolExecutor(_READ_AHEAD) as pool:
        for small in group:
            ahead.append((small, pool.submit(files.read, small.path) if small.size <= _WHOLE_BYTES else None))
            if len(ahead) > _READ_AHEAD:
                yield from _next(ahead, files)
        while ahead:
            yield from _next(ahead, files)


def _next(ahead: deque[tuple[Small, Future[bytes | None] | None]], files: Files) -> Iterator[tuple[Small, BinaryIO]]:
    small, reading = ahead.popleft()
    if reading is None:
        with files.open(small.path) as opened:
            yield small, opened
        return
    content = reading.result()
    if content is None:
        raise FileNotFoundError(f"No such file or directory: {small.path}, which is in the table")
    yield small, io.BytesIO(content)


def _as_of(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the table's columns of today. Columns that the file lacks are NULL."""
    import pyarrow as pa

    have = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in have else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _require_same_count(taken: list[Small], written: list[JsonDict]) -> None:
    before = sum(small.rows for small in taken)
    after = sum(checked_stats(StagedFile.of(add))["numRecords"] for add in written)
    if before != after:
        raise Refused(
            f"The compaction read {after} rows from {len(taken)} small files; the table's log counts {before} in them. "
            "Another writer logged wrong counts. The compaction replaced no file.",
            code=codes.DELTA_COMPACTION_MISCOUNTED,
        )


def _named(taken: list[Small], written: list[JsonDict], scratch: Path, codec: str) -> Rewritten:
    # At the table's root: Spark's VACUUM mishandles paths whose partition values need percent-encoding.
    named = {f"part-{uuid.uuid4()}.{codec}.parquet": add for add in written}
    values = taken[0].add["partitionValues"] if taken else {}
    new = [add | {"path": name, "partitionValues": values, "dataChange": False} for name, add in named.items()]
    local = {name: scratch / unquote(add["path"]) for name, add in named.items()}
    return Rewritten(old=taken, new=new, local=local)
