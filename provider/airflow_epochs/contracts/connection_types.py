"""Says of a connection that fails, first of all, that it is of another type than the one that belongs there.

A connection of another type is read all the same: Airflow's form offers only the types of providers that are installed,
so that somebody may have chosen another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from airflow_epochs.contracts.environment import Connection
from airflow_epochs.errors import EpochError

AnyError = TypeVar("AnyError", bound=EpochError)

_UNTYPED = ("", "generic")


def names_a_service(connection: Connection) -> bool:
    """Whether the connection has a type that says for what service it is."""
    return connection.conn_type not in _UNTYPED


@contextmanager
def used_as(connection: Connection, *types: str, named: str = "in the DAG") -> Iterator[None]:
    """Add the connection's type, if it is not one of ``types``, and the remedy for it to each error of the block.

    ``named``: where people name the connection.
    """
    try:
        yield
    except EpochError as error:
        typed(error, connection.conn_id, connection.conn_type, *types, named=named)
        raise


def typed(error: AnyError, conn_id: str, conn_type: str, *types: str, named: str = "in the DAG") -> AnyError:
    """``error`` itself, with what ``used_as`` adds. Idempotent."""
    kinds = " or ".join(types)
    first = f"Connection {conn_id!r} is of type {conn_type}, and one of type {kinds} belongs here"
    if conn_type not in (*types, *_UNTYPED) and not error.what.startswith(first):
        error.what = f"{first}. {error.what}"
        error.remedy = f"Name a connection of type {kinds} {named}, unless this one is right. {error.remedy}"
    return error
