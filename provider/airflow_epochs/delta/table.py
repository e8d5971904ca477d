"""A Delta table as a task process sees it through deltalake: its location, newest version, markers and log."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_epochs import codes, secrecy
from airflow_epochs.delta import leftovers
from airflow_epochs.delta.log import actions_of, entry_version, log_entry, user_metadata_of
from airflow_epochs.errors import NotApplied, Refused, first_line
from airflow_epochs.model import JsonDict, Marker, TransactionId
from airflow_epochs.storage.answers import is_denied, remedy_of, told
from airflow_epochs.storage.blobs import PROBE
from airflow_epochs.storage.files import Files, open_files

if TYPE_CHECKING:
    from deltalake import DeltaTable

log = secrecy.logger(__name__)

STAGING_FOLDER = "epochs"
"""Visible on purpose: VACUUM ignores folders that begin with ``_`` or ``.`` and would leave their files behind."""
NOTES_FOLDER = "_epochs"
"""Hidden on purpose: these files are not the table's, and VACUUM must keep them."""
PUTS_BACK = "puts_back"
"""A key of the user metadata, in an entry that replaces a commit's lost files: that commit's version."""
RESTORED = "restored"
"""A key of the user metadata, in an entry that brings an earlier version back: that version."""
_VANISHED = re.compile(r"not found|no such file", re.IGNORECASE)
_STORE_FAILED = re.compile(r"Generic (?!DeltaTable )\w+ error: |The operation lacked ")
"""A store's error inside an error of deltalake: it names the store, or a right that is missing."""
_LISTED_AGAIN_S = (0.05, 0.2, 0.5)
COMMITS_SEARCHED_MAX = 2_000
_ASKED_FOR = 16
"""How many log entries are read at once. Spark makes a checkpoint after every ten."""


@dataclass(frozen=True)
class App:
    """The application ids under which a pipeline's sink signs its commits in a table (``txn`` actions).

    ``epoch`` counts epochs. ``token`` holds ``TransactionId.token`` of the epoch that ``token_epoch`` names. Spark's
    writer can sign under one id only, so after a commit through Spark the other two belong to an older epoch.
    """

    epoch: str

    @classmethod
    def of(cls, pipeline: str, sink: str) -> App:
        """The ids of one sink of one pipeline."""
        return cls(f"airflow_epochs/{pipeline}/{sink}")

    @property
    def sink(self) -> str:
        """The sink's name."""
        return self.epoch.rpartition("/")[2]

    @property
    def token(self) -> str:
        """The id that carries the token."""
        return f"{self.epoch}.txn"

    @property
    def token_epoch(self) -> str:
        """The id that carries the token's epoch."""
        return f"{self.epoch}.txn.epoch"

    def signatures(self, txn: TransactionId) -> list[tuple[str, int]]:
        """Each id, with the version under which it signs a commit of ``txn``."""
        return [(self.epoch, txn.epoch), (self.token, txn.token), (self.token_epoch, txn.epoch)]


@dataclass(frozen=True)
class TableLocation:
    """Where a table is. ``name`` is the user's name for it; ``options`` are the store's, with credentials.

    ``conn_id``: the connection that these come from; None: from the worker's environment.
    """

    name: str
    url: str
    options: dict[str, str] = field(repr=False)
    conn_id: str | None = None

    @property
    def files(self) -> Files:
        """The table's folder."""
        return open_files(self.url, self.options, self.conn_id)

    def relative(self, place: str) -> str:
        """The path of a staging place inside the table, relative to the table."""
        return place.removeprefix(f"{self.url}/")


class CannotOpen(Exception):
    """deltalake cannot open the table, though there seems to be one. Callers in this package handle this error."""


