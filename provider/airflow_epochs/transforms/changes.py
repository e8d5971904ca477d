"""What an operator returns, and how it tells changes of a state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELETED = "__deleted"
"""The column of the changes that says whether the key is deleted."""
LATE = "epochs_late"
"""The name of late rows in Spark's plans: the stage job counts what reaches a sink from there."""
_EXPIRES = "_epochs_expires"
"""The attribute of a state's DataFrame that names the column by which its table expires."""


@dataclass(frozen=True)
class Result:
    """The rows and the changes of the state that an operator returns for one epoch.

    Attributes:
        out: The rows to show.
        changes: The columns of the state and ``__deleted``; at most one row per key, and only keys that changed.
        late: The epoch's rows that came too late, that have no time or no key, or whose time is too far away. They are
            in nothing else.
    """

    out: DataFrame
    changes: DataFrame
    late: DataFrame


@dataclass(frozen=True)
class JoinResult:
    """The rows and the changes of both states that a join returns for one epoch. The fields are as in ``Result``."""

    out: DataFrame
    left_changes: DataFrame
    right_changes: DataFrame
    left_late: DataFrame
    right_late: DataFrame


def changes(upserts: DataFrame, deletes: DataFrame | None = None) -> DataFrame:
    """The changes of a state: rows that replace the rows of their keys, and rows whose keys are deleted.

    Both have the state's columns.
    """
    from pyspark.sql import functions as F

    told = upserts.withColumn(DELETED, F.lit(False))
    return told if deletes is None else told.unionByName(deletes.withColumn(DELETED, F.lit(True)))


def told_late(rows: DataFrame) -> DataFrame:
    """An operator's late rows, under the name by which the stage job knows them."""
    return rows.alias(LATE)


def expiring(state: DataFrame, by: str | None) -> DataFrame:
    """The state as a transform gets it. It tells by which column its table expires."""
    setattr(state, _EXPIRES, by)
    return state


def expires_by(state: DataFrame) -> str | None:
    """The column by which the state's table expires, as far as that is known: not of a DataFrame derived from it."""
    known: str | None = vars(state).get(_EXPIRES)
    return known
