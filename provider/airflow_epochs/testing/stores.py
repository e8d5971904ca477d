"""Byte stores for tests: one in a dict, one that fails on request, one that ignores "if absent"."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from threading import Lock
from typing import TypeVar

from airflow_epochs.ledger.store import Store

T = TypeVar("T")

Observer = Callable[[str], None]


def unobserved(effect: str) -> None:
    """The observer that lets everything pass."""


class DictStore:
    """A ``Store`` in a dict. ``observer`` sees ``before put <key>`` and ``after put <key>``, and so for delete."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.observer: Observer = unobserved
        self._lock = Lock()

    def put_if_absent(self, key: str, value: bytes) -> bool:
        self.observer(f"before put {key}")
        with self._lock:
            won = key not in self.values
            self.values.setdefault(key, value)
        self.observer(f"after put {key}")
        return won

    def get(self, key: str) -> bytes | None:
        return self.values.get(key)

    def exists(self, key: str) -> bool:
        return key in self.values

    def list(self, prefix: str) -> list[str]:
        return sorted(key for key in self.values if key.startswith(f"{prefix}/"))

    def delete(self, key: str) -> None:
        self.observer(f"before delete {key}")
        self.values.pop(key, None)
        self.observer(f"after delete {key}")


class OverwritingStore(DictStore):
    """A store that takes every put and overwrites: the ledger must find out and refuse it."""

    def put_if_absent(self, key: str, value: bytes) -> bool:
        self.values[key] = value
        return True


class Fault(Enum):
    LOST_ACKNOWLEDGEMENT = "the effect happens, and the caller sees an error"
    REFUSED = "the effect does not happen, and the caller sees an error"


class FaultyStore:
    """A store with faults. ``fault(operation, key)`` is asked before each call; ``calls`` and ``fired`` tell what was.

    Operations are ``put``, ``get``, ``exists``, ``list`` and ``delete``. What is raised is an ``OSError``, which
    says nothing about the effect, like those of real stores.
    """

    def __init__(self, store: Store, fault: Callable[[str, str], Fault | None] = lambda operation, key: None) -> None:
        self._store = store
        self.fault = fault
        self.calls: list[tuple[str, str]] = []
        self.fired: list[tuple[str, str]] = []

    def put_if_absent(self, key: str, value: bytes) -> bool:
        return self._through("put", key, lambda: self._store.put_if_absent(key, value))

    def get(self, key: str) -> bytes | None:
        return self._through("get", key, lambda: self._store.get(key))

    def exists(self, key: str) -> bool:
        return self._through("exists", key, lambda: self._store.exists(key))

    def list(self, prefix: str) -> list[str]:
        return self._through("list", prefix, lambda: self._store.list(prefix))

    def delete(self, key: str) -> None:
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
