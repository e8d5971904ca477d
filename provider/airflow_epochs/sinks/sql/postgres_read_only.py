"""Why PostgreSQL gives only sessions that may not write, and what to do: a standby, or a setting of somebody's.

libpq says only "session is read-only", so a second session, which need not write, asks the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_epochs.sinks.sql.table import quoted

if TYPE_CHECKING:
    import psycopg

_SETTING = "default_transaction_read_only"
_WHY = """
    SELECT pg_catalog.pg_is_in_recovery(), s.source, session_user, pg_catalog.current_database()
    FROM pg_catalog.pg_settings s WHERE s.name = %s
"""
_RESETS = {
    "user": "ALTER ROLE {user} RESET {setting}",
    "database user": "ALTER ROLE {user} IN DATABASE {database} RESET {setting}",
    "database": "ALTER DATABASE {database} RESET {setting}",
    "global": "ALTER ROLE ALL RESET {setting}",
}
"""Where a server's setting comes from -> the statement that takes it back."""
_OF_SERVER = "ALTER SYSTEM SET {setting} = off; SELECT pg_reload_conf()"
_THEN = "Then clear the failed task."
MAY_ONLY_READ = (
    "Let the connection lead to the primary server, if its server is a standby. Otherwise, take back the setting "
    f"`{_SETTING}` of the role, of the database, or in `options` in the connection's extra. {_THEN}"
)
"""The remedy if the cause is not known."""


def why(error: psycopg.Error, parameters: Mapping[str, Any], conn_id: str) -> tuple[str, str] | None:
    """The cause and the remedy, if the server gives only read-only sessions; None if not, or if unknown."""
    import psycopg

    if "session is read-only" not in str(error):
        return None
    try:
        with psycopg.connect(**{**parameters, "target_session_attrs": "any"}) as session:
            found = session.execute(_WHY.encode(), (_SETTING,)).fetchone()
    except psycopg.Error:
        return None
    return _told(conn_id, *found) if found else None


def _told(conn_id: str, is_standby: bool, source: str, user: str, database: str) -> tuple[str, str]:
    if is_standby:
        return (
            "The server is a standby, which takes no rows.",
            f"Let connection {conn_id!r} lead to the primary server: correct its host, or name all servers there, "
            "separated by commas. If these are all, see that the primary server is up. Only if it does not come back, "
            f"make this one the primary: `SELECT pg_promote()`. {_THEN}",
        )
    cause = f"`{_SETTING}` is on, so no session may write."
    if source == "client":
        return cause, f"Take {_SETTING} out of `options` in the extra of connection {conn_id!r}. {_THEN}"
    reset = _RESETS.get(source, _OF_SERVER).format(user=quoted(user), database=quoted(database), setting=_SETTING)
    # The administrator's own session may be read-only, too, so it must first be allowed to write.
    return cause, f"Type as an administrator: `SET {_SETTING} = off; {reset}`. {_THEN}"
