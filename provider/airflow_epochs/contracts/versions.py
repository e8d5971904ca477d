"""Sinks whose earlier versions are read, or come back."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.model import JsonDict, Receipt, RestorePoint, StatePin, Watermarks


@runtime_checkable
class Stateful(Protocol):
    """A sink whose rows the transform reads in the next epoch: state. It can neither be waived nor skip an epoch."""

    def pin(self, receipt: Receipt | None, pipeline: str, env: Environment) -> StatePin:
        """The version for a new epoch to read: the rows that ``receipt``, of the epoch before, is for.

        ``receipt`` is None for the first epoch of the state. Changes nothing.

        Raises:
            Corrupt: Others have changed rows since.
            Refused: The state cannot begin here.
        """
        ...

    def plan_read(self, pin: StatePin, watermarks: Watermarks, env: Environment) -> JsonDict:
        """Spark's plan for reading the state. Raises Corrupt if that version can no longer be read."""
        ...


@runtime_checkable
class Restorable(Protocol):
    """A sink that can bring back what it showed after an earlier epoch.

    An attempt with ``SinkAttempt.restore`` stages no rows: ``plan_stage`` writes all that ``vote`` and ``commit`` need.
    """

    def require_restorable(self, point: RestorePoint, pipeline: str, env: Environment) -> None:
        """Look whether the version can come back. Changes nothing.

        Raises:
            Refused: It cannot: files or log entries are gone, or others would lose rows.
        """
        ...
