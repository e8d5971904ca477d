"""Orders from Kafka as they come: a run starts when enough of them wait, and none is started when there are none.

Nothing is held meanwhile: neither a run nor a worker slot. The asset is watched in Airflow's triggerer, which must run.

Starts paused. Environment variables: ``LAKE``, the folder or URL of the tables; ``ORDERS_ENOUGH``, the number of orders
that are enough; ``ORDERS_MAX_DELAY``, for how long fewer of them wait at most.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect, records_waiting

LAKE = os.environ.get("LAKE", "/lake")

source = KafkaSource(
    topics=["orders"],
    conn_id="kafka_default",
    starting="earliest",
    min_records=int(os.environ.get("ORDERS_ENOUGH", "10000")),
    max_delay=os.environ.get("ORDERS_MAX_DELAY", "1m"),
    max_wait=0,  # a run that finds too few ends at once: the asset starts the next one
)

with DAG(
    "orders_as_they_come",
    schedule=[records_waiting("orders_as_they_come", source, ledger_conn_id="epochs_default")],
    max_active_runs=1,
    is_paused_upon_creation=True,
):
    EpochPipeline(
        "orders_as_they_come",
        source=source,
        transform="spark_apps/orders.py:orders",
        sinks=[
            DeltaSink("orders", f"{LAKE}/as_they_come/silver/orders", partition_by=["day"]),
            DeltaSink("rejected", f"{LAKE}/as_they_come/silver/orders_rejected"),
        ],
        dead_letters="rejected",
        spark=SparkConnect("spark_connect_default"),
        ledger_conn_id="epochs_default",
    )
