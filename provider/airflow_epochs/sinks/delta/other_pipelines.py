"""Finds rows of other pipelines that an overwrite would remove, while their pipelines' markers stayed.

Every commit of this provider names its pipeline, and the place of its staged rows, which has the id of its ledger: a
pipeline of the same name in another ledger is another one. So the log entries since the sink's own last commit tell
whether others write to the table. Usually these are few. Before the sink's first epoch, or if its last commit is far
back, only the newest 1,000 entries are read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from airflow_epochs import codes
from airflow_epochs.delta.log import actions_of, log_entry, operation_of, user_metadata_of
from airflow_epochs.delta.shape import TableShape
from airflow_epochs.delta.table import App, TableLocation
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.names import DRY_RUN
from airflow_epochs.sinks.delta.modes import OVERWRITE_PARTITIONS, Mode
from airflow_epochs.sinks.delta.partition_values import value_of
from airflow_epochs.staged.checks import physical_names
from airflow_epochs.staged.staging import Staging
from airflow_epochs.storage.files import Files

ENTRIES_MAX = 1_000
_SIGNATURE = re.compile(r"airflow_epochs/([^/.]+)/([^/.]+)")
"""A commit's pipeline and sink. ``App``'s other names contain a dot."""

OF_ANOTHER_LEDGER = " of another ledger"

Touches = Callable[[JsonDict], bool]
"""Takes a file's ``add`` action, and tells whether an overwrite would replace the file's rows."""


@dataclass(frozen=True)
class Foreign:
    """A commit of another pipeline whose rows are still in the table."""

    version: int
    pipeline: str
    sink: str
    epoch: int
    other_ledger: bool

    @property
    def who(self) -> str:
        """The pipeline's name; if it has our own name, also a note that its ledger is another one."""
        return f"{self.pipeline!r}{OF_ANOTHER_LEDGER if self.other_ledger else ''}"


def require_none(location: TableLocation, app: App, ledger_id: str, newest: int, touches: Touches, how: Mode) -> None:
    """Check that the overwrite would replace no row that another pipeline has written since this sink's last epoch.

    Raises:
        Refused: It would.
    """
    if found := newest_of_others(location.files, app, ledger_id, newest, touches):
        raise Refused(
            f"Pipeline {found.who} has put rows of its epoch {found.epoch} into {location.name} (version "
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
    kinds = {each["name"].lower(): each["type"] for each in shape.schema["fields"]}

    def partition(values: Mapping[str, str | None], named: Mapping[str, str]) -> tuple[object, ...]:
        return tuple(value_of(values.get(named[column]), kinds[column]) for column in columns)

    partitions = {partition(file.partition_values, staged_names) for file in staging.files}
    return lambda add: partition(add["partitionValues"], names) in partitions


def newest_of_others(files: Files, app: App, ledger_id: str | None, newest: int, touches: Touches) -> Foreign | None:
    """Another pipeline's newest commit since this sink's own last one, if the overwrite would replace rows of it."""
    later = _Later()
    for version in range(newest, max(-1, newest - ENTRIES_MAX), -1):
        entry = files.read(log_entry(version))
        if entry is None:
            return None
        actions = list(actions_of(entry))
        signed = dict(_signatures(actions))
        if app.epoch in signed:
            return None
        if found := writer_of(version, actions, app, ledger_id):
            adds = [action["add"] for action in actions if "add" in action]
            if any(unquote(add["path"]) not in later.gone and touches(add) for add in adds):
                return found
        later.precede(actions)
    return None


def pipeline_of(signature: str) -> str | None:
    """The pipeline in a commit's signature; None if the signature is not a sink's."""
    found = _SIGNATURE.fullmatch(signature)
    return found[1] if found else None


def _signatures(actions: list[JsonDict]) -> Iterator[tuple[str, int]]:
    for action in actions:
        if "txn" in action:
            yield action["txn"]["appId"], action["txn"]["version"]


def writer_of(version: int, actions: list[JsonDict], app: App, ledger_id: str | None) -> Foreign | None:
    """The other pipeline that made this log entry; None if no other pipeline did. ``ledger_id``: None if unknown."""
    for name, epoch in _signatures(actions):
        found = _SIGNATURE.fullmatch(name)
        if not found or name == app.epoch:
            continue
        same_name = found[1] == pipeline_of(app.epoch)
        if not same_name or of_another_ledger(actions, ledger_id):
            return Foreign(version, found[1], found[2], epoch, other_ledger=same_name)
    return None


def of_another_ledger(actions: list[JsonDict], ledger_id: str | None) -> bool:
    """Whether a log entry is a commit of another ledger; False if either ledger is unknown. A dry run has no ledger."""
    ledger = ledger_in(actions)
    return None not in (ledger, ledger_id) and ledger != ledger_id and not str(ledger_id).startswith(DRY_RUN)


def ledger_in(actions: list[JsonDict]) -> str | None:
    """The id of the ledger whose commit a log entry is; None if it does not tell."""
    told = next((told for action in actions if (told := user_metadata_of(action))), {})
    return ledger_of(told.get("place"))


def ledger_of(place: str | None) -> str | None:
    """The id of the ledger in a staging place: ``…/<ledger id>.<sink>/<try>``."""
    folder = (place or "").split("/")[-2:-1]
    return folder[0].rpartition(".")[0] or None if folder else None


@dataclass
class _Later:
    """What the log entries that were read, the newest first, have done to files of the entries before them.

    Attributes:
        gone: Files without any row left.
        added: Files that these entries added. A RESTORE adds files again that were removed earlier.
    """

    gone: set[str] = field(default_factory=set)
    added: set[str] = field(default_factory=set)

    def precede(self, actions: list[JsonDict]) -> None:
        """Go back by one entry. Rows of a file that it rewrites may be in any of the files that it adds."""
        added = {unquote(action["add"]["path"]) for action in actions if "add" in action}
        removed = {unquote(action["remove"]["path"]) for action in actions if "remove" in action} - added
        if not replaces_all(actions) and added - self.gone:
            self.gone -= removed
        else:
            self.gone |= removed - self.added
        self.added |= added


def replaces_all(actions: list[JsonDict]) -> bool:
    """Whether no row of the removed files can be in the files that this entry adds. False in doubt."""
    operation, how = operation_of(actions)
    in_part = how.get("predicate") not in (None, "", "[]")  # it also copies the rows that it keeps of a file
    compacts = any(action["add"].get("dataChange") is False for action in actions if "add" in action)
    overwrites = str(how.get("mode", "")).lower() == "overwrite" and not in_part and not compacts
    return overwrites or any(word in operation for word in ("REPLACE", "RESTORE"))
