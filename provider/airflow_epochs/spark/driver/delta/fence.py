"""A commit without rows that moves a sink's marker: a waived commit that hangs then finds another one than it expects.

Delta lets only one of two commits land that sign the same epoch, and skips one that is not newer than the marker.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta.jobs import NO_NEW_COLUMNS, append_to, compact_json, seen, signed
from airflow_epochs.spark.driver.delta.plans import FencePlan, FoundMarker, Seen
from airflow_epochs.spark.driver.delta.spelling import identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def delta_fence(spark: SparkSession, plan: FencePlan) -> Seen:
    """Commit nothing under the plan's name if the marker is one of ``over``; what is seen afterwards."""
    before = seen(spark, plan.target, plan.app)
    if before.about.table is None or not _is_one_of(before.marker, plan.over):
        return before
    nothing = spark.sql(f"SELECT * FROM {identifier(plan.target)} LIMIT 0")
    options = signed(plan.app, plan.epoch, _with_notes(plan.user_metadata, before.marker))
    append_to(plan.target, nothing.write.format("delta").mode("append").options(**options, **NO_NEW_COLUMNS))
    return seen(spark, plan.target, plan.app)


def _is_one_of(marker: FoundMarker, over: tuple[str | None, ...]) -> bool:
    """A marker without a transaction needs only the same epoch."""
    if marker.epoch is None or marker.txn is not None:
        return marker.txn in over
    return marker.epoch in [int(txn.split("/")[1]) for txn in over if txn]


def _with_notes(user_metadata: str, before: FoundMarker) -> str:
    """The sink's next commit must find the notes about deleted keys that its last one tells of."""
    note = json.loads(user_metadata)
    note["airflow_epochs"] |= {"place": before.place, "deletions": before.deletions} if before.deletions else {}
    return compact_json(note)
