"""Finds rows of other pipelines that an overwrite would remove, while their pipelines' markers stayed.

Every commit of this provider names its pipeline. So the log entries since the sink's own last commit tell whether
others write to the table. Usually these are few. Before the sink's first epoch, or if its last commit is far back, only
the newest 1,000 entries are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from airflow_epochs import codes
from airflow_epochs.delta.log import actions_of, log_entry
from airflow_epochs.delta.shape import TableShape
from airflow_epochs.delta.table import App, TableLocation
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sinks.delta.modes import OVERWRITE_PARTITIONS, Mode
from airflow_epochs.staged.checks import physical_names
from airflow_epochs.staged.staging import Staging
from airflow_epochs.storage.files import Files

ENTRIES_MAX = 1_000
_SIGNATURE = re.compile(r"airflow_epochs/([^/.]+)/([^/.]+)")
"""A commit's pipeline and sink. ``App``'s other names contain a dot."""

Touches = Callable[[JsonDict], bool]
"""Takes a file's ``add`` action, and tells whether an overwrite would replace the file's rows."""


@dataclass(frozen=True)
class Foreign:
    """A commit of another pipeline whose rows are still in the table."""

    version: int
    pipeline: str
    sink: str
    epoch: int


def require_none(location: TableLocation, app: App, newest: int, touches: Touches, how: Mode) -> None:
    """Check that the overwrite would replace no row that another pipeline has written since this sink's last epoch.

    Raises:
        Refused: It would.
    """
    if found := newest_of_others(location.files, app, newest, touches):
        raise Refused(
            f"Pipeline {found.pipeline!r} has put rows of its epoch {found.epoch} into {location.name} (version "
            f"{found.version}, sink {found.sink!r}). Mode {how.mode!r} would delete these rows.",
            code=codes.DELTA_OTHER_PIPELINE,
            sink=app.sink,
        )


def touched_by(how: Mode, shape: TableShape, staging: Staging) -> Touches:
    """Which files of a table of this shape an overwrite with the staged rows would replace."""
    if how.mode != OVERWRITE_PARTITIONS:
        return lambda add: True
    names, staged_names = physical_names(shape), physical_names(staging.shape)
    columns = [column.lower() for column in shape.partition_by]
    partitions = {
        tuple(file.partition_values.get(staged_names[column]) for column in columns) for file in staging.files
    }
    return lambda add: tuple(add["partitionValues"].get(names[column]) for column in columns) in partitions


def newest_of_others(files: Files, app: App, newest: int, touches: Touches) -> Foreign | None:
    """Another pipeline's newest commit since this sink's own last one, if the overwrite would replace rows of it."""
    gone: set[str] = set()
    for version in range(newest, max(-1, newest - ENTRIES_MAX), -1):
        entry = files.read(log_entry(version))
        if entry is None:
            return None
        actions = list(actions_of(entry))
        signed = dict(_signatures(actions))
        if app.epoch in signed:
            return None
        if found := _of_others(version, signed, app):
            adds = [action["add"] for action in actions if "add" in action]
            if any(unquote(add["path"]) not in gone and touches(add) for add in adds):
                return found
        gone |= _taken_away(actions)
    return None


def writer_of(version: int, actions: list[JsonDict], app: App) -> Foreign | None:
    """The other pipeline whose commit this log entry is; None if it is none."""
    return _of_others(version, dict(_signatures(actions)), app)


def pipeline_of(signature: str) -> str | None:
    """The pipeline in a commit's signature; None if the signature is not a sink's."""
    found = _SIGNATURE.fullmatch(signature)
    return found[1] if found else None


def _signatures(actions: list[JsonDict]) -> Iterator[tuple[str, int]]:
    for action in actions:
        if "txn" in action:
            yield action["txn"]["appId"], action["txn"]["version"]


def _of_others(version: int, signed: dict[str, int], app: App) -> Foreign | None:
    for name, epoch in signed.items():
        found = _SIGNATURE.fullmatch(name)
        if found and found[1] != pipeline_of(app.epoch):
            return Foreign(version, found[1], found[2], epoch)
    return None


def _taken_away(actions: list[JsonDict]) -> set[str]:
    """Files whose rows this entry removed. An entry that only rewrites rows keeps them in other files."""
    info: JsonDict = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    mode = str((info.get("operationParameters") or {}).get("mode", "")).lower()
    replaced = mode == "overwrite" or any(word in str(info.get("operation")) for word in ("REPLACE", "RESTORE"))
    if any("add" in action for action in actions) and not replaced:
        return set()
    return {unquote(action["remove"]["path"]) for action in actions if "remove" in action}
