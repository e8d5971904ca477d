"""One topic into a Delta table, a Kafka topic and a PostgreSQL table: all show an epoch, or none does.

What is no order, or what one of them would not take, goes to a second Delta table: see docs/dead-letters.md.

Starts paused. Before you unpause it, create the topic ``orders-valid``, the connection ``orders_db`` and its table::

    CREATE TABLE orders (order_id text, customer text, amount numeric(12, 2), currency text, ts timestamptz)

Environment variables: ``LAKE``, the folder or URL of the tables and of what is staged.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSink, KafkaSource, SparkConnect, SqlSink

LAKE = os.environ.get("LAKE", "/lake")

with DAG(
    "orders_fanout",
    schedule="@continuous",
    max_active_runs=1,
    max_consecutive_failed_dag_runs=20,
    catchup=False,
    is_paused_upon_creation=True,
):
    EpochPipeline(
        "orders_fanout",
        source=KafkaSource(topics=["orders"], conn_id="kafka_default", starting="earliest", max_records=5_000_000),
        transform="spark_apps/orders_fanout.py:fanout",
        sinks=[
            DeltaSink("lake", f"{LAKE}/silver/orders_valid", partition_by=["day"]),
            KafkaSink("events", "orders-valid", conn_id="kafka_default", staging=f"{LAKE}/staging"),
            SqlSink("database", "orders_db", "orders", staging=f"{LAKE}/staging"),
            DeltaSink("rejected", f"{LAKE}/silver/orders_fanout_rejected"),
        ],
        dead_letters="rejected",
        spark=SparkConnect("spark_connect_default"),
        ledger_conn_id="epochs_default",
    )
