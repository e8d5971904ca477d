"""Processes of servers: who may start them, and how long they may take."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stack import processes
from stack.processes import Process, StackError


class Clock:
    """A clock on which each rest takes ten seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _seconds: float) -> None:
        self.now += 10


def test_a_server_that_is_slow_says_how_to_wait_longer_and_gets_that_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(processes, "time", clock)
    server = Process("server", [sys.executable, "-c", "import signal; signal.pause()"], log=tmp_path / "a.log")
    server.start()
    try:
        with pytest.raises(StackError, match="server was not ready after 90 s") as slow:
            server.wait_ready(lambda: clock.now >= 200)
        [typed] = re.findall(
            r"What to do: .*set (EPOCHS_STACK_WAIT)\b.*such as EPOCHS_STACK_WAIT=(\d+)", str(slow.value)
        )
        monkeypatch.setenv(*typed)
        clock.now = 0
        server.wait_ready(lambda: clock.now >= 200)
    finally:
        server.stop()


@pytest.mark.parametrize("given", ["soon", "0", "-3", "nan", "inf"])
def test_a_wait_that_is_no_number_of_seconds_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHS_STACK_WAIT", given)
    with pytest.raises(StackError, match=f"EPOCHS_STACK_WAIT is '{given}'. What to do: set it to a number of seconds"):
        processes.wait_s(90)
    monkeypatch.delenv("EPOCHS_STACK_WAIT")
    assert processes.wait_s(90) == 90


def test_a_thread_that_may_end_before_the_server_does_not_start_it(tmp_path: Path) -> None:
    """Linux would end the server with the thread: an event loop's threads end with the loop."""
    server = Process("server", [sys.executable, "-c", ""], log=tmp_path / "a.log")
    with ThreadPoolExecutor(1) as pool, pytest.raises(StackError, match="start it from the main thread"):
        pool.submit(server.start).result()
    assert not server.running
