"""Whether rows fit a table in a sink's mode: Spark checks this when it stages them, and the vote checks it again.

Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence

from airflow_epochs.spark.driver.delta import comparison
from airflow_epochs.spark.driver.delta import schema as delta_schema
from airflow_epochs.spark.driver.delta.plans import How
from airflow_epochs.spark.driver.wire import JsonDict


def problems(how: How, target: str, table: JsonDict, rows: JsonDict, partition_by: Sequence[str]) -> list[str]:
    """Why rows of schema ``rows`` do not fit the table's schema; empty if they do.

    ``partition_by``: the partition columns that rows must have if their files are written as they are.
    """
    if how.mode == "merge":  # whose rows need not look like the table's
        found = delta_schema.problems_of_merge(table, rows, how.merge or "", how.keys)
    else:
        written = partition_by if how.mode in ("append", "overwrite") else ()
        add_columns = how.schema_evolution is not None
        found = delta_schema.problems(table, rows, add_columns=add_columns, partition_by=written)
        found += comparison.problems_of_order(target, table, rows, how.sequence_by)
    return found + comparison.problems_of_places(how.mode, table, rows)
