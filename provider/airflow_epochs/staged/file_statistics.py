"""Delta's statistics of a Parquet file, from the file's own footer.

The writer of Parquet keeps the minimum, the maximum and the number of NULLs of each column of a row group anyway.
Delta's writer in Spark computes them once more for its log, row by row: that takes a tenth of the time of a narrow
row. delta-rs and Iceberg take them from the footer, too.

See Delta's protocol, "Per-file Statistics". A bound that is left out hides no row, and a wrong one does. So a bound is
told only if every row group has one and it can be written exactly; text and instants are cut as Delta cuts them, but
always outwards.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

from airflow_epochs.delta.shape import TableShape, physical_name
from airflow_epochs.model import JsonDict

INDEXED, INDEXED_DEFAULT = "delta.dataSkippingNumIndexedCols", 32
"""The property that says how many columns have statistics; -1: all."""
NAMED = "delta.dataSkippingStatsColumns"
"""The property that names those columns instead."""
TEXT_LENGTH = 32
"""Characters of a text that are kept."""
_LAST_CHARACTER = "\U0010ffff"
_COLLATIONS = "__COLLATIONS"
_DAY_0, _INSTANT_0 = date(1970, 1, 1), datetime(1970, 1, 1)
_EXACT = Context(prec=80)
_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`.,]+?))\s*([.,]|$)")

Path = tuple[str, ...]
Bound = Callable[[Any, bool], Any]
"""Writes a bound for Delta. Arguments: the bound as Parquet has it; whether it is the maximum. None: it cannot."""


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A column without parts, or an array or map with all of its parts.

    Attributes:
        name: As the table's users name it.
        path: As the file names it.
        field: The field of the table's schema.
    """

    name: Path
    path: Path
    field: JsonDict


def statistics_of(metadata: Any, shape: TableShape) -> str:
    """The ``stats`` of a file that is added to a table of this shape.

    Args:
        metadata: The file's ``pyarrow.parquet.FileMetaData``.
        shape: The table's, with its properties.
    """
    numbers = _columns_of(metadata)
    lows: JsonDict = {}
    highs: JsonDict = {}
    nulls: JsonDict = {}
    for leaf in indexed(shape):
        number = numbers.get(".".join(leaf.path))
        chunks = None if number is None else _statistics(metadata, number)
        if chunks is None:
            continue
        _put(nulls, leaf.path, _sum(chunk.null_count if chunk.has_null_count else None for chunk in chunks))
        low, high = _bounds(chunks, leaf.field)
        _put(lows, leaf.path, low)
        _put(highs, leaf.path, high)
    return _json({"numRecords": metadata.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls})


def indexed(shape: TableShape) -> list[Leaf]:
    """The columns that get statistics, as the table's properties say."""
    partitions = {name.lower() for name in shape.partition_by}
    fields = [field for field in shape.schema["fields"] if field["name"].lower() not in partitions]
    leaves = list(_leaves(fields))
    named = _names(shape.properties.get(NAMED, ""))
    if named:
        return [leaf for leaf in leaves if any(_lower(leaf.name[: len(name)]) == name for name in named)]
    most = _integer(shape.properties.get(INDEXED))
    return leaves if most < 0 else leaves[:most]


def _leaves(fields: Iterable[JsonDict], name: Path = (), path: Path = ()) -> Iterator[Leaf]:
    for field in fields:
        here = (*name, field["name"]), (*path, physical_name(field))
        kind = field["type"]
        if isinstance(kind, dict) and kind["type"] == "struct":
            yield from _leaves(kind["fields"], *here)
        else:
            yield Leaf(name=here[0], path=here[1], field=field)


def _names(listed: str) -> set[Path]:
    """The columns that a property lists; empty if it lists no column, or cannot be parsed."""
    found: set[Path] = set()
    name: Path = ()
    at = 0
    while at < len(listed):
        token = _NAME.match(listed, at)
        if token is None:
            return set()
        name = (*name, (token[1] or "").replace("``", "`") or token[2])
        if token[3] != ".":
            found.add(_lower(name))
            name = ()
        at = token.end()
    return found


def _lower(name: Path) -> Path:
    return tuple(part.lower() for part in name)


def _integer(text: str | None) -> int:
    try:
        return INDEXED_DEFAULT if text is None else int(text)
    except ValueError:
        return INDEXED_DEFAULT


def _columns_of(metadata: Any) -> dict[str, int]:
    """The numbers of the file's columns that have one value per row. Without names that stand for two columns."""
    columns = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    often = Counter(column.path for column in columns)
    single = [column.max_repetition_level == 0 and often[column.path] == 1 for column in columns]
    return {column.path: number for number, column in enumerate(columns) if single[number]}


