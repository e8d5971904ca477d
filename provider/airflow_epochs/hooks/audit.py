"""Which user typed a command, as the operating system knows it, and the entry for Airflow's audit log."""

from __future__ import annotations

import os
import pwd
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from airflow.utils import cli_action_loggers

_LOGIN_NAMES = ("SUDO_USER", "LOGNAME", "USER", "LNAME", "USERNAME")
"""Variables with the login name. Anybody can set them, so they prove nothing."""


@dataclass(frozen=True)
class Caller:
    """Who typed a command. ``who``: the effective user. ``login``: the environment's name if it differs; else empty."""

    who: str
    host: str
    login: str

    def __str__(self) -> str:
        claimed = f", logged in as {self.login} by what the environment says" if self.login else ""
        return f"{self.who} on host {self.host}{claimed}"


def caller() -> Caller:
    """The user of this process, with the host and the login name that the environment claims."""
    who = _effective_user()
    login = next(filter(None, map(os.environ.get, _LOGIN_NAMES)), who)
    return Caller(who, socket.gethostname(), "" if login == who else as_text(login))


def _effective_user() -> str:
    """The user's name. If the number has no name, as in some containers, the number."""
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def as_text(typed: str) -> str:
    """``typed`` as text that JSON accepts: a shell may pass bytes that are not valid text."""
    return typed.encode(errors="backslashreplace").decode()


@contextmanager
def logged(command: str, *, dag_id: str, by: Caller) -> Iterator[None]:
    """Put an entry into Airflow's audit log before the command changes anything, and end it afterwards.

    Airflow's ``action_cli`` would do the same, but believes ``LOGNAME``. If the log cannot be written, Airflow only
    warns: the ledger's own entry does not depend on the metadata database.
    """
    entry: dict[str, Any] = {
        "sub_command": f"epochs_{command}",
        "start_datetime": _utc_now(),
        "full_command": str(sys.argv),
        "user": by.who,
        "host_name": by.host,
        "dag_id": dag_id,
        "task_id": None,
        "logical_date": None,
    }
    cli_action_loggers.on_pre_execution(**entry)
    try:
        yield
    except Exception as error:
        entry["error"] = error
        raise
    finally:
        cli_action_loggers.on_post_execution(**entry, end_datetime=_utc_now())


def _utc_now() -> datetime:
    return datetime.now(timezone.utc)
