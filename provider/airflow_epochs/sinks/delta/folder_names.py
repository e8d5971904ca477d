"""Whether a disk takes the folders that a commit of Spark makes for the values of partition columns."""

from __future__ import annotations

from airflow_epochs import codes
from airflow_epochs.delta.shape import RANDOM_PREFIXES
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.delta.modes import MERGE
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.delta.target import Target
from airflow_epochs.sinks.delta.whereabouts import SPARK
from airflow_epochs.spark.driver.delta import folders
from airflow_epochs.spark.driver.delta.schema import maps_columns
from airflow_epochs.spark.driver.delta.spelling import identifier
from airflow_epochs.staged.staging import Staging
from airflow_epochs.storage.files import is_local


def will_be_values(sink: DeltaSink, target: Target) -> bool:
    """Whether the commit will name folders on a disk after values: Spark does, and deltalake moves no files."""
    if target.exists and sink.how.mode == MERGE:
        return False
    by_spark = sink.commit_by == SPARK or sink.in_catalog or bool(target.for_spark_alone)
    return by_spark and _are_values(sink, target)


def _are_values(sink: DeltaSink, target: Target) -> bool:
    """Whether Spark would name them so. An object store has no folders."""
    properties = target.shape.properties if target.shape else sink.properties
    random = properties.get(RANDOM_PREFIXES, "false").lower() == "true" or maps_columns(properties)
    return is_local(target.location.url) and not random


def require_fit(sink: DeltaSink, target: Target, staging: Staging) -> None:
    """Raise Refused if a disk does not take the folder that Spark would make for a staged value."""
    if target.exists and (sink.how.mode == MERGE or sink.how.delete_when):
        return  # some rows may make no folder, but only Spark can tell which rows
    if not _are_values(sink, target):
        return
    for file in staging.files:
        for column, value in file.partition_values.items():
            if value and folders.is_unfit(column, value):
                raise _unfit(sink, target, column, value)


def _unfit(sink: DeltaSink, target: Target, column: str, value: str) -> Refused:
    name = target.location.name
    set_it = f"Set `properties={{'{RANDOM_PREFIXES}': 'true'}}` of the sink"
    if target.exists:
        set_it = f"Run `ALTER TABLE {identifier(name)} SET TBLPROPERTIES ('{RANDOM_PREFIXES}' = 'true')` in Spark"
    return Refused(
        f"A value of the partition column {column} of {name} {folders.UNFIT}. It begins with {value[:40]!r}.",
        code=codes.DELTA_ROWS_UNFIT,
        remedy=f"{set_it}: no folder is then named after a value. Or let the transform return a value that fits. Then "
        "clear the stage task.",
        sink=sink.name,
    )
