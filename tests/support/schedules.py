"""A small model checker: actors that share a world, interleaved at every effect and every read, all schedules.

An actor is a sequence of tasks, and a task is a deterministic function of what it has observed: the answers to its
reads and effects so far. So its next step needs no thread: run it again from its start, answer what was answered
before, and stop it at the first question without an answer. Steps are cached per task and history; worlds and
actors together make a state, and each state is visited once. An actor that is never scheduled again has crashed:
every world is also checked as the one in which everybody died. An effect may also happen without its caller being
told, as often in a schedule as ``lost_answers`` says.

Reads whose answer no other actor will change are taken at once: when they happen makes no difference to anybody.
Effects are never hurried, so that every world that can be reached is reached.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import patch

from tests.support.scheduled_world import Answer, Effect, ScheduledWorld, Script, Snapshot, Suspended


@dataclass(eq=False)
class Node:
    """An actor within a task, after a history: what it asks next; nothing, once it has ended."""

    task: int
    carry: Hashable
    history: tuple[Answer, ...] = ()
    asks: Effect | None = None
    after: dict[object, Node] = field(default_factory=dict)
    following: Node | None = None
    """The start of the next task, if this one has ended and there is one."""

    @property
    def resolved(self) -> Node:
        return self.following.resolved if self.following else self

    def answered(self, answer: Answer) -> Node:
        self.after[answer.key] = Node(self.task, self.carry, (*self.history, answer))
        return self.after[answer.key]


@contextmanager
def _without_collections() -> Iterator[None]:
    """Python's garbage collector looks at all states again and again, and every one of them is still needed."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


Task = Callable[[Hashable], "tuple[int | None, Hashable]"]
"""One process: takes what the one before left (XCom), returns which task is next, if any, and what it leaves."""


Live = Callable[[Node], "Answer | None"]
"""Answers what a node asks at once, or not yet."""


@dataclass
class Actor:
    """Tasks, one after the other, each a process of its own. What one raises is an error of the model."""

    name: str
    tasks: list[Task]
    executions: int = 0
    _starts: dict[tuple[int, Hashable], Node] = field(default_factory=dict)

    def start(self, world: ScheduledWorld, live: Live, task: int = 0, carry: Hashable = None) -> Node:
        if (task, carry) in self._starts:
            return self._starts[task, carry].resolved
        node = self._starts[task, carry] = Node(task, carry)
        return self._executed(world, node, live)

    def advance(self, world: ScheduledWorld, node: Node, answer: Answer, live: Live) -> Node:
        if answer.key in node.after:
            return node.after[answer.key].resolved
        return self._executed(world, node.answered(answer), live)

    def _executed(self, world: ScheduledWorld, node: Node, live: Live) -> Node:
        """The node that the actor comes to as long as ``live`` answers."""
        self.executions += 1
        reached = node

        def beyond(effect: Effect) -> Answer | None:
            nonlocal reached
            reached.asks = effect
            world.script = None
            answer = live(reached)
            world.script = script
            if answer:
                reached = reached.answered(answer)
            return answer

        script = world.script = Script(node.history, beyond)
        try:
            with drawn_ids(f"{self.name}{node.task}-"):
                following, carry = self.tasks[node.task](node.carry)
        except Suspended:
            return reached
        finally:
            world.script = None
        if following is None:
            return reached
        last = self.start(world, live, following, carry)
        reached.following = self._starts[following, carry]
        return last


@contextmanager
def drawn_ids(name: str) -> Iterator[None]:
    """The ledger's random ids, the same in every execution of an actor."""
    drawn = iter(range(10**6))
    with patch(
        "airflow_epochs.ledger.ledger.uuid", SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"{name}{next(drawn)}"))
    ):
        yield


class State(NamedTuple):
    now: Snapshot
    nodes: tuple[Node, ...]
    lost: int = 0
    """How many answers were lost on the way."""


