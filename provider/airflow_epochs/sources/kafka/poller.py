"""One poller per Kafka cluster and process: it asks for the ends of all logs that somebody watches, in one request.

It is for tasks that wait without a worker slot, in Airflow's triggerer, where thousands may wait in one event loop.
Nothing here blocks the loop: a thread per cluster, with one client, asks the brokers. The first watch starts it, and
the last one that closes ends it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any, TypeVar

from airflow_epochs.kafka.connection import KafkaAccess
from airflow_epochs.sources.kafka.brokers import Brokers
from airflow_epochs.sources.kafka.logs import Partition

POLL_S = 0.25
PAUSE_S_MAX = 30.0
"""After failures, the pause between two polls doubles up to this."""
METADATA_S = 5.0
"""How many seconds the poller uses a list of partitions before it asks for a new one."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class PollOutcome:
    """What a poll saw: the last stable offset of each partition. Or why it saw nothing."""

    ends: Mapping[Partition, int]
    error: Exception | None = None


class Watch:
    """One watcher's view of topics. Shares the cluster's poller with all others in this event loop that reach it alike.

    ``close`` it: the last one ends the poller.
    """

    def __init__(self, access: KafkaAccess, topics: Sequence[str]) -> None:
        self.topics = frozenset(topics)
        self._newest, self._news = PollOutcome({}), asyncio.Event()
        self._join(access)

    async def next(self) -> PollOutcome:
        """Wait for a poll that has not been returned yet, and return what it saw of the watched topics that exist."""
        await self._news.wait()
        self._news.clear()
        return self._newest

    async def ask(self, question: Callable[[Brokers], Answer]) -> Answer:
        """Ask the brokers something else, through the same client. Raises what ``Brokers`` raises."""
        return await asyncio.wrap_future(self._poller.client.submit(question))

    def move(self, access: KafkaAccess) -> None:
        """Watch with other settings of the connection from now on. ``next`` then returns only polls with these."""
        self.close()
        self._news.clear()
        self._join(access)

    def _join(self, access: KafkaAccess) -> None:
        self.access, self._poller = access, _poller_of(access)
        self._poller.watches.add(self)

    def close(self) -> None:
        """Watch no longer. May be called again."""
        self._poller.watches.discard(self)
        if not self._poller.watches:
            self._poller.end()

    def tell(self, seen: PollOutcome) -> None:
        """Tell the watcher what a poll saw of its topics."""
        self._newest = seen
        self._news.set()


def _poller_of(access: KafkaAccess) -> _Poller:
    key = asyncio.get_running_loop(), replace(access, conn_id="")
    poller = _pollers.get(key)
    if poller is None:
        poller = _pollers[key] = _Poller(access, lambda: _pollers.pop(key, None))
    return poller


class _Poller:
    def __init__(self, access: KafkaAccess, forget: Callable[[], object]) -> None:
        self.watches: set[Watch] = set()
        self.client = _Client(access)
        self._forget = forget
        self._partitions = _Partitions()
        # in an empty context: what it logs does not go to the log of the task that happened to be the first
        self._polling = Context().run(asyncio.get_running_loop().create_task, self._poll())

    def end(self) -> None:
        self._forget()
        self._polling.cancel()
        self.client.end()

    async def _poll(self) -> None:
        pause = POLL_S
        while True:
            topics = frozenset[str]().union(*(each.topics for each in self.watches))
            seen = await self._look(topics)
            if seen:
                self._tell(topics, seen)
            pause = min(2 * pause, PAUSE_S_MAX) if seen and seen.error else POLL_S
            await asyncio.sleep(pause)

    async def _look(self, topics: frozenset[str]) -> PollOutcome | None:
        """Poll once; None while somebody deletes one of the topics: only the next poll can see which one."""
        try:
            ends = await asyncio.wrap_future(self.client.submit(lambda b: self._partitions.ends(b, topics)))
        except Exception as error:
            self._partitions = _Partitions()
            return PollOutcome({}, error)
        return None if ends is None else PollOutcome(ends)

    def _tell(self, topics: frozenset[str], seen: PollOutcome) -> None:
        of_topic = _by_topic(seen.ends)  # once for all watches: thousands may share this loop
        for each in tuple(self.watches):
            if each.topics <= topics:  # else it came during this poll, which knows nothing of its topics
                own = [of_topic.get(topic, {}) for topic in sorted(each.topics)]
                each.tell(replace(seen, ends={at: end for ends in own for at, end in ends.items()}))


def _by_topic(ends: Mapping[Partition, int]) -> dict[str, dict[Partition, int]]:
    found: dict[str, dict[Partition, int]] = {}
    for at, end in ends.items():
        found.setdefault(at[0], {})[at] = end
    return found


class _Partitions:
    """The partitions of some topics, as they were ``METADATA_S`` ago or later."""

    def __init__(self) -> None:
        self._topics: frozenset[str] = frozenset()
        self._known: list[Partition] = []
        self._asked_at = 0.0

    def ends(self, brokers: Brokers, topics: frozenset[str]) -> dict[Partition, int] | None:
        """Per partition, its last stable offset; None if a partition is no longer there."""
        if topics != self._topics or time.monotonic() > self._asked_at + METADATA_S:
            self._known = brokers.partitions(sorted(topics))
            self._topics, self._asked_at = topics, time.monotonic()
        ends = brokers.stable_ends(self._known)
        if ends is None:
            self._asked_at = 0.0
        return ends


class _Client:
    """A client of one cluster on a thread of its own, where it answers one question after the other."""

    def __init__(self, access: KafkaAccess) -> None:
        self._access = access
        self._brokers: Brokers | None = None
        self._asked: SimpleQueue[tuple[Future[Any], Callable[[Brokers], Any]] | None] = SimpleQueue()
        # a daemon: no process waits at its end for brokers that do not answer
        threading.Thread(target=self._serve, name=f"epochs poller {access.servers[0]}", daemon=True).start()

    def submit(self, question: Callable[[Brokers], Answer]) -> Future[Answer]:
        answer: Future[Answer] = Future()
        self._asked.put((answer, question))
        return answer

    def end(self) -> None:
        self._asked.put(None)

    def _serve(self) -> None:
        while asked := self._asked.get():
            answer, question = asked
            if answer.set_running_or_notify_cancel():
                self._answer(answer, question)
        self._disconnect()

    def _answer(self, answer: Future[Any], question: Callable[[Brokers], Any]) -> None:
        try:
            answer.set_result(question(self._connected()))
        except Exception as error:
            self._disconnect()  # a client that gave up answers nothing any more
            answer.set_exception(error)

    def _connected(self) -> Brokers:
        self._brokers = self._brokers or Brokers(self._access).__enter__()
        return self._brokers

    def _disconnect(self) -> None:
        if self._brokers:
            self._brokers.__exit__(None, None, None)
        self._brokers = None


_pollers: dict[tuple[asyncio.AbstractEventLoop, KafkaAccess], _Poller] = {}
