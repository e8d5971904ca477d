"""The vote's checks of everything that the commit will need. Each raises Refused.

A check that cannot be made because a store does not answer raises NotApplied: then there is no vote yet.
"""

from __future__ import annotations

from airflow_epochs import codes
from airflow_epochs.delta.append_only import APPEND_ONLY, is_append_only
from airflow_epochs.delta.log import StagedFile, checked_stats
from airflow_epochs.delta.replay import newest_schema
from airflow_epochs.delta.shape import TableShape, unreadable
from airflow_epochs.delta.table import TableLocation
from airflow_epochs.errors import Refused
from airflow_epochs.model import Marker, TransactionId, agree, described, described_transaction
from airflow_epochs.sinks.delta.modes import (
    APPEND,
    MERGE,
    OVERWRITE_PARTITIONS,
    Mode,
)
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.delta.state import remedies
from airflow_epochs.sinks.delta.state.table import StateTable
from airflow_epochs.spark.driver.delta import partitions, row_problems
from airflow_epochs.spark.driver.delta import schema as delta_schema
from airflow_epochs.spark.driver.delta.spelling import identifier
from airflow_epochs.staged.checks import physical_names
from airflow_epochs.staged.staging import Staging
from airflow_epochs.storage.files import Files
from airflow_epochs.storage.probing import probe_below

TXN_RETENTION = "delta.setTransactionRetentionDuration"


def require_keys(mode: Mode, staging: Staging) -> None:
    """Require that no staged row has a NULL key. Spark has checked the rows; this checks their statistics."""
    physical = physical_names(staging.shape)
    for name in (*mode.keys, *([mode.sequence_by] if mode.sequence_by else [])):
        if any(_has_null(file, physical.get(name.lower(), name)) for file in staging.files):
            raise Refused(
                f"Some rows have NULL in column {name!r}, which is a key or the `sequence_by` of mode {mode.mode!r}.",
                code=codes.DELTA_ROWS_UNFIT,
                remedy="Let the transform leave out such rows. Then clear the stage task.",
            )


def _has_null(file: StagedFile, column: str) -> bool:
    if column in file.partition_values:
        return file.partition_values[column] is None
    nulls = checked_stats(file).get("nullCount", {}).get(column, 0)
    return isinstance(nulls, int) and nulls > 0  # Delta counts the NULLs of a struct field by field


def require_same_table(table_id: str | None, staging: Staging, name: str) -> None:
    """Require that the table is the one that the rows were staged for. A table missing then may exist now."""
    promised = staging.user_metadata["table_id"]
    if promised is not None and table_id != promised:
        raise Refused(
            f"{name} is not the table that the rows were staged for, which had id {promised}: "
            f"{f'its id is {table_id}' if table_id else 'there is no table now'}.",
            code=codes.DELTA_TABLE_ALTERED,
        )


def require_addable(shape: TableShape | None, staging: Staging, name: str, sink: DeltaSink) -> None:
    """Require that the staged files can be added to the table as they are."""
    require_committable(shape or staging.shape, name, sink, exists=shape is not None)
    if shape is not None and (difference := difference_to(shape, staging.shape, sink)):
        raise Refused(
            f"{name} was altered after its rows were staged: {difference}.",
            code=codes.DELTA_TABLE_ALTERED,
        )


def difference_to(shape: TableShape, promised: TableShape, sink: DeltaSink) -> str | None:
    """Why files that fit ``promised`` do not fit a table of this shape; None if they do."""
    return shape.difference_for_state(promised) if isinstance(sink, StateTable) else shape.difference_for(promised)


def require_known(shape: TableShape | None, staging: Staging, name: str) -> None:
    """Require that the table existed already when the rows were staged, if it exists now."""
    if shape is not None and staging.user_metadata["table_id"] is None:
        raise Refused(f"{name} was created after its rows were staged.", code=codes.DELTA_TABLE_ALTERED)


