"""Spells places and tables as Spark wants them."""

from __future__ import annotations

import re

from airflow_epochs.transforms.conditions import quoted

_SPECIAL = re.compile(r"[{}\[\]*?\\]")
"""Characters that would make a path a pattern."""


def is_path(target: str) -> bool:
    return "/" in target


def identifier(target: str) -> str:
    """``target`` as SQL: delta.`path`, or the parts of a catalog name in backquotes."""
    if is_path(target):
        return f"delta.{quoted(for_spark(target))}"
    return ".".join(quoted(part) for part in target.split("."))


def for_spark(url: str) -> str:
    """A place in Spark's spelling: ``s3a`` for S3, and local paths said to be local whatever ``fs.defaultFS`` is."""
    if url.startswith("s3://"):
        return "s3a" + url[2:]
    return f"file://{url}" if url.startswith("/") else url


def path_of(location: str, file: str) -> str:
    """A file of a table, in Spark's spelling: a path may be a pattern, so its special characters are escaped."""
    return _SPECIAL.sub(r"\\\g<0>", for_spark(file if ":/" in file else f"{location}/{file}"))
