"""The vote's extra checks for a state table: each key changes once, and nobody else has changed rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.delta.table import TableLocation
from airflow_epochs.errors import Refused
from airflow_epochs.model import attempt_fields
from airflow_epochs.sinks.delta.state import remedies, table_log
from airflow_epochs.sinks.delta.state.table import StateTable
from airflow_epochs.sinks.delta.target import Target
from airflow_epochs.sinks.delta.whereabouts import Whereabouts
from airflow_epochs.sinks.row_flaws import told
from airflow_epochs.staged.staging import Staging, read_staging

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_MAX = 5
"""How many keys a message names."""
_TIMES = "__epochs_times"


def require_state(state: StateTable, attempt: SinkAttempt, target: Target, staging: Staging) -> None:
    """Raise Refused if a key changes twice; Corrupt if others have changed rows since the version that was read."""
    pin = attempt.state
    assert pin is not None
    if pin.version is not None:
        lost = remedies.decided(attempt.txn, state.name) if attempt.promised else remedies.UNDECIDED
        table_log.require_unchanged(target.location, pin.version, _newest_of_others(target, attempt), lost)
    if not pin.fold:  # a fold has one row per key
        _require_one_change_per_key(state, attempt, target.location, staging)


def _newest_of_others(target: Target, attempt: SinkAttempt) -> int:
    """The newest version before the epoch's own commit. That commit exists if lost files are staged again."""
    ours = target.commit_of(attempt.txn) if attempt.promised else None
    return target.version if ours is None or ours.version is None else ours.version - 1


def require_one_change_per_key(at: Whereabouts, state: StateTable, attempt: SinkAttempt, place: str) -> None:
    """Raise Refused if a key changes twice in what is staged at ``place``."""
    location = at.location_of(place, attempt)
    if staging := read_staging(location.files, location.relative(place)):
        _require_one_change_per_key(state, attempt, location, staging)


def _require_one_change_per_key(
    state: StateTable, attempt: SinkAttempt, location: TableLocation, staging: Staging
) -> None:
    repeated = _repeated(_keys_of(location, staging, state.keys))
    if repeated:
        raise Refused(
            f"Some keys change more than once in this epoch: {'; '.join(repeated)}.",
            code=codes.STATE_KEYS,
            **attempt_fields(attempt.txn),
            sink=state.name,
        )


def _keys_of(location: TableLocation, staging: Staging, keys: list[str]) -> pa.Table | None:
    """The keys of all staged changes; None if nothing is staged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = []
    for file in staging.files:
        with location.files.open(f"{staging.place}/{file.path}") as opened:
            found.append(pq.ParquetFile(opened).read(columns=keys))
    return pa.concat_tables(found) if found else None


def _repeated(keys: pa.Table | None) -> list[str]:
    """Some of the keys that several rows have, as texts."""
    import pyarrow.compute as pc

    if keys is None:
        return []
    names = keys.column_names
    counted = keys.append_column(_TIMES, [range(keys.num_rows)]).group_by(names).aggregate([(_TIMES, "count")])
    several = counted.filter(pc.greater(counted[f"{_TIMES}_count"], 1)).select(names).slice(0, SHOWN_MAX)
    return [
        ", ".join(f"{name}={told(several[name].slice(row, 1))}" for name in names) for row in range(several.num_rows)
    ]
