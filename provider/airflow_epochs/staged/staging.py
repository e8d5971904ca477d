"""Reads the small log of a staging table: what was staged, as Delta's own writer recorded it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_epochs import codes
from airflow_epochs.delta.log import StagedFile, actions_of, entry_version, log_entry, user_metadata_of
from airflow_epochs.delta.shape import TableShape
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.storage.files import Files

_NOTED = {"app", "txn", "committer", "table_id"}
_ROWS_WRITTEN = {"numOutputRows", "num_added_rows"}
"""The number of rows written, as Spark and as deltalake name it in ``operationMetrics``."""


@dataclass(frozen=True, kw_only=True)
class Staging:
    """A staging table: its files, its shape, and the user metadata of its commit (transaction id, target)."""

    place: str
    version: int
    shape: TableShape
    files: tuple[StagedFile, ...]
    user_metadata: JsonDict
    counted: str | None
    """Rows that the writer counted, as the commit's ``operationMetrics`` say; unparsed, as they may be damaged."""
    from_footers: bool = False
    """Whether statistics were read from the files' footers, because their writer collected no statistics."""

    @property
    def log_files(self) -> list[str]:
        return [log_entry(version, self.place) for version in range(self.version + 1)]


def read_staging(files: Files, place: str) -> Staging | None:
    """Replay the log of the staging table at ``place`` (relative to ``files``); None if nothing was staged there.

    Raises:
        Refused: The log is not one that our stage writes.
    """
    found = map(entry_version, files.names(f"{place}/_delta_log"))
    versions = sorted(version for version in found if version is not None)
    if not versions:
        return None
    if versions != list(range(len(versions))):
        raise _unusable(place, "entries of its log are missing")
    try:
        return _replayed(files, place, versions)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unusable(place, f"its log is damaged ({error!r})") from error


def _replayed(files: Files, place: str, versions: list[int]) -> Staging | None:
    replay = _Replay(place)
    for version in versions:
        for action in _actions(files, place, version):
            replay.apply(action)
    return replay.result(versions[-1])


def _actions(files: Files, place: str, version: int) -> list[JsonDict]:
    try:
        return list(actions_of(files.read(log_entry(version, place)) or b""))
    except ValueError as error:
        raise _unusable(place, f"version {version} of its log is damaged") from error


class _Replay:
    def __init__(self, place: str) -> None:
        self.place = place
        self.protocol: JsonDict | None = None
        self.metadata: JsonDict | None = None
        self.files: dict[str, StagedFile] = {}
        self.user_metadata: list[JsonDict] = []
        self.counted: str | None = None

    def apply(self, action: JsonDict) -> None:
        for kind in ("remove", "cdc"):
            if kind in action:
                raise _unusable(self.place, f"its log has a {kind!r} action, which the provider does not write")
        self.protocol = action.get("protocol", self.protocol)
        self.metadata = action.get("metaData", self.metadata)
        if ours := user_metadata_of(action):
            self.user_metadata.append(ours)
        for name, value in action.get("commitInfo", {}).get("operationMetrics", {}).items():
            if name in _ROWS_WRITTEN:
                self.counted = str(value)
        if add := action.get("add"):
            file = self._staged_file(add)
            self.files[file.path] = file

    def _staged_file(self, add: JsonDict) -> StagedFile:
        if add.get("deletionVector"):
            raise _unusable(self.place, "one of its files has a deletion vector")
        file = StagedFile.of(add)
        if file.path.startswith("/") or "://" in file.path or ".." in file.path.split("/"):
            raise _unusable(self.place, f"its log has the path {file.path!r}, which leads out of the table")
        return file

    def result(self, version: int) -> Staging | None:
        if self.protocol is None or self.metadata is None:
            raise _unusable(self.place, "its log has no protocol or metadata")
        if not self.user_metadata:
            return None
        if len(self.user_metadata) > 1:
            raise _unusable(self.place, "its log has more than one append")
        if missing := _NOTED - self.user_metadata[0].keys():
            raise _unusable(self.place, f"the provider's metadata in its log lacks {', '.join(sorted(missing))}")
        files = tuple(sorted(self.files.values(), key=lambda file: file.path))
        shape = TableShape.of_actions(self.protocol, self.metadata)
        fields = shape.schema["fields"] if shape.schema["type"] == "struct" else [{}]
        if not all({"name", "type"} <= field.keys() for field in fields):
            raise _unusable(self.place, "its schema is damaged")
        return Staging(
            place=self.place,
            version=version,
            shape=shape,
            files=files,
            user_metadata=self.user_metadata[0],
            counted=self.counted,
        )


def _unusable(place: str, why: str) -> Refused:
    return Refused(f"The provider cannot use the staging table {place}: {why}.", code=codes.STAGED_INCOMPLETE)
