"""What a state table's log says: whether only epochs have changed its rows, and which files a commit takes away.

A state table has one writer. Others may rearrange its files (OPTIMIZE), which leaves the rows as they are. Any other
change would get into later results, so it stops the pipeline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from airflow_epochs import codes
from airflow_epochs.delta.log import actions_of, log_entry, remove_of
from airflow_epochs.delta.table import CannotOpen, TableLocation, open_version
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.event_time import micros
from airflow_epochs.model import JsonDict, RestorePoint
from airflow_epochs.spark.driver.delta.plans import EPOCH
from airflow_epochs.spark.driver.delta.spelling import identifier

if TYPE_CHECKING:
    from deltalake import DeltaTable

_MILLISECOND = 1_000
"""One millisecond in microseconds. Delta's statistics cut instants off after the millisecond."""


@dataclass(frozen=True, kw_only=True)
class StateFacts:
    """What the staging table's user metadata says of a state table.

    Attributes:
        of: The version that the changes rest on; None if there was no table.
        fold: Whether the whole state is staged.
        expires: The column up to which a row matters.
        expired_to: Rows that have expired by then will not be read again.
        keys: The columns that identify a row.
        base, changes, epochs: As in ``StatePin``.
        closed: Up to where this epoch's operators have closed the state, as in ``StatePin``.
    """

    of: int | None
    fold: bool
    keys: tuple[str, ...]
    expires: str | None
    expired_to: int | None
    base: int
    changes: int
    epochs: int
    closed: Sequence[int | None] = ()

    @classmethod
    def told(cls, facts: JsonDict) -> StateFacts:
        """The facts in a staging table's user metadata.

        Raises:
            Refused: The metadata has fields that this version of the provider does not know and must not ignore.
        """
        if unknown := sorted(facts.keys() - {field.name for field in fields(cls)}):
            raise Refused(
                f"A newer version of the provider staged this state: its {', '.join(unknown)} is not known here.",
                code=codes.LEDGER_TOO_NEW,
            )
        return cls(**facts)

    def after(self, staged_bytes: int) -> JsonDict:
        """What the next epoch must know: what identifies a row, and what a fold would save."""
        whole = self.fold or self.of is None
        return {
            "keys": list(self.keys),
            "expires": self.expires,
            "base": staged_bytes if whole else self.base,
            "changes": 0 if whole else self.changes + staged_bytes,
            "epochs": 0 if whole else self.epochs + 1,
            **({"closed": list(self.closed)} if self.closed else {}),
        }


def facts_of_version(point: RestorePoint, epoch: int) -> JsonDict:
    """What the next epoch must know of a state that epoch ``epoch`` brings back: as then, with an older fold."""
    facts = dict(point.state)
    if "epochs" in facts:
        facts["epochs"] += epoch - point.epoch
    return facts


def table_at(location: TableLocation, version: int) -> DeltaTable:
    """The table at a version.

    Raises:
        NotApplied: The store does not answer.
        Corrupt: The version cannot be read any more.
    """
    try:
        return open_version(location, version)
    except CannotOpen as error:
        raise gone(location, version, str(error)) from error


def files_of(table: DeltaTable) -> list[JsonDict]:
    """The files of a table's version: path, size, and the statistics of every column."""
    found: list[JsonDict] = table.get_add_actions(flatten=True).to_struct_array().to_pylist()
    return found


def files_at(location: TableLocation, version: int) -> list[JsonDict]:
    """The files of a version. Raises as ``table_at``."""
    return files_of(table_at(location, version))


def gone(location: TableLocation, version: int | None, why: str, remedy: str | None = None) -> Corrupt:
    """The error for a version of a state table that cannot be read any more. None: the receipt does not name it."""
    which = "The version" if version is None else f"Version {version}"
    return Corrupt(
        f"{which} of the state table {location.name} cannot be read any more: {why}. The epoch must read the state of "
        "this version.",
        code=codes.STATE_GONE,
        remedy=remedy,
    )


def require_unchanged(location: TableLocation, since: int, newest: int, lost: str) -> None:
    """Raise Corrupt if others have changed rows between two versions, and have not undone it.

    ``lost``: what to do if a VACUUM has deleted files of the version to go back to, and no backup has them; the end
    of a sentence, and more.
    """
    if newest != since:
        _require_unchanged(location, since, newest, files_at(location, since), lost)


_File = tuple[str, str]
"""A path, and the deletion vector that takes rows of it away; empty without one."""


def _files(files: list[JsonDict]) -> frozenset[_File]:
    return frozenset((file["path"], "") for file in files)


