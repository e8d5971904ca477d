"""Processes of servers: who may start them."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stack.processes import Process, StackError


def test_a_thread_that_may_end_before_the_server_does_not_start_it(tmp_path: Path) -> None:
    """Linux would end the server with the thread: an event loop's threads end with the loop."""
    server = Process("server", [sys.executable, "-c", ""], log=tmp_path / "a.log")
    with ThreadPoolExecutor(1) as pool, pytest.raises(StackError, match="start it from the main thread"):
        pool.submit(server.start).result()
    assert not server.running
