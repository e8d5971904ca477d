"""Reads a Parquet file's rows in batches of bounded size, even if a single row takes a megabyte.

pyarrow counts rows, not bytes, and by default reads whole row groups ahead, 128 MB and more. So each row group's
memory per row is estimated before it is read. It is the mean size in the pages. A column encoded by a dictionary has
pages that say little about its size, so the longest entry of the dictionary counts there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_MAX = 1_000
BATCH_BYTES = 8 << 20
"""A batch takes about this much, unless one row alone takes more."""
READ_BYTES = 2 << 20
"""How much of each column is read from the file at once."""


def batches(opened: BinaryIO, rows_max: int = ROWS_MAX) -> Iterator[pa.RecordBatch]:
    """All rows of the file, in order, at most ``rows_max`` per batch. Raises what pyarrow raises."""
    with reader(opened) as parquet:
        yield from batches_of(parquet, opened, rows_max)


def batches_of(parquet: Any, opened: BinaryIO, rows_max: int = ROWS_MAX) -> Iterator[pa.RecordBatch]:
    """Like ``batches``, for a file that ``reader`` has opened already."""
    for group in range(parquet.num_row_groups):
        at_once = min(rows_max, _rows_at_once(opened, parquet.metadata, group))
        # Threads would take more memory, and CPU time from those that send.
        yield from parquet.iter_batches(at_once, row_groups=[group], use_threads=False)


def reader(opened: BinaryIO, read_dictionary: Sequence[str] = ()) -> Any:
    """A ``pyarrow.parquet.ParquetFile`` that reads values as Delta's readers do, except for ``parquet_calendar``."""
    import pyarrow.parquet as pq

    # Spark may write instants as INT96. pyarrow's default, nanoseconds, would change those after the year 2262.
    return pq.ParquetFile(
        opened,
        page_checksum_verification=True,
        coerce_int96_timestamp_unit="us",
        pre_buffer=False,
        buffer_size=READ_BYTES,
        read_dictionary=read_dictionary,
    )


def _rows_at_once(opened: BinaryIO, metadata: Any, group: int) -> int:
    rows = metadata.row_group(group)
    columns = [rows.column(number) for number in range(rows.num_columns)]
    longest = _longest(opened, group, [column for column in columns if _is_text_by_dictionary(column)])
    size = sum(
        max(column.total_uncompressed_size, longest.get(column.path_in_schema, 0) * column.num_values)
        for column in columns
    )
    return int(max(1, BATCH_BYTES * rows.num_rows // max(1, size)))


def _is_text_by_dictionary(column: Any) -> bool:
    return bool(column.has_dictionary_page and column.physical_type == "BYTE_ARRAY")


def _longest(opened: BinaryIO, group: int, columns: Sequence[Any]) -> dict[str, int]:
    """Per column, the bytes of its dictionary's longest entry. Reading one row loads the whole dictionary."""
    paths = [column.path_in_schema for column in columns]
    if not paths:
        return {}
    with reader(opened, paths) as parquet:
        first = next(parquet.iter_batches(1, row_groups=[group], columns=paths))
    found = [each for column in first.columns for each in _dictionaries(column)]
    return {
        column.path_in_schema: _length_max(dictionary, column.total_uncompressed_size)
        for column, dictionary in zip(columns, found, strict=True)
    }


def _dictionaries(column: pa.Array) -> Iterator[pa.Array]:
    """The dictionaries of a column's leaves, in the schema's order."""
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        yield column.dictionary
    elif pa.types.is_struct(column.type):
        for part in column.flatten():
            yield from _dictionaries(part)
    else:  # a list or a map
        yield from _dictionaries(column.values)


def _length_max(dictionary: pa.Array, otherwise: int) -> int:
    """The longest entry; ``otherwise`` if the dictionary is empty, as when the first row has no value of the column."""
    import pyarrow.compute as pc

    return int(pc.max(pc.binary_length(dictionary)).as_py()) if len(dictionary) else otherwise
