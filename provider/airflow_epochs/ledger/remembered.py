"""What one task has read of a ledger's store, so that it asks for no record twice.

Records are immutable, so one that was read, or put, is what it is until it is pruned. One that was absent may come at
any moment: the store is asked for it again each time, and so for the names in a folder.
"""

from __future__ import annotations

from airflow_epochs.ledger.store import Store

BYTES_MAX = 16 * 1024 * 1024
"""So much is kept of what was read; of more than that, the newest. A backfill may read thousands of epochs."""


class Remembered:
    """A store as one task knows it. Lives no longer than the task: the next one looks for itself."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        self._present: set[str] = set()

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """As ``Store.put_if_absent``. What was put is known; whatever a failed put has done is not."""
        won = self._store.put_if_absent(key, value)
        if won:
            self._keep(key, value)
        return won

    def get(self, key: str) -> bytes | None:
        """As ``Store.get``, from memory if the value was seen before."""
        if key in self._values:
            return self._values[key]
        value = self._store.get(key)
        if value is not None:
            self._keep(key, value)
        return value

    def exists(self, key: str) -> bool:
        """As ``Store.exists``; only a "no" is asked for again."""
        if key not in self._present and self._store.exists(key):
            self._present.add(key)
        return key in self._present

    def list(self, prefix: str) -> list[str]:
        """As ``Store.list``: always asked."""
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        """As ``Store.delete``."""
        self._present.discard(key)
        self._bytes -= len(self._values.pop(key, b""))
        self._store.delete(key)

    def _keep(self, key: str, value: bytes) -> None:
        self._present.add(key)
        self._values[key] = value
        self._bytes += len(value)
        while self._bytes > BYTES_MAX:
            self._bytes -= len(self._values.pop(next(iter(self._values))))
