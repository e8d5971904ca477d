"""Whether a Parquet file can be read by a table's column names without changing a value.

Readers of Delta ignore the case of column names, and some convert types. pyarrow looks for the exact name and gives
NULL if it does not find it. So compaction rewrites only files whose names match exactly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_UNIT = "us"
"""Delta's unit for timestamps."""


def misfit(metadata: Any, file: pa.Schema, table: pa.Schema, partition_by: Collection[str] = ()) -> str | None:
    """Why the file cannot be read with the table's columns; None if it can. Columns that it lacks read as NULL.

    Args:
        metadata: The file's ``pyarrow.parquet.FileMetaData``.
        file: The file's columns in Arrow types, with INT96 read as microseconds.
        table: The table's columns without its partition columns.
        partition_by: The partition columns. Their values come from the log; what a file says of them is ignored.
    """
    import pyarrow.types as kinds

    columns = (metadata.schema.column(number) for number in range(metadata.num_columns))
    read = [column for column in columns if column.path not in partition_by]
    fields = [field for field in file if field.name not in partition_by or kinds.is_nested(field.type)]
    return _fields_misfit(fields, table, (column.physical_type == "INT96" for column in read), "")


def _fields_misfit(file: Any, table: Any, int96: Iterator[bool], within: str) -> str | None:
    wanted = {field.name: field for field in table}
    given = [field.name for field in file]
    if strangers := [name for name in given if name not in wanted]:
        return f"the table has no column {within}{strangers[0]}"
    if len(set(given)) < len(given):
        return "it has a column twice"
    if missing := [field.name for field in table if not field.nullable and field.name not in given]:
        return f"it lacks {within}{missing[0]}, which is NOT NULL"
    found = (_misfit(each.type, wanted[each.name].type, int96, within + each.name) for each in file)
    return next((problem for problem in found if problem), None)


def _misfit(file: pa.DataType, table: pa.DataType, int96: Iterator[bool], name: str) -> str | None:
    """Why a column does not fit. ``int96`` yields one flag per leaf of the file, in the file's order."""
    import pyarrow.types as kinds

    if kinds.is_struct(file) and kinds.is_struct(table):
        return _fields_misfit(list(file), list(table), int96, f"{name}.")
    if kinds.is_map(file) and kinds.is_map(table):
        return _misfit(file.key_type, table.key_type, int96, f"{name}.key") or _misfit(
            file.item_type, table.item_type, int96, f"{name}.value"
        )
    if _is_list(file) and _is_list(table):
        return _misfit(file.value_type, table.value_type, int96, f"{name}.element")
    if kinds.is_nested(file) or kinds.is_nested(table) or not _holds(table, file, is_int96=next(int96)):
        return f"{name} is of type {file} there, and of type {table} in the table"
    return None


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_list(kind) or kinds.is_large_list(kind))


def _holds(table: pa.DataType, file: pa.DataType, *, is_int96: bool) -> bool:
    """Whether type ``table`` can hold every value of type ``file`` with the same meaning."""
    import pyarrow.types as kinds

    if kinds.is_timestamp(table) and kinds.is_timestamp(file):
        of_an_instant = is_int96 or file.tz is not None
        return table.unit == file.unit == _UNIT and of_an_instant == (table.tz is not None)
    if kinds.is_signed_integer(table) and kinds.is_signed_integer(file):
        return bool(table.bit_width >= file.bit_width)
    if kinds.is_decimal(table) and kinds.is_decimal(file):
        return bool(table.scale >= file.scale and table.precision - table.scale >= file.precision - file.scale)
    if kinds.is_float64(table):
        return bool(kinds.is_float64(file) or kinds.is_float32(file))
    return table.equals(file) or any(same(table) and same(file) for same in (_is_text, _is_bytes))


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or kinds.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow.types as kinds

    return bool(kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_binary_view(kind))