@dataclass(repr=False)
class Exploration:
    """All schedules of ``actors`` from the world as it is now.

    Attributes:
        invariant: Called once per distinct world, loaded with it; may change it, as recoveries do.
        lost_answers: How many effects of a schedule may lose their acknowledgement, any ones.
        states, transitions, worlds: How much was seen.
        schedules: The number of different complete schedules that the explored graph stands for.
    """

    world: ScheduledWorld
    actors: list[Actor]
    invariant: Callable[[], None]
    lost_answers: int = 0
    states: int = 0
    transitions: int = 0
    schedules: int = 0
    _worlds: dict[object, Snapshot] = field(default_factory=dict)
    _loaded: Snapshot | None = None
    _alone: dict[tuple[Snapshot, Node], frozenset[str]] = field(default_factory=dict)
    _came_from: dict[State, tuple[State, str]] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Without the worlds and actors: a test that fails would print for minutes."""
        return f"<{self.states} states, {self.worlds} worlds, {self.schedules:.1e} schedules>"

    @property
    def worlds(self) -> int:
        return len(self._worlds)

    def run(self) -> None:
        now = self._snapshot()
        nodes = tuple(actor.start(self.world, lambda node: None) for actor in self.actors)
        with _without_collections():
            self.schedules = self._explore(self._onward(State(now, nodes)))

    def _explore(self, first: State) -> int:
        """Depth first, without recursion; the number of schedules from ``first`` to an end."""
        counts: dict[State, int] = {}
        successors: dict[State, list[State]] = {}
        stack = [first]
        while stack:
            state = stack[-1]
            if state in counts:
                stack.pop()
            elif state not in successors:
                self.states += 1
                successors[state] = self._successors(state)
                stack += [after for after in successors[state] if after not in counts]
            else:
                counts[state] = sum(counts[after] for after in successors[state]) or 1
                stack.pop()
        return counts[first]

    def _successors(self, state: State) -> list[State]:
        found = []
        for index, loses in self._choices(state):
            step = f"{self.actors[index].name}: {state.nodes[index].asks}{' (answer lost)' if loses else ''}"
            try:
                after = self._onward(self._step(state, index, loses))
            except Exception as error:
                raise AssertionError(f"{error}\n{self._schedule(state)}\n{step}\n…") from error
            self._came_from.setdefault(after, (state, step))
            found.append(after)
        return found

    def _choices(self, state: State) -> Iterator[tuple[int, bool]]:
        """Who may go next, and whether the answer is lost."""
        for index, node in enumerate(state.nodes):
            if node.asks:
                yield index, False
                if state.lost < self.lost_answers and node.asks.writes(state.now):
                    yield index, True

    def _onward(self, state: State) -> State:
        """The state after all steps that can be taken first."""
        index = 0
        while index < len(state.nodes):
            if self._unnoticed(state.now, state.nodes[index], state.nodes, index):
                state, index = self._step(state, index), 0
            else:
                index += 1
        return state

    def _unnoticed(self, now: Snapshot, node: Node, nodes: tuple[Node, ...], index: int) -> bool:
        """Whether the step of ``node`` can be taken first without losing a schedule that differs.

        It must change nothing, and its answer must stay the same whatever the other actor does from here on by
        itself, which is a single path. (With more than two actors, only settled answers count.)
        """
        effect = node.asks
        if effect is None:
            return False
        if effect.is_settled(now):
            return True
        if effect.writes(now) or len(nodes) != 2:
            return False
        return not effect.notices(self._writes_alone(now, 1 - index, nodes[1 - index]))

    def _writes_alone(self, now: Snapshot, index: int, node: Node) -> frozenset[str]:
        """What the actor writes if from here on it runs alone to its end."""
        path: list[tuple[Snapshot, Node, frozenset[str]]] = []

        def unknown(now: Snapshot, node: Node) -> bool:
            if node.asks is None or (now, node) in self._alone:
                return False
            path.append((now, node, node.asks.writes(now)))
            return True

        while unknown(now, node):
            now, node = self._asked(now, index, node, unknown)
        written = self._alone.get((now, node), frozenset())
        for before, asking, writes in reversed(path):
            written = written | writes if writes else written
            self._alone[before, asking] = written
        return written

    def _step(self, state: State, index: int, loses: bool = False) -> State:
        nodes = state.nodes
        now, node = self._asked(state.now, index, nodes[index], lambda s, n: self._unnoticed(s, n, nodes, index), loses)
        return State(now, (*nodes[:index], node, *nodes[index + 1 :]), state.lost + loses)

    def _asked(
        self, now: Snapshot, index: int, node: Node, goes_on: Callable[[Snapshot, Node], bool], loses: bool = False
    ) -> tuple[Snapshot, Node]:
        """The world and the actor after its step, and after those that follow as long as ``goes_on`` says."""

        def live(reached: Node) -> Answer | None:
            nonlocal now
            if not goes_on(now, reached):
                return None
            now, answer = self._performed(now, reached)
            return answer

        now, answer = self._performed(now, node)
        if loses:
            assert node.asks
            answer = Answer(error=node.asks.lost)
        node = self.actors[index].advance(self.world, node, answer, live)
        return now, node

    def _performed(self, now: Snapshot, node: Node) -> tuple[Snapshot, Answer]:
        assert node.asks
        self.transitions += 1
        self._load(now)
        try:
            answer = Answer(self.world.perform(node.asks))
        except Exception as error:
            answer = Answer(error=error)
        if node.asks.writes(now):
            now = self._loaded = self._snapshot()
        return now, answer

    def _load(self, snapshot: Snapshot) -> None:
        if snapshot is self._loaded:
            return
        self._loaded = snapshot
        self.world.store.values = dict(snapshot.store)
        self.world.tables = dict(snapshot.tables)
        self.world.places = dict(snapshot.places)

    def _snapshot(self) -> Snapshot:
        store, tables, places = self.world.store.values, self.world.tables, self.world.places
        key = (frozenset(store.items()), frozenset(tables.items()), frozenset(places.items()))
        known = self._worlds.get(key)
        if known is None:
            known = self._worlds[key] = Snapshot(dict(store), dict(tables), dict(places))
        return known

    def check_worlds(self) -> None:
        """Every world that any schedule passes through, as the one in which everybody died."""
        checked: set[Snapshot] = set()
        for state in list(self._came_from):
            if state.now in checked:
                continue
            checked.add(state.now)
            self._load(state.now)
            self._loaded = None  # the invariant may change the world
            try:
                self.invariant()
            except AssertionError as error:
                raise AssertionError(f"{error}\n{self._schedule(state)}") from error

    def _schedule(self, state: State) -> str:
        steps = []
        while state in self._came_from:
            state, step = self._came_from[state]
            steps.append(step)
        return "\n".join(reversed(steps))
