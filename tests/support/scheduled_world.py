"""A world in memory whose every call is a value that can be answered now, later, or from a record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_epochs.errors import NotApplied, OutcomeUnknown
from airflow_epochs.model import TransactionId
from airflow_epochs.testing import DictStore, MemoryWorld, Place
from airflow_epochs.testing.world import Published, TableCommit


@dataclass(frozen=True)
class Effect:
    """A call of the world or of its store."""

    method: str
    args: tuple[object, ...]

    @cached_property
    def place(self) -> str:
        """Where in the world it looks or acts."""
        kind = {"publish": "table", "marker": "table"}.get(self.method, "place")
        return f"{'record' if self.method.startswith('store.') else kind} {self.args[0]}"

    @cached_property
    def is_private(self) -> bool:
        """Whether no other actor ever touches its place."""
        return any(part in self.place for part in NEVER_SHARED)

    def writes(self, now: Snapshot) -> frozenset[str]:
        """The places that it may change."""
        changes = self.method in ("store.delete", "stage", "discard", "publish", "vacuum")
        if self.method == "store.put_if_absent":
            changes = self.args[0] not in now.store
        return frozenset([self.place]) if changes else frozenset()

    def notices(self, written: frozenset[str]) -> bool:
        """Whether its answer may depend on one of those places; of effects that write nothing."""
        if self.method == "store.list":
            return any(place.startswith(f"{self.place}/") for place in written)
        return self.place in written

    @property
    def lost(self) -> Exception:
        """What the caller sees if the effect happens and its answer is lost."""
        what = f"the answer to {self} was lost"
        if self.method == "publish":
            return OutcomeUnknown(what, remedy="look at the table.")
        if self.method == "stage":
            return NotApplied(what, remedy="stage again.")
        return OSError(what)

    def is_settled(self, now: Snapshot) -> bool:
        """The answer is the same whenever it is given, and nobody else notices."""
        reads_record = self.method in ("store.get", "store.exists", "store.put_if_absent")
        return self.is_private or (reads_record and self.args[0] in now.store)

    def __str__(self) -> str:
        return f"{self.method} {' '.join(str(arg)[:90] for arg in self.args if not isinstance(arg, bytes | Place))}"


NEVER_SHARED = ("/probe/", "/takeovers/", "epochs/-", f"epochs/{0:020d}/")


class Suspended(BaseException):
    """The actor asks something that has no answer yet."""


@dataclass(frozen=True)
class Answer:
    """What a call returned or raised."""

    value: object = None
    error: Exception | None = None

    @property
    def key(self) -> object:
        if self.error:
            return type(self.error), str(self.error)
        return tuple(self.value) if isinstance(self.value, list) else self.value

    def give(self) -> object:
        if self.error:
            raise self.error.with_traceback(None)
        return list(self.value) if isinstance(self.value, list) else self.value


class Script:
    """Answers what was answered before; what is asked beyond that goes to ``beyond``, until it suspends.

    Then it suspends for good, also if a ``finally`` asks again on the way out.
    """

    def __init__(self, history: tuple[Answer, ...], beyond: Callable[[Effect], Answer | None]) -> None:
        self._left = list(reversed(history))
        self._beyond = beyond
        self._suspended = False

    def __call__(self, effect: Effect) -> object:
        if self._left:
            return self._left.pop().give()
        answer = None if self._suspended else self._beyond(effect)
        if answer is None:
            self._suspended = True
            raise Suspended
        return answer.give()


class ScheduledWorld(MemoryWorld):
    """A world whose every call goes through ``script``, if there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.script: Script | None = None
        self.store = ScheduledStore(self)

    def stage(self, name: str, place: Place) -> None:
        self.ask("stage", name, place)

    def place(self, name: str) -> Place | None:
        answer: Place | None = self.ask("place", name)
        return answer

    def marker(self, table: str, app: str) -> TransactionId | None:
        answer: TransactionId | None = self.ask("marker", table, app)
        return answer

    def publish(self, table: str, commit: TableCommit, previous: TransactionId | None) -> Published:
        answer: Published = self.ask("publish", table, commit, previous)
        return answer

    def discard(self, name: str, *, published: bool) -> None:
        self.ask("discard", name, published)

    def vacuum(self, name: str) -> None:
        self.ask("vacuum", name)

    def ask(self, method: str, *args: object) -> Any:
        """What the method of that name answers."""
        effect = Effect(method, args)
        return self.script(effect) if self.script else self.perform(effect)

    def perform(self, effect: Effect) -> object:
        """The call itself, on the world as it is now."""
        method, args = effect.method, effect.args
        if method.startswith("store."):
            return getattr(DictStore, method.removeprefix("store."))(self.store, *args)
        if method == "discard":
            name, published = args
            MemoryWorld.discard(self, str(name), published=bool(published))
            return None
        return getattr(MemoryWorld, method)(self, *args)


class ScheduledStore(DictStore):
    def __init__(self, world: ScheduledWorld) -> None:
        super().__init__()
        self._world = world

    def put_if_absent(self, key: str, value: bytes) -> bool:
        answer: bool = self._world.ask("store.put_if_absent", key, value)
        return answer

    def get(self, key: str) -> bytes | None:
        answer: bytes | None = self._world.ask("store.get", key)
        return answer

    def exists(self, key: str) -> bool:
        answer: bool = self._world.ask("store.exists", key)
        return answer

    def list(self, prefix: str) -> list[str]:
        answer: list[str] = self._world.ask("store.list", prefix)
        return answer

    def delete(self, key: str) -> None:
        self._world.ask("store.delete", key)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A world at a moment. Equal worlds are one object, so that they compare by identity."""

    store: dict[str, bytes]
    tables: dict[str, tuple[TableCommit, ...]]
    places: dict[str, Place]
