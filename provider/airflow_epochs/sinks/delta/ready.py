"""A Delta sink's checks before Spark runs: whether the table at a path can take any rows at all."""

from __future__ import annotations

from airflow_epochs import codes
from airflow_epochs.delta.shape import TableShape
from airflow_epochs.delta.table import STAGING_FOLDER
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.delta import checks
from airflow_epochs.sinks.delta.modes import ADD_COLUMNS, OVERWRITE_PARTITIONS, Mode
from airflow_epochs.sinks.delta.whereabouts import DELTALAKE, Whereabouts
from airflow_epochs.storage.files import is_local


def require_ready(at: Whereabouts, pipeline: str) -> None:
    """Raise Refused if no rows would fit the table. A table that does not exist is created by the commit.

    Of tables in a catalog, and of those that deltalake cannot open, only Spark knows, and it is not asked here.
    """
    if at.sink.in_catalog:
        return
    target = at.look(at.location(), pipeline)
    if (shape := target.opened_shape) is None:
        return
    name, how = target.location.name, at.sink.how
    checks.require_partitioning(at.sink, shape, name)
    if at.sink.commit_by == DELTALAKE:
        checks.require_committable(shape, name, at.sink)
    checks.require_open_to_changes(how, shape, name)
    checks.require_lasting_marker(shape, name)
    _require_key_columns(how, shape, name)
    if how.mode == OVERWRITE_PARTITIONS and not shape.partition_by:
        raise Refused(
            f"Mode {how.mode!r} replaces whole partitions, but {name} has none.",
            code=codes.DELTA_PARTITIONS,
            remedy="Choose another mode, or give the sink a partitioned table. Then clear the failed task.",
        )


def require_writable(at: Whereabouts) -> None:
    """Raise Refused if no rows can be staged in the table's folder. In an object store, ask what the vote asks."""
    location = at.location()
    if is_local(location.url):
        location.files.probe(STAGING_FOLDER)
    else:
        checks.require_store(location.files, STAGING_FOLDER)


def _require_key_columns(how: Mode, shape: TableShape, name: str) -> None:
    columns = [field["name"] for field in shape.schema["fields"]]
    known = {column.lower() for column in columns}
    if how.schema_evolution == ADD_COLUMNS:
        return
    if missing := [key for key in how.keys if key.lower() not in known]:
        raise Refused(
            f"{name} has no column {', '.join(map(repr, missing))}, which `keys` of the sink names. Its columns are: "
            f"{', '.join(columns)}.",
            code=codes.DELTA_ROWS_UNFIT,
            remedy="Correct `keys` of the sink, or add the column to the table. Then clear the failed task.",
        )
