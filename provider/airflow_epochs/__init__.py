"""Exactly-once batch epochs for Airflow: Kafka or Delta in, Spark between, every sink or none out.

Names are loaded on first use, so that ``from airflow_epochs import EpochPipeline`` in a DAG file imports
neither pyspark nor deltalake, obstore, kafka or pyarrow, and so that Spark's driver, which has no Airflow,
can import ``airflow_epochs.spark``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_epochs.ballot import Ballot as Ballot
    from airflow_epochs.event_time import EventTime as EventTime
    from airflow_epochs.expectations import expect as expect
    from airflow_epochs.expectations import expect_row_count as expect_row_count
    from airflow_epochs.pipeline import EpochPipeline as EpochPipeline
    from airflow_epochs.sinks.delta.sink import DeltaSink as DeltaSink
    from airflow_epochs.sinks.delta.state.table import StateTable as StateTable
    from airflow_epochs.sinks.kafka.sink import KafkaSink as KafkaSink
    from airflow_epochs.sinks.sql.sink import SqlSink as SqlSink
    from airflow_epochs.sources.delta.source import DeltaSource as DeltaSource
    from airflow_epochs.sources.kafka.source import KafkaSource as KafkaSource
    from airflow_epochs.spark.runners import SparkConnect as SparkConnect
    from airflow_epochs.spark.runners import SparkSubmit as SparkSubmit
    from airflow_epochs.triggers.asset import records_waiting as records_waiting

__version__ = "0.2.0.dev0"

_EXPORTS = {
    "Ballot": "airflow_epochs.ballot",
    "DeltaSink": "airflow_epochs.sinks.delta.sink",
    "DeltaSource": "airflow_epochs.sources.delta.source",
    "EpochPipeline": "airflow_epochs.pipeline",
    "EventTime": "airflow_epochs.event_time",
    "KafkaSink": "airflow_epochs.sinks.kafka.sink",
    "KafkaSource": "airflow_epochs.sources.kafka.source",
    "SparkConnect": "airflow_epochs.spark.runners",
    "SparkSubmit": "airflow_epochs.spark.runners",
    "SqlSink": "airflow_epochs.sinks.sql.sink",
    "StateTable": "airflow_epochs.sinks.delta.state.table",
    "expect": "airflow_epochs.expectations",
    "expect_row_count": "airflow_epochs.expectations",
    "records_waiting": "airflow_epochs.triggers.asset",
}

__all__ = [
    "Ballot",
    "DeltaSink",
    "DeltaSource",
    "EpochPipeline",
    "EventTime",
    "KafkaSink",
    "KafkaSource",
    "SparkConnect",
    "SparkSubmit",
    "SqlSink",
    "StateTable",
    "expect",
    "expect_row_count",
    "records_waiting",
]


def __getattr__(name: str) -> object:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
