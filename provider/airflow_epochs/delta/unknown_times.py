"""Times in partition columns that only Spark knows: deltalake and DuckDB cannot open a table that has one.

The vote refuses them. Version 0.1 of the provider did not, and other writers do not.
"""

from __future__ import annotations

import json
import re

from airflow_epochs.delta.append_only import APPEND_ONLY, is_append_only
from airflow_epochs.delta.replay import newest_metadata
from airflow_epochs.model import JsonDict
from airflow_epochs.spark.driver.delta.spelling import identifier
from airflow_epochs.storage.files import Files
from airflow_epochs.transforms.conditions import outside, quoted

_UNKNOWN = re.compile(r"Failed to parse value '[^']*' as '(?:date|timestamp|timestamp_ntz)'")
"""What deltalake says of such a time."""


def is_one(problem: str) -> bool:
    """Whether such a time is why deltalake cannot open a table; ``problem``: what it says."""
    return _UNKNOWN.search(problem) is not None


def how_to_remove(files: Files, table: str, problem: str) -> str | None:
    """What to do if deltalake cannot open a table for such a time; None if its ``problem`` is another one.

    ``table``: the user's name for it.
    """
    metadata = newest_metadata(files) if is_one(problem) else None
    if metadata is None or not (conditions := _conditions(metadata)):
        return None
    statements = [f"DELETE FROM {identifier(table)} WHERE {' OR '.join(conditions)}"]
    if is_append_only(dict(metadata.get("configuration") or {})):
        statements = [_let_append_only(table, "false"), *statements, _let_append_only(table, "true")]
    return (
        "Take the rows out of the table whose partition is outside of the years 1 to 9999, or give them another date. "
        f"In Spark: {'; '.join(statements)}. See docs/delta.md, 'Dates that only Spark knows'."
    )


def _let_append_only(table: str, value: str) -> str:
    return f"ALTER TABLE {identifier(table)} SET TBLPROPERTIES ('{APPEND_ONLY}' = '{value}')"


def remedy(files: Files, table: str, problem: str) -> str | None:
    """``how_to_remove`` as a remedy for a task that has failed because of such a time."""
    how = how_to_remove(files, table, problem)
    return how and f"{how} Then clear the failed task."


def _conditions(metadata: JsonDict) -> list[str]:
    """A SQL condition for each partition column of times: its value is outside the years that all readers know."""
    kinds = {field["name"]: field["type"] for field in json.loads(metadata["schemaString"])["fields"]}
    found = (outside(quoted(name), kinds[name]) for name in metadata["partitionColumns"] if name in kinds)
    return [condition for condition in found if condition]
