"""Stores of bytes with put-if-absent: one winner per key, for ever.

There are three, over ``storage.blobs``: our own writer for local disks, because obstore never calls fsync; obstore for
S3, GCS and Azure (``If-None-Match: *`` or its like); and obstore's memory store for tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, unquote, urlsplit

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.names import flaw_of_file, hexadecimal_in, normalised
from airflow_epochs.secrecy import has_login, shown
from airflow_epochs.storage import fsync, vacuum
from airflow_epochs.storage.blobs import Blobs
from airflow_epochs.storage.local import Disk
from airflow_epochs.storage.objects import Objects, object_store

VALUE_BYTES_MAX = 8 * 1024 * 1024
"""The largest value. A larger one, such as a forged record, could fill its reader's memory."""


class Store(Protocol):
    """Immutable values under ``/``-separated keys."""

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Store ``value`` durably unless the key exists; True if this call stored it.

        An exception says nothing about the effect: read the key back.
        """
        ...

    def get(self, key: str) -> bytes | None:
        """The value; None if there is none. It is durable before it is returned, so a caller may act on it.

        Raises:
            TooLarge: It has more than ``VALUE_BYTES_MAX`` bytes.
        """
        ...

    def exists(self, key: str) -> bool:
        """Whether the key has a value."""
        ...

    def folders(self) -> list[str]:
        """The first parts of all keys, sorted: one for each pipeline. Does not look into the folders."""
        ...

    def list(self, prefix: str) -> list[str]:
        """All keys below the folder ``prefix`` (no slash at its end), recursively, sorted.

        Contains every key whose put returned before this call.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete a key. Idempotent."""
        ...


def open_store(url: str, options: Mapping[str, str] | None = None, conn_id: str | None = None) -> Store:
    """The store at an absolute path, or at a ``file://``, ``s3://``, ``gs://``, ``az://`` … or ``memory://`` URL.

    Args:
        url: The root; keys are relative to it.
        options: ``object_store`` options (credentials, endpoint); not used on local disks.
        conn_id: The connection that the credentials come from, for errors.

    Raises:
        Refused: The root has a ``#`` or ``?``, is not absolute, is a path with ``%20`` or its like, is a file on a
            host, or has a scheme that obstore does not know.
    """
    if url != (meant := url.partition("#")[0].partition("?")[0]):
        raise Refused(
            f"The ledger root {shown(url)!r} has a '#' or a '?'. Version 0.1 ignored this character and the text after "
            f"it: it put this ledger, and every other one that differs only in that text, into {shown(meant)!r}.",
            code=codes.LEDGER_ROOT_UNUSABLE,
            remedy=f"Set `ledger_root` of the connection of type epochs to {shown(meant)!r} to go on with the ledger "
            "that is there. For a new ledger, set it to another place without these characters.",
        )
    if file := flaw_of_file(shown(url) if has_login(url) else url):
        raise Refused(
            f"The ledger root {shown(url)!r} names {file.flaw}, and a ledger may be there.",
            code=codes.LEDGER_ROOT_UNUSABLE,
            remedy=f"Set `ledger_root` of the connection of type epochs to 'file://{file.meant}' to go on with a "
            f"ledger that is there. For a new ledger, write '{file.wanted}'. Then clear the failed task.",
        )
    parts = urlsplit(url)
    if not parts.scheme and url.startswith("/") and (found := hexadecimal_in(url)):
        raise Refused(
            f"The ledger root {url!r} is a path with {found!r}. So far it meant {unquote(url)!r}, as a URL would, and "
            "a ledger may be there.",
            code=codes.LEDGER_ROOT_UNUSABLE,
            remedy=f"Set `ledger_root` of the connection of type epochs to 'file://{url}' to go on with a ledger that "
            f"is there. For a new ledger in the folder with '%' in its name, write 'file://{quote(url)}'. Then clear "
            "the failed task.",
        )
    if parts.scheme in ("", "file"):
        return LocalStore(Path(unquote(parts.path)))
    if parts.scheme == "memory":
        from obstore.store import MemoryStore

        return BlobStore(Objects(MemoryStore()), "")
    return BlobStore(Objects(object_store(url, options or {})), shown(normalised(url)), options, conn_id)


def without_blanks(root: str) -> str:
    """The root of a connection without blanks around it. Raises Refused if a folder has them in its name."""
    meant = root.strip()
    now, before = urlsplit(meant), urlsplit(root)
    folder = unquote(before.path)
    if before.scheme in ("", "file") and before.path != now.path and Path(folder).is_dir():
        raise Refused(
            f"The ledger root {shown(root)!r} has blanks around it. They do not count any more, but there is a folder "
            f"{folder!r}. So far the root meant this folder, and a ledger may be there.",
            code=codes.LEDGER_ROOT_UNUSABLE,
            remedy=f"Set `ledger_root` of the connection of type epochs to 'file://{quote(folder)}' to go on "
            f"with a ledger that is there, or to '{shown(meant)}' for the folder without blanks. Then clear the "
            "failed task.",
        )
    return meant


class BlobStore:
    """A ``Store`` over ``Blobs``, whose errors pass through. They say nothing about the effect."""

    def __init__(
        self, blobs: Blobs, root: str, options: Mapping[str, str] | None = None, conn_id: str | None = None
    ) -> None:
        self._blobs = blobs
        self.root = root
        self.conn_id = conn_id
        self._options = options or {}

    def tables_around(self, folder: str) -> Iterator[tuple[str, str]]:
        """The Delta tables whose ``VACUUM`` may delete values in a folder, each with the folder as it lies there."""
        if self.root:
            for table, value in vacuum.tables_around(f"{self.root}/{folder}/value", self._options):
                yield table, value.removesuffix("/value")

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """As ``Store.put_if_absent``."""
        return self._blobs.put_new(key, value)

    def get(self, key: str) -> bytes | None:
        """As ``Store.get``."""
        return self._blobs.read(key, VALUE_BYTES_MAX)

    def exists(self, key: str) -> bool:
        """As ``Store.exists``."""
        return self._blobs.exists(key)

    def folders(self) -> list[str]:
        """As ``Store.folders``."""
        return sorted(self._blobs.folders(""))

    def list(self, prefix: str) -> list[str]:
        """As ``Store.list``."""
        return sorted(self._blobs.below(prefix))

    def delete(self, key: str) -> None:
        """As ``Store.delete``."""
        self._blobs.remove(key)


class NotMounted(OSError):
    """Another folder, or none, is where this process has read records: the disk may have lost its mount.

    A record in that folder would be gone when the disk is back.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(f"the folder {folder} is not the one that was there before")


