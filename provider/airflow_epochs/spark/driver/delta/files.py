"""Parquet files that the log of a table names, read without its log."""

from __future__ import annotations

import re

from airflow_epochs.spark.driver.delta import jobs

_SPECIAL = re.compile(r"[{}\[\]*?\\]")
"""What would make a path a pattern."""
STRICT = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""A file that is missing or damaged is an error, whatever the server is set up to ignore."""


def path_of(location: str, file: str) -> str:
    """A file of a table, in Spark's spelling: a path may be a pattern, so its special characters are escaped."""
    return _SPECIAL.sub(r"\\\g<0>", jobs.for_spark(file if ":/" in file else f"{location}/{file}"))