def open_table(location: TableLocation) -> DeltaTable | None:
    """A handle on the newest version; None if there is no table.

    Raises:
        NotApplied: The store does not answer.
        Refused: Something other than a Delta table is there.
        CannotOpen: deltalake does not understand the table.
    """
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        with _store_answers(location):
            return _opened(location)
    except TableNotFoundError:
        _require_nothing(location)
        return None
    except DeltaError as error:
        raise CannotOpen(first_line(error)) from error


def open_version(location: TableLocation, version: int) -> DeltaTable:
    """A handle on a version.

    Raises:
        NotApplied: The store does not answer.
        CannotOpen: The log no longer tells what the version was, or deltalake does not understand it.
    """
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        with _store_answers(location):
            return DeltaTable(location.url, version=version, storage_options=location.options or None)
    except DeltaError as error:
        raise CannotOpen(first_line(error)) from error


@contextmanager
def _store_answers(location: TableLocation) -> Iterator[None]:
    """Around a call of deltalake: raise NotApplied if the store fails. Any other error goes on as it is."""
    from deltalake.exceptions import DeltaError

    try:
        yield
    except (DeltaError, OSError) as error:
        if store_failed(error):
            raise unreachable(location.name, error, location.conn_id) from error
        raise


def store_failed(error: BaseException) -> bool:
    """Whether an error of deltalake's is about the store, and so says nothing of the table.

    deltalake raises ``OSError`` for a log entry that it cannot read, but ``DeltaError`` for a checkpoint.
    """
    return isinstance(error, OSError) or _STORE_FAILED.search(str(error)) is not None


def unreachable(table: str, error: BaseException, conn_id: str | None = None) -> NotApplied:
    """The error for a store that fails. ``conn_id``: as in ``TableLocation``."""
    files = "They need the right to read every file in the table's `_delta_log`, also checkpoints that Spark encrypts. "
    then = f"{files if is_denied(error) else ''}Then clear the failed task."
    return NotApplied(
        f"The provider cannot reach the table {table}: {told(error)}",
        code=codes.DELTA_UNREACHABLE,
        remedy=remedy_of(error, conn_id, "the path", then),
    )


def _opened(location: TableLocation) -> DeltaTable:
    """Open the table. If a clean-up of the log deletes a file after it was listed, list the log again."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    for pause_s in _LISTED_AGAIN_S:
        try:
            return DeltaTable(location.url, storage_options=location.options or None)
        except TableNotFoundError:
            raise
        except DeltaError as error:
            if not _VANISHED.search(str(error)):
                raise
            log.info("%s: %s; listing its log again", location.name, first_line(error))
            time.sleep(pause_s)
    return DeltaTable(location.url, storage_options=location.options or None)


def _require_nothing(location: TableLocation) -> None:
    # deltalake says "not found" also for a folder that it may not read. Listing the folder tells the difference.
    files = location.files
    found = files.names("")
    others = {name for name in found if not name.startswith(PROBE)} - {STAGING_FOLDER, NOTES_FOLDER, "_delta_log"}
    staged = files.names(STAGING_FOLDER) if STAGING_FOLDER in found else set()
    foreign = {f"{STAGING_FOLDER}/{name}" for name in staged if "." not in name}  # a ledger, for example, has no dot
    left = bool(others) and not foreign and leftovers.look_so(files, others)
    if left and leftovers.are_awaited(files, STAGING_FOLDER):
        log.info("%s has no log yet, and files of a commit that did not end: %s", location.name, sorted(others)[:3])
    elif others or foreign:
        raise Refused(
            f"{location.name} is not a Delta table, and not empty: it has {', '.join(sorted(others | foreign)[:3])}.",
            code=codes.DELTA_NOT_A_TABLE,
            remedy=leftovers.REMEDY if left else None,
        )


def read_marker(table: DeltaTable, app: App, location: TableLocation) -> Marker | None:
    """The marker as of the handle's version; None if the sink has no marker there.

    Raises:
        NotApplied: The store does not answer: deltalake reads the log once more.
    """
    with _store_answers(location):
        epoch = table.transaction_version(app.epoch)
        if epoch is None:
            return None
        if table.transaction_version(app.token_epoch) == epoch:
            return Marker(epoch, table.transaction_version(app.token))
    found = find_commit(location.files, app, epoch, table.version())
    return Marker(epoch, found.token if found else None)


@dataclass(frozen=True)
class FoundCommit:
    """The log entry that committed an epoch. ``version`` is None if the entry is known to be gone.

    ``user_metadata``: our part of the commit's ``userMetadata``; None if the commit has none.
    """

    version: int | None
    timestamp_ms: int
    user_metadata: JsonDict | None

    @classmethod
    def unknown(cls) -> FoundCommit:
        """The commit of an epoch whose log entry is gone."""
        return cls(None, 0, None)

    @cached_property
    def txn(self) -> TransactionId | None:
        """The transaction in the user metadata; None without user metadata."""
        return TransactionId.parse(self.user_metadata["txn"]) if self.user_metadata else None

    @property
    def token(self) -> int | None:
        """The transaction's token; None without user metadata."""
        return self.txn.token if self.txn else None


