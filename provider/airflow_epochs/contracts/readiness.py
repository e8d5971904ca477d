"""What a sink can tell before Spark runs."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.model import JsonDict, TransactionId


@runtime_checkable
class Preflight(Protocol):
    """A sink that can tell, before Spark runs, what its vote would refuse whatever the rows are."""

    def require_ready(self, pipeline: str, previous: TransactionId | None, env: Environment) -> None:
        """Look whether the destination exists and can take an epoch. Changes nothing.

        A check that could refuse rows which the vote accepts does not belong here.

        Args:
            pipeline: The pipeline's name.
            previous: The sink's last transaction; None before its first epoch.
            env: The environment to ask in.

        Raises:
            Refused: It cannot: a table, a column, a topic or a right is missing, or a setting is wrong.
            NotApplied: The destination does not answer.
        """
        ...


@runtime_checkable
class Probing(Protocol):
    """A sink that can find out whether it can write where its rows are staged."""

    def require_writable(self, env: Environment) -> None:
        """Write a probe there, and remove it. ``open`` asks before the sink's first epoch, ``check`` at any time.

        Raises:
            Refused: A right is missing, or something is in the way.
            NotApplied, OutcomeUnknown: The store does not answer.
        """
        ...


@runtime_checkable
class Fitting(Protocol):
    """A sink that can tell which values its destination takes, so that other rows become dead letters."""

    def fit(self, pipeline: str, env: Environment) -> JsonDict:
        """What a row must be (``spark.driver.plans.Fit``), as the destination is now. Changes nothing."""
        ...
