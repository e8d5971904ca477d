"""Signs a staging folder with a small file. It tells people, and ``discard``, whose folder it is."""

from __future__ import annotations

import json

from airflow_epochs import codes
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict, attempt_fields
from airflow_epochs.names import DRY_RUN
from airflow_epochs.storage.files import Files

OWNER = "_owner.json"
"""Hidden, so that VACUUM of the table around it keeps it."""
_COMPARED = ("ledger_id", "pipeline", "sink")


def sign(files: Files, folder: str, attempt: SinkAttempt, sink: str) -> None:
    """Write the owner's file into ``folder``, unless there is one."""
    path = f"{folder}/{OWNER}"
    if files.read(path) is None:
        files.write_new(path, json.dumps(_owner(attempt, sink), indent=1).encode())


def require_owner(files: Files, folder: str, attempt: SinkAttempt, sink: str) -> None:
    """Check that the folder is this sink's. A folder of version 0.1 has no owner's file and passes; no dry run's does.

    Raises:
        Refused: The file names another owner, or cannot be read.
    """
    said, owner = files.read(f"{folder}/{OWNER}"), _owner(attempt, sink)
    if said is None and not _is_dry_run(attempt):
        return
    if said is None or _compared(said) != [owner[key] for key in _COMPARED]:
        says = "is missing" if said is None else f"says: {said[:300].decode(errors='replace')}"
        raise Refused(
            f"The staging folder {folder} does not belong to this sink. Its file {OWNER} {says}. Nothing was deleted.",
            code=codes.STAGING_FOLDER_FOREIGN,
            **attempt_fields(attempt.txn),
            sink=sink,
        )


def leave(files: Files, folder: str, attempt: SinkAttempt) -> None:
    """Delete the folder of a dry run once nothing but its owner's file is in it. Another folder serves later epochs."""
    if _is_dry_run(attempt) and files.names(folder) == {OWNER}:
        files.delete(folder)


def _is_dry_run(attempt: SinkAttempt) -> bool:
    return attempt.ledger_id.startswith(DRY_RUN)


def _owner(attempt: SinkAttempt, sink: str) -> JsonDict:
    return {
        "what": "rows staged by airflow-provider-epochs, and files that the table refers to",
        "ledger": attempt.ledger,
        "ledger_id": attempt.ledger_id,
        "pipeline": attempt.txn.pipeline,
        "sink": sink,
    }


def _compared(said: bytes) -> list[object] | None:
    try:
        value = json.loads(said)
        return [value[key] for key in _COMPARED]
    except (ValueError, KeyError, TypeError):
        return None
