"""What Spark is told to stage for a Delta sink, and where."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from airflow_epochs import secrecy
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.delta import unknown_times
from airflow_epochs.delta.log import USER_METADATA_KEY, checksum_entry, checksum_without_files, entry_of, log_entry
from airflow_epochs.delta.shape import TableShape
from airflow_epochs.delta.table import PUTS_BACK, TableLocation
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta import checks, publish, restore, spark_commit
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.delta.state import column_names
from airflow_epochs.sinks.delta.state.table import StateTable
from airflow_epochs.sinks.delta.target import Target
from airflow_epochs.sinks.delta.whereabouts import DELTALAKE, SPARK, Whereabouts
from airflow_epochs.spark.driver.delta.jobs import OPTIMIZE_WRITE, compact_json
from airflow_epochs.spark.driver.delta.plans import DeltaStaging, Described
from airflow_epochs.spark.driver.wire import as_json
from airflow_epochs.staged import owner

log = secrecy.logger(__name__)


def plan(at: Whereabouts, attempt: SinkAttempt, place: str) -> JsonDict:
    """Describe the try to Spark; for tables of deltalake also write the staging table's version 0."""
    sink, target = at.sink, at.look(at.location_of(place, attempt), attempt.txn.pipeline)
    if sink.in_catalog and not target.exists:
        spark_commit.require_table(Described(), sink.target)
    shape, location = target.opened_shape, target.location
    committer = _committer(sink, target)
    if shape is not None:
        checks.require_partitioning(sink, shape, location.name)
        if isinstance(sink, StateTable) and not attempt.promised:
            column_names.require_spelling(sink, location.name, shape.schema)
    owner.sign(location.files, at.folder(attempt), attempt, sink.name)
    widens = sink.adds_columns_to(shape)
    if committer == DELTALAKE and shape is not None:
        checks.require_committable(shape, location.name, at.sink)
        if not widens:
            _write_version_0(location, place, shape)
    append = DeltaStaging(
        committer=committer,
        place=place,
        target=sink.target,
        epoch=attempt.txn.epoch,
        has_version_0=committer == DELTALAKE and shape is not None and not widens,
        schema=shape.schema if shape and not widens else target.logged_schema,
        partition_by=shape.partition_by if shape else tuple(sink.partition_by),
        properties=dict(sink.properties),
        optimize_write=_optimize_write(shape.properties if shape else sink.properties),
        layout=sink.layout.of(shape.properties if shape else sink.properties),
        user_metadata=compact_json({USER_METADATA_KEY: _user_metadata(sink, target, attempt, committer)}),
    )
    return as_json(sink.staging(append, attempt))


def write_empty(at: Whereabouts, attempt: SinkAttempt, place: str) -> None:
    """Stage no rows, for a table that goes back to an earlier version: Spark is not needed. Idempotent."""
    target = at.look(at.location_of(place, attempt), attempt.txn.pipeline)
    assert attempt.restore
    restore.require_restorable(at, target, attempt.restore)
    shape = target.opened_shape
    assert shape
    owner.sign(target.location.files, at.folder(attempt), attempt, at.sink.name)
    _write_version_0(target.location, place, shape, _user_metadata(at.sink, target, attempt, DELTALAKE))


def _user_metadata(sink: DeltaSink, target: Target, attempt: SinkAttempt, committer: str) -> JsonDict:
    """What the staging table's commit says of itself."""
    shape = target.opened_shape
    return {
        "app": target.app.epoch,
        "txn": str(attempt.txn),
        "committer": committer,
        "table_id": shape.id if shape and not _has_created(target, attempt) else None,
        "anchor": target.log_position(),
        **sink.user_metadata(attempt),
    }


def _has_created(target: Target, attempt: SinkAttempt) -> bool:
    """Whether this transaction has itself created the table, so its rows were staged before a table existed."""
    if attempt.previous is not None:
        return False
    found = target.commit_of(attempt.txn)
    return found is not None and (found.user_metadata or {}).get(PUTS_BACK, found.version) == 0


def _committer(sink: DeltaSink, target: Target) -> str:
    if sink.commit_by is not None:
        return sink.commit_by
    if sink.in_catalog:
        return SPARK
    if target.problem:
        checks.require_not_spoilt(target.location)
    reason = target.for_spark_alone
    if reason:
        log.warning(
            "%s is committed through Spark, which writes its rows twice: deltalake does not support %s. %s",
            target.location.name,
            reason,
            unknown_times.how_to_remove(target.location.files, target.location.name, reason)
            or 'Give the sink commit="spark" to say that you know.',
        )
    return SPARK if reason else DELTALAKE


def _optimize_write(properties: Mapping[str, str]) -> bool | None:
    """Whether the table's properties ask to shuffle rows before a write; None if they say nothing."""
    said = properties.get(OPTIMIZE_WRITE)
    return None if said is None else said.lower() == "true"


def _write_version_0(location: TableLocation, place: str, shape: TableShape, ours: JsonDict | None = None) -> None:
    """Write the staging table's version 0. ``ours``: its user metadata, if no append follows."""
    now = publish.now_ms()
    info = {"timestamp": now, "operation": "CREATE TABLE", "operationParameters": {}}
    info |= {"userMetadata": compact_json({USER_METADATA_KEY: ours})} if ours else {}
    protocol, metadata = shape.for_staging().actions(str(uuid.uuid4()), now)
    table, actions = location.relative(place), [{"commitInfo": info}, protocol, metadata]
    # False: this try was planned before, and Spark may have appended already.
    written = location.files.write_new(log_entry(0, table), entry_of(actions))
    if written and not ours:
        # The append would compute it from the log: two queries more, which take as long as a small append.
        checksum = checksum_without_files(protocol["protocol"], metadata["metaData"])
        location.files.write_new(checksum_entry(0, table), checksum)
