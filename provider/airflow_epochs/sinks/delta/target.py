"""The target table as one look finds it: through deltalake, or through Spark where deltalake cannot open it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_epochs.contracts import Environment
from airflow_epochs.delta.shape import TableShape
from airflow_epochs.delta.snapshot import position_at
from airflow_epochs.delta.table import (
    App,
    CannotOpen,
    FoundCommit,
    TableLocation,
    find_commit,
    newest_entry,
    open_table,
    read_marker,
)
from airflow_epochs.errors import Refused
from airflow_epochs.model import JsonDict, Marker, TransactionId
from airflow_epochs.sinks.delta import checks, spark_commit

if TYPE_CHECKING:
    from deltalake import DeltaTable


@dataclass(frozen=True)
class Target:
    """One look at the target.

    Attributes:
        where: Its place.
        table: deltalake's handle; None if there is no table, or with ``problem``.
        problem: Why deltalake cannot open it.
        env: Has Spark, which is asked about a table with a problem.
    """

    location: TableLocation
    table: DeltaTable | None
    problem: str | None
    env: Environment

    @classmethod
    def seen(cls, location: TableLocation, env: Environment, *, deltalake_only: bool = False) -> Target:
        """Look now.

        Raises:
            Refused: There is something else than a Delta table; or, ``deltalake_only``, one it cannot open.
            NotApplied: The store does not answer.
        """
        try:
            return cls(location, open_table(location), None, env)
        except CannotOpen as error:
            if not deltalake_only:
                return cls(location, None, str(error), env)
            checks.require_not_spoilt(location)
            raise Refused(
                f"deltalake cannot open {location.name}: {error}",
                remedy='Repair the table, or give the sink commit="spark".',
            ) from error

    @property
    def exists(self) -> bool:
        return self.table is not None or self.problem is not None

    def opened_shape(self) -> TableShape | None:
        return None if self.table is None else TableShape.of_table(self.table)

    def shape(self) -> TableShape | None:
        """None if there is no table."""
        if self.problem is None:
            return self.opened_shape()
        about = spark_commit.describe(self.location.name, self.env)
        spark_commit.require_table(about, self.location.name)
        return TableShape.of_description(about)

    def version(self) -> int:
        """The newest; -1 if there is no table."""
        return self.table.version() if self.table is not None else newest_entry(self.location.files)

    def marker(self, app: App) -> Marker | None:
        if self.problem is not None:
            return spark_commit.marker(self.location.name, app, self.env)
        return None if self.table is None else read_marker(self.table, app, self.location.files)

    def log_position(self, app: App) -> JsonDict | None:
        """From where a commit can look on."""
        if self.table is None:
            return None
        position = position_at(self.table.version(), self.marker(app), self.location.files)
        return position.as_json() if position else None

    def commit_of(self, txn: TransactionId, app: App) -> FoundCommit | None:
        """The commit of ``txn`` if it is what the marker says; ``FoundCommit.unknown()`` if its entry is gone."""
        if self.problem is not None:
            return spark_commit.commit_of(self.location.name, app, txn, self.env)
        if self.marker(app) != Marker.of(txn):
            return None
        found = find_commit(self.location.files, app, txn.epoch, self.table.version()) if self.table else None
        return found or FoundCommit.unknown()
