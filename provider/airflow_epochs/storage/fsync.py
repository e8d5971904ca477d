"""Local files that survive a power cut. Neither obstore nor deltalake ever calls fsync, so this is our own."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path


def write_new(path: Path, value: bytes) -> bool:
    """Put-if-absent: temporary file, fsync, ``link`` (which fails if the name exists), fsync of the folder.

    Returns:
        False if somebody else's file has the name; it is durable too by then, since the caller will act on it.
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
    """Create a folder and its missing parents, each with a durable name."""
    missing = [folder]  # its name is flushed even if it exists: whoever made it may not have come to that yet
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        fsync(each.parent)


def files_below(folder: Path) -> Iterator[Path]:
    """All files below a folder, recursively; none if it does not exist. A folder that cannot be read is an error."""

    def unless_absent(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error

    for parent, _, names in os.walk(folder, onerror=unless_absent):
        yield from (Path(parent, name) for name in names)


def flush(files: Iterable[Path]) -> None:
    """Make files that another process has written, and the names that lead to them, survive a power cut.

    It may have made every folder on the way, so all names up to the root of the disk count. What is gone needs nothing.
    """
    written = list(files)
    for file in written:
        with suppress(FileNotFoundError):
            fsync(file)
    for folder in {parent for file in written for parent in file.parents}:
        # a folder we may not even read was there before us
        with suppress(FileNotFoundError, PermissionError):
            fsync(folder)


def fsync(path: Path) -> None:
    """Flush a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
