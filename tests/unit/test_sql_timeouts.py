"""A limit that ended a session is the one that the remedy raises."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import psycopg
import pytest

from airflow_epochs.contracts import Connection
from airflow_epochs.errors import NotApplied
from airflow_epochs.sinks.sql.postgres import PostgresSession, _parameters


class Ended:
    """A connection whose server says why it ends the session, as it does to each client."""

    def __init__(self, sqlstate: str) -> None:
        class Told(psycopg.errors.lookup(sqlstate)):  # type: ignore[misc]
            class diag:
                severity_nonlocalized, message_primary = "FATAL", "terminating connection due to a timeout"
                message_detail = context = None

        self._told = Told("terminating connection")

    def execute(self, *_: Any) -> Any:
        raise self._told


@pytest.mark.parametrize(
    ("sqlstate", "setting"),
    [
        ("25P03", "idle_in_transaction_session_timeout"),
        ("25P04", "transaction_timeout"),  # which PostgreSQL has had since version 17
        ("55P03", "lock_timeout"),
        ("57014", "statement_timeout"),
    ],
)
def test_the_remedy_for_a_session_that_a_limit_ended_raises_this_limit(sqlstate: str, setting: str) -> None:
    session = PostgresSession("PostgreSQL at db", cast("Any", Ended(sqlstate)), ["test"], 1.0)
    with pytest.raises(NotApplied, match="terminating connection due to a timeout") as ended:
        session.execute("SELECT 1")
    (extra,) = re.findall(r"\{.*?\}", ended.value.remedy)
    given = _parameters(Connection(conn_id="db", conn_type="postgres", extra=json.loads(extra)), "test")
    assert re.fullmatch(rf"-c {setting}=\w+", given["options"])


@pytest.mark.parametrize("sqlstate", ["57P01", "53300", "40P01", "25006"])
def test_the_remedy_for_a_session_that_something_else_ended_names_no_limit(sqlstate: str) -> None:
    session = PostgresSession("PostgreSQL at db", cast("Any", Ended(sqlstate)), ["test"], 1.0)
    with pytest.raises(NotApplied) as ended:
        session.execute("SELECT 1")
    assert "{" not in ended.value.remedy and "timeout" not in ended.value.remedy


class Closed:
    """A connection that ended without a word of the server's: then psycopg tells no SQLSTATE."""

    def execute(self, *_: Any) -> Any:
        raise psycopg.OperationalError("server closed the connection unexpectedly")


def test_the_remedy_for_a_connection_that_ended_without_a_word_names_only_the_limits_that_end_one() -> None:
    session = PostgresSession("PostgreSQL at db", cast("Any", Closed()), ["test"], 1.0)
    with pytest.raises(NotApplied, match="server closed the connection unexpectedly") as ended:
        session.execute("SELECT 1")
    named = re.findall(r"-c (\w+)=", ended.value.remedy)
    assert named == ["idle_in_transaction_session_timeout", "transaction_timeout"]
    assert "read in its log why it ended the connection" in ended.value.remedy
