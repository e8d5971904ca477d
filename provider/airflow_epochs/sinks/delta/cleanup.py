"""Deletes a staging place of a Delta table, but never the files there that the table itself uses."""

from __future__ import annotations

from airflow_epochs import secrecy
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.delta.snapshot import LogPosition
from airflow_epochs.delta.table import TableLocation
from airflow_epochs.errors import Refused
from airflow_epochs.sinks.delta import checks, references
from airflow_epochs.sinks.delta.whereabouts import SPARK, Whereabouts
from airflow_epochs.staged import checks as staged_checks
from airflow_epochs.staged import owner
from airflow_epochs.staged.staging import Staging, read_staging

log = secrecy.logger(__name__)


def has_leftovers(at: Whereabouts, attempt: SinkAttempt, place: str, *, published: bool) -> bool:
    """Whether the place still has files. Of a published place, only the log counts: the table uses the rest."""
    location = at.location_of(place, attempt)
    left = location.files.names(location.relative(place))
    return "_delta_log" in left if published else bool(left)


def discard(at: Whereabouts, attempt: SinkAttempt, place: str, *, published: bool) -> None:
    """Delete a try's place. If it was published by metadata only, delete only its log: the table uses the rest.

    Files to which the table refers are never deleted, whatever the ledger says of the place.

    Raises:
        Refused: The place is not this attempt's, or was made for another table.
        NotApplied: The log does not tell whether the table refers to the files.
    """
    location = at.location_of(place, attempt)
    if has_leftovers(at, attempt, place, published=published):
        _discard(at, location, attempt, place, published=published)
    owner.leave(location.files, at.folder(attempt), attempt)


def _discard(at: Whereabouts, location: TableLocation, attempt: SinkAttempt, place: str, *, published: bool) -> None:
    relative = location.relative(place)
    owner.require_owner(location.files, at.folder(attempt), attempt, at.sink.name)
    if published and not _copied(at, location, attempt, relative):
        location.files.delete(f"{relative}/_delta_log")
        return
    staging = _made_for_it(at, location, attempt, relative)
    anchor = LogPosition.from_json(staging.user_metadata.get("anchor")) if staging else None
    kept = references.referenced(location, at.app(attempt.txn.pipeline), attempt.txn.epoch, relative, anchor)
    if kept & location.files.sizes(relative).keys():
        log.warning(
            "%s is not deleted: table %s uses its files, although the ledger says otherwise", place, location.name
        )
    else:
        location.files.delete(relative)


def _made_for_it(at: Whereabouts, location: TableLocation, attempt: SinkAttempt, relative: str) -> Staging | None:
    """The staging table there, checked to be of this transaction and for the table; None if missing or damaged."""
    try:
        staging = read_staging(location.files, relative)
    except Refused:  # it is damaged and says nothing; the files to which the table refers are kept all the same
        return None
    if staging is None:
        return None
    staged_checks.require_own(staging, attempt, at.app(attempt.txn.pipeline).epoch, relative)
    if staging.user_metadata["table_id"] is not None:
        checks.require_same_table(at.look(location, attempt.txn.pipeline).table_id, staging, location.name)
    return staging


def _copied(at: Whereabouts, location: TableLocation, attempt: SinkAttempt, relative: str) -> bool:
    """Whether the target is known not to use the files at this place: no file is staged, or Spark copied the rows."""
    staging = read_staging(location.files, relative)
    if staging is None:
        return False
    if not staging.files or staging.user_metadata["committer"] == SPARK:
        return True
    found = at.look(location, attempt.txn.pipeline).commit_of(attempt.txn)
    return bool(found and found.user_metadata and found.user_metadata.get("committer") == SPARK)
