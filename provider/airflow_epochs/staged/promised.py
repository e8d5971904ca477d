"""What a decision promises of staged rows, looked for again when they are committed."""

from __future__ import annotations

from airflow_epochs import codes, secrecy
from airflow_epochs.contracts import waive_command
from airflow_epochs.delta.table import (
    TableLocation,
)
from airflow_epochs.errors import Corrupt, Refused, RowsGone
from airflow_epochs.model import Staged, TransactionId
from airflow_epochs.staged.checks import require_sizes
from airflow_epochs.staged.digest import SCHEME, digest_of
from airflow_epochs.staged.staging import Staging, read_staging

log = secrecy.logger(__name__)


def staging_left(location: TableLocation, staged: Staged) -> Staging | None:
    """The staging table; None if there is no usable one left, as after clean-up."""
    try:
        return read_staging(location.files, location.relative(staged.place))
    except Refused as refused:
        log.warning("%s", refused.what)
        return None


def require_promised(
    location: TableLocation, staging: Staging | None, staged: Staged, txn: TransactionId, sink: str
) -> Staging:
    """The staged rows are as they were at the vote.

    Raises:
        RowsGone: They are gone, or their files are damaged.
        Corrupt: Their digest cannot be compared, or is another. GLOBAL_COMMIT was decided, so a human must look.
    """
    if not staged.digest.startswith(SCHEME):
        raise Corrupt(
            f"The digest of the rows promised to {location.name} was made by another version of the provider: what "
            f"lies at {staged.place} cannot be compared with it.",
            code=codes.PROMISED_ROWS_CHANGED,
            remedy="Finish this epoch with the version that voted, or complete it without this sink's rows: "
            f"`{waive_command(txn, sink)}`. Nothing was written.",
        )
    if staging is None:
        raise _rows_gone(location, staged, "the staging table is gone")
    if digest_of(staging) != staged.digest:
        raise Corrupt(
            f"The rows promised to {location.name} are not those at {staged.place}: the staging table was changed.",
            code=codes.PROMISED_ROWS_CHANGED,
            remedy="Restore that folder from a backup, or delete it and clear the commit task, which then stages the "
            "same offsets again. Nothing was written.",
        )
    try:
        require_sizes(location.files, staging)
    except Refused as refused:
        raise _rows_gone(location, staged, refused.what) from refused
    return staging


def _rows_gone(location: TableLocation, staged: Staged, why: str) -> RowsGone:
    return RowsGone(
        f"The rows promised to {location.name} are not at {staged.place} any more: {why}",
        code=codes.PROMISED_ROWS_GONE,
        remedy="Clear the commit task: it stages the same offsets again. Let VACUUM keep files for longer than an "
        "epoch may be in doubt. Nothing was written.",
    )
