"""A cache of the records that one task has read, so that the task asks the store only once for each.

Records are immutable, so a record that was read or put does not change until it is pruned. A record that was absent
may be put at any moment, so the store is asked for it each time, and for the names in a folder too.
"""

from __future__ import annotations

from airflow_epochs.ledger.store import Store

BYTES_MAX = 16 * 1024 * 1024
"""How many bytes of records are kept; the oldest go first. A backfill may read thousands of epochs."""


class Remembered:
    """A store behind a cache. It lives as long as one task, so no task trusts what another one has read."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._present: set[str] = set()

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """As ``Store.put_if_absent``. Keeps ``value`` only if this call is known to have stored it."""
        won = self._store.put_if_absent(key, value)
        if won:
            self._keep(key, value)
        return won

    def get(self, key: str) -> bytes | None:
        """As ``Store.get``; from memory if this task has read or put the value."""
        if key in self._values:
            return self._values[key]
        value = self._store.get(key)
        if value is not None:
            self._keep(key, value)
        return value

    def exists(self, key: str) -> bool:
        """As ``Store.exists``; asks again only if the answer was no."""
        if key not in self._present and self._store.exists(key):
            self._present.add(key)
        return key in self._present

    def folders(self) -> list[str]:
        """As ``Store.folders``; always asks the store."""
        return self._store.folders()

    def list(self, prefix: str) -> list[str]:
        """As ``Store.list``; always asks the store."""
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        """As ``Store.delete``; forgets the value first."""
        self._present.discard(key)
        self._bytes -= len(self._values.pop(key, b""))
        self._store.delete(key)

    def _keep(self, key: str, value: bytes) -> None:
        self._present.add(key)
        self._values[key] = value
        self._bytes += len(value)
        while self._bytes > BYTES_MAX:
            self._bytes -= len(self._values.pop(next(iter(self._values))))
