"""Signs a staging folder with a small file. It tells people, and ``discard``, whose folder it is."""

from __future__ import annotations

import json

from airflow_epochs import codes
from airflow_epochs.contracts import SinkAttempt
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict, attempt_fields
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
    """Check that the folder is this sink's. A folder of version 0.1 has no owner's file and passes.

    Raises:
        Refused: The file names another owner, or cannot be read.
    """
    said, owner = files.read(f"{folder}/{OWNER}"), _owner(attempt, sink)
    if said is not None and _compared(said) != [owner[key] for key in _COMPARED]:
        raise Refused(
            f"The staging folder {folder} does not belong to this sink. Its file {OWNER} says: "
            f"{said[:300].decode(errors='replace')}. Nothing was deleted.",
            code=codes.STAGING_FOLDER_FOREIGN,
            **attempt_fields(attempt.txn),
            sink=sink,
        )


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
