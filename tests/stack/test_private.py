"""What the stack keeps to itself: files, secrets, its database."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import psycopg
import pytest

from stack import private
from stack.airflow import PASSWORDS, USER, AirflowStack, password_in
from stack.ports import free_port, hold
from stack.postgres import Postgres
from stack.processes import Process, StackError


def rights(path: Path) -> str:
    return oct(path.stat().st_mode & 0o777)


def test_a_file_is_its_owners_only_also_where_a_loose_one_was(tmp_path: Path) -> None:
    for name in ("new", "loose"):
        path = tmp_path / name
        if name == "loose":
            path.write_text("before")
            path.chmod(0o644)
        private.write(path, "text")
        assert (path.read_text(), rights(path)) == ("text", "0o600")


def test_a_folder_is_its_owners_only_also_if_it_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "loose").mkdir(mode=0o755)
    for name in ("new", "loose"):
        assert rights(private.make_folder(tmp_path / name)) == "0o700"


def test_a_secret_is_drawn_once_and_never_the_same_twice(tmp_path: Path) -> None:
    first = private.kept(tmp_path / "a" / "token")
    assert len(first) >= 32 and private.kept(tmp_path / "a" / "token") == first
    assert private.kept(tmp_path / "b" / "token") != first
    assert rights(tmp_path / "a" / "token") == "0o600"


def test_what_a_server_writes_is_its_owners_only(tmp_path: Path) -> None:
    write = "import os; open('file', 'w').close(); os.mkdir('folder'); print('told')"
    process = Process(
        "writer", [sys.executable, "-c", f"import os; os.chdir({str(tmp_path)!r}); {write}"], log=tmp_path / "a.log"
    )
    process.start()
    process.wait_success()
    assert (tmp_path / "a.log").read_text() == "told\n"
    assert {name: rights(tmp_path / name) for name in ("file", "folder", "a.log")} == {
        "file": "0o600",
        "folder": "0o700",
        "a.log": "0o600",
    }


SECRETS = ("CORE__FERNET_KEY", "API__SECRET_KEY", "API_AUTH__JWT_SECRET")


def secrets_of(folder: Path) -> list[str]:
    env = AirflowStack(folder, folder / "dags", connections={}).env
    return [*(env[f"AIRFLOW__{name}"] for name in SECRETS), password_in(folder)]


def test_a_second_start_keeps_the_keys_and_another_stack_has_others(tmp_path: Path) -> None:
    first, again, other = (secrets_of(tmp_path / name) for name in ("one", "one", "other"))
    assert first == again
    assert not set(first) & set(other)
    assert all(len(secret) >= 32 for secret in first)
    assert rights(tmp_path / "one" / "keys.json") == rights(tmp_path / "one" / PASSWORDS) == "0o600"


def test_a_password_that_the_user_has_written_into_the_file_is_kept(tmp_path: Path) -> None:
    secrets_of(tmp_path)
    (tmp_path / PASSWORDS).write_text(json.dumps({USER: "mine"}))
    assert secrets_of(tmp_path)[-1] == "mine"


@pytest.mark.parametrize("login", [{"password": ""}, {"password": "pg secret"}, {"user": "postgres"}], ids=str)
def test_the_database_cannot_be_entered_without_its_password(postgres: Postgres, login: dict[str, str]) -> None:
    with pytest.raises(psycopg.OperationalError, match=r"authentication failed|no password supplied"):
        postgres.connect(**login)


def test_nobody_else_gets_the_port_of_the_other_localhost(tmp_path: Path) -> None:
    port = free_port()
    held = hold("::1", port)
    assert held, "this machine has no IPv6"
    with held, pytest.raises(StackError, match=f"Port {port} of ::1 is taken"):
        hold("::1", port)
    with pytest.raises(OSError), socket.create_connection(("::1", port), timeout=1):
        pass
