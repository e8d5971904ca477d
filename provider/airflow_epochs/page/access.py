"""Who may see which pipeline, and act on it: Airflow's own authorization, by the DAG that owns the pipeline."""

from __future__ import annotations

from collections.abc import Collection

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import HTTPException, status

from airflow_epochs.hooks.own_tasks import stored_tasks

__all__ = [
    "GetUserDep",
    "knows_ledger",
    "may_edit",
    "may_run",
    "readable_dags",
    "require_editable",
    "require_readable",
    "require_runnable",
]

RUNNING: tuple[ResourceMethod, ...] = ("POST", "PUT")
"""What Airflow asks for to start a run, and to clear its tasks."""


def readable_dags(user: GetUserDep, dag_ids: Collection[str]) -> set[str]:
    """The DAGs among ``dag_ids`` that the user may read."""
    teams = DagModel.get_dag_id_to_team_name_mapping(list(dag_ids))
    return {dag_id for dag_id in dag_ids if _may(user, "GET", dag_id, teams.get(dag_id))}


def knows_ledger(user: GetUserDep, conn_id: str) -> bool:
    """Whether the user may read a DAG whose tasks name the connection of a ledger, or all DAGs.

    For what is known of no owner: a connection that does not answer, a ledger that cannot be read.
    """
    everything, readable = _all_dags(), get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    if everything <= readable and _may(user, "GET", "", None):
        return True
    return any(_names(dag_id, conn_id) for dag_id in sorted(everything & readable))


def _all_dags() -> set[str]:
    with create_session() as session:
        return {str(dag_id) for (dag_id,) in session.query(DagModel.dag_id).filter_by(is_stale=False)}


def _names(dag_id: str, conn_id: str) -> bool:
    """Whether a task of the DAG names this connection for its ledger. A template may be rendered to any connection."""
    named = [str(task.get("ledger_conn_id", "")) for task in stored_tasks(dag_id)]
    return any(name == conn_id or "{{" in name for name in named)


def require_readable(user: GetUserDep, dag_id: str) -> None:
    """Raise HTTPException 403 unless the user may read the DAG."""
    if not _may(user, "GET", dag_id, DagModel.get_team_name(dag_id)):
        raise HTTPException(status.HTTP_403_FORBIDDEN, f"You may not read the DAG {dag_id}, which owns this pipeline.")


def may_edit(user: GetUserDep, dag_id: str) -> bool:
    """Whether the user may edit the DAG, and so act on its pipelines."""
    return _may(user, "PUT", dag_id, DagModel.get_team_name(dag_id))


def require_editable(user: GetUserDep, dag_id: str) -> None:
    """Raise HTTPException 403 unless the user may edit the DAG."""
    if not may_edit(user, dag_id):
        raise HTTPException(status.HTTP_403_FORBIDDEN, f"You may not edit the DAG {dag_id}, which owns this pipeline.")


def may_run(user: GetUserDep, dag_id: str) -> bool:
    """Whether the user may both start runs of the DAG and clear their tasks, as in Airflow's own UI."""
    team = DagModel.get_team_name(dag_id)
    return all(_may(user, method, dag_id, team, DagAccessEntity.RUN) for method in RUNNING)


def require_runnable(user: GetUserDep, dag_id: str) -> None:
    """Raise HTTPException 403 unless ``may_run``."""
    if not may_run(user, dag_id):
        what = f"You may not start and clear runs of the DAG {dag_id}, which owns this pipeline."
        raise HTTPException(status.HTTP_403_FORBIDDEN, what)


def _may(
    user: GetUserDep, method: ResourceMethod, dag_id: str, team: str | None, entity: DagAccessEntity | None = None
) -> bool:
    details = DagDetails(id=dag_id, team_name=team)
    return get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user)