def require_insertable(
    shape: TableShape | None, staging: Staging, name: str, mode: Mode, *, tells_computed: bool = True
) -> None:
    """Require that Spark can bring the staged rows into the table without casting any value.

    Only a shape that ``tells_computed`` columns says which partition columns the rows must have.
    """
    if shape is None:
        return
    partition_by = shape.partition_by if tells_computed else ()
    found = row_problems.problems(mode.plan(), name, shape.schema, staging.shape.schema, partition_by)
    if found:
        raise Refused(
            f"The rows do not fit {name}: {'; '.join(found)}.",
            code=codes.DELTA_ROWS_UNFIT,
        )


def require_partitioning(sink: DeltaSink, shape: TableShape, name: str) -> None:
    """Require that the table has the partitions that the sink asks for, if it asks for any."""
    wanted = list(sink.partition_by)
    if wanted and list(shape.partition_by) != wanted:
        raise Refused(
            f"{name} is partitioned by {list(shape.partition_by)}, but the sink has partition_by={wanted}.",
            code=codes.DELTA_PARTITIONS,
            remedy="Correct partition_by of the sink, or leave it out, because the table exists. Then clear the failed "
            "task.",
            sink=sink.name,
        )


def require_open_to_changes(mode: Mode, shape: TableShape, name: str) -> None:
    """Require that the table's rows may be changed, if the mode changes rows."""
    if mode.mode != APPEND and is_append_only(shape.properties):
        raise Refused(
            f"{name} takes new rows only, because it has the property {APPEND_ONLY}. Mode {mode.mode!r} changes and "
            "deletes rows.",
            code=codes.DELTA_APPEND_ONLY,
        )


def require_changeable(mode: Mode, shape: TableShape, staging: Staging, name: str) -> None:
    """Require that the table takes changes of this kind. Without a table, ``shape`` is the staged rows'."""
    require_open_to_changes(mode, shape, name)
    if mode.mode != OVERWRITE_PARTITIONS:
        return
    given = {field["name"].lower() for field in staging.shape.schema["fields"]}
    if not shape.partition_by or not {column.lower() for column in shape.partition_by} <= given:
        raise Refused(
            f"Mode {mode.mode!r} cannot tell which partitions of {name} the rows replace: the table is partitioned by "
            f"{list(shape.partition_by)}, and the rows have the columns {sorted(given)}.",
            code=codes.DELTA_PARTITIONS,
            remedy="Let the transform return every partition column. If the table has no partitions, choose another "
            "mode. If the sink creates the table, set `partition_by` of the sink. Then clear the stage task.",
        )
    if difference := partitions.difference(shape.partition_by, staging.shape.partition_by):
        raise Refused(
            f"{name} was altered after its rows were staged: {difference}.",
            code=codes.DELTA_TABLE_ALTERED,
        )


def require_committable(shape: TableShape, name: str, sink: DeltaSink, *, exists: bool = True) -> None:
    """Require that deltalake can commit to a table of this shape. Nothing else may commit to a state table.

    A table that does not exist would get the shape from the sink's ``properties``.
    """
    is_state = isinstance(sink, StateTable)
    if refused := shape.refused_to_states if is_state else shape.refused_features:
        raise Refused(
            f"deltalake cannot commit to {name}: it does not support these features of the table: "
            f"{', '.join(refused)}.",
            code=codes.DELTA_NEEDS_SPARK,
            remedy=_without(refused, name, sink.name, exists=exists) if is_state else None,
        )


def _without(refused: list[str], name: str, state: str, *, exists: bool) -> str:
    """What to do about a state table with these features and properties: Spark does not commit to it."""
    if not exists:
        return (
            f"Leave what asks for {', '.join(refused)} out of `properties` of the state: its table does not exist yet, "
            "and would be created so. Then clear the failed task."
        )
    properties = [each.partition("=")[0] for each in refused if "=" in each]
    features = [each for each in refused if "=" not in each]
    off = _turned_off(properties, name) if properties else ""
    if not features:
        return f"{off}Then clear the failed task."
    return off + remedies.if_not_dropped(features, name, state)


def _turned_off(properties: list[str], name: str) -> str:
    turned_off = ", ".join(f"'{key}' = 'false'" for key in properties)
    return (
        f"Turn {', '.join(properties)} off, as only Spark renews such copies, and it does not write state tables: "
        f"leave it out of `properties` of the state. If the table exists, run in Spark: ALTER TABLE {identifier(name)} "
        f"SET TBLPROPERTIES ({turned_off}). "
    )


