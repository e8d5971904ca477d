"""Finds changes by others that removed whole epochs from a table but left their markers: RESTORE, REPLACE, overwrite.

It reads the few log entries since an earlier commit of the sink. It ignores DELETE, UPDATE and OPTIMIZE: users correct
rows and compact files, and part of the table may be their own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone

from airflow_epochs.delta.log import actions_of, log_entry, number_in, operation_of, user_metadata_of
from airflow_epochs.delta.table import App
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta.other_pipelines import (
    OF_ANOTHER_LEDGER,
    of_another_ledger,
    pipeline_of,
    replaces_all,
)
from airflow_epochs.storage.files import Files

ENTRIES_MAX = 1_000
"""At most this many entries are read. There are only a few between two epochs."""
_DYNAMIC = "isDynamicPartitionOverwrite"
_WORTH_A_LOOK = (b'"RESTORE"', b"REPLACE", b"verwrite", b'"CLONE"')


@dataclass(frozen=True)
class ForeignChange:
    """A log entry that removes rows of epochs.

    Attributes:
        version: The entry's version.
        what: The operation, as ``DESCRIBE HISTORY`` names it.
        built_on: Whether the sink has committed after it.
        back_to: The earlier version to which it led the table back, if it is a RESTORE that names one.
    """

    version: int
    what: str
    built_on: bool = False
    back_to: int | None = None

    def __str__(self) -> str:
        return f"version {self.version} ({self.what})"


def foreign_changes(files: Files, app: App, since: int, ledger_id: str | None = None) -> list[ForeignChange]:
    """The changes after version ``since``, a commit of the sink, without those that a later RESTORE undid.

    ``ledger_id``: the ledger of the commit. None if unknown: then only the pipeline's name tells whose a commit is.
    """
    found: list[ForeignChange] = []
    own = since
    for version in range(since + 1, since + 1 + ENTRIES_MAX):
        entry = files.read(log_entry(version))
        if entry is None:
            break
        if app.epoch.encode() in entry and _is_signed(entry, app):
            own = version
            found = [replace(change, built_on=True) for change in found]
        elif any(word in entry for word in _WORTH_A_LOOK):
            found = _after(found, version, list(actions_of(entry)), own, app, ledger_id)
    return found


def _is_signed(entry: bytes, app: App) -> bool:
    return any(action["txn"]["appId"] == app.epoch for action in actions_of(entry) if "txn" in action)


def _after(
    found: list[ForeignChange], version: int, actions: list[JsonDict], own: int, app: App, ledger_id: str | None
) -> list[ForeignChange]:
    operation, how = operation_of(actions)
    if operation == "RESTORE":
        back_to = number_in(how.get("version"))
        if back_to is not None and back_to >= own:
            return [change for change in found if change.version <= back_to]
        return [*found, ForeignChange(version, f"RESTORE to {_target_of(how)}", back_to=back_to)]
    in_part = str(how.get(_DYNAMIC)).lower() == "true" and "REPLACE" not in operation
    writer = next((pipeline_of(told.get("app", "")) for action in actions if (told := user_metadata_of(action))), None)
    same_name = writer is not None and writer == pipeline_of(app.epoch)
    ours = same_name and not of_another_ledger(actions, ledger_id)
    if not ours and not in_part and any("remove" in action for action in actions) and replaces_all(actions):
        by = f" by pipeline {writer!r}{OF_ANOTHER_LEDGER if same_name else ''}" if writer else ""
        return [*found, ForeignChange(version, operation if "REPLACE" in operation else f"{operation}, overwrite{by}")]
    return found


def _target_of(how: JsonDict) -> str:
    """Where a RESTORE leads: a version, or a time, which Spark and deltalake name in different ways."""
    version = number_in(how.get("version"))
    if version is not None:
        return f"version {version}"
    return str(how.get("timestamp") or _time(number_in(how.get("datetime"))) or "an earlier version")


def _time(milliseconds: int | None) -> str | None:
    """The time as text; None if ``milliseconds`` is no time."""
    if milliseconds is None:
        return None
    try:
        at = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
    return f"{at:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03} UTC"
