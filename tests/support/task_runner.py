"""Airflow's own task runner, in this process, without a server and a database: it is told that all is well."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
from airflow.sdk import DAG
from airflow.sdk.api.client import Client
from airflow.sdk.api.datamodels._generated import TaskInstance
from airflow.sdk.execution_time.supervisor import run_task_in_process

from airflow_epochs.model import JsonDict, Run

AT = "2026-01-01T00:00:00Z"


def run_task(dag: DAG, run: Run, task_id: str, try_number: int = 1) -> str:
    """Run a task as the run's first one, with its listeners; the state in which it ends."""
    task = TaskInstance(
        id=uuid.uuid4(),
        dag_version_id=uuid.uuid4(),
        task_id=task_id,
        dag_id=run.dag_id,
        run_id=run.run_id,
        try_number=try_number,
    )
    told: JsonDict = {
        "dag_id": run.dag_id,
        "run_id": run.run_id,
        "run_type": "manual",
        "state": "running",
        **dict.fromkeys(("logical_date", "run_after", "start_date"), AT),
        **dict.fromkeys(("end_date", "data_interval_start", "data_interval_end", "partition_key")),
        "consumed_asset_events": [],
    }

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/run"):
            return httpx.Response(200, json={"dag_run": told, "max_tries": 0, "should_retry": False})
        return httpx.Response(200, json={"key": "return_value", "value": None})  # of a task before: no XCom is kept

    client = Client(base_url=None, dry_run=True, token="", transport=httpx.MockTransport(answer))
    ended: Any = run_task_in_process(ti=task, task=dag.get_task(task_id), client=client)
    return str(ended.state.value)
