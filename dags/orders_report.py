"""Another team's DAG, scheduled on a table: it runs whenever an epoch of the pipeline ``orders`` is complete.

Environment variable: ``LAKE``, the folder or URL of the tables, as in ``orders``.
"""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, Asset, task

from airflow_epochs import DeltaSink

LAKE = os.environ.get("LAKE", "/lake")
ORDERS = Asset(DeltaSink("orders", f"{LAKE}/silver/orders").asset_uri("orders"))

with DAG("orders_report", schedule=[ORDERS], max_active_runs=1, catchup=False):

    @task
    def report(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        """What is new: epoch, rows and Delta version of every event since the last run."""
        return [dict(event.extra) for event in triggering_asset_events[ORDERS]]

    report()
