"""Runs jobs on Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from airflow_epochs.model import JsonDict


@dataclass(frozen=True, kw_only=True)
class SparkJob:
    """One call into ``airflow_epochs.spark.driver.jobs``: JSON in, JSON out.

    Attributes:
        kind: A key of ``airflow_epochs.spark.driver.jobs.JOBS``.
        args: The job's plan as JSON (``airflow_epochs.spark.driver.plans``). It holds no secrets.
        secrets: Spark options, such as Kafka credentials. They reach neither a log nor a file that others can read.
        secrets_of: The id of the connection that the secrets come from.
        files: The user's transform file. The runner also ships the files beside it that it imports.
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
        """Choose a new session's identity. The ledger records it before Spark starts it, so a later try can stop it."""
        ...

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        """Run ``job`` to its end and return its report.

        Raises:
            NotApplied: The job failed. What it wrote is invisible.
        """
        ...

    def cancel(self) -> None:
        """Stop the running job; ``run`` then raises. Called from a signal handler. Idempotent."""
        ...

    def stop(self, session: JsonDict) -> None:
        """Interrupt a session's work and release it. Idempotent; an unknown or ended session is no error."""
        ...


@dataclass(frozen=True, kw_only=True)
class Following:
    """How a task waits for the end of a job that outlives it.

    Attributes:
        elsewhere: Whether the task waits elsewhere, so that ``RunsOn`` is raised in place of waiting.
        awaited: What the task has waited for elsewhere: ``RunsOn.job``. If that failed, the task fails.
    """

    elsewhere: bool = False
    awaited: str | None = None


class RunsOn(Exception):
    """A job runs on without its task, which now waits for its end elsewhere. Nothing has failed.

    Attributes:
        job: What the place where it runs calls it.
        addresses: Where to ask about it. No secrets.
    """

    def __init__(self, what: str, job: str, addresses: Sequence[str]) -> None:
        super().__init__(f"{what} runs")
        self.job, self.addresses = job, tuple(addresses)


@runtime_checkable
class Rejoining(Protocol):
    """A ``SparkRunner`` that may find the job of an earlier task again. ``run`` of a stage job may raise ``RunsOn``."""

    def follow(self, following: Following) -> None:
        """Say how this task waits for stage jobs from now on."""
        ...

    def outlives(self) -> bool:
        """Whether stage jobs outlive their task. Their sessions must then not be stopped before ``rejoin``."""
        ...

    def rejoin(self, session: JsonDict) -> JsonDict | None:
        """Go on with the stage job that an earlier try submitted under this session, and return its report.

        None: there is nothing to go on with, so that the job must be run anew. Idempotent.

        Raises:
            RunsOn: The job runs, and the task waits elsewhere.
            NotApplied: The job failed while this task waited for it.
        """
        ...

    def release(self, session: JsonDict) -> None:
        """Forget the report of a session that is staged, or whose attempt is aborted. Idempotent. Never raises."""
        ...

    def end(self, session: JsonDict) -> None:
        """Ask for the end of the stage job of a session that nobody goes on with, wherever it runs. Idempotent."""
        ...


@runtime_checkable
class Placing(Protocol):
    """A ``SparkRunner`` that may know which application ran its last job."""

    def ran_as(self) -> JsonDict:
        """Its ``id``, and the ``url`` where people read about it; empty if unknown. For people alone. Never raises."""
        ...
