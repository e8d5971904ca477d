"""Keeps logins out of the places that records name. Imports little: DAG files need this module."""

from __future__ import annotations

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import Refused
from airflow_epochs.secrecy import shown


def require_no_login(what: str, url: str, sink: str) -> None:
    """Raise Refused if the URL of a sink's table or staging folder contains a user, with or without a password."""
    if secrecy.has_login(url):
        raise Refused(
            f"The URL of {what} {shown(url)} contains a login. Records and asset events would show it.",
            code=codes.LOGIN_IN_URL,
            remedy="Put the login into the connection that `storage_conn_id` names, and take it out of the URL.",
            sink=sink,
        )
