"""Changes of customers, as a database tells them (inserts, updates, deletes), into a table with one row per customer.

The newest change of a customer counts, in whatever order the changes come. A second table keeps them all, a third one
what is no change.

Starts paused. Before you unpause it, create the topic ``customer-changes``. Environment variables: ``LAKE``, the folder
or URL of the tables.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect

LAKE = os.environ.get("LAKE", "/lake")

with DAG(
    "customers_upsert",
    schedule="@continuous",
    max_active_runs=1,
    max_consecutive_failed_dag_runs=20,
    catchup=False,
    is_paused_upon_creation=True,
):
    EpochPipeline(
        "customers_upsert",
        source=KafkaSource(topics=["customer-changes"], conn_id="kafka_default", starting="earliest"),
        transform="spark_apps/customers_upsert.py:changes",
        sinks=[
            DeltaSink(
                "customers",
                f"{LAKE}/silver/customers",
                mode="upsert",
                keys=["id"],
                sequence_by="version",
                delete_when="op = 'D'",
            ),
            DeltaSink("history", f"{LAKE}/silver/customer_changes"),
            DeltaSink("rejected", f"{LAKE}/silver/customer_changes_rejected"),
        ],
        dead_letters="rejected",
        spark=SparkConnect("spark_connect_default"),
        ledger_conn_id="epochs_default",
    )
