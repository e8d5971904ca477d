"""Makes JSON of rows that keeps every value. Spark's own JSON ends at milliseconds, and leaves NULL fields out.

Times are in UTC, whatever the zone of the session: the same rows make the same text everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from airflow_epochs.transforms.conditions import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column

OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Options of ``to_json``, and of ``to_csv``."""


def of_columns(names: Iterable[str]) -> Column:
    """A JSON object of these columns, as text."""
    from pyspark.sql import functions as F

    return F.to_json(F.struct(*map(quoted, names)), OPTIONS)


def of_time(name: str) -> Column:
    """The time in a column as it is in the JSON, without quotes."""
    from pyspark.sql import functions as F

    return F.to_csv(F.struct(quoted(name)), OPTIONS)
