"""Orders into tables of their own; a run waits for enough of them in the triggerer."""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect

with DAG("waits", schedule=None, max_active_runs=1, catchup=False):
    EpochPipeline(
        "waits",
        source=KafkaSource(topics=["orders"], min_records=int(os.environ["ORDERS_ENOUGH"]), max_wait=3600),
        transform="spark_apps/orders.py:orders",
        sinks=[
            DeltaSink("orders", f"{os.environ['LAKE']}/waits/silver/orders"),
            DeltaSink("rejected", f"{os.environ['LAKE']}/waits/silver/orders_rejected"),
        ],
        dead_letters="rejected",
        spark=SparkConnect("spark_connect_default"),
        deferrable=True,
    )
