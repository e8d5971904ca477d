"""Finds what the page shows: the ledgers of all connections, read anew for each request."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import HTTPException, status

from airflow_epochs.errors import EpochError
from airflow_epochs.hooks.epochs import REMEDY_OF_NOTHING, EpochsHook
from airflow_epochs.hooks.ledgers import ledger_conn_ids
from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.overview import PipelineRow, overview
from airflow_epochs.names import is_name
from airflow_epochs.page.access import GetUserDep, knows_ledger, readable_dags, require_readable


@dataclass(frozen=True)
class Listed:
    """A pipeline in the list: the connection of its ledger, and its row."""

    conn_id: str
    row: PipelineRow


@dataclass(frozen=True)
class Unlisted:
    """A connection without pipelines in the list, and why: it does not answer, or nothing is stored there."""

    conn_id: str
    why: str
    answers: bool = False


def all_pipelines(user: GetUserDep, dag_id: str | None = None) -> tuple[list[Listed], list[Unlisted]]:
    """The pipelines that the user may see, and the connections without any. ``dag_id``: as in ``overview``.

    A ledger that does not tell its owner is shown to users who may read a DAG that names its connection.
    """
    listed: list[Listed] = []
    unlisted: list[Unlisted] = []
    for conn_id in ledger_conn_ids():
        try:
            found, nothing = _of_connection(conn_id, dag_id)
        except EpochError as error:
            unlisted.append(Unlisted(conn_id, error.what))
            continue
        listed += found
        if nothing:
            unlisted.append(Unlisted(conn_id, f"{nothing} {REMEDY_OF_NOTHING}", answers=True))
    readable = readable_dags(user, {owner for each in listed if (owner := each.row.dag_id)})
    ownerless = {each.conn_id for each in listed if not each.row.dag_id}
    known = {conn_id for conn_id in ownerless | {each.conn_id for each in unlisted} if knows_ledger(user, conn_id)}
    seen = [each for each in listed if each.row.dag_id in readable or (not each.row.dag_id and each.conn_id in known)]
    return seen, [each for each in unlisted if each.conn_id in known]


def _of_connection(conn_id: str, dag_id: str | None) -> tuple[list[Listed], str]:
    """The pipelines of a connection; and a sentence if nothing is stored there. One listing, if there are pipelines."""
    hook = EpochsHook(conn_id)
    names = hook.pipelines()
    rows = overview(names, hook.ledger, dag_id)
    return [Listed(conn_id, row) for row in rows], "" if names else hook.nothing_stored()


def ledger_for(user: GetUserDep, conn_id: str, pipeline: str) -> Ledger:
    """The ledger of a pipeline that the user may see.

    Raises:
        HTTPException: 404: there is none; 403: the user may not read the DAG that owns it.
    """
    if conn_id not in ledger_conn_ids() or not is_name(pipeline):
        raise _unknown(conn_id, pipeline)
    ledger = EpochsHook(conn_id).ledger(pipeline)
    if (identity := ledger.identity()) is None:
        raise _unknown(conn_id, pipeline)
    require_readable(user, ledger.owner(identity))
    return ledger


def _unknown(conn_id: str, pipeline: str) -> HTTPException:
    return HTTPException(status.HTTP_404_NOT_FOUND, f"Connection {conn_id} leads to no pipeline {pipeline}.")
