"""Which places a ``VACUUM`` of a Delta table empties: what lies in the table's folder and is not in the table's log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from airflow_epochs.errors import EpochError
from airflow_epochs.names import resolved
from airflow_epochs.storage.files import open_files


def endangers(table: str, place: str) -> bool:
    """Whether a ``VACUUM`` of the table may delete what lies at the place: it leaves alone ``_…`` and ``.…``."""
    folder = table.rstrip("/") + "/"
    return f"{place}/".startswith(folder) and not place[len(folder) :].startswith(("_", "."))


def tables_around(place: str, options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The Delta tables whose ``VACUUM`` may delete what lies at the place: each folder, and the place as seen in it.

    A ``VACUUM`` follows links, so on a disk the folders count by which the place is named, and those where it is. A
    folder that cannot be read counts as no table. Each costs one request.
    """
    for spelling in dict.fromkeys((resolved(place), place)):
        for folder in _parents(spelling):
            if endangers(folder, spelling) and _is_table(folder, options):
                yield folder, spelling


def _parents(place: str) -> Iterator[str]:
    """The folders around a place, the nearest first. Empty for a local path with ``..``: only its real path tells."""
    begin, path = "", place
    if "://" in place:
        parts = urlsplit(place)
        begin, path = f"{parts.scheme}://{parts.netloc}", parts.path
    names = path.strip("/").split("/") if path.strip("/") else []
    if begin or ".." not in names:
        for depth in reversed(range(len(names))):
            yield begin + "/" * (depth > 0 or not begin) + "/".join(names[:depth])


def _is_table(folder: str, options: Mapping[str, str]) -> bool:
    try:
        return bool(open_files(folder, options).names("_delta_log"))
    except EpochError:
        return False
