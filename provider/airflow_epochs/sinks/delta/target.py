"""The target table as one look finds it: through deltalake, or through Spark where deltalake cannot open it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.contracts import Environment
from airflow_epochs.delta import unknown_times
from airflow_epochs.delta.replay import newest_schema
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
from airflow_epochs.spark.driver.delta import schema as delta_schema
from airflow_epochs.spark.driver.delta.plans import SeenTable

if TYPE_CHECKING:
    from deltalake import DeltaTable


@dataclass(frozen=True)
class Target:
    """One look at the target. What is asked of it is asked once, and stays as it was: who needs it newer looks again.

    Attributes:
        location: Its place.
        app: The name under which the sink signs there.
        table: deltalake's handle; None if there is no table, or with ``problem``.
        problem: Why deltalake cannot open it.
        env: Has Spark, which is asked about a table with a problem.
    """

    location: TableLocation
    app: App
    table: DeltaTable | None
    problem: str | None
    env: Environment

    @classmethod
    def seen(cls, location: TableLocation, app: App, env: Environment, *, deltalake_only: bool = False) -> Target:
        """Look now.

        Raises:
            Refused: There is something else than a Delta table; or, ``deltalake_only``, one it cannot open.
            NotApplied: The store does not answer.
        """
        try:
            return cls(location, app, open_table(location), None, env)
        except CannotOpen as error:
            if not deltalake_only:
                return cls(location, app, None, str(error), env)
            checks.require_not_spoilt(location)
            raise Refused(
                f"deltalake cannot open {location.name}: {error}",
                code=codes.DELTA_TABLE_UNREADABLE,
                remedy=unknown_times.remedy(location.files, location.name, str(error)),
                sink=app.sink,
            ) from error

    @property
    def exists(self) -> bool:
        return self.table is not None or self.problem is not None

    @cached_property
    def opened_shape(self) -> TableShape | None:
        return None if self.table is None else TableShape.of_table(self.table)

    @property
    def for_spark_alone(self) -> str:
        """What keeps deltalake from committing to it; empty if nothing does."""
        return self.problem or ", ".join(self.opened_shape.refused_features if self.opened_shape else [])

    @cached_property
    def shape(self) -> TableShape | None:
        """The table's shape; None if there is no table."""
        if self.problem is None:
            return self.opened_shape
        described = self._described_shape
        return replace(described, schema=self.logged_schema or described.schema)

    @property
    def table_id(self) -> str | None:
        """The table's id; None if there is no table. Needs to read less of the log than ``shape``."""
        shape = self.opened_shape if self.problem is None else self._described_shape
        return shape.id if shape else None

    @cached_property
    def logged_schema(self) -> JsonDict | None:
        """The schema in the log, of a table with a problem: Spark does not tell which columns are computed.

        None for other tables, or if the log has no schema.
        """
        schema = newest_schema(self.location.files) if self.problem is not None else None
        return schema and delta_schema.told_by_spark(schema)

    @property
    def tells_computed(self) -> bool:
        """Whether ``shape`` tells which columns the table computes."""
        return self.problem is None or self.logged_schema is not None

    @cached_property
    def version(self) -> int:
        """The newest version; -1 if there is no table."""
        return self.table.version() if self.table is not None else newest_entry(self.location.files)

    @cached_property
    def marker(self) -> Marker | None:
        if self.problem is not None:
            return spark_commit.marker_in(self._told)
        return None if self.table is None else read_marker(self.table, self.app, self.location)

    def log_position(self) -> JsonDict | None:
        """The log position from which a commit can read on."""
        if self.table is None:
            return None
        position = position_at(self.version, self.marker, self.location.files)
        return position.as_json() if position else None

    def commit_of(self, txn: TransactionId) -> FoundCommit | None:
        """The commit of ``txn`` if it is what the marker says; ``FoundCommit.unknown()`` if its entry is gone."""
        if self.problem is not None:
            return spark_commit.commit_in(self._told, txn)
        if self.marker != Marker.of(txn):
            return None
        return find_commit(self.location.files, self.app, txn.epoch, self.version) or FoundCommit.unknown()

    @cached_property
    def newest_commit(self) -> FoundCommit | None:
        """The commit of the marker's epoch; None if there is no marker, or its entry is gone."""
        if self.marker is None:
            return None
        if self.problem is not None:
            return spark_commit.found_in(self._told) if self._told.marker.txn else None
        return find_commit(self.location.files, self.app, self.marker.epoch, self.version)

    @property
    def _described_shape(self) -> TableShape:
        return TableShape.of_description(spark_commit.require_table(self._told.about, self.location.name))

    @cached_property
    def _told(self) -> SeenTable:
        """What Spark says of the table and its marker, in one job."""
        return spark_commit.look(self.location.name, self.app, self.env)
