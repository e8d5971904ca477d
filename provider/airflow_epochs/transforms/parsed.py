"""What a parser of records gives: rows, and apart the records that are corrupt."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_epochs.transforms.checks import Checks
from airflow_epochs.transforms.conditions import column_named, field_of, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

ORIGIN = ("topic", "partition", "offset")
"""The columns of a batch that say which record it is."""
ERROR = "error"
_CASE = "spark.sql.caseSensitive"
_KEEP = "Say by the argument columns what to keep of {}, such as columns=['key']; columns=[] keeps nothing"
_RENAME = (
    "Keep it by another name, or leave it out, in the argument columns: [F.col('key'), F.col({0!r}).alias('another')]"
)


@dataclass(frozen=True)
class Parsed:
    """What a parser makes of a batch. Each record is either in ``rows`` or in ``corrupt``, once.

    Attributes:
        rows: The columns that were kept, then those of the schema.
        corrupt: The columns that were kept; ``topic``, ``partition`` and ``offset``, as far as the batch has them;
            ``error``, the reason; and the record, byte by byte. It can be returned for a sink of dead letters.
    """

    rows: DataFrame
    corrupt: DataFrame


def kept_of(
    checks: Checks, batch: DataFrame, columns: Sequence[str | Column], taken: Iterable[str], why: str
) -> DataFrame:
    """The columns of the batch that are kept. Refuses names that are missing, there twice, or ``taken`` (``why``)."""
    if isinstance(columns, str):  # it would be taken for a list of letters
        raise checks.argument("columns", columns, f"a list of columns, like columns=[{columns!r}]")
    there = {name.lower() for name in batch.columns}
    wanted = [name for name in columns if isinstance(name, str) and name in ORIGIN]
    checks.has("the batch", batch, [name for name in wanted if name not in there], _KEEP)
    kept = batch.select(*columns)
    if more := twice(batch, kept.columns):
        raise checks.argument("columns", more, "a list of columns with different names")
    checks.has_not("what is kept", kept, taken, why, _RENAME)
    return kept


def twice(batch: DataFrame, names: Sequence[str]) -> list[str]:
    """The names that Spark cannot tell from another one."""
    told = [name.lower() for name in names]
    if len({*told}) < len(names) and str(batch.sparkSession.conf.get(_CASE, "false")).lower() == "true":
        told = [*names]
    return [name for name, each in zip(names, told, strict=True) if told.count(each) > 1]


def origin_beside(checks: Checks, batch: DataFrame, kept: DataFrame, corrupt: str) -> list[str]:
    """The columns of ``ORIGIN`` that the batch has, and that are not kept: the corrupt records have them, too.

    Refuses a name that these would have twice. ``corrupt``: the name of the column with the record.
    """
    checks.has_not("what is kept", kept, [corrupt, ERROR], "the corrupt records have a column of this name", _RENAME)
    names = {name.lower() for name in kept.columns}
    more = [name for name in ORIGIN if name in batch.columns and name not in names]
    if corrupt.lower() in (ERROR, *more):
        wanted, others = "a name that no other column of the corrupt records has", ", ".join([ERROR, *more])
        raise checks.argument("corrupt", corrupt, wanted, f"they have {others}")
    return more


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
