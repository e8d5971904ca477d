"""``python docker/local up`` and ``down``: one command starts everything, one ends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stack.airflow import password_in
from tests.support.processes import alive
from tests.support.waiting import wait_until

PROJECT = Path(__file__).parents[2]


def stack(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(PROJECT / "docker/local"), command, "--folder", str(folder)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=280, check=False)


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def secrets_in(folder: Path) -> list[str]:
    return [(folder / name).read_text() for name in ("airflow/keys.json", "airflow/passwords.json", "connect/token")]


def test_status_and_down_without_a_stack_say_so(tmp_path: Path) -> None:
    for command, code in (("status", 3), ("down", 0)):
        done = stack(command, tmp_path)
        assert (done.returncode, done.stdout.strip()) == (code, f"nothing runs in {tmp_path}")


@pytest.mark.jvm
@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_further_up_starts_what_has_died_of_airflow(tmp_path: Path) -> None:
    """As after `airflow db clean` over all tables."""
    from stack.whole import State

    died = ["scheduler", "dag-processor", "triggerer"]
    try:
        assert stack("up", tmp_path).returncode == 0
        state = State.read(tmp_path)
        assert state
        parts = [psutil.Process(state.pids[name]) for name in died]
        for part in parts:
            part.kill()
        wait_until(lambda: not any(map(alive, parts)))
        told = stack("status", tmp_path)
        assert told.returncode == 1 and all(name in told.stdout for name in died)
        again = stack("up", tmp_path)
        assert again.returncode == 0, again.stderr
        assert again.stdout == stack("status", tmp_path).stdout
        report = state.api(tmp_path).get("monitor/health")
        assert {report[part]["status"] for part in ("scheduler", "dag_processor", "triggerer")} == {"healthy"}
    finally:
        stack("down", tmp_path)


@pytest.mark.jvm
@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.timeout(600)
def test_down_leaves_no_process_behind_even_if_the_supervisor_was_killed(tmp_path: Path) -> None:
    from stack.whole import State

    kept = None
    for kill_supervisor in (False, True):
        started = stack("up", tmp_path)
        try:
            assert started.returncode == 0, started.stderr
            shown = stack("status", tmp_path).stdout
            password = password_in(tmp_path / "airflow")
            assert started.stdout == (shown if kept else f"{shown}password       {password}\n"), "told once"
            assert password not in shown and str(tmp_path / "airflow" / "passwords.json") in shown
            kept = kept or secrets_in(tmp_path)
            assert secrets_in(tmp_path) == kept, "a second start goes on with them"
            state = State.read(tmp_path)
            assert state is not None
            assert state.api(tmp_path).get("version")
            processes = family(state.supervisor)
            assert {"broker", "connect", "api-server", "scheduler", "dag-processor", "triggerer"} <= set(state.pids)
            assert set(state.pids.values()) < {process.pid for process in processes}
            if kill_supervisor:
                psutil.Process(state.supervisor).kill()
        finally:
            ended = stack("down", tmp_path)
        assert ended.stdout == "stopped\n"
        assert not [process for process in processes if alive(process)]
