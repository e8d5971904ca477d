"""Files of a commit that have vanished although the table refers to them, and rows put back in their place.

A VACUUM deletes what no log entry named when it read the log. One that keeps nothing (0 hours), or that finds staged
files older than it has to keep, may so delete the files of a commit that lands meanwhile: the marker is there, the
rows are not, and nobody can read the table. So the commit task looks again before it writes the receipt. Rows that are
lost are staged again, and one log entry, put-if-absent, replaces all files of the commit by theirs. That entry is
then the epoch's commit; the marker stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_epochs import codes
from airflow_epochs.contracts import backfill_from, waive_command
from airflow_epochs.delta.log import actions_of, log_entry, remove_of
from airflow_epochs.delta.replay import FileKey, key_of
from airflow_epochs.delta.shape import metadata_of
from airflow_epochs.delta.table import PUTS_BACK, RESTORED, App, FoundCommit, TableLocation, newest_checkpoint
from airflow_epochs.errors import Corrupt, RowsLost
from airflow_epochs.model import JsonDict, TransactionId, attempt_fields
from airflow_epochs.sinks.delta.flush import paths_of
from airflow_epochs.spark.driver.delta.spelling import identifier
from airflow_epochs.storage.files import Files

if TYPE_CHECKING:
    from deltalake import DeltaTable

_GO_TOO = "rows that others have written since go, too"


@dataclass(frozen=True)
class Loss:
    """What a commit has lost, as of a version of the table.

    Attributes:
        version: The table's newest version: every entry up to it was read.
        adds: The ``add`` actions of the commit.
        gone: Paths of files, and of deletion vectors, that the table at this version refers to and that are not there.
        removed: Files of the commit that the table no longer has as the commit added them: they were rewritten, or rows
            were deleted from them by a newer deletion vector.
    """

    version: int
    adds: list[JsonDict]
    gone: set[str]
    removed: set[FileKey]


def loss_of(found: FoundCommit, files: Files) -> Loss | None:
    """The files that a commit has lost; None if it has lost nothing, as far as the log tells."""
    entry = files.read(log_entry(found.version)) if found.version is not None else None
    if entry is None or found.version is None:
        return None
    adds = [action["add"] for action in actions_of(entry) if "add" in action]
    gone = files.missing(set(paths_of(*adds)))
    if not gone:
        return None
    version, live = _live_since(found.version, adds, files)
    lost = gone & set(paths_of(*live))
    if newest_checkpoint(files) > version or not lost:
        return None
    return Loss(version, adds, lost, _keys(adds) - _keys(live))


def _live_since(version: int, adds: list[JsonDict], files: Files) -> tuple[int, list[JsonDict]]:
    """The newest version, and the ``add`` actions with which it has files of the commit at ``version``.

    Rows may have been deleted from a file since: its action then names a newer deletion vector.
    """
    paths, live = {path for path, _ in _keys(adds)}, {key_of(add): add for add in adds}
    while (entry := files.read(log_entry(version + 1))) is not None:
        version += 1
        actions = list(actions_of(entry))
        for removed in (action["remove"] for action in actions if "remove" in action):
            live.pop(key_of(removed), None)
        for added in (action["add"] for action in actions if "add" in action):
            if unquote(added["path"]) in paths:
                live[key_of(added)] = added
    return version, list(live.values())


def _keys(adds: list[JsonDict]) -> set[FileKey]:
    return set(map(key_of, adds))


def require_there(location: TableLocation, found: FoundCommit, app: App, txn: TransactionId) -> FoundCommit:
    """Require that no file of the commit is lost; return the commit.

    Raises:
        RowsLost: Some are, and others can take their place.
        Corrupt: Some are, and only their own bytes can help.
    """
    if loss := loss_of(found, location.files):
        raise lost(location, found, loss, app, txn)
    return found


def lost(location: TableLocation, found: FoundCommit, loss: Loss, app: App, txn: TransactionId) -> Corrupt:
    """The error for a commit that has lost files."""
    example, count = sorted(loss.gone)[0], len(set(paths_of(*loss.adds)))
    what = (
        f"{len(loss.gone)} of {count} files that version {found.version} of {location.name} added are gone, "
        f"for example {example}, and the table still refers to them. A VACUUM deleted them while the commit ran."
    )
    ours = found.user_metadata or {}
    if ours.get("committer") == "deltalake" and RESTORED not in ours and not loss.removed:
        error = RowsLost(
            what,
            code=codes.DELTA_ROWS_LOST,
            **attempt_fields(txn),
            sink=app.sink,
        )
        error.undo = _undo(location, found)
        return error
    return Corrupt(
        what,
        code=codes.DELTA_FILES_LOST,
        remedy="Restore the files from a backup, or from the store's own versions of them. Then clear the commit task. "
        f"If there is no backup, {_undo(location, found)}; then complete the epoch without this sink's rows: "
        f"`{waive_command(txn, app.sink)}`, and clear the commit task. Then give the sink another name, with "
        f"{backfill_from(txn.epoch)}: the provider reads the epoch from the source again.",
        **attempt_fields(txn),
        sink=app.sink,
    )


def _undo(location: TableLocation, found: FoundCommit) -> str:
    """The remedy that takes a commit back, with its rows that are left.

    The version before it is whole: a VACUUM spares what the version that it read has. (``repair`` would leave in the
    table what is left of the epoch, and of older rows that a MERGE had moved.)
    """
    version = (found.user_metadata or {}).get(PUTS_BACK, found.version)
    if not version:
        return f"empty the table, which this commit created ({_GO_TOO}): {going_back(location, 0)}"
    return f"undo this commit and everything that others have written since: {going_back(location, version)}"


def going_back(location: TableLocation, version: int) -> str:
    """The statement that takes a version of the table, and all later ones, back."""
    table, opened = identifier(location.name), f'DeltaTable("{location.url}")'
    if version == 0:
        return f"DELETE FROM {table} in Spark, or {opened}.delete() of deltalake"
    before = version - 1
    return f"RESTORE TABLE {table} TO VERSION AS OF {before} in Spark, or {opened}.restore({before}) of deltalake"


def replacement(loss: Loss, adds: list[JsonDict], info: JsonDict, table: DeltaTable) -> list[JsonDict]:
    """The log entry that puts ``adds`` in place of all files of the commit. The rows are the same: no change of data.

    The table has each of these files, with the commit's own deletion vector or without one: otherwise ``lost`` raises
    Corrupt. A reader of the log would not take a ``remove`` of another vector for one of the file. The table's metadata
    is said once more, so that a writer that began before this entry notices it.
    """
    removes = [{"remove": remove_of(add, info["commitInfo"]["timestamp"])} for add in loss.adds]
    quiet = [{"add": action["add"] | {"dataChange": False}} for action in adds]
    return [info, metadata_of(table), *removes, *quiet]
