"""Starting, watching and ending server processes."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil
from typing_extensions import Self

from stack import private

CHILD = Path(__file__).with_name("child.py")
READY_S = 90.0
GRACE_S = 5.0
WAIT = "EPOCHS_STACK_WAIT"
"""The environment variable with the seconds that every start may take, in place of the limits in the code."""


class StackError(RuntimeError):
    """A server did not start, or is not there. The message carries the end of its log."""


def wait_s(usual: float) -> float:
    """How long to wait for a start: ``usual`` seconds, unless ``$EPOCHS_STACK_WAIT`` says otherwise."""
    given = os.environ.get(WAIT)
    if not given:
        return usual
    with contextlib.suppress(ValueError):
        if math.isfinite(seconds := float(given)) and seconds > 0:
            return seconds
    raise StackError(f"{WAIT} is {given!r}. What to do: set it to a number of seconds above 0, or unset it.")


def wait_longer(waited_s: float) -> str:
    """What to do about a start that took longer than this."""
    return (
        f"What to do: look for an error in the log. If there is none, this machine is slow: set {WAIT} to more "
        f"seconds, such as {WAIT}={3 * waited_s:.0f}, and start again."
    )


class Process:
    """One child process in a process group of its own, writing to one log file. What it writes is its owner's only.

    Linux ends it together with the thread that started it, so only the main thread may.
    """

    def __init__(self, name: str, argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name, self.argv, self.log = name, list(argv), log
        self.env = {**os.environ, **(env or {})}
        self._popen: subprocess.Popen[bytes] | None = None
        self._family: list[psutil.Process] = []

    @property
    def pid(self) -> int:
        if self._popen is None:
            raise StackError(f"{self.name} is not started")
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.poll() is None

    def start(self) -> None:
        """Start the process, without waiting for it. Raises StackError in any thread but the main one."""
        if threading.current_thread() is not threading.main_thread():
            raise StackError(f"{self.name} would end with this thread: start it from the main thread.")
        private.make_folder(self.log.parent)
        argv = [sys.executable, "-I", "-S", str(CHILD), str(os.getpid()), *self.argv]
        with open(self.log, "ab", opener=private.opener) as log:
            self._popen = subprocess.Popen(
                argv,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=private.UMASK,
            )

    def wait_ready(self, ready: Callable[[], bool]) -> None:
        """Return when ``ready()`` is true. Raises StackError if the process ends, or time runs out, before."""
        deadline_s = wait_s(READY_S)
        end = time.monotonic() + deadline_s
        while not ready():
            if not self.running:
                raise StackError(f"{self.name} ended while starting. {self._tail()}")
            if time.monotonic() > end:
                raise StackError(
                    f"{self.name} was not ready after {deadline_s:.0f} s. {self._tail()}\n{wait_longer(deadline_s)}"
                )
            time.sleep(0.05)

    def wait_success(self) -> None:
        """Wait for a process that is meant to end. Raises StackError if it fails, or if time runs out before."""
        assert self._popen is not None
        deadline_s = wait_s(READY_S)
        try:
            code = self._popen.wait(deadline_s)
        except subprocess.TimeoutExpired:
            late = f"{self.name} has not ended after {deadline_s:.0f} s. {self._tail()}\n{wait_longer(deadline_s)}"
            raise StackError(late) from None
        if code:
            raise StackError(f"{self.name} failed with exit code {code}. {self._tail()}")

    def terminate(self) -> None:
        """Ask the process to end, without waiting for it. Idempotent."""
        if self.running:
            self._family += _family(self.pid)
            self._signal(signal.SIGTERM)

    def stop(self, *, grace_s: float = GRACE_S) -> None:
        """End the process and all it started: SIGTERM, then SIGKILL. Idempotent."""
        if self._popen is None:
            return
        self.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(grace_s)
        self._signal(signal.SIGKILL)
        for process in self._family:  # those that left the process group
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._popen.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-25:]
        return f"The end of {self.log}:\n" + "\n".join(lines)


def _family(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


class Server:
    """A server of one or more processes. Subclasses start them in ``start`` and probe them in ``wait_ready``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[Process] = []

    def start(self) -> None:
        """Start the processes without waiting for them, so that several servers can come up side by side."""
        raise NotImplementedError

    def wait_ready(self) -> None:
        """Wait until the server has answered a real request. Raises StackError with the end of its log."""
        raise NotImplementedError

    def stop(self) -> None:
        """End all processes. Idempotent."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.stop()

    def spawn(self, name: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Process:
        process = Process(name, argv, log=self.folder / f"{name}.log", env=env)
        process.start()
        self.processes.append(process)
        return process

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
