"""Sinks whose rows can be shown and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.contracts.sink import SinkAttempt
from airflow_epochs.model import Receipt

Row = Mapping[str, object]
"""Column -> value. A column that is left out is NULL."""


@runtime_checkable
class Telling(Protocol):
    """A sink that can list the rows of one commit. ``inspection.dry_run`` compares them with new ones.

    Both methods give a row the same form. They read as they go, and change nothing.
    """

    def rows_of(self, receipt: Receipt, pipeline: str, env: Environment) -> Iterator[Row]:
        """The rows that this commit made visible.

        Raises:
            Refused: The sink cannot list them, or not any more; says why. It may be raised in place of any row.
        """
        ...

    def rows_staged(self, attempt: SinkAttempt, place: str, env: Environment) -> Iterator[Row]:
        """The rows that a commit would make of what is staged at ``place``.

        Raises:
            Refused: The sink would not take them. As ``rows_of``.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class StagedSample:
    """What lies at a staging place, for somebody who looks.

    Attributes:
        columns: (name, type) of each column of the staged rows; types as SQL users know them.
        count: How many rows lie there.
        rows: The first of them.
        creates: A statement that creates the destination, if it does not exist and the sink never creates it.
        problem: Why the sink, or the destination that is there, would not take the rows; None if nothing was found.
    """

    columns: tuple[tuple[str, str], ...]
    count: int
    rows: tuple[Row, ...]
    creates: str | None = None
    problem: str | None = None


@runtime_checkable
class Sampling(Protocol):
    """A sink that can show the rows at a staging place, for ``airflow epochs preview``."""

    def sample(self, attempt: SinkAttempt, place: str, most: int, env: Environment) -> StagedSample:
        """At most ``most`` of the staged rows. Changes nothing.

        Raises:
            Refused: What lies there is not a finished staging of this transaction.
        """
        ...
