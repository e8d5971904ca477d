"""Why a version of a table cannot be read: one function for each cause, with its remedy."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_epochs import codes
from airflow_epochs.errors import Corrupt


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A version that cannot be read, and the error that says why."""

    version: int
    error: Corrupt


def gone(table: str, number: int, why: str) -> Unreadable:
    """The error for a version whose log entry or files are gone; ``why`` says which."""
    error = Corrupt(
        _cannot(table, number, why),
        code=codes.VERSIONS_GONE,
        remedy="Put the files back, and clear the failed task. To accept the loss instead, run `airflow epochs skip "
        "PIPELINE --to-available --why …`: it goes on with the next version that can be read, prints which versions "
        "are lost, and asks. Then clear the failed task. If the table still has the rows, in files that OPTIMIZE has "
        "written, and rows may come twice, run `airflow epochs reset-source PIPELINE --starting earliest --why …` "
        "instead: it reads the whole table again.",
    )
    return Unreadable(version=number, error=error)


def changes_rows(table: str, number: int, operation: str) -> Unreadable:
    """The error for a version that changes rows, if the source reads only appended rows."""
    what = f"it updates or deletes rows ({operation or 'by an unknown operation'})"
    error = Corrupt(
        _cannot(table, number, what),
        code=codes.ROWS_CHANGED,
        remedy="Leave this version out, with all rows that it adds: run `airflow epochs skip PIPELINE --to-available "
        "--why …`, which prints the version, and asks. If the table had the property delta.enableChangeDataFeed=true "
        "before this version, you can set changes='feed' in the DAG instead: then its changes are read. Then clear the "
        "failed task.",
    )
    return Unreadable(version=number, error=error)


def leads_back(table: str, number: int, to: int | None) -> Unreadable:
    """The error for a version that takes back rows which the pipeline has read.

    ``to``: the version to which the table went back; None if the log does not tell it.
    """
    back, offset = ("an earlier version", "VERSION") if to is None else (f"version {to}", str(to + 1))
    of = "has read the first version that was taken back" if to is None else f"has read version {offset}"
    error = Corrupt(
        _cannot(table, number, f"it takes the table back to {back}, and the pipeline has read later ones"),
        code=codes.ROWS_CHANGED,
        remedy=f"Take the rows of these versions back in the sinks as well. `airflow epochs find --topic {table} "
        f"--partition 0 --offset {offset}` names the epoch that {of}. With N for the epoch before it, run `airflow "
        "epochs rewind PIPELINE --to-epoch N --restore-tables --why …`: the next epoch leaves out what was taken back. "
        "If there is no epoch before it, empty the tables of the sinks, and run `airflow epochs reset-source PIPELINE "
        "--starting earliest --why …`. If the sinks are to keep these rows, run `airflow epochs skip PIPELINE "
        "--to-available --why …` instead: it leaves this version out, and rows that are written into the table again "
        "come twice. Then clear the failed task.",
    )
    return Unreadable(version=number, error=error)


def other_columns(table: str, number: int, why: str) -> Unreadable:
    """The error for a version whose changes Spark does not read together with others; ``why`` says what changed."""
    error = Corrupt(
        _cannot(table, number, why),
        code=codes.COLUMNS_CHANGED,
        remedy="Leave these changes out: run `airflow epochs skip PIPELINE --to-available --why …`. It goes on with "
        "the first version that can be read, prints which versions are lost, and asks. Or run `airflow epochs "
        "reset-source PIPELINE --starting earliest --why …`: it reads the whole table, as inserts. Then clear the "
        "failed task.",
    )
    return Unreadable(version=number, error=error)


def other_names(table: str, number: int, column: str) -> Unreadable:
    """The error for a version whose files call a column by another name than the table does today."""
    why = f"the table mapped its columns then, and its files call the column {column} by another name"
    error = Corrupt(
        _cannot(table, number, why),
        code=codes.COLUMNS_CHANGED,
        remedy="Leave this version out, with all rows that it adds: run `airflow epochs skip PIPELINE --to-available "
        "--why …`. It goes on with the first version that can be read, prints which versions are lost, and asks. Or "
        "run `airflow epochs reset-source PIPELINE --starting earliest --why …`: it reads the whole table again, also "
        "rows that were read before. Then clear the failed task.",
    )
    return Unreadable(version=number, error=error)


def feed_off(table: str, number: int) -> Unreadable:
    """The error for a version from when the table did not record its changes."""
    error = Corrupt(
        _cannot(table, number, "the table did not record its changes"),
        code=codes.CHANGE_FEED_OFF,
        remedy="Set the table property delta.enableChangeDataFeed=true: changes are on record from then on. Then run "
        "`airflow epochs skip PIPELINE --to-available --why …`: it goes on with the first version that has them, "
        "prints which versions are lost, and asks. Or run `airflow epochs reset-source PIPELINE --starting earliest "
        "--why …`: it reads the whole table, as inserts. Then clear the failed task.",
    )
    return Unreadable(version=number, error=error)


def _cannot(table: str, number: int, why: str) -> str:
    return f"Version {number} of the table {table}, which the pipeline has yet to read, cannot be read: {why}."
