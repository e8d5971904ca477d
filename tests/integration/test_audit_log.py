"""``airflow epochs …`` as a process of its own, typed by somebody whose environment lies about who he is."""

from __future__ import annotations

import json
import os
import pty
import pwd
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

import pytest

from airflow_epochs.ledger.store import LocalStore
from airflow_epochs.model import Run
from airflow_epochs.testing import MemoryWorld, memory_coordinator, memory_pipeline
from tests.support import airflow_home

pytestmark = [
    pytest.mark.usefixtures("metadata"),
    pytest.mark.filterwarnings("default", r"error:::airflow_epochs(\..*)?"),
]
WAIVE = ("waive", "orders", "1", "orders")
TAKE_OVER = ("takeover", "orders", "--dag-id", "new")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A ledger in which epoch 1 is decided and waits for its sink."""
    world = MemoryWorld()
    world.produce("orders", 0, ["row"])
    coordinator = memory_coordinator(world, memory_pipeline(world), store=LocalStore(tmp_path))
    coordinator.open(Run("dag", "r1"))
    coordinator.vote(Run("dag", "r1"), coordinator.stage(Run("dag", "r1")).stage)
    return tmp_path


def typed(root: Path, *command: str, answer: str, env: Mapping[str, str] = MappingProxyType({})) -> int:
    """The exit code of ``airflow epochs …`` at a terminal, for one who calls himself mallory."""
    connection = {"conn_type": "epochs", "extra": {"ledger_root": str(root)}}
    claims = {"LOGNAME": "mallory", "USER": "mallory", "SUDO_USER": "mallory"}
    person, program = pty.openpty()
    os.write(person, answer.encode())
    with open(person, "rb", buffering=0), open(program, "r+b", buffering=0) as terminal:
        return subprocess.run(
            [sys.executable, "-m", "airflow", "epochs", *command],
            env={**os.environ, **claims, "AIRFLOW_CONN_EPOCHS_DEFAULT": json.dumps(connection), **env},
            stdin=terminal,
            stdout=terminal,
            check=False,
        ).returncode


def logged(why: str) -> list[tuple[str, str, str]]:
    """Event, owner and DAG of the entries with this reason in Airflow's audit log, read by SQLite alone."""
    query = "SELECT event, owner, dag_id FROM log WHERE json_extract(extra, '$.full_command') LIKE ?"
    with closing(sqlite3.connect(airflow_home.HOME / "airflow.db")) as database:
        return database.execute(query, [f"%{why}%"]).fetchall()


@pytest.mark.parametrize(
    ("command", "event", "dag_id"),
    [(WAIVE, "cli_epochs_waive", "dag"), pytest.param(TAKE_OVER, "cli_epochs_takeover", "new", marks=pytest.mark.long)],
)
def test_what_is_confirmed_at_a_terminal_is_in_airflows_audit_log_under_the_effective_user(
    root: Path, command: tuple[str, ...], event: str, dag_id: str
) -> None:
    why, user = uuid.uuid4().hex, pwd.getpwuid(os.geteuid()).pw_name
    assert typed(root, *command, "--why", why, answer="y\n") == 0
    assert logged(why) == [(event, user, dag_id)]
    [record] = [*root.glob("orders/epochs/*/*.waived.json"), *root.glob("orders/takeovers/*.json")]
    said = json.loads(record.read_text())
    assert (said["who"], said["login"], said["why"]) == (user, "mallory", why)


@pytest.mark.long
def test_without_the_metadata_database_the_ledger_has_it_all_the_same(root: Path) -> None:
    lost = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{root}/gone/airflow.db"}
    assert typed(root, *WAIVE, "--why", "no database", "--yes", answer="", env=lost) == 0
    [record] = root.glob("orders/epochs/*/*.waived.json")
    assert json.loads(record.read_text())["why"] == "no database"
