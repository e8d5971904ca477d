"""Which locations a sink's table and staging folder can have. Imports little: DAG files need this module."""

from __future__ import annotations

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import Refused
from airflow_epochs.names import CLEAR_RULE, flaw_of_file, is_template, normalised, unclear_in
from airflow_epochs.secrecy import shown


def require_usable(what: str, url: str, sink: str) -> None:
    """Raise Refused if the URL of a sink's table or staging folder contains a login, or is not read alike by all.

    A login is a user, with or without a password. ``az://`` names no account, so Hadoop has no such scheme.
    """
    if secrecy.has_login(url):
        raise Refused(
            f"The URL of {what} {shown(url)} contains a login. Records and asset events would show it.",
            code=codes.LOGIN_IN_URL,
            remedy="Put the login into the connection that `storage_conn_id` names, and take it out of the URL.",
            sink=sink,
        )
    if not is_template(url) and (file := flaw_of_file(url)):
        raise Refused(
            f"`{what}` of the sink, {url}, names {file.flaw}.",
            code=codes.SINK_MISCONFIGURED,
            remedy=f"Set `{what}` to file://{file.meant} to go on where the sink has been. If it is new, write "
            f"{file.wanted}. Then clear the failed task.",
            sink=sink,
        )
    if (unclear := unclear_in(url)) and not is_template(url):
        raise Refused(
            f"`{what}` of the sink, {shown(url)}, has {unclear!r} in it, which Spark and deltalake read differently.",
            code=codes.SINK_MISCONFIGURED,
            remedy=f"Give `{what}` a URL {CLEAR_RULE}. Then clear the failed task.",
            sink=sink,
        )
    if normalised(url).startswith("az://"):
        raise Refused(
            f"`{what}` of the sink, {shown(url)}, has the scheme az, which Spark cannot open.",
            code=codes.SINK_MISCONFIGURED,
            remedy=f"Give `{what}` a URL such as abfss://container@account.dfs.core.windows.net/folder. Then clear the "
            "failed task.",
            sink=sink,
        )
