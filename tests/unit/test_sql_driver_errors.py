"""What psycopg itself refuses, before the server has a word of it, is no lost connection."""

from __future__ import annotations

from typing import Any, cast

import psycopg
import pytest

from airflow_epochs import codes
from airflow_epochs.errors import NotApplied, Refused
from airflow_epochs.sinks.sql.postgres import PostgresSession


def session(error: psycopg.Error) -> PostgresSession:
    """A session whose driver raises ``error`` for every statement."""

    class Failing:
        def execute(self, *_: Any) -> Any:
            raise error

    return PostgresSession("PostgreSQL at db", cast("Any", Failing()), ["test"], 1.0)


@pytest.mark.parametrize(
    "error",
    [
        psycopg.ProgrammingError("the query has 1 placeholders but 0 parameters were passed"),
        psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes"),
        psycopg.NotSupportedError("cannot adapt this"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_statement_that_the_driver_does_not_send_is_refused_with_its_reason(error: psycopg.Error) -> None:
    with pytest.raises(Refused) as refused:
        session(error).execute("SELECT 1")
    assert refused.value.code is codes.SQL_ROW_REFUSED
    assert refused.value.what == (
        f"The driver psycopg did not send a statement to PostgreSQL at db, because it cannot: {error}"
    )
    assert "timeout" not in refused.value.remedy and "server" not in refused.value.remedy


@pytest.mark.parametrize("kind", [psycopg.OperationalError, psycopg.DatabaseError, psycopg.InterfaceError])
def test_a_connection_that_is_gone_may_come_back(kind: type[psycopg.Error]) -> None:
    with pytest.raises(NotApplied) as passing:
        session(kind("the connection is lost")).execute("SELECT 1")
    assert passing.value.code is codes.SQL_UNREACHABLE and not isinstance(passing.value, Refused)
