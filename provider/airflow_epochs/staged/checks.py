"""The vote's checks on what was staged: whose it is, and whether it is whole. Each raises Refused."""

from __future__ import annotations

import re
from collections.abc import Mapping

from airflow_epochs import codes
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.delta.log import StagedFile, checked_stats, rows_of
from airflow_epochs.delta.shape import PHYSICAL_NAME, TableShape
from airflow_epochs.errors import Refused
from airflow_epochs.model import attempt_fields
from airflow_epochs.staged import footers
from airflow_epochs.staged.staging import Staging
from airflow_epochs.storage.files import Files, is_local
from airflow_epochs.storage.local import LocalFiles

_SHARE = (
    "If Spark's machines and the Airflow workers each have a disk of their own there, move the sink's `staging`, or "
    "its table, to a disk that Spark's driver and executors and all workers share under one path, or into an object "
    "store. Then clear the stage task: it stages into a new folder."
)
"""What to do about files on a disk that Spark reports and this worker does not see. New tries would not help."""

_TIMES = ("date", "timestamp", "timestamp_ntz")
_KNOWN_TIME = re.compile(r"(?!0000)\d{4}-\d\d-\d\d(?!\d)", re.ASCII)
"""How the log tells a date or an instant of the years 1 to 9999. Others have a sign, or more digits, or the year 0."""


def require_own(staging: Staging | None, attempt: SinkAttempt, app: str, place: str) -> Staging:
    """Require that ``place`` holds a finished staging of this transaction and sink; return it."""
    if staging is None:
        raise Refused(
            f"Spark reports staged rows, but this worker sees no finished staging table at {place}.",
            code=codes.STAGED_INCOMPLETE,
            remedy=_SHARE if is_local(place) else None,
            **attempt_fields(attempt.txn),
        )
    if staging.user_metadata.get("txn") != attempt.txn or staging.user_metadata.get("app") != app:
        raise Refused(
            f"The staging table at {place} belongs to transaction {staging.user_metadata.get('txn')} of "
            f"{staging.user_metadata.get('app')}, not to transaction {attempt.txn} of {app}.",
            code=codes.STAGED_BY_ANOTHER,
            **attempt_fields(attempt.txn),
        )
    return staging


def require_rows(staging: Staging) -> None:
    """Require that the files have as many rows as their writer counted, if it did: a damaged log may lack files."""
    found = str(sum(map(rows_of, staging.files)))
    if staging.counted not in (None, found):
        raise Refused(
            f"The log of the staging table {staging.place} says that {staging.counted} rows were written, but its "
            f"files have {found} rows.",
            code=codes.STAGED_INCOMPLETE,
        )


def require_files(files: Files, staging: Staging) -> Staging:
    """Require that every staged file is whole, by its size and its end. Returns ``staging`` with all statistics."""
    require_sizes(files, staging)
    return footers.completed(files, staging)


def require_sizes(files: Files, staging: Staging) -> None:
    found = files.sizes(staging.place)
    for file in staging.files:
        size = found.get(f"{staging.place}/{file.path}")
        if size != file.size:
            if size is None and isinstance(files, LocalFiles):
                raise Refused(
                    f"The staged file {files.root}/{staging.place}/{file.path} is gone, or this worker does not see "
                    "it.",
                    code=codes.STAGED_INCOMPLETE,
                    remedy=_SHARE,
                )
            state = "is gone" if size is None else f"has {size} bytes instead of {file.size}"
            raise Refused(f"The staged file {staging.place}/{file.path} {state}.", code=codes.STAGED_INCOMPLETE)


def require_sound_actions(staging: Staging) -> None:
    """Require statistics and partition values that every reader can parse."""
    columns = _partition_names(staging.shape)
    for file in staging.files:
        checked_stats(file)
        if set(file.partition_values) != columns:
            raise Refused(
                f"The staged file {file.path} has partition values for {sorted(file.partition_values)}, but the "
                f"table is partitioned by {sorted(columns)}.",
                code=codes.STAGED_INCOMPLETE,
            )


def require_known_times(staging: Staging) -> None:
    """Require that readers other than Spark know every time in a partition column. Spark was asked the same."""
    times = _times_among(staging.shape)
    for file in staging.files if times else ():
        _require_known_times_of(file, times)


def _require_known_times_of(file: StagedFile, times: Mapping[str, str]) -> None:
    for physical, name in times.items():
        value = file.partition_values[physical]
        if value and not _KNOWN_TIME.match(value):
            raise Refused(
                f"A value of the partition column {name} is outside of the years 1 to 9999: {value}.",
                code=codes.DELTA_ROWS_UNFIT,
            )


def _partition_names(shape: TableShape) -> set[str]:
    physical = physical_names(shape)
    return {physical[name.lower()] for name in shape.partition_by}


def _times_among(shape: TableShape) -> dict[str, str]:
    """Each partition column of dates or instants: its name in the log -> its own name."""
    kinds = {field["name"].lower(): field["type"] for field in shape.schema["fields"]}
    physical = physical_names(shape)
    return {physical[name.lower()]: name for name in shape.partition_by if kinds[name.lower()] in _TIMES}


def physical_names(shape: TableShape) -> dict[str, str]:
    """Each column's name in lower case -> its name in statistics and partition values."""
    metadata: dict[str, Mapping[str, str]] = {f["name"]: f.get("metadata", {}) for f in shape.schema["fields"]}
    return {name.lower(): known.get(PHYSICAL_NAME, name) for name, known in metadata.items()}
