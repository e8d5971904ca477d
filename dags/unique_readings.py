"""Each reading of a sensor once: what the sensor repeats within an hour of event time is dropped.

Which readings have passed is state: a table of the same decision. Readings that are late go to ``late``, since nobody
knows any more whether they have passed. Records that are no reading go to ``rejected``. If many readings are colder or
hotter than any place, the epoch is aborted.

Starts paused. Before you unpause it, create the topic ``readings``.
Environment variables: ``LAKE``, the folder or URL of the tables.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, EventTime, KafkaSource, SparkConnect, StateTable, expect

LAKE = os.environ.get("LAKE", "/lake")

with DAG(
    "unique_readings",
    schedule="@continuous",
    max_active_runs=1,
    max_consecutive_failed_dag_runs=20,
    catchup=False,
    is_paused_upon_creation=True,
):
    EpochPipeline(
        "unique_readings",
        source=KafkaSource(topics=["readings"], conn_id="kafka_default", starting="earliest"),
        transform="spark_apps/unique_readings.py:unique",
        event_time=EventTime(delay="5 min", idle_after="1 h"),
        state=[
            StateTable(
                "seen",
                f"{LAKE}/state/unique_readings",
                schema="sensor string, seq bigint, expires timestamp",
                keys=["sensor", "seq"],
                expires="expires",
            ),
        ],
        sinks=[
            DeltaSink("readings", f"{LAKE}/silver/readings"),
            DeltaSink("late", f"{LAKE}/silver/late_readings"),
            DeltaSink("rejected", f"{LAKE}/silver/readings_rejected"),
        ],
        dead_letters="rejected",
        # more than one such reading in a hundred: a sensor measures something else, so no sink shows the epoch
        expectations={"readings": [expect("celsius BETWEEN -40 AND 60", max_fraction=0.01)]},
        spark=SparkConnect("spark_connect_default"),
        ledger_conn_id="epochs_default",
    )
