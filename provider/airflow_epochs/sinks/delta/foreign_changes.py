"""What others have done to a table that takes whole epochs away while their markers stay: RESTORE, REPLACE, overwrite.

The few log entries since an earlier commit of the sink are read. An ordinary DELETE, UPDATE or OPTIMIZE is nobody's
business: users correct rows and compact files, and a table may be theirs in part.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_epochs.delta.log import actions_of, log_entry, note_of
from airflow_epochs.delta.table import App
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta.other_pipelines import pipeline_of
from airflow_epochs.storage.files import Files

ENTRIES_MAX = 1_000
"""No more than so many entries are read; between two epochs there are a few."""
_DYNAMIC = "isDynamicPartitionOverwrite"
_WORTH_A_LOOK = (b'"RESTORE"', b"REPLACE", b"verwrite", b'"CLONE"')


@dataclass(frozen=True)
class ForeignChange:
    """An entry that takes away rows of epochs.

    Attributes:
        version: Its version.
        what: The operation, as ``DESCRIBE HISTORY`` has it.
        built_on: Whether the sink has committed on top of it.
    """

    version: int
    what: str
    built_on: bool = False

    def __str__(self) -> str:
        return f"version {self.version} ({self.what})"


def foreign_changes(files: Files, app: App, since: int) -> list[ForeignChange]:
    """The changes after version ``since``, which is a commit of the sink; without those that a RESTORE took back."""
    found: list[ForeignChange] = []
    own = since
    for version in range(since + 1, since + 1 + ENTRIES_MAX):
        entry = files.read(log_entry(version))
        if entry is None:
            break
        if app.epoch.encode() in entry and _is_signed(entry, app):
            own = version
            found = [ForeignChange(change.version, change.what, built_on=True) for change in found]
        elif any(word in entry for word in _WORTH_A_LOOK):
            found = _after(found, version, list(actions_of(entry)), own, app)
    return found


def _is_signed(entry: bytes, app: App) -> bool:
    return any(action["txn"]["appId"] == app.epoch for action in actions_of(entry) if "txn" in action)


def _after(
    found: list[ForeignChange], version: int, actions: list[JsonDict], own: int, app: App
) -> list[ForeignChange]:
    info: JsonDict = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    operation, how = str(info.get("operation", "")), info.get("operationParameters") or {}
    if operation == "RESTORE":
        back_to = _version(how.get("version"))
        if back_to is not None and back_to >= own:
            return [change for change in found if change.version <= back_to]
        return [*found, ForeignChange(version, f"RESTORE to {_target_of(how)}")]
    in_part = how.get("predicate") not in (None, "", "[]") or str(how.get(_DYNAMIC)).lower() == "true"
    overwrites = str(how.get("mode", "")).lower() == "overwrite" and not in_part
    writer = next((pipeline_of(note.get("app", "")) for action in actions if (note := note_of(action))), None)
    ours = writer is not None and writer == pipeline_of(app.epoch)
    if not ours and any("remove" in action for action in actions) and (overwrites or "REPLACE" in operation):
        by = f" by pipeline {writer!r}" if writer else ""
        return [*found, ForeignChange(version, operation if "REPLACE" in operation else f"{operation}, overwrite{by}")]
    return found


def _target_of(how: JsonDict) -> str:
    version = _version(how.get("version"))
    return f"version {version}" if version is not None else f"{how.get('timestamp')}"


def _version(text: object) -> int | None:
    try:
        return int(str(text))
    except ValueError:
        return None
