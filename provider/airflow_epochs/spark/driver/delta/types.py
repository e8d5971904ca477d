"""The types of rows as every reader of Delta knows them.

Over Spark Connect a Python UDF that returns text, and a cast to ``StringType()``, have the type ``string collate
UTF8_BINARY``: to Spark the same as ``string``, and so unseen in a DataFrame's schema, but not to others. Delta writes
it into the table's schema as it is, and neither deltalake nor DuckDB can open that table. A type that the *server*
reads from text is plain.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta.schema import sql_type
from airflow_epochs.transforms.conditions import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField

_TEXT = '"string"'
_NOT_TO_BE_CAST = ("__COLLATIONS", '"udt"')
"""Text with another order, which is wanted, and makes a table for Spark alone; types without a name in SQL."""


def plain(df: DataFrame) -> DataFrame:
    """``df`` with every text in it, nested or not, of the type ``string``. Costs nothing: Spark drops these casts."""
    fields = df.schema.fields
    if len({field.name.lower() for field in fields}) < len(fields):
        return df  # Delta will refuse it, and say why
    return df.select(*map(_plain, fields))


def _plain(field: StructField) -> Column:
    from pyspark.sql import functions as F

    column, spelt = F.col(quoted(field.name)), json.dumps(field.jsonValue())
    if _TEXT not in spelt or any(word in spelt for word in _NOT_TO_BE_CAST):
        return column
    # The cast would lose what is noted of the column, such as its comment.
    return column.cast(sql_type(field.dataType.jsonValue())).alias(field.name, metadata=field.metadata)
