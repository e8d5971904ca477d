"""Checks at the commit that the staged rows are still the rows that the sink voted for."""

from __future__ import annotations

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import waive_command
from airflow_epochs.delta.table import (
    TableLocation,
)
from airflow_epochs.errors import Corrupt, Refused, RowsGone
from airflow_epochs.model import Staged, TransactionId, attempt_fields
from airflow_epochs.staged.checks import require_files, require_sizes
from airflow_epochs.staged.digest import SCHEME, SCHEME_OF_LOG, digest_of
from airflow_epochs.staged.staging import Staging, read_staging

log = secrecy.logger(__name__)


def staging_left(location: TableLocation, staged: Staged) -> Staging | None:
    """The staging table; None if it is gone, as after clean-up, or unusable."""
    try:
        return read_staging(location.files, location.relative(staged.place))
    except Refused as refused:
        log.warning("the staging table at %s cannot be used: %s", staged.place, refused.what)
        return None


def require_promised(
    location: TableLocation, staging: Staging | None, staged: Staged, txn: TransactionId, sink: str
) -> Staging:
    """Require that the staged rows are as they were at the vote. Returns them with the statistics of all files.

    Raises:
        RowsGone: The rows are gone, or their files are damaged.
        Corrupt: Their digest differs, or cannot be compared. GLOBAL_COMMIT was decided, so a human must look.
    """
    if not staged.digest.startswith((SCHEME, SCHEME_OF_LOG)):
        raise Corrupt(
            f"Another version of the provider computed the digest of the rows that were promised to {location.name}. "
            f"This version cannot compare the staged rows at {staged.place} with that digest. Nothing was written.",
            code=codes.DIGEST_OF_OTHER_VERSION,
            remedy="Install the version of the provider that voted, and clear the commit task. Or complete the epoch "
            f"without this sink's rows: `{waive_command(txn, sink)}`.",
            **attempt_fields(txn),
            sink=sink,
        )
    if staging is None:
        raise _rows_gone(location, staged, "The staging table is gone.", txn, sink)
    try:
        staging = require_files(location.files, staging)
    except Refused as refused:
        raise _rows_gone(location, staged, refused.what, txn, sink) from refused
    if digest_of(staging) != staged.digest:
        raise Corrupt(
            f"The rows at {staged.place} are not the rows that were promised to {location.name}: the staging table "
            "was changed. Nothing was written.",
            code=codes.PROMISED_ROWS_CHANGED,
            **attempt_fields(txn),
            sink=sink,
        )
    return staging


def require_still_there(
    location: TableLocation, staging: Staging, staged: Staged, txn: TransactionId, sink: str
) -> None:
    """Require each file that ``require_promised`` has returned, with its size: one listing, nothing is read.

    Raises:
        RowsGone: A file is gone, or cut off.
    """
    try:
        require_sizes(location.files, staging)
    except Refused as refused:
        raise _rows_gone(location, staged, refused.what, txn, sink) from refused


def _rows_gone(location: TableLocation, staged: Staged, why: str, txn: TransactionId, sink: str) -> RowsGone:
    return RowsGone(
        f"The rows that were promised to {location.name} are no longer at {staged.place}. {why} Nothing was written.",
        code=codes.PROMISED_ROWS_GONE,
        **attempt_fields(txn),
        sink=sink,
    )
