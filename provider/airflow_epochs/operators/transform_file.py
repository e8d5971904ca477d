"""Finds the user's transform on the worker. Reads files, and does not run them."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile, is_zipfile

from airflow_epochs import codes
from airflow_epochs.config import Transform
from airflow_epochs.errors import Refused
from airflow_epochs.spark.driver.user_files import siblings_of


def find_transform(text: str, folders: Iterable[Path]) -> Transform:
    """The transform with its absolute path, and a digest of its file and of the siblings it imports.

    Args:
        text: ``path/to/file.py:function``; the path is absolute, or relative to one of the folders.
        folders: Where to look, in this order.

    Raises:
        Refused: The file does not exist, or it is not Python.
    """
    transform = Transform.parse(text)
    relative = transform.path
    places = [Path(relative)] if Path(relative).is_absolute() else [folder / relative for folder in folders]
    looked = list(dict.fromkeys(places))
    found = next((path for path in looked if path.is_file()), None)
    if found is None:
        raise _in_an_archive(relative, looked) or Refused(
            f"There is no transform file {relative!r}. The task looked for: {', '.join(map(str, looked))}.",
            code=codes.TRANSFORM_MISSING,
            remedy="Give `transform=` an absolute path, or one that is relative to a folder in which the task looked. "
            "In a DAG, these are the folder of the DAG file, the DAGs folder, and the folder above each. Then clear "
            "the failed task.",
        )
    path = found.resolve()
    siblings = siblings_of(str(path)).values()
    return replace(transform, path=str(path), digest=_digest([path, *sorted(siblings)]))


def _in_an_archive(relative: str, looked: Collection[Path]) -> Refused | None:
    """The error for a file in an archive, as beside a DAG in a zip; None if no archive has it."""
    for path in looked:
        archive = next((folder for folder in path.parents if is_zipfile(folder)), None)
        if archive and _has(archive, inside := path.relative_to(archive)):
            beside = archive.parent / (inside if Path(relative).is_absolute() else relative)
            named = "" if beside in looked else f" Let `transform=` name {beside}."
            return Refused(
                f"The transform file {relative!r} is in the archive {archive}. Spark needs a plain file.",
                code=codes.TRANSFORM_MISSING,
                remedy=f"Put the file, and the modules that it imports, beside the archive: {beside}.{named} "
                "Then clear the failed task.",
            )
    return None


def _has(archive: Path, inside: Path) -> bool:
    with ZipFile(archive) as packed:
        return inside.as_posix() in packed.namelist()


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()
