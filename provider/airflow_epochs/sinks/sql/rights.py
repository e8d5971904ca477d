"""Rights that the connection's user lacks on a table, as GRANT spells them: on all of it, or on single columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from airflow_epochs.sinks.sql.database import Session
from airflow_epochs.sinks.sql.table import SqlTable, quoted


def lacking(session: Session, table: SqlTable, needed: Mapping[str, Sequence[str]]) -> list[str]:
    """The rights that the user lacks. ``needed``: each right -> the columns that need it; empty: any column will do."""
    whole = session.lacks(table, *needed)
    found = [right if right in whole else _of_columns(session, table, right, needed[right]) for right in needed]
    return [right for right in found if right]


def _of_columns(session: Session, table: SqlTable, right: str, columns: Sequence[str]) -> str | None:
    some = session.lacks_of(table, right, columns) if columns else []
    return f"{right} ({', '.join(map(quoted, some))})" if some else None
