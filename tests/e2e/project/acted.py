"""A pipeline that a person acts on in the browser. While there is a file $TROUBLES/acted, it comes to be in doubt."""

from __future__ import annotations

import os
from pathlib import Path

from airflow.sdk import DAG, task

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect

LAKE, TROUBLES = Path(os.environ["LAKE"], "acted"), Path(os.environ["TROUBLES"])
REJECTED = LAKE / "rejected"


@task
def between_decision_and_commit() -> None:
    """Take the table of rejected orders away."""
    if (TROUBLES / "acted").exists():
        (REJECTED / "_delta_log").rename(REJECTED / "_delta_log_away")


with DAG("acted", schedule=None, max_active_runs=1, catchup=False) as dag:
    EpochPipeline(
        "acted",
        source=KafkaSource(topics=["orders"], max_records=2_000, max_wait=0),
        transform="spark_apps/orders.py:orders",
        sinks=[DeltaSink("orders", str(LAKE / "orders")), DeltaSink("rejected", str(REJECTED))],
        dead_letters="rejected",
        spark=SparkConnect(),
        operator_args={"retries": 0},
    )
    vote, commit = dag.get_task("acted.vote"), dag.get_task("acted.commit.rejected")
    vote >> between_decision_and_commit() >> commit
