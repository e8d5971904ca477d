"""Two pipelines, chained through a table: an order is counted exactly once at the far end of both.

The first writes orders into the table ``silver/clean_orders``. The second runs whenever an epoch of the first is
complete, reads the versions of that table that are new, and adds them to a running total per customer. What either
cannot use goes to its own table of rejected rows.

Both start paused. Environment variables: ``LAKE``, the folder or URL of the tables.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, DeltaSource, EpochPipeline, KafkaSource, SparkConnect

LAKE = os.environ.get("LAKE", "/lake")
SPARK = SparkConnect("spark_connect_default")

with DAG(
    "chained_tables_orders",
    schedule="@continuous",
    max_active_runs=1,
    max_consecutive_failed_dag_runs=20,
    catchup=False,
    is_paused_upon_creation=True,
):
    orders = EpochPipeline(
        "chained_tables_orders",
        source=KafkaSource(topics=["orders"], conn_id="kafka_default", starting="earliest"),
        transform="spark_apps/chained_tables.py:orders",
        sinks=[
            DeltaSink("orders", f"{LAKE}/silver/clean_orders", partition_by=["day"]),
            DeltaSink("rejected", f"{LAKE}/silver/clean_orders_rejected"),
        ],
        dead_letters="rejected",
        spark=SPARK,
        ledger_conn_id="epochs_default",
    )

with DAG(
    "chained_tables_totals",
    schedule=[orders.assets["orders"]],
    max_active_runs=1,
    catchup=False,
    is_paused_upon_creation=True,
):
    EpochPipeline(
        "chained_tables_totals",
        # the first pipeline's epoch is complete before this DAG runs, so there is nothing to wait for
        source=DeltaSource(f"{LAKE}/silver/clean_orders", starting="earliest", max_wait=0),
        transform="spark_apps/chained_tables.py:totals",
        sinks=[
            DeltaSink(
                "totals",
                f"{LAKE}/gold/totals",
                mode="merge",
                keys=["customer"],
                merge="WHEN MATCHED THEN UPDATE SET t.orders = t.orders + s.orders, t.amount = t.amount + s.amount "
                "WHEN NOT MATCHED THEN INSERT *",
            ),
            DeltaSink("rejected", f"{LAKE}/gold/totals_rejected"),
        ],
        dead_letters="rejected",
        spark=SPARK,
        ledger_conn_id="epochs_default",
    )
