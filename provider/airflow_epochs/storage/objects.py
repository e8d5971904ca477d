"""Files in an object store, through obstore."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO

from airflow_epochs import codes
from airflow_epochs.errors import EpochError, NotApplied, OutcomeUnknown, Refused, first_line
from airflow_epochs.secrecy import shown
from airflow_epochs.storage.answers import Trouble, is_denied, remedy_of, told, trouble_of
from airflow_epochs.storage.blobs import TooLarge
from airflow_epochs.storage.probing import probe_below

if TYPE_CHECKING:
    from obstore import ReadableFile
    from obstore.store import ObjectStore

_CLIENT_OPTIONS = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "timeout",
    "proxy_url",
    "user_agent",
}
_PARALLEL_REQUESTS = 16
_READ_BYTES = 2 * 2**20


def object_store(url: str, options: Mapping[str, str]) -> ObjectStore:
    """An obstore store for a remote URL. ``options``: as the ``object_store`` crate names them.

    Raises:
        Refused: obstore does not know the scheme or an option. Nothing was sent.
    """
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    client: Any = {key: _client_value(value) for key, value in options.items() if key in _CLIENT_OPTIONS}
    config: Any = {key: value for key, value in options.items() if key not in _CLIENT_OPTIONS}
    try:
        return from_url(url, config=config, client_options=client)
    except BaseException as error:
        if not isinstance(error, (BaseError, ValueError)) and type(error).__name__ != "PanicException":
            raise  # on some unknown options obstore panics, and a PanicException is no Exception
        raise Refused(
            f"The provider cannot open the object store at {shown(url)}: {first_line(error)}",
            code=codes.STORE_UNUSABLE,
        ) from error


def _client_value(value: str) -> str | bool:
    return value == "true" if value in ("true", "false") else value


def may_answer_later(error: EpochError) -> bool:
    """Whether a store has not answered a question. False if it denies the credentials, or the user, to read that."""
    cause = error.__cause__
    denied = isinstance(cause, PermissionError) or (cause is not None and is_denied(cause))
    return isinstance(error, OutcomeUnknown) and not denied


class _ObjectReader(io.RawIOBase):
    """An object as a Python file, because pyarrow calls methods that obstore's reader lacks."""

    def __init__(self, reader: ReadableFile, errors: Callable[[], AbstractContextManager[None]]) -> None:
        self._reader, self._errors = reader, errors

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position: int = self._reader.seek(offset, whence)
        return position

    def readinto(self, buffer: Any) -> int:
        with self._errors():
            data = self._reader.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class Objects:
    """``Blobs`` in an obstore store whose put honours ``mode="create"`` (``If-None-Match: *`` or its like)."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def put_new(self, path: str, value: bytes) -> bool:
        """As ``Blobs.put_new``."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            obstore.put(self._store, path, value, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def read(self, path: str, bytes_max: int | None = None) -> bytes | None:
        """As ``Blobs.read``."""
        import obstore

        try:
            found = obstore.get(self._store, path)
        except FileNotFoundError as error:
            _require_bucket(error)
            return None
        if bytes_max is not None and found.meta["size"] > bytes_max:
            raise TooLarge(bytes_max)
        return bytes(found.bytes())

    def exists(self, path: str) -> bool:
        """As ``Blobs.exists``."""
        import obstore

        try:
            obstore.head(self._store, path)
        except FileNotFoundError:
            return False
        return True

    def require_bucket(self, missing: str) -> None:
        """Raise FileNotFoundError if the bucket is missing, not only this path. ``exists`` does not tell them apart."""
        import obstore

        try:
            obstore.get(self._store, missing)
        except FileNotFoundError as error:
            _require_bucket(error)

    def below(self, folder: str) -> list[str]:
        """As ``Blobs.below``."""
        return list(self.sizes(folder))

    def folders(self, folder: str) -> list[str]:
        """As ``Blobs.folders``."""
        import obstore

        found = obstore.list_with_delimiter(self._store, folder or None)
        return [str(path).rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]

    def sizes(self, folder: str) -> dict[str, int]:
        """Path -> bytes, for every object below a folder. One listing has both.

        A console or Hadoop may have put an empty object ``folder/``, to show a folder. obstore tells it as ``folder``.
        """
        import obstore

        listed = (meta for batch in obstore.list(self._store, folder) for meta in batch)
        return {str(meta["path"]): int(meta["size"]) for meta in listed if meta["path"] != folder}

    def remove(self, path: str) -> None:
        """As ``Blobs.remove``."""
        import obstore

        try:
            obstore.delete(self._store, path)
        except FileNotFoundError as error:
            _require_bucket(error)


def _require_bucket(missing: FileNotFoundError) -> None:
    """Raise it again if the whole bucket is missing: then a missing key does not mean that there is no file."""
    if trouble_of(missing) is Trouble.NO_BUCKET:
        raise missing


