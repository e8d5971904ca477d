"""Writes local files that survive a power cut. Neither obstore nor deltalake ever calls fsync, so we do."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path


def write_new(path: Path, value: bytes) -> bool:
    """Put-if-absent: temporary file, fsync, ``link`` (which fails if the name exists), fsync of the folder.

    The file is durable when this returns, also if it is another writer's: the caller acts on it.

    Returns:
        False if the name is taken; the file was not changed.
    """
    make_folder(path.parent)
    temporary = path.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        with temporary.open("xb") as file:
            file.write(value)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
        return True
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
        fsync(path.parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, each with a durable name. Idempotent."""
    missing = [folder]  # its name is flushed even if it exists: the process that made it may not have done so yet
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        fsync(each.parent)


def files_below(folder: Path) -> Iterator[Path]:
    """All files below a folder, recursively; empty if it does not exist. Raises OSError if a folder cannot be read."""

    def unless_absent(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error

    for parent, _, names in os.walk(folder, onerror=unless_absent):
        yield from (Path(parent, name) for name in names)


def flush(files: Iterable[Path]) -> None:
    """Make files that another process has written, and their names in all folders above, survive a power cut.

    That process may have made any of the folders, so all are flushed, up to the root of the disk. Skips missing files.
    """
    written = list(files)
    for file in written:
        with suppress(FileNotFoundError):
            fsync(file)
    for folder in {parent for file in written for parent in file.parents}:
        # A folder that this process may not read is not one that the other process has made.
        with suppress(FileNotFoundError, PermissionError):
            fsync(folder)


def fsync(path: Path) -> None:
    """Flush a file to the disk; of a folder, the names in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
