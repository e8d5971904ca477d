"""Parts of a running stack that have died: ``status`` names them, and ``up`` starts them again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stack import control
from stack.processes import WAIT, StackError
from stack.whole import PARTS, State
from tests.support.processes import alive
from tests.support.waiting import wait_until

LOCAL = Path(control.__file__).parents[1]
STACK_OF_SLEEPERS = """
import os, sys
from pathlib import Path
from stack import control
from stack.processes import Server, StackError
from stack.whole import PARTS, State

class Sleepers(Server):
    def __init__(self, folder, jars):
        super().__init__(folder)

    def start(self):
        running = {process.name for process in self.processes if process.running}
        for name in set(PARTS) - running:
            self.spawn(name, ["sleep", "300"])

    def wait_ready(self):
        pass

    def write_env(self):
        pass

    def restart_dead_connect(self):
        return False

    def restart_dead(self):
        if (self.folder / "broken").exists():
            raise StackError("a port is taken")
        self.start()

    @property
    def state(self):
        pids = {process.name: process.pid for process in self.processes if process.running}
        return State(os.getpid(), "http", "kafka", "sc", "lake", "ledger", pids)

control.Stack, control.fetch = Sleepers, lambda *_: None
control.supervise(Path(sys.argv[2]))
"""


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[psutil.Process]:
    argv = [sys.executable, "-c", STACK_OF_SLEEPERS, "supervise", str(tmp_path)]
    with subprocess.Popen(argv, env=os.environ | {"PYTHONPATH": str(LOCAL)}) as process:
        try:
            wait_until(lambda: State.read(tmp_path) is not None)
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


def status(folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(LOCAL), "status", "--folder", str(folder)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def killed(folder: Path, *names: str) -> State:
    state = State.read(folder)
    assert state
    parts = [psutil.Process(state.pids[name]) for name in names]
    for part in parts:
        part.kill()
    wait_until(lambda: not any(map(alive, parts)))
    return state


def test_what_does_not_run_is_named_and_started_again_and_the_rest_is_left_alone(
    tmp_path: Path, supervisor: psutil.Process
) -> None:
    (tmp_path / "airflow").mkdir()
    done = status(tmp_path)
    assert (done.returncode, "not running" in done.stdout) == (0, False)
    for died in (("scheduler", "dag-processor", "triggerer"), ("scheduler",)):
        before = killed(tmp_path, *died)
        done = status(tmp_path)
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("not running")]
        assert done.returncode == 1
        assert all(name in line for name in died) and "`make stack-up` starts them" in line
        assert not any(name in line.split(":")[0] for name in set(PARTS) - set(died))
        after = control.up(tmp_path)
        assert {name for name in PARTS if before.pids[name] != after.pids[name]} == set(died)
        assert all(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in after.pids.values())
        assert status(tmp_path).returncode == 0
    assert after.supervisor == supervisor.pid


def test_a_part_that_does_not_start_again_is_told_and_the_stack_goes_on(
    tmp_path: Path, supervisor: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken").touch()
    killed(tmp_path, "triggerer")
    monkeypatch.setenv(WAIT, "2")
    with pytest.raises(StackError, match=r"triggerer died, and did not start again within 2 s\. .*`make stack-down`"):
        control.up(tmp_path)
    assert alive(supervisor)
    (tmp_path / "broken").unlink()
    assert set(control.up(tmp_path).pids) == set(PARTS)
