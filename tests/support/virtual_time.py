"""Time that passes only while everybody sleeps: hours of several actors in milliseconds, the same way every time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from heapq import heappop, heappush

BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)


class VirtualTime:
    """A clock, and threads of which one runs at a time: until it sleeps, when the next one wakes."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._asleep: list[tuple[float, int, threading.Event]] = []
        self._slept = 0
        self._all_over = threading.Event()
        self.errors: list[BaseException] = []

    def clock(self) -> datetime:
        return BEGIN + timedelta(seconds=self.seconds)

    def sleep(self, seconds: float) -> None:
        """To be called by a thread of ``run``, or by a test that is alone."""
        wake = threading.Event()
        self._queue(seconds, wake)
        self._wake_next()
        assert wake.wait(60), "the virtual time stands still"

    def run(self, *actors: Callable[[], None]) -> None:
        """Let all actors run to their ends. Raises the first error that one of them raised."""
        for actor in actors:
            turn = threading.Event()
            self._queue(0, turn)
            threading.Thread(target=self._act, args=(actor, turn), daemon=True).start()
        self._wake_next()
        assert self._all_over.wait(60), "the virtual time stands still"
        for error in self.errors:
            raise error

    def _act(self, actor: Callable[[], None], turn: threading.Event) -> None:
        turn.wait(60)
        try:
            actor()
        except BaseException as error:
            self.errors.append(error)
        finally:
            self._wake_next()

    def _queue(self, seconds: float, wake: threading.Event) -> None:
        self._slept += 1
        heappush(self._asleep, (self.seconds + seconds, self._slept, wake))

    def _wake_next(self) -> None:
        if self._asleep:
            self.seconds, _, wake = heappop(self._asleep)
            wake.set()
        else:
            self._all_over.set()