class ObjectFiles:
    """``Files`` in an object store. ``conn_id``: the connection with its credentials, if it is known."""

    def __init__(self, url: str, store: ObjectStore, conn_id: str | None = None) -> None:
        self._place = shown(url)
        self._conn_id = conn_id
        self._store = store
        self._objects = Objects(store)

    def sizes(self, folder: str) -> dict[str, int]:
        """As ``Files.sizes``."""
        with self._errors():
            return self._objects.sizes(folder)

    def names(self, folder: str) -> set[str]:
        """As ``Files.names``."""
        import obstore

        with self._errors():
            found = obstore.list_with_delimiter(self._store, folder or None)
        # An object that only shows the folder has its path; see Objects.sizes.
        paths = [*found["common_prefixes"], *(meta["path"] for meta in found["objects"] if meta["path"] != folder)]
        return {str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths}

    def read(self, path: str) -> bytes | None:
        """As ``Files.read``."""
        with self._errors():
            return self._objects.read(path)

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """As ``Files.open``; reads the object in parts of ``_READ_BYTES``."""
        import obstore

        with self._errors():
            reader = obstore.open_reader(self._store, path)
        with io.BufferedReader(_ObjectReader(reader, self._errors), _READ_BYTES) as file:
            yield file

    def missing(self, paths: Iterable[str]) -> set[str]:
        """As ``Files.missing``; asks for ``_PARALLEL_REQUESTS`` objects at a time."""
        asked = list(paths)
        with self._errors(), ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            there = pool.map(self._objects.exists, asked)
            found = {path for path, is_there in zip(asked, there, strict=True) if not is_there}
            if found:
                self._objects.require_bucket(next(iter(found)))
            return found

    def tails(self, sizes: Mapping[str, int], length: int) -> Iterator[tuple[str, bytes]]:
        """As ``Files.tails``; reads ``_PARALLEL_REQUESTS`` objects at a time."""
        import obstore

        def tail(item: tuple[str, int]) -> tuple[str, bytes]:
            path, size = item
            start = max(0, size - length)
            return path, bytes(obstore.get_range(self._store, path, start=start, end=size)) if size else b""

        with self._errors(), ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            yield from pool.map(tail, sizes.items())

    def write_new(self, path: str, value: bytes) -> bool:
        """As ``Files.write_new``. Raises Refused, too, if the store is set up without conditional writes."""
        try:
            with self._writing(path):
                return self._objects.put_new(path, value)
        except NotImplementedError as error:
            raise Refused(
                f"The storage options of the object store at {self._place} turn conditional writes off.",
                code=codes.STORE_UNCONDITIONAL,
                remedy="Take `aws_conditional_put` out of the storage options of the connection.",
            ) from error

    def probe(self, folder: str) -> None:
        """As ``Files.probe``: writes an object, and deletes it."""
        with probe_below(folder, self.delete) as path:
            self.write_new(path, b"probe")

    def upload(self, path: str, source: Path) -> None:
        """As ``Files.upload``."""
        import obstore

        with self._writing(path):
            obstore.put(self._store, path, source)

    def renew(self, paths: Iterable[str]) -> None:
        """As ``Files.renew``. Writes the same bytes again, because not every store can copy an object onto itself."""
        with TemporaryDirectory() as folder:
            for path in paths:
                if self._download(path, copied := Path(folder, "copy")):
                    self.upload(path, copied)

    def _download(self, path: str, target: Path) -> bool:
        import obstore

        with self._errors():
            try:
                content = obstore.get(self._store, path)
            except FileNotFoundError as error:
                _require_bucket(error)
                return False
            with target.open("wb") as file:
                file.writelines(content.stream(_READ_BYTES))
        return True

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        from obstore.exceptions import BaseError, PermissionDeniedError

        try:
            yield
        except (PermissionDeniedError, PermissionError) as error:
            raise self._no_permission(error) from error
        except (BaseError, OSError) as error:
            raise OutcomeUnknown(
                f"The object store did not confirm that it wrote {self._place}/{path}: {told(error)}",
                code=codes.STORE_WRITE_UNKNOWN,
                remedy=self._remedy(error, "Then let Airflow retry, or clear the failed task: it looks there first."),
            ) from error

    def delete(self, path: str) -> None:
        """As ``Files.delete``. One request per object, because a request for many may stop at one that is gone."""
        with self._errors(), ThreadPoolExecutor(_PARALLEL_REQUESTS) as pool:
            list(pool.map(self._objects.remove, self._objects.below(path) or [path]))

    def sync(self, paths: Iterable[str]) -> None:
        """As ``Files.sync``: nothing to do."""

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            raise self._no_permission(error) from error
        except (BaseError, OSError) as error:
            if is_denied(error) or trouble_of(error) is Trouble.UNKNOWN_KEY:  # a listing has no error class of its own
                raise self._no_permission(error) from error
            raise NotApplied(
                f"A request to the object store at {self._place} failed: {told(error)}",
                code=codes.STORE_UNREACHABLE,
                remedy=self._remedy(error),
            ) from error

    def _no_permission(self, error: Exception) -> Refused:
        return Refused(
            f"The object store denies access to {self._place}: {told(error)}",
            code=codes.STORE_FORBIDDEN,
            remedy=self._remedy(error),
        )

    def _remedy(self, error: Exception, then: str = "Then clear the failed task.") -> str | None:
        return remedy_of(error, self._conn_id, "the path", then)
