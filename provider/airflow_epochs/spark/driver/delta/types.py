"""The types of rows as every reader of Delta knows them.

Over Spark Connect a Python UDF that returns text, and a cast to ``StringType()``, have the type ``string collate
UTF8_BINARY``: to Spark the same as ``string``, and so unseen in a DataFrame's schema, but not to others. Delta writes
it into the table's schema as it is, and neither deltalake nor DuckDB can open that table. A type that the *server*
reads from text is plain.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta import schema as delta_schema
from airflow_epochs.spark.driver.delta.schema import JsonDict, sql_type
from airflow_epochs.transforms.conditions import column_named, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField

_TEXT = '"string"'
_NOT_TO_BE_CAST = ("__COLLATIONS", '"udt"')
"""Types that are not cast: text with a collation of the user's, which only Spark reads; types without a name in SQL."""


def plain(df: DataFrame) -> DataFrame:
    """``df`` with every text in it, nested or not, of the type ``string``. Costs nothing: Spark drops these casts."""
    from pyspark.sql import functions as F

    fields = df.schema.fields
    if len({field.name.lower() for field in fields}) < len(fields):
        return df  # Delta will refuse it, and say why
    if not any(field.metadata for field in fields):
        return df.selectExpr(*map(_plain, fields))
    # A cast loses what is noted of a column, such as its comment.
    return df.select(*(F.expr(_plain(field)).alias(field.name, metadata=field.metadata) for field in fields))


def widened(df: DataFrame, table: JsonDict) -> DataFrame:
    """``df`` with the wider types that columns, and fields in them, of a table have got since it was staged for it.

    Such a change of a table cannot be undone, and Delta appends no narrower rows to it. Every value stays what it is.
    """
    from pyspark.sql import functions as F

    now = {field["name"].lower(): field["type"] for field in table["fields"]}
    for field in df.schema.fields:
        staged = field.dataType.jsonValue()
        wider = delta_schema.widened(staged, now.get(field.name.lower()))
        if wider != staged:
            cast = F.expr(f"CAST({column_named(field.name)} AS {sql_type(wider)})")
            df = df.withColumn(field.name, cast.alias(field.name, metadata=field.metadata))
    return df


def _plain(field: StructField) -> str:
    """The column in SQL, since many Columns of Spark's classic API take long."""
    column, spelt = column_named(field.name), json.dumps(field.jsonValue())
    if _TEXT not in spelt or any(word in spelt for word in _NOT_TO_BE_CAST):
        return column
    return f"CAST({column} AS {sql_type(field.dataType.jsonValue())}) AS {quoted(field.name)}"
