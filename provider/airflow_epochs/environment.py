"""What sources and sinks may ask of the world around them. The Airflow edge implements it; so do tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_epochs.model import JsonDict


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


@dataclass(frozen=True, kw_only=True)
class SparkJob:
    """One call into ``airflow_epochs.spark.driver.jobs``: JSON in, JSON out.

    Attributes:
        kind: Which job, a key of ``airflow_epochs.spark.driver.jobs.JOBS``.
        args: JSON arguments; no secrets.
        secrets: Spark options that must not be logged nor lie in a readable file (Kafka credentials).
        secrets_of: The id of the connection that they come from.
        files: Local files the job needs: the user's transform and its siblings are named here by path.
        description: One line for Spark's UI.
    """

    kind: str
    args: JsonDict
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    secrets_of: str = ""
    files: tuple[str, ...] = ()
    description: str = ""


class SparkRunner(Protocol):
    """Runs jobs on Spark: through Connect or through spark-submit."""

    def new_session(self) -> JsonDict:
        """Draw the identity of a Spark session before it exists; recorded, so that a later try can stop it."""
        ...

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        """Run ``job`` to its end and return its report. Raises NotApplied if the job failed."""
        ...

    def cancel(self) -> None:
        """Stop what this runner is running now, from a signal handler; ``run`` then raises. Idempotent."""
        ...

    def stop(self, session: JsonDict) -> None:
        """Interrupt what a session is doing and release it. Idempotent; an unknown or ended session is fine."""
        ...


class Environment(Protocol):
    """Connections, Spark, and named phases for tests."""

    @property
    def spark(self) -> SparkRunner: ...

    def connection(self, conn_id: str) -> Connection:
        """Raises Refused if there is no such connection."""
        ...

    def reached(self, phase: str) -> None:
        """A no-op in production; tests kill or stop the process here."""
        ...
