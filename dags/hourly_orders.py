"""Orders by the hour: each run reads the records of its own hour, and history is read by ``airflow backfill``.

An epoch has the records with a time of the hour of its run. The asset events of the tables carry the hour as their
partition key, so other DAGs can wait for it. See docs/intervals.md for what may be in it besides:

- If runs were missed, as during a pause, the next epoch has the records of their hours, too. The source refuses that
  with ``missed="refuse"``, until a backfill has read them.
- If producers give the times (``CreateTime``, Kafka's default), a record may come after its hour was read. It is in the
  next epoch.

Starts paused. Before you unpause it, create the topic ``orders``, which the local stack has. Environment variables:
``LAKE``, the folder or URL of the tables.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone

from airflow.sdk import DAG, CronPartitionTimetable

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect

LAKE = os.environ.get("LAKE", "/lake")
# At the end of each hour, a run for that hour: the partition that began one step before.
EVERY_HOUR = CronPartitionTimetable("@hourly", timezone="UTC", run_offset=-1)

with DAG(
    "hourly_orders",
    schedule=EVERY_HOUR,
    start_date=datetime(2026, 1, 1, tzinfo=timezone.utc),
    max_active_runs=1,
    catchup=False,
    is_paused_upon_creation=True,
):
    EpochPipeline(
        "hourly_orders",
        source=KafkaSource(
            topics=["orders"],
            conn_id="kafka_default",
            bounds="data_interval",
            grace="1 min",
        ),
        transform="spark_apps/orders.py:orders",
        sinks=[
            DeltaSink("orders", f"{LAKE}/silver/hourly_orders", partition_by=["day"]),
            DeltaSink("rejected", f"{LAKE}/silver/hourly_orders_rejected"),
        ],
        dead_letters="rejected",
        on_failed_epoch="block",
        spark=SparkConnect("spark_connect_default"),
        ledger_conn_id="epochs_default",
    )
