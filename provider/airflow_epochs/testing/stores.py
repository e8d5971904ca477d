"""Byte stores for tests: one keeps a dict, one fails on request, one ignores "if absent"."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from threading import Lock
from typing import TypeVar

from airflow_epochs.ledger.store import Store

T = TypeVar("T")

Observer = Callable[[str], None]


def unobserved(effect: str) -> None:
    """An observer that does nothing."""


class DictStore:
    """A ``Store`` in a dict. ``observer`` gets ``before put <key>`` and ``after put <key>``; likewise for delete."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.observer: Observer = unobserved
        self._lock = Lock()

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Atomic, also between threads."""
        self.observer(f"before put {key}")
        with self._lock:
            won = key not in self.values
            self.values.setdefault(key, value)
        self.observer(f"after put {key}")
        return won

    def get(self, key: str) -> bytes | None:
        """None if the key is absent."""
        return self.values.get(key)

    def exists(self, key: str) -> bool:
        """Whether the key is there."""
        return key in self.values

    def folders(self) -> list[str]:
        """The first parts of all keys, sorted."""
        return sorted({key.partition("/")[0] for key in self.values})

    def list(self, prefix: str) -> list[str]:
        """All keys below the folder ``prefix``, sorted."""
        return sorted(key for key in self.values if key.startswith(f"{prefix}/"))

    def delete(self, key: str) -> None:
        """Delete the key; no error if it is absent."""
        self.observer(f"before delete {key}")
        self.values.pop(key, None)
        self.observer(f"after delete {key}")


class OverwritingStore(DictStore):
    """A store that accepts every put and overwrites. The ledger must notice that, and refuse the store."""

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Put the value, whether the key is absent or not. Returns True."""
        self.values[key] = value
        return True


class Fault(Enum):
    """How a call of ``FaultyStore`` fails."""

    LOST_ACKNOWLEDGEMENT = "the effect happens, and the caller sees an error"
    REFUSED = "the effect does not happen, and the caller sees an error"


class FaultyStore:
    """A store with faults. It asks ``fault(operation, key)`` before each call.

    Operations are ``put``, ``get``, ``exists``, ``list``, ``folders`` and ``delete``. A fault raises
    ``OSError``, which, like the errors of real stores, says nothing about the effect.

    Attributes:
        calls: All calls: operation and key.
        fired: The calls that failed.
    """

    def __init__(self, store: Store, fault: Callable[[str, str], Fault | None] = lambda operation, key: None) -> None:
        self._store = store
        self.fault = fault
        self.calls: list[tuple[str, str]] = []
        self.fired: list[tuple[str, str]] = []

    def put_if_absent(self, key: str, value: bytes) -> bool:
        """Operation ``put``."""
        return self._through("put", key, lambda: self._store.put_if_absent(key, value))

    def get(self, key: str) -> bytes | None:
        """Operation ``get``."""
        return self._through("get", key, lambda: self._store.get(key))

    def exists(self, key: str) -> bool:
        """Operation ``exists``."""
        return self._through("exists", key, lambda: self._store.exists(key))

    def folders(self) -> list[str]:
        """Operation ``folders``; the fault gets an empty key."""
        return self._through("folders", "", self._store.folders)

    def list(self, prefix: str) -> list[str]:
        """Operation ``list``; the fault gets the prefix as its key."""
        return self._through("list", prefix, lambda: self._store.list(prefix))

    def delete(self, key: str) -> None:
        """Operation ``delete``."""
        self._through("delete", key, lambda: self._store.delete(key))

    def _through(self, operation: str, key: str, effect: Callable[[], T]) -> T:
        self.calls.append((operation, key))
        fault = self.fault(operation, key)
        if fault is None:
            return effect()
        self.fired.append((operation, key))
        if fault is Fault.LOST_ACKNOWLEDGEMENT:
            effect()
        raise OSError(f"{operation} {key}: connection reset by peer")
