"""No login in a place that records name. Imports next to nothing: a DAG file, parsed in every task, needs it."""

from __future__ import annotations

from airflow_epochs import secrecy
from airflow_epochs.errors import Refused
from airflow_epochs.secrecy import shown


def require_no_login(what: str, url: str, sink: str) -> None:
    """Raise Refused if a user, or a user and a password, stand in the URL of a sink's table or staging folder."""
    if secrecy.has_login(url):
        raise Refused(
            f"The URL of {what} {shown(url)} holds a login, which records and asset events would show.",
            remedy="Put the login into the connection that storage_conn_id names.",
            sink=sink,
        )
