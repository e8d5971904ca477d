"""A world for random schedules: processes that can be paused at any call, and calls that can fail in every way.

A process is re-run from its start with the answers it got before, up to the call it was paused at (see ``schedules``);
so all that it asks of the world goes through ``ask``, topics included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import count
from random import Random

from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.coordinator.task import TaskTry
from airflow_epochs.errors import EpochError, NotApplied, OutcomeUnknown
from airflow_epochs.ledger.codec import decode
from airflow_epochs.model import DecisionKind, DecisionRecord, OffsetRange, TransactionId
from airflow_epochs.testing import (
    Act,
    Event,
    Fault,
    MemoryEnvironment,
    memory_coordinator,
    memory_pipeline,
)
from airflow_epochs.testing.history import copy_of_ledger
from airflow_epochs.testing.ledger_facts import newest_complete_of
from airflow_epochs.testing.world import Row, TableCommit
from tests.support.recorded import PIPELINE, Recorder
from tests.support.scheduled_world import Answer, Effect, ScheduledWorld, Script, Suspended
from tests.support.schedules import drawn_ids

STEPS_MAX = 2000
"""More calls than any task makes."""

Action = Callable[[Coordinator], object]


@dataclass(kw_only=True)
class Swarm:
    """Which faults a run has, and how often. A subset per run finds more than all of them at once."""

    rates: dict[str, float]
    random: Random
    down_for: int = 0
    """How many more calls the ledger does not answer."""
    fired: dict[str, int] = field(default_factory=dict)

    @classmethod
    def drawn(cls, random: Random) -> Swarm:
        """Each kind of fault with one half's chance, each at a rate of its own.

        A sink that votes against what a VACUUM made necessary to stage again breaks its promise; no run mends that.
        """
        kinds = [kind for kind in ("lost", "refused", "down", "vote", "vacuum") if random.random() < 0.5]
        rates = {kind: random.choice([0.01, 0.05, 0.15]) for kind in kinds}
        votes_against = "vote" in rates and "vacuum" not in rates
        return cls(rates={**rates, "vote": random.choice([0.2, 0.5]) if votes_against else 0.0}, random=random)

    def of(self, effect: Effect) -> Fault | None:
        """What befalls a call."""
        is_store = effect.method.startswith("store.")
        if is_store and self.down_for:
            self.down_for -= 1
            return Fault.REFUSED
        if is_store and self.strikes("down"):
            self.down_for = self.random.randrange(1, 40)
            return Fault.REFUSED
        if self.strikes("lost"):
            return Fault.LOST_ACKNOWLEDGEMENT
        return Fault.REFUSED if self.strikes("refused") else None

    def strikes(self, kind: str) -> bool:
        strikes = self.random.random() < self.rates.get(kind, 0)
        if strikes:
            self.fired[kind] = self.fired.get(kind, 0) + 1
        return strikes

    @property
    def has_failed_calls(self) -> bool:
        return any(self.fired.get(kind) for kind in ("lost", "refused", "down"))

    def stop(self) -> None:
        """No more faults: what comes now must come to rest."""
        self.rates, self.down_for = {}, 0


class Refusals(dict[str, str]):
    """Why sinks vote VOTE_ABORT; asking is a call like any other."""

    def __init__(self, world: RandomWorld) -> None:
        super().__init__()
        self._world = world

    def get(self, sink: str, default: object = None) -> str | None:  # type: ignore[override]  # nobody asks for a default of his own
        answer: str | None = self._world.ask("refusal", sink)
        return answer


class RandomWorld(ScheduledWorld):
    """A world whose every call may fail, recorded for the checkers."""

    def __init__(self, swarm: Swarm) -> None:
        super().__init__()
        self.swarm = swarm
        self.refusals = Refusals(self)
        self.recorder = Recorder(self)
        self.trace: list[Event] = []
        self.staged_late = False
        """Whether a process staged for an epoch whose sweeps were over."""

    def ends(self, topic: str) -> dict[int, int]:
        ends: dict[int, int] = self.ask("ends", topic)
        return dict(ends)

    def start(self, topic: str, partition: int) -> int:
        answer: int = self.ask("start", topic, partition)
        return answer

    def read(self, topic: str, wanted: OffsetRange) -> tuple[Row, ...]:
        answer: tuple[Row, ...] = self.ask("read", topic, wanted)
        return answer

    def perform(self, effect: Effect) -> object:
        if effect.method == "refusal":
            return "its schema does not match" if self.swarm.strikes("vote") else None
        return super().perform(effect)

    def unpublished(self) -> list[str]:
        """The staging places whose files a VACUUM takes."""
        published = {commit.place for commits in self.tables.values() for commit in commits}
        return sorted(name for name, place in self.places.items() if place.files and name not in published)

    def answer(self, actor: str, effect: Effect) -> Answer:
        """One call of a process, with what befalls it."""
        fault = self.swarm.of(effect)
        answer = Answer(error=refused(effect))
        if fault is not Fault.REFUSED:
            answer = self._performed(actor, effect)
        if fault is Fault.LOST_ACKNOWLEDGEMENT and not answer.error:
            answer = Answer(error=effect.lost if effect.method in WRITES else refused(effect))
        if effect.method.startswith("store.") and (effect.method in WRITES or not answer.error):
            self.trace.append(Event(actor, Act.LOST if answer.error else Act.LOOKED, key_of(effect)))
        return answer

    def _performed(self, actor: str, effect: Effect) -> Answer:
        before = dict(self.tables), len(self.store.values)
        try:
            answer = Answer(self.perform(effect))
        except Exception as error:
            return Answer(error=error)
        if effect.method == "stage":
            newest = newest_complete_of(copy_of_ledger(self.store, PIPELINE))
            self.staged_late |= txn_of_place(str(effect.args[0])).epoch < newest
        if effect.method in WRITES:
            self.trace += events(actor, effect, before[0] != self.tables, before[1] != len(self.store.values))
            self.recorder(f"after {effect}")
        return answer


WRITES = ("store.put_if_absent", "store.delete", "stage", "publish", "discard")


def key_of(effect: Effect) -> str:
    return str(effect.args[0]).removeprefix(f"{PIPELINE}/")


def refused(effect: Effect) -> Exception:
    """What the caller sees if a call did not happen, as far as it can tell."""
    what = f"{effect} failed"
    if effect.method.startswith("store.") or effect.method == "discard":
        return OSError(what)
    if effect.method in ("stage", "ends", "start", "read"):
        return NotApplied(what, remedy="try again.")
    return OutcomeUnknown(what, remedy="look, and try again.")


def events(actor: str, effect: Effect, shown: bool, written: bool) -> Iterable[Event]:
    """What a call that happened means for the trace."""
    if effect.method == "store.put_if_absent" and written and key_of(effect).endswith(".decision.json"):
        value = effect.args[1]
        assert isinstance(value, bytes)
        record = decode(value, DecisionRecord)
        committed = record.decision is DecisionKind.GLOBAL_COMMIT
        yield Event(actor, Act.DECIDED, key_of(effect), record.txn_id if committed else "")
    if effect.method == "publish" and shown:
        commit = effect.args[1]
        assert isinstance(commit, TableCommit)
        yield Event(actor, Act.COMMITTED, str(effect.args[0]), commit.txn_id)
    if effect.method == "discard":
        place = str(effect.args[0])
        yield Event(actor, Act.DISCARDED, place, str(txn_of_place(place)))


def txn_of_place(place: str) -> TransactionId:
    """The sink and attempt of a place, without the id of its try."""
    epoch, attempt, _ = place.rpartition("/")[2].split("-")
    return TransactionId(PIPELINE, int(epoch), int(attempt), "0" * 32)


@dataclass
class Process:
    """One task process. ``sinks`` are those of the DAG when it started; it never sees another version of it."""

    world: RandomWorld
    number: int
    name: str
    sinks: tuple[str, ...]
    action: Action
    answers: list[Answer] = field(default_factory=list)
    finished: bool = False
    error: EpochError | None = None

    def advance(self, calls: int = STEPS_MAX) -> bool:
        """Let it make that many calls; whether it has ended."""
        left = calls

        def beyond(effect: Effect) -> Answer | None:
            nonlocal left
            if left == 0:
                return None
            left -= 1
            self.world.script = None
            answer = self.world.answer(f"{self.number}: {self.name}", effect)
            self.world.script = script
            self.answers.append(answer)
            return answer

        script = self.world.script = Script(tuple(self.answers), beyond)
        try:
            with drawn_ids(f"{self.number}-"):
                self.action(self._coordinator())
        except Suspended:
            return False
        except EpochError as error:
            self.error = error
        finally:
            self.world.script = None
        self.finished = True
        return True

    def _coordinator(self) -> Coordinator:
        pipeline = memory_pipeline(self.world, self.sinks, name=PIPELINE)
        coordinator = memory_coordinator(self.world, pipeline)
        drawn = count(self.number << 16)
        return Coordinator(
            TaskTry(
                pipeline=pipeline,
                ledger=coordinator.task.ledger,
                env=MemoryEnvironment(),
                clock=lambda: datetime(2026, 1, 1, tzinfo=timezone.utc),
                draw_id=lambda: f"{2 * next(drawn):016x}{0:016x}",
                writer=f"process {self.number}",
            )
        )
