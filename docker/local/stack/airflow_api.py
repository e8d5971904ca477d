"""Airflow's REST API: the few calls that the demo, the tests and the benchmarks make."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import httpx
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

# Longer than the 60 s for which the server waits for SQLite's lock (see ``airflow.py``): a busy machine needs them.
ANSWER_S = 90.0
PATIENCE_S = 2 * ANSWER_S
"""For which a call is made again: after an answer that took as long, too."""


def _passes(error: BaseException) -> bool:
    """SQLite answers "database is locked" now and then."""
    return isinstance(error, httpx.HTTPStatusError) and error.response.is_server_error


class AirflowApi:
    """Airflow at ``url``, as a user. Every call raises ``httpx.HTTPError`` if Airflow is down or says no."""

    def __init__(self, url: str, user: str, password: str) -> None:
        self._login = {"username": user, "password": password}
        # No connection outlives its call, so that nobody need close anything.
        self._http = httpx.Client(base_url=url, timeout=ANSWER_S, limits=httpx.Limits(max_keepalive_connections=0))
        self._token: str | None = None

    def get(self, path: str) -> Any:
        """GET ``/api/v2/<path>``."""
        return self._call("GET", path, None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST JSON to ``/api/v2/<path>``."""
        return self._call("POST", path, body)

    def knows(self, dag: str) -> bool:
        return any(found["dag_id"] == dag for found in self.get("dags")["dags"])

    def runs(self, dag: str, *states: str) -> list[dict[str, Any]]:
        """The newest hundred, newest first; only those in one of the states if any are named."""
        wanted = "".join(f"&state={state}" for state in states)
        return list(self.get(f"dags/{dag}/dagRuns?order_by=-run_after&limit=100{wanted}")["dag_runs"])

    def state(self, dag: str, run_id: str) -> str:
        return str(self.get(f"dags/{dag}/dagRuns/{run_id}")["state"])

    def task(self, dag: str, run_id: str, task_id: str) -> dict[str, Any]:
        """Airflow's record of a task instance: state, try number, process id, and more."""
        return dict(self.get(f"dags/{dag}/dagRuns/{run_id}/taskInstances/{task_id}"))

    def tasks(self, dag: str, run_id: str) -> dict[str, dict[str, Any]]:
        """Airflow's records of a run's task instances, by task id."""
        found = self.get(f"dags/{dag}/dagRuns/{run_id}/taskInstances")["task_instances"]
        return {task["task_id"]: task for task in found}

    def trigger(self, dag: str, run_id: str) -> None:
        self.post(f"dags/{dag}/dagRuns", {"dag_run_id": run_id, "logical_date": None})

    def mark_failed(self, dag: str, run_id: str) -> None:
        """As "mark as failed" does: the tasks that run are stopped."""
        self._call("PATCH", f"dags/{dag}/dagRuns/{run_id}", {"state": "failed"})

    def pause(self, dag: str) -> None:
        self._call("PATCH", f"dags/{dag}", {"is_paused": True})

    def unpause(self, dag: str) -> None:
        self._call("PATCH", f"dags/{dag}", {"is_paused": False})

    def clear(self, dag: str, run_id: str, tasks: list[str] | None = None, *, only_failed: bool = False) -> int:
        """Clear tasks of a run, all if none are named; how many were cleared."""
        body = {"dry_run": False, "dag_run_id": run_id, "only_failed": only_failed, "reset_dag_runs": True}
        named = {"task_ids": tasks} if tasks else {}
        return int(self.post(f"dags/{dag}/clearTaskInstances", {**body, **named})["total_entries"])

    @retry(retry=retry_if_exception(_passes), stop=stop_after_delay(PATIENCE_S), wait=wait_fixed(0.5), reraise=True)
    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        answer = self._request(method, path, body)
        if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            # The server was started anew since the token was drawn, or the token is too old.
            self._token = None
            answer = self._request(method, path, body)
        return answer.raise_for_status().json()

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        if self._token is None:
            self._token = self._http.post("/auth/token", json=self._login).raise_for_status().json()["access_token"]
        headers = {"Authorization": f"Bearer {self._token}"}
        return self._http.request(method, f"/api/v2/{path}", json=body, headers=headers)
