"""Where bytes lie: one mapping from an Airflow connection to ``object_store`` options, and files under a root.

The options serve obstore (ledger, staging) and deltalake alike; both are built on the ``object_store`` crate.
On local disks plain ``os`` calls are used, since neither library ever calls fsync.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol
from urllib.parse import urlsplit

from airflow_epochs import durable, secrecy
from airflow_epochs.environment import Connection
from airflow_epochs.errors import NotApplied, OutcomeUnknown, Refused
from airflow_epochs.names import normalised
from airflow_epochs.secrecy import shown

if TYPE_CHECKING:
    from obstore import ReadableFile
    from obstore.store import ObjectStore

log = secrecy.logger(__name__)

_AWS_EXTRA = {
    "region_name": "aws_region",
    "endpoint_url": "aws_endpoint",
    "aws_session_token": "aws_session_token",
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
}
_AZURE_EXTRA = {
    "tenant_id": "azure_tenant_id",
    "sas_token": "azure_storage_sas_key",
    "account_key": "azure_storage_account_key",
}
_CLIENT_OPTIONS = {
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "timeout",
    "proxy_url",
    "user_agent",
}
_LOCAL = ("", "file")
_PARALLEL_READS = 16
_READ_BYTES = 2 * 2**20


def storage_options(connection: Connection | None) -> dict[str, str]:
    """The ``object_store`` options of an Airflow connection; without one the environment's credentials count.

    Understood are the ``aws``, ``google_cloud_platform`` and ``wasb``/``adls`` types as their official providers
    define them. For every type, an extra ``storage_options`` (an object of ``object_store`` options) has the
    last word.

    Raises:
        Refused: The extra ``storage_options`` is not an object.
    """
    if connection is None:
        return {}
    by_type = {
        "aws": _aws_options,
        "google_cloud_platform": _google_options,
        "wasb": _azure_options,
        "adls": _azure_options,
        "azure_data_lake": _azure_options,
    }
    options = by_type.get(connection.conn_type, lambda _: {})(connection)
    options |= _explicit_options(connection)
    endpoint = options.get("aws_endpoint", "")
    if endpoint.startswith("http://"):
        options.setdefault("allow_http", "true")
    _warn_of_open_ways(connection.conn_id, options)
    return options


def _warn_of_open_ways(conn_id: str, options: Mapping[str, str]) -> None:
    if options.get("allow_invalid_certificates") == "true":
        secrecy.warn_once(
            log,
            f"connection {conn_id}: the object store's certificate is not verified: whoever is on the way can read and "
            "change everything",
        )
    for endpoint in (shown(value) for name, value in options.items() if _is_open_endpoint(name, value)):
        secrecy.warn_once(log, f"connection {conn_id}: {endpoint} is no https: rows and records travel readably")


def _is_open_endpoint(option: str, value: str) -> bool:
    """Whether the option, of whichever store and spelling, is an address on another machine without TLS."""
    remote = value.startswith("http://") and not secrecy.is_loopback(urlsplit(shown(value)).hostname or "")
    return remote and option != "proxy_url"


def _explicit_options(connection: Connection) -> dict[str, str]:
    given = connection.extra.get("storage_options") or {}
    try:
        decoded = json.loads(given) if isinstance(given, str) else given
        return {str(key).lower(): _as_option(value) for key, value in decoded.items()}
    except (ValueError, AttributeError) as error:
        raise Refused(
            f"The extra field storage_options of connection {connection.conn_id!r} is not a JSON object.",
            remedy='Write it like {"aws_region": "eu-central-1"}; keys are those of the object_store crate.',
        ) from error


def _as_option(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _aws_options(connection: Connection) -> dict[str, str]:
    extra = connection.extra
    s3 = extra.get("service_config", {}).get("s3", {}) if isinstance(extra.get("service_config"), dict) else {}
    options = {
        "aws_access_key_id": connection.login,
        "aws_secret_access_key": connection.password,
        **{option: extra.get(key) for key, option in _AWS_EXTRA.items() if extra.get(key)},
        "aws_endpoint": s3.get("endpoint_url") or extra.get("endpoint_url"),
        "allow_invalid_certificates": "true" if extra.get("verify") is False else None,
    }
    return {option: str(value) for option, value in options.items() if value}


def _google_options(connection: Connection) -> dict[str, str]:
    key = connection.extra.get("keyfile_dict")
    options = {
        "google_service_account": connection.extra.get("key_path"),
        "google_service_account_key": json.dumps(key) if isinstance(key, dict) else key,
    }
    return {option: str(value) for option, value in options.items() if value}


def _azure_options(connection: Connection) -> dict[str, str]:
    tenant = connection.extra.get("tenant_id")
    secret = "azure_client_secret" if tenant else "azure_storage_account_key"
    options = {
        "azure_client_id" if tenant else "azure_storage_account_name": connection.login,
        secret: connection.password,
        **{option: connection.extra[key] for key, option in _AZURE_EXTRA.items() if connection.extra.get(key)},
        "azure_storage_account_name": connection.extra.get("account_name") or (None if tenant else connection.login),
    }
    return {option: str(value) for option, value in options.items() if value}


def is_local(url: str) -> bool:
    return urlsplit(url).scheme in _LOCAL


def object_store(url: str, options: Mapping[str, str]) -> ObjectStore:
    """An obstore store for a remote URL.

    Raises:
        Refused: obstore does not know the scheme or an option.
    """
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    client: Any = {key: _client_value(value) for key, value in options.items() if key in _CLIENT_OPTIONS}
    config: Any = {key: value for key, value in options.items() if key not in _CLIENT_OPTIONS}
    try:
        return from_url(url, config=config, client_options=client)
    except BaseException as error:
        if not isinstance(error, (BaseError, ValueError)) and type(error).__name__ != "PanicException":
            raise  # obstore panics, outside Exception, at some options that it does not know
        raise Refused(
            f"The object store at {shown(url)} cannot be set up: {str(error).splitlines()[0]}",
            remedy="Correct the URL, or the storage options of its connection.",
        ) from error


def _client_value(value: str) -> str | bool:
    return value == "true" if value in ("true", "false") else value


class Files(Protocol):
    """Files under a root; paths are relative to it, with ``/``.

    Reading methods raise NotApplied if the store cannot be reached, Refused if it says no.
    """

    def sizes(self, folder: str) -> dict[str, int]:
        """Every file below ``folder``, recursively, with its size; empty if there is no such folder."""
        ...

    def names(self, folder: str) -> set[str]:
        """Names of files and folders directly in ``folder``."""
        ...

    def read(self, path: str) -> bytes | None:
        """The content, or None if there is no such file."""
        ...

    def open(self, path: str) -> AbstractContextManager[BinaryIO]:
        """A file to read and seek in, without reading all of it."""
        ...

    def missing(self, paths: Iterable[str]) -> set[str]:
        """Those of ``paths`` at which there is no file."""
        ...

    def tails(self, sizes: Mapping[str, int], length: int) -> Iterator[tuple[str, bytes]]:
        """The last ``length`` bytes of every file; the sizes are known."""
        ...

    def write_new(self, path: str, value: bytes) -> bool:
        """Put-if-absent, durably. False: somebody else's file is there and was left alone.

        Raises:
            OutcomeUnknown: It may be there. Read it back.
        """
        ...

    def upload(self, path: str, source: Path) -> None:
        """Put a file of the local disk at a path that nobody else uses, durably and without reading all of it at once.

        Raises:
            OutcomeUnknown: It may be there, whole.
        """
        ...

    def renew(self, paths: Iterable[str]) -> None:
        """Make files as young as if they were written now; those that are gone are left out."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it. Idempotent."""
        ...

    def sync(self, paths: Iterable[str]) -> None:
        """Make files and the names that lead to them survive a power cut; those that are gone need nothing.

        Nothing to do on object stores.
        """
        ...


