"""A Delta sink's checks before it votes: the staged rows, and what the commit needs of the target."""

from __future__ import annotations

from dataclasses import replace

from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.delta.log import rows_of
from airflow_epochs.model import CLOSED, Shown, Staged, StagedClaim, compare
from airflow_epochs.sinks.delta import checks, deleted_keys, folder_names, other_pipelines, restore
from airflow_epochs.sinks.delta.flush import flush_after
from airflow_epochs.sinks.delta.modes import ADD_COLUMNS
from airflow_epochs.sinks.delta.state import column_names, vote
from airflow_epochs.sinks.delta.state.table import StateTable
from airflow_epochs.sinks.delta.target import Target
from airflow_epochs.sinks.delta.whereabouts import SPARK, Whereabouts
from airflow_epochs.staged import checks as staged_checks
from airflow_epochs.staged.digest import staged_of
from airflow_epochs.staged.staging import Staging, read_staging


def checked(at: Whereabouts, attempt: SinkAttempt, claim: StagedClaim) -> Staged:
    """The staged rows at the claimed place, whole, and made durable. Checks the target early, as the commit will.

    Raises:
        Refused: The sink cannot promise it.
    """
    location = at.location_of(claim.place, attempt)
    files, relative = location.files, location.relative(claim.place)
    app = at.app(attempt.txn.pipeline)
    staging = staged_checks.require_own(read_staging(files, relative), attempt, app.epoch, claim.place)
    staging = staged_checks.require_files(files, staging)
    staged_checks.require_sound_actions(staging)
    if not attempt.promised:  # earlier versions have promised such rows
        staged_checks.require_known_times(staging)
    staged_checks.require_rows(staging)
    target = at.look(location, attempt.txn.pipeline)
    _require_fitting(at, target, staging)
    if staging.user_metadata["committer"] == SPARK and not attempt.promised:
        folder_names.require_fit(at.sink, target, staging)
    _require_turn(at, target, attempt)
    deleted_keys.require_notes_of_keys(at, target, attempt, staging.shape.schema)
    _require_own_rows(at, target, attempt, staging)
    if attempt.restore:
        restore.require_restorable(at, target, attempt.restore)
    if isinstance(at.sink, StateTable):
        vote.require_state(at.sink, attempt, target, staging)
    checks.require_store(files, at.folder(attempt))
    files.sync([*staging.log_files, *(f"{staging.place}/{file.path}" for file in staging.files)])
    if staging.user_metadata["committer"] != SPARK:  # whose commits flush what came before
        flush_after(location, app, attempt.previous.epoch if attempt.previous else None, target.version)
    return _with_closed(staged_of(claim, staging), staging)


def _with_closed(staged: Staged, staging: Staging) -> Staged:
    """``staged`` with the part of a state that the operators have closed, so that a vote covers that, too."""
    closed = staging.user_metadata.get("state", {}).get("closed")
    return replace(staged, detail={**staged.detail, CLOSED: closed}) if closed else staged


def _require_fitting(at: Whereabouts, target: Target, staging: Staging) -> None:
    """Require that the target takes these rows."""
    name, shape, how = target.location.name, target.shape, at.sink.how
    checks.require_same_table(target.table_id, staging, name)
    if shape is not None and isinstance(at.sink, StateTable):
        column_names.require_spelling(at.sink, name, shape.schema)
    if shape is None or how.schema_evolution == ADD_COLUMNS:
        checks.require_readable(staging.shape, name)
    if shape is not None and (how.schema_evolution == ADD_COLUMNS or isinstance(at.sink, StateTable)):
        checks.require_features(shape, staging, name, how)
    if staging.user_metadata["committer"] == SPARK:
        _require_fitting_for_spark(at, target, staging)
    else:
        takes = shape.widened_for(staging.shape) if shape and isinstance(at.sink, StateTable) else shape
        checks.require_addable(takes, staging, name, at.sink)
    checks.require_lasting_marker(shape or staging.shape.with_properties(at.sink.properties), name)


def _require_fitting_for_spark(at: Whereabouts, target: Target, staging: Staging) -> None:
    name, shape, how = target.location.name, target.shape, at.sink.how
    checks.require_known(shape, staging, name)
    checks.require_insertable(shape, staging, name, how, tells_computed=target.tells_computed)
    checks.require_changeable(how, shape or staging.shape, staging, name)
    checks.require_keys(how, staging)


def _require_turn(at: Whereabouts, target: Target, attempt: SinkAttempt) -> None:
    """Require that the table shows the epoch before, with the notes of deletions that its commit names."""
    stands = compare(target.marker, attempt.previous, attempt.txn)
    if stands is not Shown.ALREADY:  # it shows this epoch already if lost rows of it are to be put back
        checks.require_marker(target.marker, attempt.previous, target.location.name)
    at.require_notes(target, attempt)


def _require_own_rows(at: Whereabouts, target: Target, attempt: SinkAttempt, staging: Staging) -> None:
    """Require that an overwrite replaces no rows of other pipelines."""
    shape, how = target.shape, at.sink.how
    if shape and not attempt.promised and how.spares_others(sum(map(rows_of, staging.files))):
        touches = other_pipelines.touched_by(how, shape, staging)
        other_pipelines.require_none(target.location, target.app, attempt.ledger_id, target.version, touches, how)
