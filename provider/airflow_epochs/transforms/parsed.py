"""What a parser of records gives: rows, and apart the records that are corrupt."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_epochs.transforms.conditions import column_named, field_of, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ORIGIN = ("topic", "partition", "offset")
"""The columns of a batch that say which record it is."""
ERROR = "error"


@dataclass(frozen=True)
class Parsed:
    """What a parser makes of a batch. Each record is in one of the two, once.

    Attributes:
        rows: The columns that were kept, then those of the schema.
        corrupt: The columns that were kept; those of ``topic``, ``partition`` and ``offset`` that the batch has;
            ``error``, the reason; and the record, byte by byte. It can be returned for a sink of dead letters.
    """

    rows: DataFrame
    corrupt: DataFrame


def origin_beside(batch: DataFrame, names: Sequence[str]) -> list[str]:
    """The columns of ``ORIGIN`` that the batch has, and that are not among these."""
    return [name for name in ORIGIN if name in batch.columns and name not in names]


def corrupt_of(bad: DataFrame, names: Sequence[str], error: str, record: str, corrupt: str) -> DataFrame:
    """The corrupt records: these columns, then ``error`` and the record, which are given in SQL."""
    told = f"{error} AS {ERROR}", f"CAST({record} AS BINARY) AS {quoted(corrupt)}"
    return bad.selectExpr(*map(column_named, names), *told)


def fields_of(struct: str, names: Sequence[str]) -> list[str]:
    """The fields of a struct as columns, in SQL. Each Column of Spark's classic API costs milliseconds.

    ``struct``: a column whose name needs no quotes.
    """
    return [f"{field_of(struct, name)} AS {quoted(name)}" for name in names]


def once(parsed: DataFrame) -> DataFrame:
    """The same rows, parsed once. Spark would move the conditions below the columns, and parse a record for each.

    It moves nothing through what it observes. To explode an array of the row has the same effect, and takes longer.
    """
    from pyspark.sql import functions as F

    return parsed.observe(f"epochs parse {uuid.uuid4().hex}", F.count(F.lit(1)).alias("records"))
