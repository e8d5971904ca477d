"""Transfers between accounts, booked twice: what one side gains the other loses, so all books add up to nothing.

``bank_windows`` adds up what each account pays in each minute, and keeps the minutes that are not over as state.
"""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_epochs import (
    DeltaSink,
    EpochPipeline,
    EventTime,
    KafkaSink,
    KafkaSource,
    SparkConnect,
    SparkSubmit,
    SqlSink,
    StateTable,
)

LAKE = os.environ["LAKE"]
STAGING = f"{LAKE}/staging"
SOON = {"retry_delay": timedelta(seconds=2), "retry_exponential_backoff": False}
OPEN = "payer string, window_start timestamp, window_end timestamp, transfers bigint, amount bigint, crc bigint"


def table(pipeline: str, name: str) -> DeltaSink:
    return DeltaSink(name, f"{LAKE}/{pipeline}/{name}", compact_every=5, checkpoint_every=5, on_foreign_change="stop")


with DAG("bank", schedule=os.environ.get("BANK_SCHEDULE") or None, max_active_runs=1, catchup=False):
    EpochPipeline(
        "bank",
        source=KafkaSource(topics=["transfers"], max_records=20_000, max_wait=1),
        transform="spark_apps/bank.py:book_everywhere",
        sinks=[
            table("bank", "debits"),
            KafkaSink("payments", "payments", staging=STAGING),
            SqlSink("withdrawals", "bank_db", "withdrawals", staging=STAGING),
            SqlSink("deposits", "till_db", "deposits", staging=STAGING),
        ],
        spark=SparkConnect(),
        wait_for_others=5,
        operator_args=SOON,
    )

with DAG("bank_submit", schedule=None, max_active_runs=1):
    EpochPipeline(
        "bank_submit",
        source=KafkaSource(topics=["transfers"], max_wait=0),
        transform="spark_apps/bank.py:book",
        sinks=[table("bank_submit", "debits"), table("bank_submit", "credits")],
        spark=SparkSubmit(),
        wait_for_others=5,
        operator_args=SOON,
    )

with DAG("bank_windows", schedule=None, max_active_runs=1):
    EpochPipeline(
        "bank_windows",
        source=KafkaSource(topics=["transfers"], max_wait=0),
        transform="spark_apps/bank.py:windows",
        event_time=EventTime(delay="10 s", idle_after="45 s"),
        state=[
            StateTable(
                "open",
                f"{LAKE}/bank_windows/open",
                schema=OPEN,
                keys=["payer", "window_start"],
                expires="window_end",
                fold_at=0.01,
                checkpoint_every=5,
            )
        ],
        sinks=[table("bank_windows", "closed"), table("bank_windows", "late")],
        spark=SparkConnect(),
        wait_for_others=5,
        operator_args=SOON,
    )
