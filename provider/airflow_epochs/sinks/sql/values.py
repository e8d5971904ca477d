"""Arrow batches in the form that databases take: CSV for PostgreSQL's COPY, Python values for SQLite. Deterministic.

The staging table's schema gives a column's type, not the Parquet files: with Spark's legacy format for timestamps, a
file does not say that they are instants. Values that cannot be written (``row_flaws``) must have been refused before.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.row_flaws import Check, refusal, row_named, sound
from airflow_epochs.sinks.sql.types import NESTED, family, longest_text

if TYPE_CHECKING:
    import pyarrow as pa

_FINE_TIMES = ("time", "interval", "tstz")
_TOO_FINE = r"\.[0-9]{6}[0-9]*[1-9]"
_TIME_OF_DAY = re.compile(r"time(\(6\))? (with|without) time zone")
_OF_DAY = r"^\s*[Tt]?[0-9:]+(\.[0-9]*)?\s*([AaPp][Mm])?\s*"
_ZONE = r"([+-][0-9:]+|[A-Za-z]+)?\s*"


def postgres_check(column: str, kind: Any) -> Check:
    """A check that finds values of Delta's ``kind`` that PostgreSQL refuses without naming them, or cuts in silence."""
    check, size = sound(kind, nul=column == "json" and family(kind) != "string"), longest_text(column)
    if family(kind) != "string":
        return check
    time_of_day = _time_of_day(column)

    def check_text(texts: pa.Array) -> str | None:
        import pyarrow.compute as pc

        if found := check(texts):
            return found
        if size is not None and pc.any(pc.greater(pc.utf8_length(texts), size)).as_py():
            return f"is too long for {column}"
        if column.startswith(_FINE_TIMES) and pc.any(pc.match_substring_regex(texts, _TOO_FINE)).as_py():
            return f"has more than six decimals, which {column} cannot store"
        if time_of_day and not pc.all(pc.match_substring_regex(texts, time_of_day), min_count=0).as_py():
            return f"is not only a time of day, and {column} would drop the rest"
        return None

    return check_text


def _time_of_day(column: str) -> str | None:
    """What a text must match so that a column of this type does not drop its date or zone; None for other types."""
    found = _TIME_OF_DAY.fullmatch(column)
    return found and f"{_OF_DAY}{_ZONE if found[2] == 'with' else ''}$"


