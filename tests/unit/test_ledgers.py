"""Which connections lead to ledgers, and what a user sees where Airflow cannot tell."""

from __future__ import annotations

from argparse import Namespace

import pytest
from sqlalchemy.exc import OperationalError

from airflow_epochs import codes
from airflow_epochs.commands import looking
from airflow_epochs.errors import NotApplied
from airflow_epochs.hooks.ledgers import ledger_conn_ids


def broken(message: str) -> OperationalError:
    return OperationalError("SELECT conn_id FROM connection", {}, Exception(message))


def test_a_database_of_airflow_without_tables_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise broken("no such table: connection")

    monkeypatch.setattr("airflow.utils.session.create_session", refused)
    with pytest.raises(NotApplied, match="Airflow's database cannot be read: no such table: connection") as caught:
        ledger_conn_ids()
    assert caught.value.code is codes.CONNECTION_MISSING
    assert "airflow db migrate" in str(caught.value) and "SELECT" not in str(caught.value)


def test_the_command_pipelines_ends_with_the_error_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise broken("no such table: connection")

    monkeypatch.setattr("airflow.utils.session.create_session", refused)
    with pytest.raises(SystemExit) as ended:
        looking.list_pipelines(Namespace(ledger_conn_id=None, output="table"))
    told = f"{ended.value.code}{capsys.readouterr().err}"
    assert "EPOCHS-CONNECTION-MISSING" in told and "airflow db migrate" in told
