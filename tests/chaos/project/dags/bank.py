"""Transfers between accounts, booked twice: what one table gains the other loses, so both always add up to nothing."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_epochs import DeltaSink, EpochPipeline, KafkaSource, SparkConnect, SparkSubmit

LAKE = os.environ["LAKE"]
SOON = {"retry_delay": timedelta(seconds=2), "retry_exponential_backoff": False}


def books(pipeline: str) -> list[DeltaSink]:
    return [
        DeltaSink(side, f"{LAKE}/{pipeline}/{side}", compact_every=5, checkpoint_every=5)
        for side in ("debits", "credits")
    ]


with DAG("bank", schedule=os.environ.get("BANK_SCHEDULE") or None, max_active_runs=1, catchup=False):
    EpochPipeline(
        "bank",
        source=KafkaSource(topics=["transfers"], max_records=20_000, max_wait=1),
        transform="spark_apps/bank.py:book",
        sinks=books("bank"),
        spark=SparkConnect(),
        operator_args=SOON,
    )

with DAG("bank_submit", schedule=None, max_active_runs=1):
    EpochPipeline(
        "bank_submit",
        source=KafkaSource(topics=["transfers"], max_wait=0),
        transform="spark_apps/bank.py:book",
        sinks=books("bank_submit"),
        spark=SparkSubmit(),
        operator_args=SOON,
    )
