"""Finds data files without a table: a commit by Spark leaves them if it dies before the table's first log entry."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from airflow_epochs.delta.log import actions_of, log_entry, user_metadata_of
from airflow_epochs.model import JsonDict
from airflow_epochs.storage.files import Files

REMEDY = (
    "If a commit of Spark died here before there was a table, delete these files: they are of no table. If a table was "
    "here, restore its `_delta_log`. Then clear the failed task."
)
_UUID = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_DATA = re.compile(rf"\.?part-\d{{5,}}-{_UUID}[.-]c\d{{3,}}\.[\w.]*parquet(\.crc)?")
"""A data file as Spark's Delta writer names it, or the checksum that Hadoop writes beside it."""
_FOLDER = re.compile(r".+=.+|\w\w")
"""The name of a partition's folder, or of a folder that ``delta.randomizeFilePrefixes`` makes."""


def look_so(files: Files, names: Iterable[str]) -> bool:
    """Whether all these names in a folder are names of such files, and the folder has no log.

    Hadoop gives a log entry its name when it is whole: until then, the name begins with a dot.
    """
    log = {path.rpartition("/")[2] for path in files.sizes("_delta_log")}
    return all(name.startswith(".") for name in log) and all(_looks_so(files, name) for name in names)


def _looks_so(files: Files, name: str) -> bool:
    if _FOLDER.fullmatch(name):
        return all(_DATA.fullmatch(path.rpartition("/")[2]) for path in files.sizes(name))
    return _DATA.fullmatch(name) is not None


def are_awaited(files: Files, staging: str) -> bool:
    """Whether rows wait in the ``staging`` folder for a commit by Spark that will make the table."""
    return any(ours.get("committer") == "spark" and ours.get("table_id") is None for ours in _staged(files, staging))


def _staged(files: Files, staging: str) -> Iterator[JsonDict]:
    """What each staged try says of itself, in one of its first log entries."""
    for folder in files.names(staging):
        for name in files.names(f"{staging}/{folder}"):
            for version in (0, 1):
                yield from _told_in(files.read(log_entry(version, f"{staging}/{folder}/{name}")) or b"")


def _told_in(entry: bytes) -> list[JsonDict]:
    try:
        return [ours for ours in map(user_metadata_of, actions_of(entry)) if ours]
    except ValueError:  # a damaged entry tells nothing
        return []
