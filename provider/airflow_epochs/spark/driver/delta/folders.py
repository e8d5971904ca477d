"""The folders of a partitioned table: Spark names one after each value, and a disk does not take every name."""

from __future__ import annotations

import re
from typing import Any

from airflow_epochs.transforms.conditions import is_text

BYTES_MAX = 255
"""The longest name of a file or folder, in bytes, on the file systems of Linux."""
UNFIT = f"makes the name of a folder that no disk takes: it has more than {BYTES_MAX} bytes, or a NUL character"
_ESCAPED = r"[\x01-\x1f\x22#%\x27*/:=?\\\x7f{\[\]^]"
"""Characters that Spark writes as `%` and two digits (``ExternalCatalogUtils.escapePathName``)."""


def is_unfit(column: str, value: str) -> bool:
    """Whether a disk does not take the folder that Spark makes for a value of the partition column."""
    return "\0" in value or len(value.encode("utf-8", "surrogatepass")) > _room(column) - 2 * len(_found_in(value))


def condition(column: str, value: str, kind: Any) -> str | None:
    """The condition in SQL for ``is_unfit``, for a value in SQL; None for a type whose values are short."""
    if not is_text(kind):
        return None
    escaped = f"regexp_replace({value}, r'{_ESCAPED}', '%00')"
    return f"contains({value}, char(0)) OR octet_length({escaped}) > {_room(column)}"


def _room(column: str) -> int:
    """The bytes that are left for the value."""
    return BYTES_MAX - len(column.encode()) - 2 * len(_found_in(column)) - len("=")


def _found_in(text: str) -> list[str]:
    return re.findall(_ESCAPED, text)