def _statistics(metadata: Any, number: int) -> list[Any] | None:
    """The statistics of a column in every row group; None if a row group lacks them."""
    chunks = [metadata.row_group(group).column(number).statistics for group in range(metadata.num_row_groups)]
    return None if any(chunk is None for chunk in chunks) else chunks  # `in` would crash: pyarrow compares with None


def _sum(numbers: Iterable[int | None]) -> int | None:
    known = list(numbers)
    return None if None in known else sum(number for number in known if number is not None)


def _bounds(chunks: Sequence[Any], field: JsonDict) -> tuple[Any, Any]:
    """The least and the greatest value; None for a bound that is unknown, or if there is no value."""
    filled = [chunk for chunk in chunks if chunk.has_min_max or chunk.num_values]
    bound = _bound_of(field, filled[0]) if all(chunk.has_min_max for chunk in filled) and filled else None
    if bound is None:
        return None, None
    lows, highs = [chunk.min_raw for chunk in filled], [chunk.max_raw for chunk in filled]
    key = _signed if isinstance(lows[0], bytes) and field["type"] != "string" else None
    return bound(min(lows, key=key), False), bound(max(highs, key=key), True)


def _bound_of(field: JsonDict, chunk: Any) -> Bound | None:
    """What writes the field's bounds; None if Delta keeps no bounds, or the file's form is not the usual one."""
    kind = field["type"]
    if not isinstance(kind, str) or _COLLATIONS in field.get("metadata", {}):
        return None
    if kind.startswith("timestamp") and json.loads(chunk.logical_type.to_json()).get("timeUnit") != "microseconds":
        return None
    if kind.startswith("decimal(") and chunk.physical_type in _DECIMALS:
        scale = int(kind.removesuffix(")").rpartition(",")[2])
        return lambda value, _: _EXACT.scaleb(Decimal(_signed(value)), -scale)
    physical, bound = _BOUNDS.get(kind, ((), None))
    return bound if chunk.physical_type in physical else None


def _signed(value: int | bytes) -> int:
    return int.from_bytes(value, "big", signed=True) if isinstance(value, bytes) else value


def _whole(value: int, greatest: bool) -> int:
    return value


def _real(value: float, greatest: bool) -> float | None:
    """A number as a minimum; None as a maximum: Spark sorts NaN last, but Parquet's writers may ignore NaN."""
    return value + 0.0 if math.isfinite(value) and not greatest else None  # Parquet writes a minimum of zero as -0.0


def _day(days: int, greatest: bool) -> str | None:
    try:
        return (_DAY_0 + timedelta(days)).isoformat()
    except OverflowError:
        return None


def _instant(micros: int, greatest: bool) -> str | None:
    """An instant as Delta's statistics have it: cut to milliseconds, outwards."""
    millis = -(-micros // 1000) if greatest else micros // 1000
    try:
        return (_INSTANT_0 + timedelta(milliseconds=millis)).isoformat(timespec="milliseconds")
    except OverflowError:
        return None


def _instant_utc(micros: int, greatest: bool) -> str | None:
    told = _instant(micros, greatest)
    return told and f"{told}Z"


def _text(value: bytes, greatest: bool) -> str | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    end = TEXT_LENGTH
    if len(text) <= end or not greatest:
        return text[:end]
    while text[end : end + 1] == _LAST_CHARACTER:
        end += 1
    return text[:end] + (_LAST_CHARACTER if end < len(text) else "")


_WHOLE: tuple[str, ...] = ("INT32", "INT64")
_DECIMALS = (*_WHOLE, "FIXED_LEN_BYTE_ARRAY")
_BOUNDS: dict[str, tuple[tuple[str, ...], Bound]] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), (_WHOLE, _whole)),
    **dict.fromkeys(("float", "double"), (("FLOAT", "DOUBLE"), _real)),
    "date": (("INT32",), _day),
    "timestamp": (("INT64",), _instant_utc),
    "timestamp_ntz": (("INT64",), _instant),
    "string": (("BYTE_ARRAY",), _text),
}
"""Type in Delta's schema -> the types that a file may use for it, and the function that writes a bound."""


def _put(values: JsonDict, path: Path, value: Any) -> None:
    if value is not None:
        for part in path[:-1]:
            values = values.setdefault(part, {})
        values[path[-1]] = value


def _json(value: Any) -> str:
    """The value as JSON, with all digits of decimals, which ``json`` does not write."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(key)}:{_json(each)}" for key, each in value.items()) + "}"
    return format(value, "f") if isinstance(value, Decimal) else json.dumps(value)
