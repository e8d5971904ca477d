"""Tells what an error of psycopg means: it may pass, or blames a row, a right or a statement."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from airflow_epochs import codes, secrecy
from airflow_epochs.errors import NotApplied
from airflow_epochs.sinks.sql.database import RowRefused
from airflow_epochs.sinks.sql.postgres_read_only import MAY_ONLY_READ

if TYPE_CHECKING:
    import psycopg

_READ_ONLY = "25006"
_MAY_PASS = ("08", "40", "53", "55006", "55P03", "57", "58", _READ_ONLY)
"""Prefixes of SQLSTATE that blame neither rows nor rights: connections, conflicts, resources, locks, shutdown, and a
server that has become a standby."""
_LONGER = {
    "55P03": "lock_timeout=5min",
    "57014": "statement_timeout=3h",
    "25P03": "idle_in_transaction_session_timeout=30min",
    "25P04": "transaction_timeout=3h",
}
"""SQLSTATE -> the setting that gives more time: to wait for a lock, for one statement, to be idle in a transaction, to
end one (since PostgreSQL 17). The last two end the session, too."""
_LIMIT = "54000"
"""The SQLSTATE of, for example, a value too long for an index. PostgreSQL names the index, and no row."""
_ROW_TOO_BIG = "row is too big"
"""The text with the same SQLSTATE for a row that is too large, for example with numbers in a thousand columns."""
_FEWER_COLUMNS = (
    "Let the transform return fewer columns, or several of them as one of `jsonb`: PostgreSQL keeps all numbers and "
    "times of a row in a page of 8 kB. Then clear the failed task."
)
_NO_RIGHT = "42501"
_GRANT = (
    "Grant the connection's user the right that the message names: for a schema `GRANT USAGE ON SCHEMA <its name> TO "
    "<the user>`, for a sequence `GRANT USAGE ON SEQUENCE <its name> TO <the user>`. If it names a policy, change "
    "the policy. Then clear the failed task."
)
"""PostgreSQL's message names what the user may not use. Rights on tables are looked at before (``rights``)."""
_FOREIGN_KEY_BROKEN = "23503"
_LENGTH_MAX = 600


def translated(name: str, error: psycopg.Error) -> NotApplied:
    """The error to raise. ``name``: the database."""
    state = error.sqlstate or ""
    if not state and _is_own(error):
        return _not_sent(name, error)
    session_ended = error.diag.severity_nonlocalized != "ERROR"  # connection lost, or FATAL: timeout, administrator
    if session_ended or state.startswith(_MAY_PASS):
        return NotApplied(
            f"{name} did not complete a statement: {said(error)}", code=codes.SQL_UNREACHABLE, remedy=_remedy(state)
        )
    return _refused(name, error, state)


def _is_own(error: psycopg.Error) -> bool:
    """Whether psycopg itself refuses something. Then there is no SQLSTATE, as after a lost connection."""
    import psycopg

    return isinstance(error, (psycopg.ProgrammingError, psycopg.DataError, psycopg.NotSupportedError))


def _not_sent(name: str, error: psycopg.Error) -> RowRefused:
    return RowRefused(
        f"The driver psycopg did not send a statement to {name}, because it cannot: {said(error)}",
        code=codes.SQL_ROW_REFUSED,
        remedy="Correct the name or the value that the message means: in `table` and `keys` of the sink, or in the "
        "rows. Then clear the failed task.",
    )


def _refused(name: str, error: psycopg.Error, state: str) -> RowRefused:
    what = f"{name} refused a row or a statement: {said(error)}"
    too_big = state == _LIMIT and _ROW_TOO_BIG in str(error)
    too_long = state == _LIMIT and not too_big
    refused = RowRefused(what, code=codes.SQL_LIMIT) if too_long else RowRefused(what, code=codes.SQL_ROW_REFUSED)
    if state == _NO_RIGHT:
        refused.remedy = _GRANT
    if too_big:
        refused.remedy = _FEWER_COLUMNS
    refused.line, refused.table = _line(error), _place(error)
    refused.refers = state == _FOREIGN_KEY_BROKEN
    return refused


def _remedy(state: str) -> str | None:
    """What to do after an error that may pass; None if what the code says is all that is known.

    ``state``: the SQLSTATE; empty if the connection ended before the server could say why.
    """
    if not state:
        return (
            "Check that the server is up, and read in its log why it ended the connection. If that was a timeout, set "
            f"a longer one in the connection's extra: {_options('25P03')} if the log names idle-in-transaction "
            f"timeout, {_options('25P04')} if it names transaction timeout. Then clear the failed task."
        )
    if state == _READ_ONLY:
        return MAY_ONLY_READ
    if state not in _LONGER:
        return None
    return (
        "Check that the server is up, and which sessions hold locks for a long time (pg_stat_activity). If the task "
        f"needs more time than the timeout allows, set a longer one in the connection's extra: {_options(state)}. Then "
        "clear the failed task."
    )


def _options(state: str) -> str:
    return f'{{"options": "-c {_LONGER[state]}"}}'


_LINE = re.compile(r"^COPY .*?, \D*(\d+)", re.MULTILINE)


def _line(error: psycopg.Error) -> int:
    """The line of the COPY that the error names, or 0. Works in every language of the server's messages."""
    found = _LINE.search(error.diag.context or "")
    return int(found[1]) if found else 0


def _place(error: psycopg.Error) -> tuple[str, str] | None:
    """Schema and name of the table that the error is about; of a foreign key, the one that refers."""
    schema, name = error.diag.schema_name, error.diag.table_name
    return (schema, name) if schema and name else None


def said(error: psycopg.Error) -> str:
    """The server's message, with the row or key that it names."""
    diag = error.diag
    context = (diag.context or "").splitlines()[:1]
    parts = [diag.message_primary or str(error) or type(error).__name__, diag.message_detail, *context]
    return secrecy.scrubbed(" ".join(" ".join(part.split()) for part in parts if part))[:_LENGTH_MAX]
