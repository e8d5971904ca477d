"""A pipeline that fails when told to: each file in $TROUBLES is a trouble, named after the step that it befalls."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect
from airflow_epochs.notifiers import InDoubtNotifier, LagNotifier

LAKE, TROUBLES = Path(os.environ["LAKE"], "troubled"), Path(os.environ["TROUBLES"])
REJECTED = LAKE / "silver" / "orders_rejected"


@task
def between_decision_and_commit() -> None:
    """Take the table of rejected orders away."""
    if (TROUBLES / "commit").exists():
        (REJECTED / "_delta_log").rename(REJECTED / "_delta_log_away")


@task
def behind() -> None:
    """The user's own task, which notes that it ran."""
    if (TROUBLES / "behind").exists():
        raise RuntimeError("the task behind the pipeline fails")
    with (TROUBLES / "told").open("a") as told:
        told.write("told\n")


def alerted(context: Any) -> None:
    """Note what a notifier tells."""
    with (TROUBLES / "alerts").open("a") as alerts:
        alerts.write(f"{context['epochs_alert']}\n")


with DAG(
    "troubled",
    schedule=None,
    max_active_runs=1,
    on_failure_callback=InDoubtNotifier("troubled", alerted),
    on_success_callback=LagNotifier("troubled", alerted, records_above=0),
) as dag:
    group = EpochPipeline(
        "troubled",
        source=KafkaSource(topics=["orders"], max_records=4_000, max_wait=0),
        transform="spark_apps/troubled.py:orders",
        sinks=[
            DeltaSink("orders", str(LAKE / "silver" / "orders"), partition_by=["day"]),
            DeltaSink("rejected", str(REJECTED)),
        ],
        dead_letters="rejected",
        spark=SparkConnect(),
        operator_args={"retries": 0},
    )
    vote, commit = dag.get_task("troubled.vote"), dag.get_task("troubled.commit.rejected")
    vote >> between_decision_and_commit() >> commit
    group >> behind()
