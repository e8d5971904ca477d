"""``up``, ``down`` and ``status``: a stack that outlives the command that started it.

``up`` starts a supervisor in the background. It owns all servers, starts a dead Spark Connect server again, and
ends them all on SIGTERM. A further ``up`` lets it start all else that has died.
"""

from __future__ import annotations

import contextlib
import fcntl
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import psutil

from stack import private, shell
from stack.jars import fetch
from stack.processes import StackError, wait_longer, wait_s
from stack.whole import PARTS, Stack, State

START_S = 240.0
STOP_S = 40.0
WATCH_S = 0.5
ENDING = (signal.SIGTERM, signal.SIGINT)
LOCK, LOG = "lock", "supervisor.log"
REQUEST = "start-what-died"
"""A file with this name lets the supervisor start what has died. One of an older version overlooks it."""
OF_THE_DEMO = "of-the-demo"
"""A file with this name says that `make demo` may delete the folder: `make stack-up` has not used it."""


def up(folder: Path) -> State:
    """Start the stack below ``folder`` and return when it is ready; if it is up already, start what has died of it.

    Raises:
        StackError: It did not start, and nothing is left running; or a part did not start again.
    """
    if state := running(folder):
        return _completed(folder, state)
    limit_s = wait_s(START_S)
    fetch("spark", "broker")  # here, where the user sees an error, and outside of the deadline
    private.make_folder(folder)
    with _locked(folder) as lock:
        (folder / "state.json").unlink(missing_ok=True)
        supervisor = _start(folder, lock)
        try:
            return _when_ready(folder, supervisor, limit_s)
        except BaseException:  # Ctrl-C, too: the supervisor does not hear of it
            _end(supervisor)
            raise


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[TextIO]:
    """The lock of ``folder``. It is held for as long as this process, or one that inherits the file, has it open."""
    with open(folder / LOCK, "a+", opener=private.opener) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError(
                f"Another command is starting or ending the stack in {folder}. "
                "What to do: wait until it is done, or end the stack with `make stack-down`."
            ) from None
        yield lock


def _start(folder: Path, lock: TextIO) -> subprocess.Popen[bytes]:
    """A supervisor, which inherits the lock. Its process id is in the lock's file, where ``down`` finds it."""
    lock.truncate(0)
    with open(folder / LOG, "wb", opener=private.opener) as output:
        main = Path(__file__).parents[1]
        supervisor = subprocess.Popen(
            [sys.executable, str(main), "supervise", "--folder", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=private.UMASK,
            pass_fds=[lock.fileno()],
        )
    lock.write(str(supervisor.pid))
    lock.flush()
    return supervisor


def _when_ready(folder: Path, supervisor: subprocess.Popen[bytes], limit_s: float) -> State:
    end = time.monotonic() + limit_s
    while not (state := State.read(folder)):
        if supervisor.poll() is not None:
            raise StackError(f"The stack did not start:\n{(folder / LOG).read_text(errors='replace')[-3000:]}")
        if time.monotonic() > end:
            raise StackError(
                f"The stack was not ready after {limit_s:.0f} s, and was ended. Its logs are in {folder}.\n"
                f"{wait_longer(limit_s)}"
            )
        time.sleep(0.1)
    return state


def _completed(folder: Path, state: State) -> State:
    """The state once all parts of a running stack run."""
    limit_s = wait_s(START_S)
    end = time.monotonic() + limit_s
    if dead(folder, state):
        (folder / REQUEST).touch()
    while lacking := dead(folder, state):
        if time.monotonic() > end or not running(folder):
            raise StackError(
                f"{', '.join(lacking)} died, and did not start again within {limit_s:.0f} s. The logs are in {folder}. "
                "What to do: end the stack with `make stack-down`, and start it again with `make stack-up`."
            )
        time.sleep(0.1)
        state = State.read(folder) or state
    return state


def dead(folder: Path, state: State) -> list[str]:
    """The parts of a running stack that do not run."""
    written_at = (folder / "state.json").stat().st_mtime
    return [name for name in PARTS if not _lives(state.pids.get(name), written_at)]


def _lives(pid: int | None, written_at: float) -> bool:
    """Whether the server runs. One that has died may stay as a zombie: its parent, the supervisor, does not look."""
    found = _server(pid, written_at) if pid else []
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(found) and found[-1].status() != psutil.STATUS_ZOMBIE
    return False


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    supervisor.terminate()
    try:
        supervisor.wait(STOP_S)
    except subprocess.TimeoutExpired:
        supervisor.kill()
        supervisor.wait()


def running(folder: Path) -> State | None:
    """The state of the stack below ``folder`` if its supervisor lives."""
    state = State.read(folder)
    return state if state and _is_supervisor(state.supervisor) else None


def down(folder: Path) -> bool:
    """End the stack below ``folder`` and wait until all its processes are gone. Returns whether there was one.

    Also ends a start that is not ready yet, and the servers of a supervisor that died without ending them.
    """
    state = State.read(folder)
    supervisor = _is_supervisor(state.supervisor if state else _starting(folder))
    if not (state or supervisor):
        return False
    family = _servers(folder, state) if state else []
    if supervisor:
        supervisor.send_signal(signal.SIGTERM)
        psutil.wait_procs([supervisor], timeout=STOP_S)
        family.append(supervisor)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(family, timeout=STOP_S)
    for name in ("state.json", shell.ENV):
        (folder / name).unlink(missing_ok=True)
    return True


def supervise(folder: Path) -> None:
    """Run the stack until SIGTERM. What ``up`` runs in the background."""
    leave_on_signals()  # nobody looks at an event before the stack is ready
    with Stack(folder, fetch("spark", "broker")) as stack:
        stopped = threading.Event()
        for number in ENDING:
            signal.signal(number, lambda *_: stopped.set())
        stack.write_env()
        stack.state.write(folder)
        while not stopped.wait(WATCH_S):
            if stack.restart_dead_connect():
                stack.state.write(folder)
                print("spark connect had died; started it again", flush=True)
            if (folder / REQUEST).exists():
                _start_dead(stack, folder)


def _start_dead(stack: Stack, folder: Path) -> None:
    (folder / REQUEST).unlink()
    try:
        stack.restart_dead()
    except StackError as problem:
        print(problem, flush=True)
    else:
        stack.state.write(folder)
        print("started what had died", flush=True)


def leave_on_signals() -> None:
    """On SIGTERM or Ctrl-C, leave every ``with`` and ``finally``. A second signal does not disturb that."""
    for number in ENDING:
        signal.signal(number, _leave)


def _leave(number: int, _frame: object) -> None:
    for each in ENDING:
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _starting(folder: Path) -> int:
    """The process id of the supervisor that holds the lock, or 0. Without the lock, the number may be a stranger's."""
    try:
        with _locked(folder):
            return 0
    except FileNotFoundError:
        return 0
    except StackError:
        return int((folder / LOCK).read_text() or 0)


def _is_supervisor(pid: int) -> psutil.Process | None:
    """The process if it is a supervisor of ours, not a stranger that got the same number."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE and "supervise" in process.cmdline():
            return process
    return None


def _servers(folder: Path, state: State) -> list[psutil.Process]:
    written_at = (folder / "state.json").stat().st_mtime
    return [process for pid in state.pids.values() for process in _server(pid, written_at)]


def _server(pid: int, written_at: float) -> list[psutil.Process]:
    """A server and all it started; nothing if the number now belongs to a stranger, who must be younger."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(pid)
        if process.create_time() <= written_at:
            return [*process.children(recursive=True), process]
    return []
