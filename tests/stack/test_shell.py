"""The file that gives a user's shell the settings of the stack's processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stack import control, shell
from stack.airflow import AirflowStack, connection
from stack.jars import Jars
from stack.whole import Stack, State


def sourced(folder: Path) -> dict[str, str]:
    """The environment of a shell that knows only PATH and HOME, after it has read the file."""
    done = subprocess.run(
        ["/bin/sh", "-c", f"{shell.hint(folder)}; env -0"],
        env={"PATH": os.defpath, "HOME": "/nowhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)


def test_a_shell_that_reads_the_file_has_the_settings_of_airflows_processes(tmp_path: Path) -> None:
    odd = """a 'b' "c" $HOME `id` \\ \n; # !é"""
    folder = tmp_path / "it's a stack"
    airflow = AirflowStack(
        folder / "airflow",
        folder / "dags",
        connections={"epochs_default": connection("epochs", password=odd)},
        env={"LAKE": odd},
    )
    shell.write_env(folder, airflow.env, programs=Path("/venv of mine/bin"))
    assert oct((folder / shell.ENV).stat().st_mode & 0o777) == "0o600"
    found = sourced(folder)
    path = f"/venv of mine/bin:{os.defpath}"
    assert {name: found[name] for name in airflow.env} == {**airflow.env, "PATH": path}
    assert found["LAKE"] == odd


def test_the_file_of_a_stack_has_its_connections_its_broker_and_the_programs_of_its_python(tmp_path: Path) -> None:
    stack = Stack(tmp_path, Jars(tmp_path / "jars"))
    stack.write_env()
    found = sourced(tmp_path)
    assert {name: found[name] for name in stack.airflow.env if name != "PATH"} == {
        name: value for name, value in stack.airflow.env.items() if name != "PATH"
    }
    assert found["BOOTSTRAP"] == stack.broker.bootstrap
    assert found["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert "AIRFLOW_CONN_EPOCHS_DEFAULT" in found


def test_the_file_goes_when_the_stack_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "_servers", lambda *_: [])
    places = dict.fromkeys(("airflow", "bootstrap", "connect", "lake", "ledger"), "")
    State(supervisor=0, pids={}, **places).write(tmp_path)
    shell.write_env(tmp_path, {}, programs=tmp_path)
    assert control.down(tmp_path)
    assert not (tmp_path / shell.ENV).exists()