def find_commit(files: Files, app: App, epoch: int, newest: int) -> FoundCommit | None:
    """Search the log backwards from ``newest`` for the commit of ``epoch``; None if its entry is gone."""
    for version in range(newest, max(-1, newest - COMMITS_SEARCHED_MAX), -1):
        entry = files.read(log_entry(version))
        if entry is None:
            return None
        if found := commit_in(entry, app, epoch, version):
            return found
    return None


def commit_in(entry: bytes, app: App, epoch: int, version: int) -> FoundCommit | None:
    """The log entry's facts if it is the commit of ``epoch``; else None."""
    if app.epoch.encode() not in entry:
        return None
    actions = list(actions_of(entry))
    signed = any(a["txn"]["appId"] == app.epoch and a["txn"]["version"] == epoch for a in actions if "txn" in a)
    info: JsonDict = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    ours = next((ours for action in actions if (ours := user_metadata_of(action))), None)
    if not signed and not _puts_back(ours, app, epoch):
        return None
    return FoundCommit(version, int(info.get("timestamp", 0)), ours)


def _puts_back(user_metadata: JsonDict | None, app: App, epoch: int) -> bool:
    """Whether the entry put the rows of ``epoch`` back. Their marker is older, but this entry names their files."""
    if not user_metadata or PUTS_BACK not in user_metadata:
        return False
    return bool(user_metadata["app"] == app.epoch and TransactionId.parse(user_metadata["txn"]).epoch == epoch)


def newest_checkpoint(files: Files, table: str = "") -> int:
    """The version of the newest checkpoint, from the hint ``_last_checkpoint``; -1 without a readable hint."""
    hint = files.read(f"{table}/_delta_log/_last_checkpoint".lstrip("/"))
    try:
        return int(json.loads(hint)["version"]) if hint else -1
    except (ValueError, KeyError, TypeError):
        return -1


def newest_entry(files: Files, table: str = "") -> int:
    """The version of the newest log entry, from a listing of the log; -1 if there is none."""
    found = (entry_version(name) for name in files.names(f"{table}/_delta_log".lstrip("/")))
    return max((version for version in found if version is not None), default=-1)


def newest_after_checkpoint(files: Files, table: str = "") -> int:
    """The version of the newest log entry, found from the newest checkpoint on; -1 if there is none.

    A listing of a long log takes a store many answers. It is made only if the hint is gone, or is too old to help. A
    log is cleaned up from its beginning, so the entries after one that is there have no gap.
    """
    first = newest_checkpoint(files, table)
    while first >= 0:
        asked = [log_entry(version, table) for version in range(first, first + _ASKED_FOR)]
        missing = files.missing(asked)
        if asked[0] in missing:
            break
        if missing:
            return first + asked.index(min(missing)) - 1
        first += _ASKED_FOR - 1
    return newest_entry(files, table)