def require_readable(shape: TableShape, name: str) -> None:
    """Require that every reader can open a table that gets these columns."""
    if strange := shape.unreadable:
        raise Refused(
            f"Only Spark could read {name} if it had the types of these rows: {_listed(strange)}.",
            code=codes.DELTA_TYPE_UNREADABLE,
        )


def require_features(shape: TableShape, staging: Staging, name: str, mode: Mode) -> None:
    """Require that the table has the features for the types of the rows' columns: no writer adds a feature to it."""
    if mode.mode == MERGE and not delta_schema.copies(mode.merge or ""):
        return
    if not (missing := staging.shape.features_of_types - shape.features):
        return
    properties = ", ".join(f"'delta.feature.{feature}' = 'supported'" for feature in sorted(missing))
    raise Refused(
        f"{name} cannot get the types of these rows: it lacks the table features {', '.join(sorted(missing))}, and "
        "Delta adds them to new tables only.",
        code=codes.DELTA_ROWS_UNFIT,
        remedy=f"Add the features in Spark: ALTER TABLE {identifier(name)} SET TBLPROPERTIES ({properties}). Every "
        "reader of the table must know them then. Or let the transform return other types. Then clear the stage task.",
    )


def require_not_spoilt(location: TableLocation) -> None:
    """Require that the table has no column of a type that keeps every reader but Spark from opening it."""
    schema = newest_schema(location.files)
    strange = unreadable(schema) if schema else []
    if not schema or not any(kind == delta_schema.PLAIN_TEXT for _, kind in strange):
        return
    raise Refused(
        f"Only Spark can open {location.name}: {_listed(strange)}. Version 0.1 of the provider created the table so, "
        "from a Python UDF.",
        code=codes.DELTA_TABLE_SPARK_ONLY,
        remedy="Repair the table in Spark, which changes the spelling of the schema and no file: "
        f"ALTER TABLE {identifier(location.name)} REPLACE COLUMNS ({delta_schema.sql_columns(schema)}). "
        "Then clear the failed task. See docs/delta.md, 'A table that only Spark can open'.",
    )


def _listed(columns: list[tuple[str, str]]) -> str:
    return ", ".join(f"column {name!r} is {kind}" for name, kind in columns)


def require_lasting_marker(shape: TableShape, name: str) -> None:
    """Require that the table keeps our markers. Without its marker, an idle pipeline's table looks as if never fed."""
    if retention := shape.properties.get(TXN_RETENTION):
        raise Refused(
            f"{name} forgets transactions after {retention}, because it has the property {TXN_RETENTION}. The epoch "
            "marker would expire.",
            code=codes.DELTA_MARKERS_EXPIRE,
        )


def require_marker(found: Marker | None, previous: TransactionId | None, name: str) -> None:
    """Require that the table shows the sink's previous epoch, and no other."""
    if not agree(found, previous):
        raise Refused(
            f"{name} shows {described(found)}, but the ledger's last epoch is {described_transaction(previous)}. "
            "While the epoch ran, the table was restored or replaced, or another program wrote to it under this "
            "pipeline's name.",
            code=codes.DELTA_MARKER_CHANGED,
        )


def require_notes(location: TableLocation, place: str) -> None:
    """Require that the notes about deleted keys, at ``place`` in the table's folder, are still there."""
    if not location.files.names(f"{place}/_delta_log"):
        raise Refused(
            f"The notes about keys that the sink deleted from {location.name} are gone: {location.url}/{place}. "
            "Without them, a row that is older than the deletion of its key would bring the key back.",
            code=codes.DELTA_DELETIONS_GONE,
        )


def require_store(files: Files, folder: str) -> None:
    """Require that the store lets us create and delete files, and refuses to overwrite a file when asked not to."""
    with probe_below(folder, files.delete) as probe:
        files.write_new(probe, b"first")
        if files.write_new(probe, b"second"):
            raise Refused(
                "The table's store replaced an object although the provider asked it not to. Two commits could "
                "replace each other.",
                code=codes.STORE_UNCONDITIONAL,
                remedy="Use a store with conditional writes (S3, GCS, Azure, MinIO), or correct aws_conditional_put in "
                "the storage options.",
            )