def csv_of(batch: pa.RecordBatch, fields: Sequence[JsonDict]) -> bytes:
    """The batch as CSV. Every value is quoted and NULL is empty, so that an empty string is not taken for NULL."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    columns = _converted(batch, fields, _text)
    text = pa.RecordBatch.from_arrays(columns, names=[str(n) for n in range(len(columns))])
    out = io.BytesIO()
    pacsv.write_csv(text, out, pacsv.WriteOptions(include_header=False, quoting_style="all_valid"))
    return out.getvalue()


def row_at_line(
    batches: Iterable[pa.RecordBatch], fields: Sequence[JsonDict], line: int
) -> tuple[pa.RecordBatch, int] | None:
    """The row whose CSV ends at this line, from 1, as COPY counts lines: its batch, and its number there."""
    before = 0
    for batch in batches:
        if before == 0 and batch.num_rows:
            line += _uncounted(csv_of(batch.slice(0, 1), fields))
        lines = csv_of(batch, fields).count(b"\n")
        if before + lines >= line:
            for row in range(batch.num_rows):
                before += csv_of(batch.slice(row, 1), fields).count(b"\n")
                if before >= line:
                    return batch, row
        before += lines
    return None


_INDEXED = 2_600
"""How many bytes of a row always fit into an index of PostgreSQL. More may fit, as it compresses them."""


def longest_key(batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> tuple[pa.RecordBatch, int] | None:
    """The row with the most bytes in these columns: its batch, its number there; None if all fit into an index."""
    most, found = _INDEXED, None
    for batch in batches if names else ():
        columns = [batch.column(name).to_pylist() for name in names]
        sizes = [sum(map(_size, values)) for values in zip(*columns, strict=True)]
        if sizes and max(sizes) > most:
            most = max(sizes)
            found = batch, sizes.index(most)
    return found


def _size(value: object) -> int:
    return len(value.encode()) if isinstance(value, str) else len(value) if isinstance(value, bytes) else 0


def _uncounted(first: bytes) -> int:
    """How many of the line ends in the first row's CSV COPY does not count.

    Until it has seen the end of a row, COPY takes carriage returns for line ends within a value.
    """
    return first.count(b"\n") - 1 - first.count(b"\r")


def _converted(batch: pa.RecordBatch, fields: Sequence[JsonDict], convert: Callable[[pa.Array, Any], Any]) -> list[Any]:
    try:
        return [convert(batch.column(field["name"]), field["type"]) for field in fields]
    except _NoJson as error:
        raise refusal(f"{row_named(batch, error.row)}: {error.why}") from error


def _text(column: pa.Array, kind: Any) -> pa.Array:
    """A column as text that reads back as exactly the same values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    match family(kind):
        case "timestamp":
            instants = pc.cast(_instants(column), pa.timestamp("us"))
            return pc.binary_join_element_wise(pc.cast(instants, pa.string()), pa.scalar("+00"), "")
        case "timestamp_ntz":
            return pc.cast(pc.cast(column, pa.timestamp("us")), pa.string())
        case "float":  # convert to the equal double first: its text is exact in columns of either type
            return pc.cast(pc.cast(column, pa.float64()), pa.string())
        case "binary":
            return pa.array([None if v is None else f"\\x{v.hex()}" for v in column.to_pylist()], pa.string())
        case name if name in NESTED:
            return pa.array(_json(column), pa.string())
        case _:
            return pc.cast(column, pa.string())


def _instants(column: pa.Array) -> pa.Array:
    """The column as instants in UTC, in microseconds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    aware = column if column.type.tz else pc.assume_timezone(column, "UTC")
    return pc.cast(aware, pa.timestamp("us", "UTC"))


def tuples_of(batch: pa.RecordBatch, fields: Sequence[JsonDict]) -> Iterator[tuple[Any, ...]]:
    """The batch as rows of ``None``, ``int``, ``float``, ``str`` and ``bytes``."""
    return zip(*_converted(batch, fields, _values), strict=True)


def _values(column: pa.Array, kind: Any) -> list[Any]:
    if family(kind) in ("date", "timestamp", "timestamp_ntz", *NESTED):
        return list(_text(column, kind).to_pylist())
    values: list[Any] = column.to_pylist()
    match family(kind):
        case "boolean":
            return [None if v is None else int(v) for v in values]
        case "decimal":  # Arrow writes small decimals with an exponent
            return [None if v is None else f"{v:f}" for v in values]
        case _:
            return values


class _NoJson(Exception):
    """A value that JSON cannot express, by its row in the column."""

    def __init__(self, row: int, why: str) -> None:
        self.row, self.why = row, why
        super().__init__(why)


def _json(column: pa.Array) -> list[str | None]:
    """Nested values as JSON: decimals as numbers, times as RFC 3339, binary as base64, NaN and infinity as null."""
    import msgspec

    encode = msgspec.json.Encoder(decimal_format="number").encode

    def said(part: pa.Array) -> list[str | None]:
        return [None if v is None else encode(v).decode() for v in part.to_pylist(maps_as_pydicts="strict")]

    try:
        return said(column)
    except (TypeError, ValueError, KeyError, OverflowError):
        for row in range(len(column)):
            try:
                said(column.take([row]))
            except (TypeError, ValueError, KeyError, OverflowError) as error:
                raise _NoJson(
                    row,
                    f"a value of type {column.type} cannot be written as JSON ({error}). In JSON, the keys of a map "
                    "must be text, numbers or times, and no two may be equal",
                ) from error
        raise
