"""A start of the stack that is broken off leaves nothing running, and a second start at the same time is refused."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from stack import control
from stack.processes import StackError
from tests.support.processes import alive
from tests.support.waiting import wait_until

LOCAL = Path(control.__file__).parents[1]
NEVER_READY = f"#!{sys.executable}\nimport signal\nsignal.pause()\n"
DEAF = f"#!{sys.executable}\nimport signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()\n"
SLOW_STACK = """
import sys
from pathlib import Path
from stack import control
from stack.processes import Server

class Slow(Server):
    def __init__(self, folder, jars):
        super().__init__(folder)

    def start(self):
        print(self.spawn("slow", ["sleep", "300"]).pid, flush=True)

    def wait_ready(self):
        self.processes[0].wait_ready(lambda: False)

control.Stack, control.fetch = Slow, lambda *_: None
control.supervise(Path(sys.argv[1]))
"""


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a program in place of the supervisor."""

    def put(program: str) -> None:
        stub = tmp_path / "stub"
        stub.write_text(program)
        stub.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(stub))

    monkeypatch.setattr(control, "fetch", lambda *_: None)
    return put


def while_it_waits(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[psutil.Process]:
    """Do this when ``up`` first waits; the supervisors that run then."""
    found: list[psutil.Process] = []

    def started() -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if "supervise" in child.cmdline()]

    def sleep(_seconds: float) -> None:
        if not found:
            wait_until(lambda: bool(started()))  # for a moment, a process that starts has no command line
            found.extend(started())
            act()

    monkeypatch.setattr(control, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    return found


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("program", [NEVER_READY, DEAF], ids=["one that ends", "one that does not listen"])
def test_ctrl_c_during_the_start_ends_the_supervisor(
    program: str, supervisor: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor(program)
    monkeypatch.setattr(control, "STOP_S", 1.0)
    found = while_it_waits(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        control.up(tmp_path / "stack")
    assert len(found) == 1 and not alive(found[0])


def test_a_start_that_takes_too_long_ends_the_supervisor_and_says_how_to_give_it_longer(
    supervisor: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor(DEAF)
    monkeypatch.setattr(control, "STOP_S", 1.0)
    much_later = SimpleNamespace(monotonic=lambda: time.monotonic() + control.START_S)
    found = while_it_waits(monkeypatch, lambda: monkeypatch.setattr(control, "time", much_later))
    with pytest.raises(StackError, match="was not ready after 240 s, and was ended") as late:
        control.up(tmp_path / "stack")
    assert len(found) == 1 and not alive(found[0])
    assert "What to do: look for an error in the log. If there is none" in str(late.value)
    assert "EPOCHS_STACK_WAIT=720" in str(late.value)


def test_a_start_gets_as_long_as_the_remedy_says(
    supervisor: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor(NEVER_READY)
    monkeypatch.setenv("EPOCHS_STACK_WAIT", "720")
    seen: list[float] = []

    def monotonic() -> float:
        seen.append(time.monotonic() + 150 * len(seen))
        return seen[-1]

    monkeypatch.setattr(control, "time", SimpleNamespace(monotonic=monotonic, sleep=lambda _seconds: None))
    with pytest.raises(StackError, match="was not ready after 720 s"):
        control.up(tmp_path / "stack")
    assert 720 < seen[-1] - seen[0] < 1000


def test_a_wait_that_is_no_number_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPOCHS_STACK_WAIT", "long")
    monkeypatch.setattr(control, "fetch", lambda *_: None)
    with pytest.raises(StackError, match="EPOCHS_STACK_WAIT is 'long'"):
        control.up(tmp_path / "stack")
    assert not (tmp_path / "stack").exists()


def test_down_ends_a_stack_that_is_starting(
    supervisor: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor(NEVER_READY)
    ended: list[bool] = []
    found = while_it_waits(monkeypatch, lambda: ended.append(control.down(tmp_path / "stack")))
    with pytest.raises(StackError, match="did not start"):
        control.up(tmp_path / "stack")
    assert ended == [True] and len(found) == 1 and not alive(found[0])


def test_down_ends_no_stranger_that_has_the_number_of_an_earlier_supervisor(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import signal; print(flush=True); signal.pause()", "supervise"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        (tmp_path / control.LOCK).write_text(str(stranger.pid))
        try:
            assert not control.down(tmp_path)
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_a_second_start_at_the_same_time_is_refused_and_the_first_goes_on(
    supervisor: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor(NEVER_READY)
    folder, refused = tmp_path / "stack", []

    def start_again() -> None:
        with pytest.raises(StackError, match="Another command is starting or ending the stack") as refusal:
            control.up(folder)
        refused.append(refusal)
        assert control.down(folder), "the first one was still starting"

    while_it_waits(monkeypatch, start_again)
    with pytest.raises(StackError, match="did not start"):
        control.up(folder)
    assert refused


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_supervisor_that_is_told_to_end_before_the_stack_is_ready_ends_its_servers_at_once(
    number: signal.Signals, tmp_path: Path
) -> None:
    argv = [sys.executable, "-c", SLOW_STACK, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, cwd=LOCAL, stdout=pipe, stderr=pipe, text=True) as supervisor:
        assert supervisor.stdout is not None
        server = psutil.Process(int(supervisor.stdout.readline()))
        try:
            supervisor.send_signal(number)
            assert supervisor.wait(20) == 128 + number
            assert supervisor.stderr is not None and "Traceback" not in supervisor.stderr.read()
        finally:
            supervisor.kill()
    wait_until(lambda: not alive(server))
    assert not (tmp_path / "state.json").exists()
