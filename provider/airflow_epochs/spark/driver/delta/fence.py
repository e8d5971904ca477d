"""A commit without rows that moves a sink's marker: a waived commit that hangs then finds a marker it does not expect.

Of two commits that sign the same epoch, Delta takes only one. It skips a commit that is not newer than the marker.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from airflow_epochs.spark.driver.delta.jobs import NO_NEW_COLUMNS, append_to, compact_json, seen, signed
from airflow_epochs.spark.driver.delta.plans import FencePlan, FoundMarker, SeenTable
from airflow_epochs.spark.driver.delta.spelling import identifier
from airflow_epochs.spark.driver.wire import JsonDict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_COUNTED = "Providing values for GENERATED ALWAYS AS IDENTITY column"


def delta_fence(spark: SparkSession, plan: FencePlan) -> SeenTable:
    """Make a commit without rows under the plan's name if the marker is one of ``over``.

    Returns the table and the marker afterwards.
    """
    before = seen(spark, plan.target, plan.app)
    if before.about.table is None or not _is_one_of(before.marker, plan.over):
        return before
    nothing = spark.sql(f"SELECT * FROM {identifier(plan.target)} LIMIT 0")
    _append(plan.target, nothing, signed(plan.app, plan.epoch, _with_told(plan.user_metadata, before.marker)))
    return seen(spark, plan.target, plan.app)


def _append(target: str, nothing: DataFrame, options: dict[str, str]) -> None:
    """Append without rows. Drops identity columns, which Delta refuses one by one before it writes anything.

    Spark's schema of a table does not tell which columns these are.
    """
    while True:
        try:
            return append_to(target, nothing.write.format("delta").mode("append").options(**options, **NO_NEW_COLUMNS))
        except Exception as error:
            counted = [name for name in nothing.columns if f"{_COUNTED} {name} " in str(error)]
            if not counted:
                raise
            nothing = nothing.drop(*counted)


def _is_one_of(marker: FoundMarker, over: tuple[str | None, ...]) -> bool:
    """Whether the marker is one of ``over``. If it has no transaction, an equal epoch is enough."""
    if marker.epoch is None or marker.txn is not None:
        return marker.txn in over
    return marker.epoch in [int(txn.split("/")[1]) for txn in over if txn]


def _with_told(user_metadata: str, before: FoundMarker) -> str:
    note = json.loads(user_metadata)
    note["airflow_epochs"] |= told_on(asdict(before))
    return compact_json(note)


def told_on(before: JsonDict) -> JsonDict:
    """What a fence copies from the note of the commit before: position, times, the name of notes of deleted keys."""
    names = ("ends", "event_time", *(("place", "deletions") if before.get("deletions") else ()))
    return {name: before[name] for name in names if before.get(name)}
