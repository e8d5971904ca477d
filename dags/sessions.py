"""The visits of a website: what each visitor looks at until a pause of more than 30 minutes.

A visit is shown when it is over. Those that are not over are state: a table of the same decision, which anybody can
query. Records that are no view go to ``rejected``.

A view may come when its visit was shown already. If a visit of this view alone would be over, too, the view goes to
``late``. Else it begins another visit, even if its pause to the shown one is short. See docs/state.md.

Starts paused. Before you unpause it, create the topic ``page_views``.
Environment variables: ``LAKE``, the folder or URL of the tables.
"""

from __future__ import annotations

import os

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, EventTime, KafkaSource, SparkConnect, StateTable

LAKE = os.environ.get("LAKE", "/lake")
OPEN = "visitor string, session_start timestamp, session_end timestamp, views bigint, orders bigint"

with DAG(
    "sessions",
    schedule="@continuous",
    max_active_runs=1,
    max_consecutive_failed_dag_runs=20,
    catchup=False,
    is_paused_upon_creation=True,
):
    EpochPipeline(
        "sessions",
        source=KafkaSource(topics=["page_views"], conn_id="kafka_default", starting="earliest"),
        transform="spark_apps/sessions.py:sessions",
        event_time=EventTime(delay="5 min", idle_after="1 h"),
        state=[
            StateTable(
                "open",
                f"{LAKE}/state/sessions",
                schema=OPEN,
                keys=["visitor", "session_start"],
                expires="session_end",
            ),
        ],
        sinks=[
            DeltaSink("visits", f"{LAKE}/gold/visits"),
            DeltaSink("late", f"{LAKE}/silver/late_views"),
            DeltaSink("rejected", f"{LAKE}/silver/views_rejected"),
        ],
        dead_letters="rejected",
        spark=SparkConnect("spark_connect_default"),
        ledger_conn_id="epochs_default",
    )
