"""The orders of ``orders`` within seconds: one task, which works on one epoch after another.

The task stays for ``ORDERS_FOR_SECONDS``, also while no order comes. Then it ends, and the next run goes on: so each
run emits asset events, and a change of this file takes effect. See docs/single-task.md.

Starts paused. Environment variables: ``LAKE``, the folder or URL of the tables; ``ORDERS_FOR_SECONDS``.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect

LAKE = os.environ.get("LAKE", "/lake")
FOR_SECONDS = float(os.environ.get("ORDERS_FOR_SECONDS", "600"))
# Small epochs are over before code for them would be compiled.
INTERPRETED = {"spark.sql.codegen.wholeStage": False, "spark.sql.codegen.factoryMode": "NO_CODEGEN"}

with DAG(
    "orders_continuous",
    schedule="@continuous",
    max_active_runs=1,
    max_consecutive_failed_dag_runs=20,
    catchup=False,
    is_paused_upon_creation=True,
):
    EpochPipeline(
        "orders_continuous",
        source=KafkaSource(topics=["orders"], conn_id="kafka_default", max_records=1_000_000, max_wait=FOR_SECONDS),
        transform="spark_apps/orders.py:orders",
        sinks=[
            DeltaSink("orders", f"{LAKE}/continuous/silver/orders", partition_by=["day"]),
            DeltaSink("rejected", f"{LAKE}/continuous/silver/orders_rejected"),
        ],
        dead_letters="rejected",
        layout="single",
        for_seconds=FOR_SECONDS,
        spark=SparkConnect("spark_connect_default", session_conf=INTERPRETED),
        ledger_conn_id="epochs_default",
    )
