"""What sinks and sources may use."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_epochs.contracts.runner import SparkRunner


@dataclass(frozen=True, kw_only=True)
class Connection:
    """An Airflow connection as plain values. ``extra`` is the decoded JSON."""

    conn_id: str
    conn_type: str
    host: str | None = None
    port: int | None = None
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    schema: str | None = None
    extra: dict[str, Any] = field(default_factory=dict, repr=False)


class Environment(Protocol):
    """What sinks and sources may use: connections, Spark, and named phases at which tests interfere."""

    @property
    def spark(self) -> SparkRunner:
        """The runner that the pipeline chose: Spark Connect or spark-submit."""
        ...

    def connection(self, conn_id: str) -> Connection:
        """The connection with this id.

        Raises:
            NotApplied: No connection has this id, or no backend that could tell has answered.
        """
        ...

    def reached(self, phase: str) -> None:
        """Mark a phase by its name. In production it is only noted; tests kill or pause the process here."""
        ...
