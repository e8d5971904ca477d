"""Files on a local disk, by plain ``os`` calls, because neither obstore nor deltalake ever calls fsync."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from airflow_epochs import codes
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.secrecy import shown
from airflow_epochs.storage import fsync
from airflow_epochs.storage.blobs import PROBE, TooLarge

_READ_ONLY = "Mount the disk so that it can be written, or correct the path. Then clear the failed task."


@contextmanager
def _local_errors(place: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise Refused(
            f"The user of the Airflow worker has no permission for {error.filename or place}.",
            code=codes.STORE_FORBIDDEN,
        ) from error
    except OSError as error:
        is_no_folder = isinstance(error, (NotADirectoryError, FileExistsError))
        if is_no_folder and (found := in_the_way(place)):
            raise _unusable(found, "is not a folder", place) from error
        raise NotApplied(
            f"A file operation in {place} failed: {error}.",
            code=codes.STORE_UNREACHABLE,
            remedy=_READ_ONLY if error.errno == errno.EROFS else None,
        ) from error


def _unusable(found: Path, why: str, place: Path) -> Refused:
    return Refused(f"{found} {why}, so {place} cannot be written.", code=codes.STORE_PLACE_UNUSABLE)


def in_the_way(folder: Path) -> Path | None:
    """The path that is no folder, where this folder or one above it must be; None if there is no such path."""
    there = _nearest(folder)
    return None if os.path.isdir(there) else there


def _nearest(folder: Path) -> Path:
    """The folder itself if something is there, else the nearest one above it."""
    return next(each for each in (folder, *folder.parents) if os.path.lexists(each))


class Disk:
    """``Blobs`` on a local disk."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put_new(self, path: str, value: bytes) -> bool:
        """As ``Blobs.put_new``."""
        return fsync.write_new(self._root / path, value)

    def read(self, path: str, bytes_max: int | None = None) -> bytes | None:
        """As ``Blobs.read``."""
        try:
            # Without O_NONBLOCK, to open a pipe would wait for its writer.
            with open(self._root / path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
                about = os.fstat(file.fileno())
                if bytes_max is not None and not (stat.S_ISREG(about.st_mode) and about.st_size <= bytes_max):
                    raise TooLarge(bytes_max)
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def exists(self, path: str) -> bool:
        """As ``Blobs.exists``."""
        return self._mode(path) is not None

    def is_file(self, path: str) -> bool:
        """Whether an ordinary file is there."""
        return stat.S_ISREG(self._mode(path) or 0)

    def _mode(self, path: str) -> int | None:
        try:
            return os.stat(self._root / path).st_mode  # Path.exists and Path.is_file pass over some errors of a disk
        except (FileNotFoundError, NotADirectoryError):
            return None

    def below(self, folder: str) -> list[str]:
        """As ``Blobs.below``."""
        return [str(path.relative_to(self._root)) for path in fsync.files_below(self._root / folder)]

    def folders(self, folder: str) -> list[str]:
        """As ``Blobs.folders``."""
        try:
            with os.scandir(self._root / folder) as entries:
                return [entry.name for entry in entries if entry.is_dir()]
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        """As ``Blobs.remove``."""
        (self._root / path).unlink(missing_ok=True)


class LocalFiles:
    """``Files`` on a local disk.

    Raises:
        Refused: The root is not an absolute path.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_absolute():
            raise Refused(
                f"The path {shown(str(root))!r} is not absolute.",
                code=codes.PATH_RELATIVE,
            )
        self.root = self._root = root
        self._disk = Disk(root)

    def sizes(self, folder: str) -> dict[str, int]:
        """As ``Files.sizes``."""
        with _local_errors(self._root):
            return {path: (self._root / path).stat().st_size for path in self._disk.below(folder)}

    def names(self, folder: str) -> set[str]:
        """As ``Files.names``."""
        with _local_errors(self._root):
            try:
                return set(os.listdir(self._root / folder))
            except (FileNotFoundError, NotADirectoryError):
                return set()

    def read(self, path: str) -> bytes | None:
        """As ``Files.read``."""
        with _local_errors(self._root):
            return self._disk.read(path)

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """As ``Files.open``."""
        with _local_errors(self._root):
            return (self._root / path).open("rb")

    def missing(self, paths: Iterable[str]) -> set[str]:
        """As ``Files.missing``."""
        with _local_errors(self._root):
            return {path for path in paths if not self._disk.is_file(path)}

    def tails(self, sizes: Mapping[str, int], length: int) -> Iterator[tuple[str, bytes]]:
        """As ``Files.tails``."""
        with _local_errors(self._root):
            for path, size in sizes.items():
                with (self._root / path).open("rb") as file:
                    file.seek(max(0, size - length))
                    yield path, file.read(length)

    def write_new(self, path: str, value: bytes) -> bool:
        """As ``Files.write_new``."""
        with _local_errors(self._root / path):
            return self._disk.put_new(path, value)

    def probe(self, folder: str) -> None:
        """As ``Files.probe``: in the nearest folder that exists, so no missing folder is created."""
        target = self._root / folder
        with _local_errors(target):
            try:
                with TemporaryDirectory(prefix=PROBE, dir=_nearest(target)) as made:
                    Path(made, "probe").write_bytes(b"probe")
            except FileNotFoundError as error:
                why = "is not a folder" if in_the_way(target) else "takes no new folders"
                raise _unusable(_nearest(target), why, target) from error

    def upload(self, path: str, source: Path) -> None:
        """As ``Files.upload``."""
        target = self._root / path
        with _local_errors(target):
            fsync.make_folder(target.parent)
            shutil.copyfile(source, target)
            fsync.fsync(target)
            fsync.fsync(target.parent)

    def renew(self, paths: Iterable[str]) -> None:
        """As ``Files.renew``: sets the modification time."""
        with _local_errors(self._root):
            for path in paths:
                with suppress(FileNotFoundError):
                    os.utime(self._root / path)

    def delete(self, path: str) -> None:
        """As ``Files.delete``. Does not follow a symbolic link."""
        target = self._root / path
        with _local_errors(target):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                self._disk.remove(path)

    def sync(self, paths: Iterable[str]) -> None:
        """As ``Files.sync``."""
        with _local_errors(self._root):
            fsync.flush(self._root / path for path in paths)
