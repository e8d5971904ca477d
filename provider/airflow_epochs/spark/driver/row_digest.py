"""Computes a digest of rows from every value of every column. The order of rows and their files do not count.

Each row has a hash of 64 bits over all of its values. The digest is the sum of these hashes, in two halves. Spark
observes the sums as the rows flow into the staging table. Rows that differ by chance have equal sums once in 2^64
times. A second hash would take as long again, which is a tenth of the time of a wide row. Spark's own hash ignores
which values are NULL, how long an array or map is, and the sign of a zero, so the digest hashes these beside the
values. The order of a map's entries does not count.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver import observed
from airflow_epochs.spark.driver.delta.schema import sql_type
from airflow_epochs.spark.driver.plans import RowDigest
from airflow_epochs.transforms.conditions import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation
    from pyspark.sql.types import ArrayType, DataType, MapType

_HALF = 32
"""Bits that are summed at once: a sum of whole hashes could leave the range of a BIGINT at the second row."""


def observing(df: DataFrame) -> tuple[DataFrame, Observation | None]:
    """Return ``df`` with an observation that digests its rows as they flow by.

    The observation is None, and ``df`` unchanged, if a column has a user-defined type: it cannot be digested.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    if not all(_is_known(field.dataType) for field in df.schema.fields):
        return df, None
    values = [part for f in df.schema.fields for part in _parts(F.col(quoted(f.name)), f.dataType)]
    observation = Observation(f"rows {uuid.uuid4().hex}")
    return df.observe(observation, *_sums(F.xxhash64(F.lit(0), *values))), observation


def told(df: DataFrame, observation: Observation | None) -> RowDigest | None:
    """The parts of the digest, after the rows have flowed by; None if they are not available."""
    sums = observed.result(observation) if observation else {}
    if "rows" not in sums:
        return None
    rows = sums.pop("rows")
    return RowDigest(rows=rows, sums=tuple(sums[name] or 0 for name in sorted(sums)), columns=_of_columns(df))


def _of_columns(df: DataFrame) -> str:
    """A digest of the columns' names and types. It travels through XCom, so it must be short."""
    kinds = [[field.name, sql_type(field.dataType.jsonValue())] for field in df.schema.fields]
    return hashlib.sha256(json.dumps(kinds).encode()).hexdigest()[:32]


def _sums(row: Column) -> list[Column]:
    """``row``: its hash. It stands twice among the expressions, and Spark computes it once."""
    from pyspark.sql import functions as F

    high, low = F.shiftrightunsigned(row, _HALF), row.bitwiseAND(F.lit(2**_HALF - 1))
    return [F.count(F.lit(1)).alias("rows"), F.sum(high).alias("high"), F.sum(low).alias("low")]


def _parts(column: Column, kind: DataType) -> Iterable[Column]:
    """The expressions to hash for a value. Two different values differ in at least one of them."""
    from pyspark.sql import types as T

    if isinstance(kind, T.NullType):
        return
    if isinstance(kind, T.StructType):
        for field in kind.fields:
            yield from _parts(column.getField(field.name), field.dataType)
    elif isinstance(kind, (T.ArrayType, T.MapType)):
        yield from _parts_of_many(column, kind)
    else:
        yield from _parts_of_one(column, kind)
    yield column.isNull()  # even if Spark infers that it is never NULL: the inference must not change the digest


def _parts_of_one(column: Column, kind: DataType) -> Iterable[Column]:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    if isinstance(kind, T.VariantType):
        yield F.to_json(column)
        return
    yield column
    if isinstance(kind, (T.FloatType, T.DoubleType)):  # Spark hashes -0.0 like 0.0
        yield (column == 0) & column.cast("string").startswith("-")


def _parts_of_many(column: Column, kind: ArrayType | MapType) -> Iterable[Column]:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    def of_element(element: Column) -> Column:
        assert isinstance(kind, T.ArrayType)
        return F.xxhash64(F.lit(0), *_parts(element, kind.elementType))

    def of_entry(entry: Column) -> Column:
        assert isinstance(kind, T.MapType)
        parts = [*_parts(entry.getField("key"), kind.keyType), *_parts(entry.getField("value"), kind.valueType)]
        return F.xxhash64(F.lit(0), *parts)

    yield F.size(column)
    if isinstance(kind, T.MapType):
        yield F.array_sort(F.transform(F.map_entries(column), of_entry))
    else:
        yield F.transform(column, of_element)


def _is_known(kind: DataType) -> bool:
    from pyspark.sql import types as T

    if isinstance(kind, T.StructType):
        return all(_is_known(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _is_known(kind.elementType)
    if isinstance(kind, T.MapType):
        return _is_known(kind.keyType) and _is_known(kind.valueType)
    return not isinstance(kind, T.UserDefinedType)
