"""An alert for each card that pays more than three times in an hour of event time, which its first payment begins.

The next payment after this hour begins a new one. So four payments that lie on both sides of its end raise no alert.
What is known of a card is state: a table of the same decision. It is forgotten when the hour is over (``timer``).
Payments that are late go to ``late``, records that are no payment to ``rejected``.

Starts paused. Before you unpause it, create the topic ``card_payments``. Spark's workers need pandas and pyarrow.
Environment variables: ``LAKE``, the folder or URL of the tables.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, EventTime, KafkaSource, SparkConnect, StateTable

LAKE = os.environ.get("LAKE", "/lake")

with DAG(
    "card_fraud",
    schedule="@continuous",
    max_active_runs=1,
    max_consecutive_failed_dag_runs=20,
    catchup=False,
    is_paused_upon_creation=True,
):
    EpochPipeline(
        "card_fraud",
        source=KafkaSource(topics=["card_payments"], conn_id="kafka_default", starting="earliest"),
        transform="spark_apps/card_fraud.py:alerts",
        event_time=EventTime(delay="5 min", idle_after="1 h"),
        state=[
            StateTable(
                "cards",
                f"{LAKE}/state/card_fraud",
                schema="card string, since timestamp, n bigint, total decimal(22, 2), timer timestamp",
                keys=["card"],
            ),
        ],
        sinks=[
            DeltaSink("alerts", f"{LAKE}/gold/card_alerts"),
            DeltaSink("late", f"{LAKE}/silver/late_card_payments"),
            DeltaSink("rejected", f"{LAKE}/silver/card_payments_rejected"),
        ],
        dead_letters="rejected",
        spark=SparkConnect("spark_connect_default", session_conf={"spark.sql.session.timeZone": "UTC"}),
        ledger_conn_id="epochs_default",
    )
