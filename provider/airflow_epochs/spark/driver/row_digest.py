"""Computes a digest of rows from every value of every column. The order of rows and their files do not count.

Each row has a hash of 64 bits over all of its values. The digest is the sum of these hashes, in two halves. Spark
observes the sums as the rows flow into the staging table. Rows that differ by chance have equal sums once in 2^64
times. A second hash would take as long again, which is a tenth of the time of a wide row. Spark's own hash ignores
which values are NULL, how long an array or map is, and the sign of a zero, so the digest hashes these beside the
values. The order of a map's entries does not count.

A variant counts with its JSON and its type: a date and a text may have equal JSON. If the elements of an array in it
have different types, the digest tells that they do, but not which element has which type.

The expressions are SQL, because a Column of Spark's classic API costs milliseconds, and a wide row needs hundreds.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver import observed
from airflow_epochs.spark.driver.delta.schema import told_type
from airflow_epochs.spark.driver.plans import RowDigest
from airflow_epochs.transforms.conditions import column_named, field_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation
    from pyspark.sql.types import ArrayType, DataType, MapType

_HALF = 32
"""Bits that are summed at once: a sum of whole hashes could leave the range of a BIGINT at the second row."""


def observing(df: DataFrame, *, typed: bool = True) -> tuple[DataFrame, Observation | None]:
    """Return ``df`` with an observation that digests its rows as they flow by.

    ``typed``: whether variants count with their types. Earlier versions let them count by their JSON alone.

    The observation is None, and ``df`` unchanged, if a column has a user-defined type: it cannot be digested.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    if not all(_is_known(field.dataType) for field in df.schema.fields):
        return df, None
    row = _hash([part for f in df.schema.fields for part in _parts(column_named(f.name), f.dataType, typed)])
    observation = Observation(f"rows {uuid.uuid4().hex}")
    return df.observe(observation, *map(F.expr, _sums(row))), observation


def told(df: DataFrame, observation: Observation | None, *, typed: bool = True) -> RowDigest | None:
    """The parts of the digest, after the rows have flowed by; None if they are not available.

    ``typed``: as for ``observing``.
    """
    sums = observed.result(observation) if observation else {}
    if "rows" not in sums:
        return None
    rows = sums.pop("rows")
    return RowDigest(
        rows=rows,
        sums=tuple(sums[name] or 0 for name in sorted(sums)),
        columns=_of_columns(df),
        typed=typed and '"variant"' in df.schema.json(),
    )


def _of_columns(df: DataFrame) -> str:
    """A digest of the columns' names and types. It travels through XCom, so it must be short."""
    kinds = [[field.name, told_type(field.dataType.jsonValue())] for field in df.schema.fields]
    return hashlib.sha256(json.dumps(kinds).encode()).hexdigest()[:32]


def _sums(row: str) -> list[str]:
    """``row``: its hash. It stands twice among the expressions, and Spark computes it once."""
    high, low = f"shiftrightunsigned({row}, {_HALF})", f"{row} & {2**_HALF - 1}L"
    return ["count(1) AS rows", f"sum({high}) AS high", f"sum({low}) AS low"]


def _hash(parts: Iterable[str]) -> str:
    return f"xxhash64({', '.join(['0', *parts])})"


def _parts(value: str, kind: DataType, typed: bool) -> Iterable[str]:
    """The expressions to hash for a value. Two different values differ in at least one of them."""
    from pyspark.sql import types as T

    if isinstance(kind, T.NullType):
        return
    if isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _parts(field_of(value, field.name), field.dataType, typed)
    elif isinstance(kind, (T.ArrayType, T.MapType)):
        yield from _parts_of_many(value, kind, typed)
    else:
        yield from _parts_of_one(value, kind, typed)
    yield f"{value} IS NULL"  # even if Spark infers that it is never NULL: the inference must not change the digest


def _parts_of_one(value: str, kind: DataType, typed: bool) -> Iterable[str]:
    from pyspark.sql import types as T

    if isinstance(kind, T.VariantType):
        yield f"to_json({value}, map('timeZone', 'UTC'))"  # else its instants are local times of the session
        if typed:
            yield f"schema_of_variant({value})"
        return
    yield value
    if isinstance(kind, (T.FloatType, T.DoubleType)):  # Spark hashes -0.0 like 0.0
        yield f"{value} = 0 AND startswith(CAST({value} AS STRING), '-')"


def _parts_of_many(value: str, kind: ArrayType | MapType, typed: bool) -> Iterable[str]:
    from pyspark.sql import types as T

    yield f"CASE WHEN {value} IS NOT NULL THEN size({value}) END"  # without ANSI, Spark says -1 of NULL
    if isinstance(kind, T.MapType):
        entry = [*_parts("e.key", kind.keyType, typed), *_parts("e.value", kind.valueType, typed)]
        yield f"array_sort(transform(map_entries({value}), e -> {_hash(entry)}))"
    else:
        yield f"transform({value}, e -> {_hash(_parts('e', kind.elementType, typed))})"


def _is_known(kind: DataType) -> bool:
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        return all(_is_known(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _is_known(kind.elementType)
    if isinstance(kind, T.MapType):
        return _is_known(kind.keyType) and _is_known(kind.valueType)
    return not isinstance(kind, T.UserDefinedType)
