"""Where rows come from: what every source does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from airflow_epochs.contracts.environment import Environment
from airflow_epochs.contracts.position import Position
from airflow_epochs.model import Backlog, JsonDict, Ranges


@dataclass(frozen=True, kw_only=True)
class Limits:
    """A run's own settings (DAG params). They override the source's; None keeps the source's.

    With ``defers``, a source that can raises ``NotYet`` where it would wait for data: the task then waits elsewhere.
    ``wait_at_most`` is no setting of a source: it shortens its wait to what is left of the task's time, in seconds.
    """

    max_records: int | None = None
    starting: str | JsonDict | None = None
    max_bytes: int | str | None = None
    min_records: int | None = None
    max_delay: float | str | None = None
    target_duration: float | str | None = None
    max_wait: float | None = None
    defers: bool = False
    wait_at_most: float | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedEpoch:
    """The ranges of a new epoch, and the source's state to record with them.

    All ranges may be empty: a start at "latest" opens an empty epoch to record the position. ``backlog``: what it could
    have read besides; None if the source does not tell.
    """

    ranges: Ranges
    state: JsonDict
    backlog: Backlog | None = field(default=None, compare=False)  # it depends on when the source was asked


@dataclass(frozen=True, kw_only=True)
class SparkRead:
    """The Spark options that read exactly the planned ranges.

    ``secrets`` reach neither a log nor a file that others can read. ``secrets_of`` is the id of their connection.
    ``table``: the fields of a ``spark.driver.plans.TableRead``, where a Delta table is read in place of Kafka.
    """

    options: dict[str, str]
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    secrets_of: str = ""
    table: JsonDict | None = None


class Source(Protocol):
    """Where rows come from. An instance is configuration and holds no state."""

    def spec(self) -> JsonDict:
        """The full specification, as the ledger records it: connection ids, no secrets."""
        ...

    def plan(self, position: Position | None, limits: Limits, env: Environment) -> PlannedEpoch | None:
        """Plan a new epoch's ranges from ``position`` on; None if there is no new data.

        ``position`` is None for the pipeline's first epoch. Changes nothing. May wait for data, as long as the
        source's configuration allows.

        Raises:
            Corrupt: Offsets after the position were deleted before they were read; names the exact range.
            Refused: The configuration is wrong.
        """
        ...

    def check(self, ranges: Ranges, state: JsonDict, env: Environment) -> None:
        """Raise Corrupt unless every record of these planned ranges can still be read. Called before each staging."""
        ...

    def spark_read(self, ranges: Ranges, env: Environment) -> SparkRead:
        """The options with which Spark reads exactly ``ranges``."""
        ...

    def acknowledge(self, pipeline: str, ranges: Ranges, env: Environment) -> None:
        """Tell lag monitors how far the pipeline is. Never read back; the caller logs failures and goes on."""
        ...
