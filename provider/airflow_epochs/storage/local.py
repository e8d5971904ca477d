"""Files on a local disk, by plain ``os`` calls: neither obstore nor deltalake ever calls fsync."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.secrecy import shown
from airflow_epochs.storage import fsync


@contextmanager
def _local_errors(place: Path | str) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise Refused(
            f"No permission for {error.filename or place}.",
            remedy="Let the user of the Airflow worker read and write there.",
        ) from error
    except OSError as error:
        raise NotApplied(
            f"The file system does not answer for {place}: {error}.",
            remedy="Check disk and mount, then try again.",
        ) from error


class LocalFiles:
    """Files on a local disk."""

    def __init__(self, root: Path) -> None:
        if not root.is_absolute():
            raise Refused(f"The path {shown(str(root))!r} is not absolute.", remedy="Give an absolute path or a URL.")
        self._root = root

    def sizes(self, folder: str) -> dict[str, int]:
        with _local_errors(self._root):
            return {
                str(path.relative_to(self._root)): path.stat().st_size
                for path in fsync.files_below(self._root / folder)
            }

    def names(self, folder: str) -> set[str]:
        with _local_errors(self._root):
            try:
                return set(os.listdir(self._root / folder))
            except FileNotFoundError:
                return set()

    def read(self, path: str) -> bytes | None:
        with _local_errors(self._root):
            try:
                return (self._root / path).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        with _local_errors(self._root):
            return (self._root / path).open("rb")

    def missing(self, paths: Iterable[str]) -> set[str]:
        with _local_errors(self._root):
            return {path for path in paths if not (self._root / path).is_file()}

    def tails(self, sizes: Mapping[str, int], length: int) -> Iterator[tuple[str, bytes]]:
        with _local_errors(self._root):
            for path, size in sizes.items():
                with (self._root / path).open("rb") as file:
                    file.seek(max(0, size - length))
                    yield path, file.read(length)

    def write_new(self, path: str, value: bytes) -> bool:
        with _local_errors(self._root / path):
            return fsync.write_new(self._root / path, value)

    def upload(self, path: str, source: Path) -> None:
        target = self._root / path
        with _local_errors(target):
            fsync.make_folder(target.parent)
            shutil.copyfile(source, target)
            fsync.fsync(target)
            fsync.fsync(target.parent)

    def renew(self, paths: Iterable[str]) -> None:
        with _local_errors(self._root):
            for path in paths:
                with suppress(FileNotFoundError):
                    os.utime(self._root / path)

    def delete(self, path: str) -> None:
        target = self._root / path
        with _local_errors(target):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink(missing_ok=True)

    def sync(self, paths: Iterable[str]) -> None:
        with _local_errors(self._root):
            fsync.flush(self._root / path for path in paths)
