"""The table as it is now, and as it was at a version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_epochs import codes
from airflow_epochs.delta import unknown_times
from airflow_epochs.delta.shape import TableShape
from airflow_epochs.delta.table import CannotOpen, TableLocation, open_table, open_version
from airflow_epochs.errors import Corrupt, Refused
from airflow_epochs.model import JsonDict
from airflow_epochs.sources.delta.bounds import FilesSize
from airflow_epochs.sources.delta.versions import keeps_shape
from airflow_epochs.spark.driver.delta.schema import maps_columns

if TYPE_CHECKING:
    from deltalake import DeltaTable


@dataclass(frozen=True)
class TableNow:
    """The table at its newest version, whose number is ``newest``."""

    location: TableLocation
    shape: TableShape
    newest: int

    @property
    def id(self) -> str:
        """The table's id, which never changes, and which no other table has."""
        return self.shape.id

    def at(self, version: int, remedy: str | None = None) -> DeltaTable:
        """The table at a version.

        Raises:
            NotApplied: The store does not answer.
            Corrupt: The log no longer tells what it was.
        """
        try:
            return open_version(self.location, version)
        except CannotOpen as error:
            raise Corrupt(
                f"Version {version} of the table {self.location.name} cannot be read any more: {error}",
                code=codes.VERSIONS_GONE,
                remedy=remedy,
            ) from error

    def shape_at(self, version: int) -> TableShape:
        """The shape at a version: an overwrite may have given the table other columns and partitions since.

        Some values of rows keep deltalake from opening a version: the log then tells whether it has today's shape.
        """
        try:
            return TableShape.of_table(self.at(version))
        except Corrupt as error:
            if unknown_times.is_one(error.what) and keeps_shape(self.location.files, version, self.newest + 1):
                return self.shape
            raise

    def known_shape_at(self, version: int) -> TableShape | None:
        """The shape at a version; None if the log no longer tells it."""
        try:
            return self.shape_at(version)
        except Corrupt:
            return None


def look(location: TableLocation, *, feed: bool) -> TableNow:
    """Look at the table.

    Raises:
        Refused: There is no table, or its rows cannot be read.
        NotApplied: The store does not answer.
    """
    try:
        table = open_table(location)
    except CannotOpen as error:
        raise Refused(
            f"deltalake cannot open the table {location.name}, which the source reads: {error}",
            code=codes.DELTA_SOURCE_UNREADABLE,
            remedy=unknown_times.remedy(location.files, location.name, str(error)),
        ) from error
    except Refused as error:
        if error.code is codes.DELTA_NOT_A_TABLE:
            raise Refused(error.what, code=codes.DELTA_SOURCE_MISSING) from error
        raise
    if table is None:
        raise Refused(f"There is no Delta table at {location.name}.", code=codes.DELTA_SOURCE_MISSING)
    shape = TableShape.of_table(table)
    if not feed and maps_columns(shape.properties):
        raise Refused(
            f"The table {location.name} has column mapping, and changes={'appends'!r} does not read it.",
            code=codes.DELTA_SOURCE_UNREADABLE,
        )
    return TableNow(location, shape, table.version())


@dataclass(frozen=True)
class Whole:
    """The files of a version, relative to the table as far as they lie in it, and about how many rows they have."""

    files: tuple[str, ...]
    records: int
    size: FilesSize


def whole(table: DeltaTable) -> Whole:
    """The files of a table's version."""
    actions = table.get_add_actions(flatten=True)
    # The statistics of all columns would take many times the memory.
    used = [name for name in ("path", "num_records", "size_bytes") if name in actions.schema.names]
    found: list[JsonDict] = actions.select(used).to_struct_array().to_pylist()
    paths = tuple(unquote(each["path"]) for each in found)
    return Whole(
        files=tuple(path for path in paths if ":/" not in path),
        records=sum(int(each.get("num_records") or 0) for each in found),
        size=FilesSize(len(found), sum(int(each["size_bytes"]) for each in found)),
    )
