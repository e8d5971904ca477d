"""Which connections lead to ledgers, for a process that sees Airflow's database: the page and the command line."""

from __future__ import annotations

import os

from airflow_epochs import codes
from airflow_epochs.errors import NotApplied
from airflow_epochs.hooks.epochs import EpochsHook, type_of

_ENVIRONMENT = "AIRFLOW_CONN_"


def ledger_conn_ids() -> list[str]:
    """The ids of all connections of type ``epochs``, sorted: of the database, of the environment, and the default one.

    A secrets backend cannot list its connections. So of those that only it has, the default one alone is found.

    Raises:
        NotApplied: Airflow's database does not answer, or has no tables yet.
    """
    found = {
        *_in_database(),
        *filter(_is_ledger, _in_environment()),
        *filter(_is_ledger, [EpochsHook.default_conn_name]),
    }
    return sorted(found)


def _in_database() -> list[str]:
    """The connections in Airflow's database. A team's are left out: in multi-team mode, only its tasks read them."""
    from airflow.models.connection import Connection
    from airflow.utils.session import create_session
    from sqlalchemy.exc import DBAPIError

    try:
        with create_session() as session:
            rows = session.query(Connection.conn_id).filter_by(conn_type=EpochsHook.conn_type, team_name=None)
            return [str(conn_id) for (conn_id,) in rows]
    except DBAPIError as error:
        raise NotApplied(
            f"Airflow's database cannot be read: {error.orig}.",
            code=codes.CONNECTION_MISSING,
            remedy="Give this shell the settings of your Airflow, such as AIRFLOW_HOME; for the local stack, type "
            "`. .stack/env`. If this is a new Airflow, type `airflow db migrate`.",
        ) from error


def _in_environment() -> list[str]:
    return [name.removeprefix(_ENVIRONMENT).lower() for name in os.environ if name.startswith(_ENVIRONMENT)]


def _is_ledger(conn_id: str) -> bool:
    try:
        return type_of(conn_id) == EpochsHook.conn_type
    except NotApplied:
        return False
