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
