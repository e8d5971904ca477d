"""``up``, ``down`` and ``status``: a stack that outlives the command that started it.

``up`` starts a supervisor in the background. It owns all servers, starts a dead Spark Connect server again, and
ends them all on SIGTERM.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from stack import private
from stack.jars import fetch
from stack.processes import StackError
from stack.whole import Stack, State

START_S = 240.0
STOP_S = 40.0
WATCH_S = 0.5


def up(folder: Path) -> State:
    """Start the stack below ``folder`` and return when it is ready; if it is up already, just return its state.

    Raises:
        StackError: It did not start. Nothing is left running.
    """
    if state := running(folder):
        return state
    fetch("spark", "broker")  # here, where the user sees an error, and outside of the deadline
    private.make_folder(folder)
    (folder / "state.json").unlink(missing_ok=True)
    log = folder / "supervisor.log"
    with open(log, "wb", opener=private.opener) as output:
        main = Path(__file__).parents[1]
        supervisor = subprocess.Popen(
            [sys.executable, str(main), "supervise", "--folder", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=private.UMASK,
        )
    end = time.monotonic() + START_S
    while not (state := State.read(folder)):
        if supervisor.poll() is not None:
            raise StackError(f"The stack did not start:\n{log.read_text(errors='replace')[-3000:]}")
        if time.monotonic() > end:
            supervisor.terminate()
            raise StackError(f"The stack was not ready after {START_S:.0f} s; see the logs in {folder}.")
        time.sleep(0.1)
    return state


def running(folder: Path) -> State | None:
    """The state of the stack below ``folder`` if its supervisor lives."""
    state = State.read(folder)
    return state if state and _is_supervisor(state.supervisor) else None


def down(folder: Path) -> bool:
    """End the stack below ``folder`` and wait until all its processes are gone. Returns whether there was one.

    Also ends the servers of a supervisor that died without ending them.
    """
    state = State.read(folder)
    if state is None:
        return False
    written_at = (folder / "state.json").stat().st_mtime
    family = [process for pid in state.pids.values() for process in _server(pid, written_at)]
    supervisor = _is_supervisor(state.supervisor)
    if supervisor:
        supervisor.send_signal(signal.SIGTERM)
        psutil.wait_procs([supervisor], timeout=STOP_S)
        family.append(supervisor)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=STOP_S)
    (folder / "state.json").unlink(missing_ok=True)
    return True


def supervise(folder: Path) -> None:
    """Run the stack until SIGTERM. What ``up`` runs in the background."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    stack = Stack(folder, fetch("spark", "broker"))
    with stack:
        stack.state.write(folder)
        while not stopped.wait(WATCH_S):
            if stack.restart_dead_connect():
                stack.state.write(folder)
                print("spark connect had died; started it again", flush=True)


def _is_supervisor(pid: int) -> psutil.Process | None:
    """The process if it is a supervisor of ours, not a stranger that got the same number."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE and "supervise" in process.cmdline():
            return process
    return None


def _server(pid: int, written_at: float) -> list[psutil.Process]:
    """A server and all it started; nothing if the number now belongs to a stranger, who must be younger."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(pid)
        if process.create_time() <= written_at:
            return [*process.children(recursive=True), process]
    return []
