"""Orders with the payments that come within an hour of event time, from two topics.

Orders and payments that may yet find each other are state: two tables of the same decision. An order that is not paid
within the hour is shown nowhere; it leaves the state when no payment can come any more. To find such orders, compare
``paid`` with a table of all orders, as the example ``orders`` writes it. Records that are late go to tables of their
own, since their partner may have gone. So do the first records of a topic that begins long after the other one.
Records that are neither go to ``rejected``.

Starts paused. Before you unpause it, create the topics ``orders``, which the local stack has, and ``payments``.
Environment variables: ``LAKE``, the folder or URL of the tables.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, EventTime, KafkaSource, SparkConnect, StateTable

LAKE = os.environ.get("LAKE", "/lake")
ORIGIN, PAID_ORIGIN = "partition int, offset bigint", "paid_partition int, paid_offset bigint"

with DAG(
    "orders_payments",
    schedule="@continuous",
    max_active_runs=1,
    max_consecutive_failed_dag_runs=20,
    catchup=False,
    is_paused_upon_creation=True,
):
    EpochPipeline(
        "orders_payments",
        source=KafkaSource(topics=["orders", "payments"], conn_id="kafka_default", starting="earliest"),
        transform="spark_apps/orders_payments.py:paid",
        event_time=EventTime(delay="5 min", idle_after="1 h"),
        state=[
            StateTable(
                "orders_waiting",
                f"{LAKE}/state/orders_waiting",
                schema=f"order_id string, amount decimal(12, 2), ts timestamp, {ORIGIN}, expires timestamp",
                keys=["partition", "offset"],
                expires="expires",
            ),
            StateTable(
                "payments_waiting",
                f"{LAKE}/state/payments_waiting",
                schema=f"order_id string, paid decimal(12, 2), paid_at timestamp, {PAID_ORIGIN}, expires timestamp",
                keys=["paid_partition", "paid_offset"],
                expires="expires",
            ),
        ],
        sinks=[
            DeltaSink("paid", f"{LAKE}/gold/paid_orders"),
            DeltaSink("late_orders", f"{LAKE}/silver/late_orders"),
            DeltaSink("late_payments", f"{LAKE}/silver/late_payments"),
            DeltaSink("rejected", f"{LAKE}/silver/orders_payments_rejected"),
        ],
        dead_letters="rejected",
        spark=SparkConnect("spark_connect_default"),
        ledger_conn_id="epochs_default",
    )
