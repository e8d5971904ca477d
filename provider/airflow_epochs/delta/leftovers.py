"""What a commit of Spark leaves in a folder if it dies before the table's first log entry: data files of no table."""

from __future__ import annotations

import re
from collections.abc import Iterable

from airflow_epochs.storage.files import Files

_DATA = re.compile(r"\.?part-\d{5}-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}[.-]c\d{3}\.[\w.]*parquet(\.crc)?")
"""A data file as Spark's Delta writer names it, or the checksum that Hadoop writes beside it."""
_FOLDER = re.compile(r".+=.+|\w\w")
"""Of a partition; or of ``delta.randomizeFilePrefixes``."""
_OF_A_LOG = re.compile(r"\d{20}\.|_last_checkpoint")


def are_leftovers(files: Files, names: Iterable[str]) -> bool:
    """Whether these names in a folder are all of such files, and the folder has no log entry."""
    has_log = any(_OF_A_LOG.match(name) for name in files.names("_delta_log"))
    return not has_log and all(_is_leftover(files, name) for name in names)


def _is_leftover(files: Files, name: str) -> bool:
    if _FOLDER.fullmatch(name):
        return all(_DATA.fullmatch(path.rpartition("/")[2]) for path in files.sizes(name))
    return _DATA.fullmatch(name) is not None
