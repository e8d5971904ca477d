"""What a source may check and tell around Spark's read."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.contracts.position import Position
from airflow_epochs.contracts.source import PlannedEpoch
from airflow_epochs.model import JsonDict, Ranges
from airflow_epochs.schemas import WriterSchema


@runtime_checkable
class Preparing(Protocol):
    """A source whose checks need the pipeline's name, sinks or position."""

    def prepare(self, pipeline: str, writes: Collection[str], position: Position | None, env: Environment) -> None:
        """Raise Refused if the pipeline may not read this source. Called before each new epoch. Changes nothing.

        ``writes`` holds every sink's ``destination``.
        """
        ...


@runtime_checkable
class WithSchemas(Protocol):
    """A source whose records may name the schemas that they were written with, by ids of a schema registry."""

    def registry(self) -> JsonDict | None:
        """The registry's connection as ``registry_conn_id``, and what it is asked for; None: no registry is asked.

        Where this is equal, the answer may be taken from an earlier attempt.
        """
        ...

    def schemas(self, env: Environment) -> dict[str, WriterSchema]:
        """The schemas that records may have, by their ids. Called once their ranges are planned. Changes nothing.

        Raises:
            Refused: The registry denies access, or does not have what it is asked for.
            NotApplied: It does not answer.
        """
        ...


@runtime_checkable
class Confirming(Protocol):
    """A source whose records may be replaced by others between ``check`` and the end of Spark's read."""

    def confirm(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        """Raise Corrupt if Spark may have read other records than the planned ones. Called after Spark's read."""
        ...


@runtime_checkable
class Versioned(Protocol):
    """**For a source of versions**: to read epochs one by one, more of them must be there than to read all at once."""

    def check_each(self, epochs: Sequence[PlannedEpoch], env: Environment) -> None:
        """Raise Corrupt unless every row of each of these epochs can still be read, by itself. Reads only."""
        ...


@runtime_checkable
class Renewing(Protocol):
    """A source that may move the start of an aborted epoch whose oldest records have been deleted."""

    def again(self, ranges: Ranges, state: JsonDict, env: Environment) -> PlannedEpoch:
        """The ranges for the next attempt of an aborted epoch: the planned ones, with one exception.

        A partition that no epoch has read before may begin at its oldest record. If that record has been deleted
        since, the partition begins at the oldest one left. No sink has shown a row of it yet.

        Raises:
            Corrupt: Planned records can no longer be read; names the exact range.
        """
        ...


@runtime_checkable
class Explaining(Protocol):
    """A source that can explain why there is nothing to read."""

    def why_nothing(self, env: Environment) -> str | None:
        """The reason, without a full stop; None if there is simply no new data."""
        ...
