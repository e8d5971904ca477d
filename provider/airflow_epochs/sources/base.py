"""The source contract: plan ranges from the last position, describe the read to Spark.

``Source`` is what every source does. The other protocols are what a source may do beside that: it needs the methods, no
base class, and whoever uses them asks ``isinstance(source, Confirming)``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from airflow_epochs.environment import Environment
from airflow_epochs.model import JsonDict, Ranges


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where the last complete epoch ended: its ranges (ends count) and the source's own state (topic ids, tails)."""

    ranges: Ranges
    state: JsonDict


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Per-run settings (DAG params) over the source's own; None: the source's own."""

    max_records: int | None = None
    starting: str | JsonDict | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedEpoch:
    """New input: ``ranges`` and the state to record with them.

    Without a record to read only where an empty epoch has to pin the position (a start at "latest").
    """

    ranges: Ranges
    state: JsonDict


@dataclass(frozen=True, kw_only=True)
class SparkRead:
    """How Spark reads exactly the planned ranges.

    ``secrets`` never reach a log or a readable file. ``secrets_of`` is the id of the connection that they come from.
    """

    options: dict[str, str]
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    secrets_of: str = ""


class Source(Protocol):
    """Where rows come from. Instances are configuration."""

    def spec(self) -> JsonDict:
        """The full specification; connection ids, no secrets."""
        ...

    def plan(self, position: Position | None, limits: Limits, env: Environment) -> PlannedEpoch | None:
        """Ranges for a new epoch, from ``position`` (None: the pipeline's first epoch); None if there is no new data.

        Reads only. May wait for data, bounded by the source's own configuration.

        Raises:
            Corrupt: Offsets between the position and now are gone; names the exact range.
            Refused: The configuration is wrong.
        """
        ...

    def check(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        """Raise Corrupt unless every record of already planned ranges can still be read (a rerun)."""
        ...

    def spark_read(self, ranges: Ranges, env: Environment) -> SparkRead: ...

    def acknowledge(self, pipeline: str, ranges: Ranges, env: Environment) -> None:
        """Tell lag monitors how far the pipeline is. Never read back; failures are logged by the caller."""
        ...


@runtime_checkable
class Confirming(Protocol):
    """A source whose records can be replaced by others between the check and the end of Spark's read."""

    def confirm(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        """Raise Corrupt if what has just been read of the ranges may be other records than those that were planned."""
        ...


@runtime_checkable
class Renewing(Protocol):
    """A source whose first epoch may begin at whatever is the oldest record."""

    def again(self, ranges: Ranges, state: JsonDict, env: Environment) -> PlannedEpoch:
        """What the next attempt of an aborted epoch reads: the planned ranges, as planned.

        One exception: where a partition was never read before and begins at its oldest record, and that has been
        deleted since, it begins at the oldest one that is left. Nobody has seen a row of it.

        Raises:
            Corrupt: Records that were planned cannot be read any more; names the exact range.
        """
        ...


@runtime_checkable
class Explaining(Protocol):
    """A source that can tell why there is nothing to read."""

    def why_nothing(self, env: Environment) -> str | None:
        """A sentence without its full stop; None if there is simply nothing new."""
        ...


@runtime_checkable
class Preparing(Protocol):
    """A source with checks that need to know the pipeline."""

    def prepare(self, pipeline: str, writes: Collection[str], position: Position | None, env: Environment) -> None:
        """Raise Refused if the pipeline may not read this source. Before a new epoch is planned; changes nothing.

        ``writes``: the ``destination`` of every sink.
        """
        ...
