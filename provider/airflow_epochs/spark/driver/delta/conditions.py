"""What the options of an upsert ask of the rows: the columns that they name, and a condition that Spark understands."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow_epochs import secrecy
from airflow_epochs.spark.driver import determinism
from airflow_epochs.spark.driver.delta.jobs import MESSAGE_LENGTH_MAX, problem_in
from airflow_epochs.spark.driver.delta.plans import How

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def misfit(df: DataFrame, how: How) -> str | None:
    """Why the options ``how`` do not fit rows with these columns; None if they do."""
    if lacking := missing(how, df.columns):
        return f"The rows lack {lacking}."
    if how.delete_when and (wrong := _not_a_condition(df, how.delete_when)):
        return f"`delete_when` is not a valid condition on the rows: {wrong}"
    return None


def missing(how: How, columns: Sequence[str]) -> str:
    """The columns that ``keys`` and ``sequence_by`` name and ``columns`` lacks; empty if it has all."""
    given = {name.lower() for name in columns}
    named = {"keys": how.keys, "sequence_by": (how.sequence_by,) if how.sequence_by else ()}
    wanted = [(option, name) for option, names in named.items() for name in names]
    return " and ".join(f"column {name!r} (see `{option}`)" for option, name in wanted if name.lower() not in given)


def _not_a_condition(df: DataFrame, condition: str) -> str | None:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    try:
        _ = df.select(F.expr(f"coalesce(({condition}), false)")).schema
    except AnalysisException as error:  # which a syntax error is, too
        return first_lines(error)
    if varying := determinism.nondeterministic(_analysed(df, condition)):
        return (
            f"it uses {', '.join(varying)}, so its result may be another one when Spark computes it again. Let the "
            "transform compute this value, for example from epoch.now."
        )
    return None


def _analysed(df: DataFrame, condition: str) -> str:
    """The condition as Spark's analysis spells it: the first line of the plan. The lines below it describe ``df``."""
    with view(df) as name:  # WHERE false: nothing of it is planned further, no broker is asked
        query = f"EXPLAIN EXTENDED SELECT coalesce(({condition}), false) AS met FROM {name} WHERE false"
        told = str(df.sparkSession.sql(query).collect()[0][0])
    _, _, plan = told.partition("== Analyzed Logical Plan ==\n")
    return "".join(plan.splitlines()[1:2])


@contextmanager
def view(rows: DataFrame) -> Iterator[str]:
    """A unique name for ``rows`` in SQL, since sinks are staged side by side in one session."""
    name = f"epoch_rows_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(name)
    try:
        yield name
    finally:
        rows.sparkSession.catalog.dropTempView(name)


def first_lines(error: Exception) -> str:
    """The first lines of an error of Spark, as far as a message has room for them."""
    return problem_in(error) or secrecy.scrubbed(" ".join(str(error).split()))[:MESSAGE_LENGTH_MAX]
