"""A table goes back to the version that it had after an earlier epoch, as a part of an epoch of its own.

The commit is one log entry: it takes away the files that the version does not have, adds those that the table does not
have any more, and moves the marker like any other commit. Nothing is copied and nothing is deleted: VACUUM does that
when the table's retention is over. The table keeps its protocol, columns and properties of today.
"""

from __future__ import annotations

from airflow_epochs import codes
from airflow_epochs.delta.append_only import APPEND_ONLY, is_append_only
from airflow_epochs.delta.log import actions_of, log_entry, remove_of
from airflow_epochs.delta.replay import LogGone, live_files
from airflow_epochs.delta.shape import TableShape
from airflow_epochs.delta.table import CannotOpen, TableLocation, open_version
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict, RestorePoint
from airflow_epochs.sinks.delta import checks, other_pipelines
from airflow_epochs.sinks.delta.flush import paths_of
from airflow_epochs.sinks.delta.sink import DeltaSink
from airflow_epochs.sinks.delta.state.table import StateTable
from airflow_epochs.sinks.delta.target import Target
from airflow_epochs.sinks.delta.whereabouts import Whereabouts


def require_restorable(at: Whereabouts, target: Target, point: RestorePoint) -> None:
    """Raise Refused unless the table can go back to the version without losing rows of other pipelines."""
    location, shape = target.location, target.opened_shape
    if at.sink.in_catalog:
        raise _refused(location, point, "it is in a catalog, and only Spark commits to it")
    if at.sink.how.notes_deletions:
        raise _refused(location, point, "the sink keeps notes of deleted keys, which have no versions")
    if shape is None:
        raise _refused(location, point, target.problem or "there is no table")
    if not isinstance(at.sink, StateTable) and (features := shape.refused_features):
        raise _refused(location, point, f"only Spark can commit to it, because it has {', '.join(features)}")
    checks.require_committable(shape, location.name, at.sink)
    if is_append_only(shape.properties):
        raise _refused(location, point, f"the table has the property {APPEND_ONLY}")
    _require_same_columns(at.sink, location, shape, point)
    require_no_others(target, point)
    actions(location, point, target.version, 0)


def _require_same_columns(sink: DeltaSink, location: TableLocation, today: TableShape, point: RestorePoint) -> None:
    try:
        then = TableShape.of_table(open_version(location, point.version))
    except CannotOpen as error:
        raise _refused(location, point, str(error)) from error
    if then.id != today.id:
        raise _refused(location, point, "another table had this version")
    if difference := checks.difference_to(today, then, sink):
        raise _refused(location, point, f"since then, {difference}")


def require_no_others(target: Target, point: RestorePoint) -> None:
    """Raise Refused if another pipeline has put rows into the table since: its marker would stay without them."""
    ledger_id = other_pipelines.ledger_in(_entry_of(target, point.version))
    for version in range(point.version + 1, target.version + 1):
        entry = target.location.files.read(log_entry(version))
        if entry is None:
            raise _refused(target.location, point, f"entry {version} of its log is gone")
        if other := other_pipelines.writer_of(version, list(actions_of(entry)), target.app, ledger_id):
            raise _refused(
                target.location,
                point,
                f"pipeline {other.who} has put rows of its epoch {other.epoch} into the table since, in version "
                f"{version}, and would lose them",
            )


def _entry_of(target: Target, version: int) -> list[JsonDict]:
    """The actions of a log entry; empty if the entry is gone."""
    return list(actions_of(target.location.files.read(log_entry(version)) or b""))


def actions(location: TableLocation, point: RestorePoint, newest: int, now_ms: int) -> list[JsonDict]:
    """The ``add`` and ``remove`` actions that take the table from its version ``newest`` back to ``point``.

    Raises:
        Refused: The log no longer tells the files of the version, or files of it are gone.
    """
    try:
        then, today = live_files(location.files, point.version), live_files(location.files, newest)
    except LogGone as gone:
        raise _refused(location, point, str(gone)) from gone
    back = [add for key, add in then.items() if key not in today]
    missing = location.files.missing(set(paths_of(*then.values())))
    if missing:
        example = min(missing)
        raise _refused(location, point, f"a VACUUM has deleted {len(missing)} of its files, for example {example}")
    taken = [remove_of(add, now_ms) | {"dataChange": True} for key, add in today.items() if key not in then]
    return [*({"remove": each} for each in taken), *({"add": add | {"dataChange": True}} for add in back)]


def _refused(location: TableLocation, point: RestorePoint, why: str) -> Refused:
    return Refused(
        f"{location.name} cannot go back to version {point.version}, which it had after epoch {point.epoch}: {why}.",
        code=codes.DELTA_NOT_RESTORABLE,
    )