def _file(action: JsonDict) -> _File:
    vector = action.get("deletionVector") or {}
    return unquote(action["path"]), str(vector.get("pathOrInlineDv", ""))


def _require_unchanged(location: TableLocation, since: int, newest: int, pinned: list[JsonDict], lost: str) -> None:
    """``require_unchanged``. ``pinned``: the files of version ``since``.

    Files that once were all of these rows are so for ever: RESTORE may bring back any such set, before or after an
    OPTIMIZE.
    """
    live = _files(pinned)
    same_rows, unchanged = {live}, since
    for version, actions in _entries(location, since, newest):
        adds = [action["add"] for action in actions if "add" in action]
        removes = [action["remove"] for action in actions if "remove" in action]
        had_the_rows = live in same_rows
        live = live.difference(map(_file, removes)).union(map(_file, adds))
        if had_the_rows and not any(one.get("dataChange", True) for one in (*adds, *removes)):
            same_rows.add(live)
        if live in same_rows:
            unchanged = version
    if live not in same_rows:
        raise _changed(location, unchanged, lost)


def _changed(location: TableLocation, unchanged: int, lost: str) -> Corrupt:
    """The error for rows that others have changed. ``unchanged``: the last version with the pipeline's own rows."""
    return Corrupt(
        f"Another program has changed rows of the state table {location.name} in version {unchanged + 1}. Its last "
        f"version with the rows of the pipeline is {unchanged}.",
        code=codes.STATE_CHANGED,
        remedy=f"Undo the change: RESTORE TABLE {identifier(location.name)} TO VERSION AS OF {unchanged} in Spark, or "
        f'DeltaTable("{location.url}").restore({unchanged}) of deltalake. Then clear the failed task. If RESTORE fails '
        "because files are missing, a VACUUM has deleted them: put them back from a backup, and repeat it. If no "
        f"backup has them, {lost}",
    )


def _entries(location: TableLocation, since: int, newest: int) -> Iterator[tuple[int, list[JsonDict]]]:
    for version in range(since + 1, newest + 1):
        entry = location.files.read(log_entry(version))
        if entry is None:
            raise Corrupt(
                f"Entry {version} of the log of the state table {location.name} is gone. Nobody can tell any more "
                f"whether other programs have changed rows since version {since}.",
                code=codes.STATE_GONE,
            )
        yield version, list(actions_of(entry))


def removes(location: TableLocation, facts: StateFacts, newest: int, now_ms: int, lost: str) -> list[JsonDict]:
    """The ``remove`` actions of a commit that follows version ``newest``. ``lost``: as in ``require_unchanged``.

    A fold takes everything away that it stands for. Other commits take away the files in which no row matters any more:
    their statistics say so, and nobody reads them.

    Raises:
        Corrupt: Others have changed rows since the version that the changes rest on.
    """
    if facts.of is None:
        _require_empty(location, newest)
        return []
    pinned = files_at(location, facts.of)
    _require_unchanged(location, facts.of, newest, pinned, lost)
    files = pinned if newest == facts.of else files_at(location, newest)
    taken = [file for file in files if facts.fold or _has_expired(file, facts)]
    return [{"remove": remove_of(_logged(file), now_ms) | {"dataChange": True}} for file in taken]


def _logged(file: JsonDict) -> JsonDict:
    """The fields of a file that its ``remove`` action needs. State tables have no partitions."""
    return {"path": quote(file["path"], safe="/:=%+"), "partitionValues": {}, "size": file["size_bytes"]}


def _require_empty(location: TableLocation, newest: int) -> None:
    """Raise Corrupt if others have put rows into the table of a state that begins."""
    if newest >= 0 and files_at(location, newest):
        raise Corrupt(
            f"The state begins with this epoch, and another program has put rows into its table {location.name}.",
            code=codes.STATE_CHANGED,
            remedy=f"Remove the rows: DELETE FROM {identifier(location.name)} in Spark, or "
            f'DeltaTable("{location.url}").delete() of deltalake. Then clear the commit task.',
        )


def epochs_of(file: JsonDict) -> tuple[int, ...]:
    """The first and the last epoch of a file's rows; empty if its statistics do not tell."""
    first, last = file.get(f"min.{EPOCH}"), file.get(f"max.{EPOCH}")
    return () if first is None or last is None else (int(first), int(last))


def _has_expired(file: JsonDict, facts: StateFacts) -> bool:
    """Whether every row of the file has expired, by its statistics."""
    if facts.expires is None or facts.expired_to is None:
        return False
    newest, nulls = file.get(f"max.{facts.expires}"), file.get(f"null_count.{facts.expires}")
    return newest is not None and nulls == 0 and micros(newest) + _MILLISECOND <= facts.expired_to
