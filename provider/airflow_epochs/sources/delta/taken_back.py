"""Versions that a later one has taken back: by RESTORE, or because a pipeline that writes the table was rewound.

To a reader of appended rows they bring no rows, and neither does the version that leads the table back. That holds if
the reader has none of these rows: the table went back to the last version that was read, or to a later one. What a log
entry says of itself is not enough: the files that the versions add and remove are compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from airflow_epochs.delta.log import actions_of, entries, log_entry, user_metadata_of
from airflow_epochs.delta.replay import FileKey, key_of
from airflow_epochs.delta.table import RESTORED
from airflow_epochs.model import JsonDict
from airflow_epochs.storage.files import Files

RESTORE = "RESTORE"
_WORTH_A_LOOK = (RESTORE.encode(), RESTORED.encode())


def not_taken_back(files: Files, start: int, until: int) -> list[int]:
    """The versions of ``[start, until)`` that bring rows to a reader of all versions before ``start``, ascending."""
    versions = range(start, until)
    may_lead_back = {
        at
        for at, entry in zip(versions, entries(files, versions), strict=True)
        if entry and any(word in entry for word in _WORTH_A_LOOK) and leads_back(actions_of(entry))
    }
    kept: list[int] = []
    number = until - 1
    while number >= start:
        to = _version_with_the_same_files(files, start - 1, number) if number in may_lead_back else None
        if to is None:
            kept.append(number)
        number = number - 1 if to is None else to
    return kept[::-1]


def leads_back(actions: Iterable[JsonDict]) -> bool:
    """Whether a log entry says that it leads the table back to an earlier version."""
    info: JsonDict = next((action for action in actions if "commitInfo" in action), {"commitInfo": {}})
    return info["commitInfo"].get("operation") == RESTORE or RESTORED in (user_metadata_of(info) or {})


def _version_with_the_same_files(files: Files, oldest: int, number: int) -> int | None:
    """The newest version before ``number``, from ``oldest`` on, that has its files; None if there is none."""
    changes = _Changes()
    for version in range(number, oldest, -1):
        entry = files.read(log_entry(version))
        if entry is None:
            return None
        changes.prepend(list(actions_of(entry)))
        if not changes.different:
            return version - 1
    return None


@dataclass
class _Changes:
    """What versions that follow each other have changed. The newest comes first."""

    is_there: dict[FileKey, bool] = field(default_factory=dict)
    different: set[FileKey] = field(default_factory=set)
    """Files that are there after the versions and not before them, or the other way round."""

    def prepend(self, actions: list[JsonDict]) -> None:
        """The actions of the version before.

        A file that a version removes was there, and one that it adds was not. A file that is added again, to give it
        other statistics, seems to be new. Then nothing seems to be taken back, and the pipeline stops.
        """
        for action in reversed(actions):
            for kind in action.keys() & {"add", "remove"}:
                key = key_of(action[kind])
                was_there = kind == "remove"
                if self.is_there.setdefault(key, not was_there) == was_there:
                    self.different.discard(key)
                else:
                    self.different.add(key)
