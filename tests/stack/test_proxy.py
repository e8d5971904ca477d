"""The stack behind a proxy: its own requests stay on the machine, and Java's downloads go to the proxy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from stack import jars, proxy
from stack.airflow import AirflowStack
from stack.jars import Jars
from stack.processes import StackError

LOCAL = Path(proxy.__file__).parents[1]


@pytest.fixture(autouse=True)
def behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("all_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", ".corp")
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)


def bypassed(env: dict[str, str], *hosts: str) -> list[bool]:
    """Whether Python, in this environment, asks these hosts itself."""
    code = "import json, sys, urllib.request as r; print(json.dumps([bool(r.proxy_bypass(h)) for h in sys.argv[1:]]))"
    argv = [sys.executable, "-c", code, *hosts]
    told = subprocess.run(argv, env={**os.environ, **env}, check=True, capture_output=True, text=True)
    return [bool(each) for each in json.loads(told.stdout)]


def test_airflow_and_its_tasks_ask_the_stack_itself_and_the_users_exceptions_stay(tmp_path: Path) -> None:
    env = AirflowStack(tmp_path, tmp_path / "dags", connections={}).env
    assert bypassed(env, "127.0.0.1:1", "localhost:2", "git.corp", "pypi.org") == [True, True, True, False]


@pytest.mark.parametrize(
    "program",
    [
        *("docker/local/__main__.py", "scripts/demo.py", "scripts/pictures.py"),
        *("tests/conftest.py", "tests/chaos/chaos.py", "tests/perf/bench.py"),
    ],
)
def test_the_programs_that_start_servers_ask_them_themselves(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "os.environ.update(proxy.bypass())" in (LOCAL.parents[1] / program).read_text()
    assert not urllib.request.proxy_bypass("127.0.0.1:1")
    for name, value in proxy.bypass().items():
        monkeypatch.setenv(name, value)
    assert urllib.request.proxy_bypass("127.0.0.1:1") and urllib.request.proxy_bypass("git.corp")


@pytest.mark.parametrize("said", ["http://proxy.corp:3128", "proxy.corp:3128"])
def test_java_fetches_through_the_proxy_that_the_user_names(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy.java_options() == []
    monkeypatch.setenv("https_proxy", said)
    where = ["-Dhttps.proxyHost=proxy.corp", "-Dhttps.proxyPort=3128"]
    direct = "corp|*.corp|127.0.0.1|*.127.0.0.1|localhost|*.localhost"
    assert proxy.java_options() == [*where, f"-Dhttp.nonProxyHosts={direct}"]
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Dhttps.proxyHost=another")
    assert proxy.java_options() == []


def test_jars_that_cannot_be_fetched_say_how_to_reach_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\necho "$*" >&2\nexit 1\n')
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("https_proxy", "http://proxy.corp:3128")
    with pytest.raises(StackError) as failed:
        jars._fetch_one(Jars(tmp_path / "jars"), "broker")
    text = str(failed.value)
    assert "-Dhttps.proxyHost=proxy.corp" in text
    assert "JAVA_TOOL_OPTIONS" in text and "EPOCHS_IVY_SETTINGS" in text
