"""Versions that a later one has taken back: by RESTORE, or because a pipeline that writes the table was rewound.

They bring no rows to a reader of appended rows, nor does the version that leads the table back. This holds if the
reader has not read any of these rows: the table went back to the last version that was read, or to a later one. A log
entry alone does not prove it: the files that the versions add and remove are compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from airflow_epochs.delta.log import actions_of, entries, log_entry, number_in, operation_of, user_metadata_of
from airflow_epochs.delta.replay import FileKey, key_of
from airflow_epochs.delta.table import RESTORED
from airflow_epochs.model import JsonDict
from airflow_epochs.storage.files import Files

RESTORE = "RESTORE"
LOOKED_AT_MAX = 2_000
"""How many log entries are read at most to find what was taken back."""
_WORTH_A_LOOK = (RESTORE.encode(), RESTORED.encode())


class Back(NamedTuple):
    """A version leads the table back. ``to``: the version that its log entry names; None if it names no version."""

    to: int | None


def not_taken_back(files: Files, start: int, until: int) -> list[int]:
    """The versions of ``[start, until)`` that bring rows to a reader of all versions before ``start``, ascending."""
    versions = range(start, until)
    found = {
        at: back
        for at, entry in zip(versions, entries(files, versions), strict=True)
        if entry and any(word in entry for word in _WORTH_A_LOOK) and (back := led_back(list(actions_of(entry))))
    }
    oldest = _oldest_with_its_rows(files, start - 1) if found else start - 1
    kept: list[int] = []
    number = until - 1
    while number >= start:
        back = found.get(number)
        to = _same_files(files, max(oldest, back.to or oldest), number) if back else None
        if to is None:
            kept.append(number)
        number = number - 1 if to is None else to
    return kept[::-1]


def led_back(actions: list[JsonDict]) -> Back | None:
    """How a log entry says that it leads the table back; None if it does not say so."""
    ours = next((told for action in actions if (told := user_metadata_of(action))), {})
    if RESTORED in ours:
        return Back(number_in(ours[RESTORED]))
    operation, how = operation_of(actions)
    return Back(number_in(how.get("version"))) if operation == RESTORE else None


def _oldest_with_its_rows(files: Files, version: int) -> int:
    """The oldest version with the same rows as ``version``: those between changed no row, such as an OPTIMIZE."""
    lowest = max(0, version - LOOKED_AT_MAX)
    for number in range(version, lowest, -1):
        entry = files.read(log_entry(number))
        if entry is None or any(_of_files(action).get("dataChange", True) for action in _moves(entry)):
            return number
    return min(version, lowest)


def _same_files(files: Files, oldest: int, number: int) -> int | None:
    """The newest version before ``number``, from ``oldest`` on, that has the same files; None if none is found."""
    changes = _Changes()
    walked = range(number, max(oldest, number - LOOKED_AT_MAX), -1)
    for version, entry in zip(walked, entries(files, walked), strict=True):
        if entry is None:
            return None
        changes.prepend(_moves(entry))
        if not changes.different:
            return version - 1
    return None


def _moves(entry: bytes) -> list[JsonDict]:
    """The actions that add or remove files, without those that add a file again to give it other statistics."""
    moves = [action for action in actions_of(entry) if "add" in action or "remove" in action]
    if any("remove" in action for action in moves):
        return moves
    return [action for action in moves if action["add"].get("dataChange", True)]


def _of_files(action: JsonDict) -> JsonDict:
    of: JsonDict = action.get("add") or action["remove"]
    return of


@dataclass
class _Changes:
    """The files that consecutive versions have added or removed. The newest version is added first."""

    is_there: dict[FileKey, bool] = field(default_factory=dict)
    different: set[FileKey] = field(default_factory=set)
    """Files that are there after the versions and not before them, or the other way round."""

    def prepend(self, moves: list[JsonDict]) -> None:
        """Add the actions of the version before: a file that it removes was there, and one that it adds was not."""
        for action in reversed(moves):
            key, was_there = key_of(_of_files(action)), "remove" in action
            if self.is_there.setdefault(key, not was_there) == was_there:
                self.different.discard(key)
            else:
                self.different.add(key)
