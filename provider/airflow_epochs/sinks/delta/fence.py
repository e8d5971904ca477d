"""A commit without rows that moves a sink's marker. A waived commit that still hangs then finds another marker.

Who commits to the table also fences it. The log entry of deltalake's way is put at exactly the version after the one
that was looked at. Spark refuses to commit an epoch if one as new was signed meanwhile.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Collection

from airflow_epochs import codes
from airflow_epochs.delta.log import USER_METADATA_KEY, entry_of, log_entry
from airflow_epochs.delta.snapshot import Snapshot, commit_of, read_snapshot
from airflow_epochs.delta.table import App
from airflow_epochs.errors import OutcomeUnknown
from airflow_epochs.model import JsonDict, TransactionId, agree
from airflow_epochs.sinks.delta import flush, publish, spark_commit
from airflow_epochs.sinks.delta.whereabouts import SPARK, Whereabouts
from airflow_epochs.spark.driver.delta.fence import told_on
from airflow_epochs.spark.driver.delta.jobs import compact_json


def fence(at: Whereabouts, pipeline: str, over: Collection[TransactionId | None], by: TransactionId) -> bool:
    """Move the sink's marker to ``by``, as ``contracts.Fencing`` says.

    False if there is no table: a commit that hangs may still create it.
    """
    if at.sink.in_catalog or at.sink.commit_by == SPARK:
        return _through_spark(at, pipeline, over, by)
    target = at.look(at.location(), pipeline)
    if target.for_spark_alone:
        return _through_spark(at, pipeline, over, by)
    return target.exists and _by_log(at, pipeline, over, by)


# -- by a log entry ---------------------------------------------------------------------------------------------------


def _by_log(at: Whereabouts, pipeline: str, over: Collection[TransactionId | None], by: TransactionId) -> bool:
    location, app = at.location(), at.app(pipeline)
    for round_ in range(publish.ROUNDS_MAX):
        if round_ > 1:  # the second look is at what the first round wrote
            time.sleep(random.uniform(0, publish.PAUSE_S_MAX))
        seen = read_snapshot(location, app)
        if not any(agree(seen.marker, each) for each in over):
            return agree(seen.marker, by)
        at.env.reached("delta.fence.before")
        before = commit_of(seen, app, location.files).user_metadata or {}
        flush.flush_after(location, app, seen.marker.epoch if seen.marker else None, seen.version)
        location.files.write_new(log_entry(seen.version + 1), entry_of(_actions(app, seen, by, before)))
    raise OutcomeUnknown(
        f"The fence of {by} in {location.name} did not finish: other writers were always faster.",
        code=codes.DELTA_COMMIT_UNKNOWN,
        remedy="Clear the commit task when fewer other programs write to the table.",
    )


def _actions(app: App, seen: Snapshot, by: TransactionId, before: JsonDict) -> list[JsonDict]:
    """The actions of the fence's log entry. ``before``: the note on the commit whose marker the fence replaces."""
    now, shape = publish.now_ms(), seen.shape
    info = {
        "timestamp": now,
        "operation": "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": json.dumps(shape.partition_by if shape else ())},
        "isBlindAppend": True,
        "operationMetrics": {"numFiles": "0", "numOutputRows": "0", "numOutputBytes": "0"},
        "userMetadata": _note(app, by, "deltalake", before),
        "engineInfo": "airflow-provider-epochs",
        "readVersion": seen.version,
    }
    signed = [{"txn": {"appId": name, "version": n, "lastUpdated": now}} for name, n in app.signatures(by)]
    return [{"commitInfo": info}, *signed]


def _note(app: App, by: TransactionId, committer: str, before: JsonDict) -> str:
    ours = {"app": app.epoch, "txn": str(by), "committer": committer}
    return compact_json({USER_METADATA_KEY: ours | told_on(before)})


# -- through Spark ----------------------------------------------------------------------------------------------------


def _through_spark(at: Whereabouts, pipeline: str, over: Collection[TransactionId | None], by: TransactionId) -> bool:
    app = at.app(pipeline)
    seen = spark_commit.fence(at.sink.target, app, over, by, _note(app, by, SPARK, {}), at.env)
    location = at.location()
    if seen.marker.version is not None:
        first = min((txn.epoch for txn in over if txn), default=None)
        flush.flush_after(location, app, first, seen.marker.version)
    return seen.marker.txn == by