def open_files(url: str, options: Mapping[str, str] | None = None) -> Files:
    """Files under ``url``: an absolute local path, ``file://``, ``s3://``, ``gs://``, ``az://`` or ``abfss://``."""
    url = normalised(url)
    if is_local(url):
        return LocalFiles(Path(url))
    return ObjectFiles(url, object_store(url, options or {}))


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
                for path in durable.files_below(self._root / folder)
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
            return durable.write_new(self._root / path, value)

    def upload(self, path: str, source: Path) -> None:
        target = self._root / path
        with _local_errors(target):
            durable.make_folder(target.parent)
            shutil.copyfile(source, target)
            durable.fsync(target)
            durable.fsync(target.parent)

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
            durable.flush(self._root / path for path in paths)


class _ObjectReader(io.RawIOBase):
    """An object as a file of Python's own: pyarrow asks for more than obstore's reader has."""

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


class ObjectFiles:
    """Files in an object store."""

    def __init__(self, url: str, store: ObjectStore) -> None:
        self._place = shown(url)
        self._store = store

    def sizes(self, folder: str) -> dict[str, int]:
        import obstore

        with self._errors():
            return {
                str(meta["path"]): int(meta["size"]) for batch in obstore.list(self._store, folder) for meta in batch
            }

    def names(self, folder: str) -> set[str]:
        import obstore

        with self._errors():
            found = obstore.list_with_delimiter(self._store, folder or None)
        paths = [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]
        return {str(path).rstrip("/").rsplit("/", 1)[-1] for path in paths}

    def read(self, path: str) -> bytes | None:
        import obstore

        with self._errors():
            try:
                return bytes(obstore.get(self._store, path).bytes())
            except FileNotFoundError:
                return None

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        import obstore

        with self._errors():
            reader = obstore.open_reader(self._store, path)
        with io.BufferedReader(_ObjectReader(reader, self._errors), _READ_BYTES) as file:
            yield file

    def missing(self, paths: Iterable[str]) -> set[str]:
        import obstore

        def is_missing(path: str) -> bool:
            try:
                obstore.head(self._store, path)
            except FileNotFoundError:
                return True
            return False

        asked = list(paths)
        with self._errors(), ThreadPoolExecutor(_PARALLEL_READS) as pool:
            return {path for path, gone in zip(asked, pool.map(is_missing, asked), strict=True) if gone}

    def tails(self, sizes: Mapping[str, int], length: int) -> Iterator[tuple[str, bytes]]:
        import obstore

        def tail(item: tuple[str, int]) -> tuple[str, bytes]:
            path, size = item
            start = max(0, size - length)
            return path, bytes(obstore.get_range(self._store, path, start=start, end=size)) if size else b""

        with self._errors(), ThreadPoolExecutor(_PARALLEL_READS) as pool:
            yield from pool.map(tail, sizes.items())

    def write_new(self, path: str, value: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            with self._writing(path):
                obstore.put(self._store, path, value, mode="create")
        except AlreadyExistsError:
            return False
        except NotImplementedError as error:
            raise Refused(
                f"The object store at {self._place} is set up without conditional writes.",
                remedy="Remove aws_conditional_put from the connection's storage options.",
            ) from error
        return True

    def upload(self, path: str, source: Path) -> None:
        import obstore

        with self._writing(path):
            obstore.put(self._store, path, source)

    def renew(self, paths: Iterable[str]) -> None:
        """By writing the same bytes once more: not every store copies an object onto itself."""
        with TemporaryDirectory() as folder:
            for path in paths:
                if self._download(path, copied := Path(folder, "copy")):
                    self.upload(path, copied)

    def _download(self, path: str, target: Path) -> bool:
        import obstore

        with self._errors():
            try:
                content = obstore.get(self._store, path)
            except FileNotFoundError:
                return False
            with target.open("wb") as file:
                file.writelines(content.stream(_READ_BYTES))
        return True

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError

        try:
            yield
        except AlreadyExistsError:
            raise
        except (PermissionDeniedError, PermissionError) as error:
            raise self._no_permission(error) from error
        except (BaseError, OSError) as error:
            raise OutcomeUnknown(
                f"Whether {self._place}/{path} was written is not known: {str(error).splitlines()[0]}",
                remedy="Nothing: the next try looks at the store first.",
            ) from error

    def delete(self, path: str) -> None:
        import obstore

        with self._errors():
            below = list(self.sizes(path))
            if below:
                obstore.delete(self._store, below)
            else:
                self._delete_file(path)

    def _delete_file(self, path: str) -> None:
        import obstore

        try:
            obstore.delete(self._store, path)
        except FileNotFoundError:
            return

    def sync(self, paths: Iterable[str]) -> None:
        """An object store acknowledges only what is durable."""

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

        try:
            yield
        except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
            raise self._no_permission(error) from error
        except (BaseError, OSError) as error:
            raise NotApplied(
                f"The object store at {self._place} does not answer: {str(error).splitlines()[0]}",
                remedy="Check that the store is up and that the bucket exists, then try again.",
            ) from error

    def _no_permission(self, error: Exception) -> Refused:
        return Refused(
            f"The object store says no at {self._place}: {str(error).splitlines()[0]}",
            remedy="Give the connection's credentials read, write, list and delete permission there.",
        )
