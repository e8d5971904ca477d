"""Settings that a transform changes in its session. Spark's commits have sessions of their own, which lack them.

Where Spark commits, a table's rules and computed columns are evaluated once when the rows are staged, and once more at
the commit: with other settings, they may come to another result.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Settings = Mapping[str, str]
_OF_VALUES = re.compile(
    r"spark\.sql\.(ansi\.|legacy\.|caseSensitive$|decimalOperations\.|mapKeyDedupPolicy$|session\.timeZone$|"
    r"storeAssignmentPolicy$|timestampType$)"
)
"""Settings that change the values which Spark computes."""


def at_work(spark: SparkSession, sinks: Mapping[str, Mapping[str, Any]]) -> Settings | None:
    """The session's settings on which values depend; None if Spark does not commit to any of the ``sinks``."""
    if all(told.get("committer") != "spark" for told in sinks.values()):
        return None
    return {key: value for key, value in spark.conf.getAll.items() if _OF_VALUES.match(key)}


def warnings(before: Settings | None, after: Settings | None) -> list[str]:
    """A warning, for the checkpoint record and the task's log, if the transform has changed settings."""
    changed = {*(before or {}).items()} ^ {*(after or {}).items()}
    if not changed:
        return []
    return [
        f"The transform changes settings of Spark ({', '.join(sorted({key for key, _ in changed}))}), which hold when "
        "rows are staged and not when Spark commits them. Set them in `session_conf` of SparkConnect or in `conf` of "
        "SparkSubmit, which hold for both."
    ]
