"""Orders from Kafka into two Delta tables, exactly once: the pipeline of ``make demo``.

Environment variables: ``LAKE``, the folder or URL of the tables; ``ORDERS_MAX_RECORDS``, at most so many records
in one epoch; ``ORDERS_MAX_WAIT``, the seconds that a run waits for new records.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect

LAKE = os.environ.get("LAKE", "/lake")
MAX_RECORDS = int(os.environ.get("ORDERS_MAX_RECORDS", "5000000"))
MAX_WAIT = float(os.environ.get("ORDERS_MAX_WAIT", "30"))

with DAG("orders", schedule="@continuous", max_active_runs=1, max_consecutive_failed_dag_runs=20, catchup=False):
    EpochPipeline(
        "orders",
        source=KafkaSource(
            topics=["orders"],
            conn_id="kafka_default",
            starting="earliest",
            max_records=MAX_RECORDS,
            max_wait=MAX_WAIT,
        ),
        transform="spark_apps/orders.py:orders",
        sinks=[
            DeltaSink("orders", f"{LAKE}/silver/orders", partition_by=["day"]),
            DeltaSink("rejected", f"{LAKE}/silver/orders_rejected"),
        ],
        dead_letters="rejected",
        spark=SparkConnect("spark_connect_default"),
        ledger_conn_id="epochs_default",
    )
