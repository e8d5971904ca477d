"""The revenue of each shop and hour of event time, in a table with one row per shop and hour. Late sales correct it.

The windows that are still open are state: a table of the same decision, which anybody can query. Sales that come after
their hour was closed for good go to ``late``, records that are no sale to ``rejected``.

Starts paused. Before you unpause it, create the topic ``sales``. Environment variables: ``LAKE``, the folder or URL of
the tables.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, EventTime, KafkaSource, SparkConnect, StateTable

LAKE = os.environ.get("LAKE", "/lake")
OPEN = (
    "shop string, window_start timestamp, window_end timestamp, sales bigint, revenue decimal(22, 2), expires timestamp"
)

with DAG(
    "hourly_revenue",
    schedule="@continuous",
    max_active_runs=1,
    max_consecutive_failed_dag_runs=20,
    catchup=False,
    is_paused_upon_creation=True,
):
    EpochPipeline(
        "hourly_revenue",
        source=KafkaSource(topics=["sales"], conn_id="kafka_default", starting="earliest"),
        transform="spark_apps/hourly_revenue.py:hourly",
        event_time=EventTime(delay="5 min", idle_after="1 h"),
        state=[
            StateTable(
                "open",
                f"{LAKE}/state/hourly_revenue",
                schema=OPEN,
                keys=["shop", "window_start"],
                expires="expires",
            )
        ],
        sinks=[
            DeltaSink(
                "hourly",
                f"{LAKE}/gold/hourly_revenue",
                mode="upsert",
                keys=["shop", "window_start"],
            ),
            DeltaSink("late", f"{LAKE}/silver/late_sales"),
            DeltaSink("rejected", f"{LAKE}/silver/sales_rejected"),
        ],
        dead_letters="rejected",
        spark=SparkConnect("spark_connect_default"),
        ledger_conn_id="epochs_default",
    )
