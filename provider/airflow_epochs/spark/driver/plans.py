"""What a stage job is asked to do, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from airflow_epochs.spark.driver.wire import JsonDict


@dataclass(frozen=True, kw_only=True)
class JobPlan:
    """What a job is asked to do. ``JOB`` is the job's name, a key of ``jobs.JOBS``."""

    JOB: ClassVar[str]


@dataclass(frozen=True, kw_only=True)
class TransformFile:
    """The user's function. ``source`` is the file's text where the file is not on the driver's machine."""

    path: str
    function: str
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class StagePlan(JobPlan):
    """One try to stage an epoch's rows in some sinks.

    Attributes:
        txn_id: The attempt's transaction id.
        pipeline: The pipeline's name.
        epoch: The epoch, from 1.
        attempt: The attempt, from 1.
        now: When the epoch was first opened, in ISO 8601 with its zone.
        seed: For the transform's random numbers.
        read: The Spark options that read exactly the planned ranges, without secrets.
        transform: The user's function.
        outputs: The sinks that may get a DataFrame.
        again: Whether promised rows are staged again, so that other sinks' DataFrames are no mistake.
        files_of_0_1: Whether version 0.1 promised these rows by a digest of their files.
        measure_input: Whether the records read are counted.
        sinks: The plan of each sink that is staged. Its ``kind`` says of which class it is (``stage.STAGERS``).
    """

    JOB = "stage"

    txn_id: str
    pipeline: str
    epoch: int
    attempt: int
    now: str
    seed: int
    read: dict[str, str]
    transform: TransformFile
    outputs: tuple[str, ...]
    again: bool = False
    files_of_0_1: bool = False
    measure_input: bool = True
    sinks: dict[str, JsonDict]


@dataclass(frozen=True, kw_only=True)
class RowDigest:
    """The parts of a digest of rows (``row_digest``). ``columns`` is a digest of the columns' names and types."""

    rows: int
    sums: tuple[int, ...]
    columns: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What was staged for one sink. With a ``problem``, the rows or their schema do not fit, and nothing need be."""

    place: str
    problem: str | None = None
    content: RowDigest | None = None


@dataclass(frozen=True, kw_only=True)
class InputMetrics:
    """Of the records read: how many, and the newest one's timestamp (UTC); None where Spark did not observe it."""

    rows_in: int | None = None
    max_timestamp: str | None = None


@dataclass(frozen=True, kw_only=True)
class StageOutcome:
    """What a stage job did for each sink, and what it noticed. ``metrics`` is None if nothing was measured."""

    sinks: dict[str, Claim]
    metrics: InputMetrics | None = None
    warnings: tuple[str, ...] = ()