class LocalStore(BlobStore):
    """Files on a local disk, durable when a call returns."""

    def __init__(self, root: Path) -> None:
        if not root.is_absolute():
            raise Refused(
                f"The ledger root {shown(str(root))!r} is neither an absolute path nor a URL.",
                code=codes.LEDGER_ROOT_UNUSABLE,
            )
        super().__init__(Disk(root), str(root))
        self._folder = root
        self._identity: tuple[int, int] | None = None

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """As ``Store.put_if_absent``. Raises NotMounted before it writes anything."""
        if self._identity and self._identity_now() != self._identity:
            raise NotMounted(self._folder)
        return super().put_if_absent(key, value)

    def get(self, key: str) -> bytes | None:
        """As ``Store.get``."""
        value = super().get(key)
        if value is not None:
            # The writer may have died between link and fsync, and what the caller acts on must survive a power cut.
            fsync.fsync((self._folder / key).parent)
            self._identity = self._identity or self._identity_now()
        return value

    def _identity_now(self) -> tuple[int, int] | None:
        """The device and inode of the root; None if there is no such folder."""
        try:
            found = os.stat(self._folder)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def list(self, prefix: str) -> list[str]:
        """As ``Store.list``; without the temporary files of writers, whose names begin with a dot."""
        return [key for key in super().list(prefix) if not key.rpartition("/")[2].startswith(".")]
