"""A continuous pipeline whose runs fail at once: its sink's topic does not exist until a test creates it."""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import EpochPipeline, KafkaSink, KafkaSource, SparkConnect

with DAG("storms", schedule="@continuous", max_active_runs=1, catchup=False, is_paused_upon_creation=True):
    EpochPipeline(
        "storms",
        source=KafkaSource(topics=["orders"], starting="earliest", max_wait=0),
        transform="spark_apps/storms.py:copied",
        sinks=[KafkaSink("copies", "orders-copied", staging=f"{os.environ['LAKE']}/storms/staging")],
        spark=SparkConnect(),
        operator_args={"retries": 0},
    )
