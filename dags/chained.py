"""Two pipelines, chained through a topic: an order is counted exactly once at the far end of both.

The first enriches orders into the topic ``orders-enriched``. The second runs whenever an epoch of the first is
complete, reads what is new there, and adds it to a running total per customer. What either cannot use goes to its own
table of rejected records.

Both start paused. Before you unpause them, create the topic ``orders-enriched``. Environment variables: ``LAKE``, the
folder or URL of the tables and of what is staged.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSink, KafkaSource, SparkConnect

LAKE = os.environ.get("LAKE", "/lake")
SPARK = SparkConnect("spark_connect_default")

with DAG(
    "chained_enrich",
    schedule="@continuous",
    max_active_runs=1,
    max_consecutive_failed_dag_runs=20,
    catchup=False,
    is_paused_upon_creation=True,
):
    enriched = EpochPipeline(
        "chained_enrich",
        source=KafkaSource(topics=["orders"], conn_id="kafka_default", starting="earliest"),
        transform="spark_apps/chained.py:enrich",
        sinks=[
            KafkaSink("enriched", "orders-enriched", conn_id="kafka_default", staging=f"{LAKE}/staging"),
            DeltaSink("rejected", f"{LAKE}/silver/orders_enriched_rejected"),
        ],
        dead_letters="rejected",
        spark=SPARK,
        ledger_conn_id="epochs_default",
    )

with DAG(
    "chained_totals",
    schedule=[enriched.assets["enriched"]],
    max_active_runs=1,
    catchup=False,
    is_paused_upon_creation=True,
):
    EpochPipeline(
        "chained_totals",
        source=KafkaSource(topics=["orders-enriched"], conn_id="kafka_default", starting="earliest"),
        transform="spark_apps/chained.py:totals",
        sinks=[
            DeltaSink(
                "totals",
                f"{LAKE}/gold/customer_totals",
                mode="merge",
                keys=["customer"],
                merge="WHEN MATCHED THEN UPDATE SET t.orders = t.orders + s.orders, t.amount = t.amount + s.amount "
                "WHEN NOT MATCHED THEN INSERT *",
            ),
            DeltaSink("rejected", f"{LAKE}/gold/customer_totals_rejected"),
        ],
        dead_letters="rejected",
        spark=SPARK,
        ledger_conn_id="epochs_default",
    )
