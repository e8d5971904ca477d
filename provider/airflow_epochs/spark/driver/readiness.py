"""Looks whether Spark has what a stage job needs: for ``airflow epochs check``. It writes nothing, and keeps nothing.

Each look ends with the error that the stage job itself would end with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_epochs import codes
from airflow_epochs.spark.driver import failures, source_read, transform
from airflow_epochs.spark.driver.plans import JobPlan, TableRead, TransformFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KAFKA, DELTA = "kafka", "delta"
TRANSFORM, WORKERS = "transform", "python"
"""Names of what is checked besides data sources, as keys of ``CheckOutcome.flaws``."""
_NO_ANSWER = (codes.SPARK_INCOMPLETE, codes.SPARK_UNREACHABLE, codes.SPARK_LOGIN)
_FOR_WORKERS = re.compile(r"udt?f\b|In(?:Pandas|Arrow)\b|\bairflow_epochs\.transforms\b|\.rdd\b|\bDataSource\b")
"""Words in the source of a transform that calls Python in Spark's workers."""


@dataclass(frozen=True, kw_only=True)
class CheckPlan(JobPlan):
    """Check whether Spark has what a stage job needs.

    Attributes:
        transform: The user's function, which is loaded and not called; None if its file is not known.
        formats: The data sources that a stage job uses.
    """

    JOB = "check"

    transform: TransformFile | None
    formats: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ReportedError:
    """An error as ``failures.error_as_json`` tells it."""

    type: str
    code: str | None
    what: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class CheckOutcome:
    """The versions that were found, and what cannot be used.

    Attributes:
        spark: The version of Spark.
        pyspark: The version of pyspark that asked it.
        python: The version of Python that asked it, and that the transform runs in.
        workers: The version of Python in Spark's workers; None if they could not say.
        flaws: What was checked -> why it cannot be used.
    """

    spark: str
    pyspark: str
    python: str
    workers: str | None
    flaws: dict[str, ReportedError] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ReadPlan(JobPlan):
    """The input to read a record of: as in a ``StagePlan``."""

    JOB = "read"

    read: dict[str, str]
    table: TableRead | None = None
    connection: str = ""


@dataclass(frozen=True, kw_only=True)
class ReadOutcome:
    """``records``: how many records were read: 1, or 0 if the input is empty."""

    records: int


def check(spark: SparkSession, plan: CheckPlan) -> CheckOutcome:
    """Look at everything, whatever is wrong with the first of it."""
    import platform

    import pyspark

    flaws: dict[str, ReportedError] = {}
    for name in plan.formats:
        _looked(flaws, name, partial(_require_format, spark, name))
    if where := plan.transform:
        _looked(flaws, TRANSFORM, lambda: _require_loadable(where))
    workers = _looked(flaws, WORKERS, lambda: _python_of_workers(spark))
    return CheckOutcome(
        spark=spark.version,
        pyspark=pyspark.__version__,
        python=platform.python_version(),
        workers=workers,
        flaws=flaws,
    )


def _looked(flaws: dict[str, ReportedError], at: str, look: Callable[[], str | None]) -> str | None:
    try:
        return look()
    except Exception as error:
        told = failures.of_spark(error, f"The look at {at!r}")
        flaws[at] = ReportedError(**failures.error_as_json(told))
        return None


def _require_format(spark: SparkSession, name: str) -> None:
    """Raise unless Spark knows the data source. It is asked without a place, so it reads nothing."""
    reader = spark.read.format(name)
    if name == KAFKA:
        reader = reader.option("kafka.bootstrap.servers", "localhost:1").option("subscribe", "none")
    try:
        reader.load().schema  # noqa: B018
    except Exception as error:
        if "NoClassDefFound" in str(error) or failures.of_spark(error, "").code in _NO_ANSWER:
            raise
    if name == DELTA:  # now that its jars are there
        failures.refuse_without_catalog(spark, "The look at 'delta'")


def _require_loadable(where: TransformFile) -> None:
    with transform.loaded(where):
        pass


def _python_of_workers(spark: SparkSession) -> str:
    import platform

    from pyspark.sql import functions as F

    # no function with type hints: pyspark would take them for the kind of the function
    version = F.udf(lambda _: platform.python_version(), "string")
    [(found,)] = spark.range(1).select(version("id")).collect()
    return str(found)


def read(spark: SparkSession, plan: ReadPlan, secrets: dict[str, str]) -> ReadOutcome:
    """Read one record of the input, as the stage job reads them all."""
    from pyspark.sql import functions as F

    batch = source_read.batch(spark, plan, secrets)
    return ReadOutcome(records=len(batch.select(F.lit(1)).limit(1).collect()))


def calls_python(files: Iterable[Path]) -> bool:
    """Whether the source of a transform and of its siblings looks as if it calls Python in Spark's workers."""
    return any(_FOR_WORKERS.search(file.read_text(encoding="utf-8")) for file in files if file.suffix == ".py")
