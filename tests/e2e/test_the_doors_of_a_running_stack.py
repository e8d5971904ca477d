"""Another account of the machine: what it can ask, read and see of a stack that works."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx
import psutil
import pytest

from orders_demo.watch import DAG
from stack.airflow import PASSWORDS, USER
from tests.support.running_stack import DEADLINE_S, RunningStack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.e2e, pytest.mark.timeout(600)]

PROGRAMS = ("kafka.Kafka", "SparkConnectServer", "airflow api_server", "airflow worker -- ", "airflow_epochs_main.py")


def test_nothing_is_told_to_whoever_has_not_logged_in(running: RunningStack) -> None:
    url = running.stack.airflow.url
    for path in ("dags", "connections", f"dags/{DAG}/dagRuns", "config"):
        assert httpx.get(f"{url}/api/v2/{path}").status_code == 401
    run = httpx.post(f"{url}/api/v2/dags/{DAG}/dagRuns", json={"dag_run_id": "x", "logical_date": None})
    assert run.status_code == 401


def test_nobody_logs_in_without_the_password(running: RunningStack) -> None:
    url = f"{running.stack.airflow.url}/auth/token"
    assert httpx.get(url).status_code == 403
    for body in ({"username": USER, "password": "wrong"}, {"username": USER, "password": USER}):
        assert httpx.post(url, json=body).status_code == 401
    assert httpx.post(url, json={"username": USER, "password": ""}).status_code == 400


@pytest.mark.parametrize("path", ["/", "/api/v2/version", "/api/v2/monitor/health", "/auth/login", "/execution/health"])
def test_a_name_that_the_web_server_does_not_have_is_answered_with_400(running: RunningStack, path: str) -> None:
    url = running.stack.airflow.url + path
    assert httpx.get(url, headers={"Host": "rebound.example"}).status_code == 400
    port = running.stack.airflow.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}"):
        assert httpx.get(url, headers={"Host": host}).status_code < 400


def test_no_file_of_the_stack_is_open_to_others_after_its_runs(running: RunningStack) -> None:
    everything = [running.stack.folder, *running.stack.folder.rglob("*")]
    assert len([path for path in everything if path.suffix == ".parquet"]) > 2
    assert [path for path in everything if open_to_others(path)] == []


def open_to_others(path: Path) -> bool:
    """Not counted: Spark's copies of the public jars, which keep the rights of the cache they come from."""
    if path.is_symlink() or (path.suffix == ".jar" and path.parent.name.startswith("userFiles-")):
        return False
    try:
        return bool(path.stat().st_mode & 0o077)
    except FileNotFoundError:  # it was there a moment ago
        return False


@pytest.mark.long
def test_no_secret_of_the_stack_is_among_the_arguments_of_a_process(running: RunningStack) -> None:
    secrets, seen, done = secrets_of(running), set[str](), threading.Event()
    assert len(secrets) == 7
    watcher = threading.Thread(target=watch, args=(seen, done))
    watcher.start()
    try:
        running.produce(500, seed=3)
        with running.taking_orders():
            wait_until(running.watch.consumed, DEADLINE_S)
        assert running.trigger("orders_submit", "watched") == "success"
    finally:
        done.set()
        watcher.join()
    for part in PROGRAMS:
        assert [arguments for arguments in seen if part in arguments], f"{part} was not seen"
    assert [arguments for arguments in seen if any(secret in arguments for secret in secrets)] == []


def watch(seen: set[str], done: threading.Event) -> None:
    while not done.wait(0.05):
        seen.update(" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))


def secrets_of(running: RunningStack) -> set[str]:
    home, connect = running.stack.airflow.folder, running.stack.connect
    keys, passwords = (json.loads((home / name).read_text()) for name in ("keys.json", PASSWORDS))
    spark = {connect.token, connect.settings["spark.authenticate.secret"]}
    return {running.stack.ledger_key, *spark, *keys.values(), *passwords.values()}
