"""The same orders, by spark-submit: no Spark server is needed; each run takes what came since the last one.

Meant for larger batches at longer intervals; give it a schedule such as ``@daily``. However much has come, an epoch
takes no more than fits into half an hour, at the speed of the last ones, and about 10 GB. The next run goes on.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkSubmit

LAKE = os.environ.get("LAKE", "/lake")

with DAG("orders_submit", schedule=None, max_active_runs=1, catchup=False):
    EpochPipeline(
        "orders_submit",
        source=KafkaSource(
            topics=["orders"], conn_id="kafka_default", max_wait=0, max_bytes="10 GB", target_duration="30 min"
        ),
        transform="spark_apps/orders.py:orders",
        sinks=[
            DeltaSink("orders", f"{LAKE}/submit/silver/orders", partition_by=["day"]),
            DeltaSink("rejected", f"{LAKE}/submit/silver/orders_rejected"),
        ],
        dead_letters="rejected",
        spark=SparkSubmit("spark_default"),
        ledger_conn_id="epochs_default",
    )
