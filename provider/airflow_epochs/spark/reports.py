"""Reads the report of Spark's driver: a local file, or a text file in a folder that driver and task both reach."""

from __future__ import annotations

import json
from pathlib import Path

from airflow_epochs.contracts import Connection
from airflow_epochs.model import JsonDict


def take(where: str, connection: Connection | None) -> JsonDict | None:
    """Read the report; None if the driver wrote none. Deletes a report in a shared folder.

    Args:
        where: A local path, or the URL of a folder that Spark wrote as text.
        connection: Holds the credentials of the object store; None for a local path or a shared disk.
    """
    text = _from_folder(where, connection) if "://" in where else _from_file(Path(where))
    return json.loads(text) if text else None


def _from_file(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _from_folder(url: str, connection: Connection | None) -> str | None:
    from airflow_epochs.storage.files import open_files
    from airflow_epochs.storage.options import storage_options

    root, _, folder = url.rpartition("/")
    files = open_files(root, storage_options(connection))
    names = files.names(folder)
    if "_SUCCESS" not in names:
        return None
    parts = sorted(name for name in names if name.startswith("part-"))
    text = b"".join(files.read(f"{folder}/{part}") or b"" for part in parts).decode()
    files.delete(folder)
    return text
