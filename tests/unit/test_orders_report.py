"""The example of another team's DAG waits for the asset that the pipeline ``orders`` emits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

DAGS = Path(__file__).parents[2] / "dags"


def dag(name: str) -> Any:
    from airflow.dag_processing.dagbag import DagBag

    return DagBag(dag_folder=str(DAGS / f"{name}.py")).dags[name]


@pytest.mark.parametrize("lake", ["/lake", "/tmp/a b/ü", "file:///tmp/lake", "s3a://bucket/lake"])
def test_orders_report_is_scheduled_on_what_orders_emits(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE", lake)
    orders, report = dag("orders"), dag("orders_report")
    [table] = [asset for asset in orders.get_task("orders.complete").outlets if asset.uri.endswith("/orders")]
    assert [asset.uri for asset in report.schedule] == [table.uri]
