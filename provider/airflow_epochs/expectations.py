"""Expectations: what must be true of an epoch's rows before a sink shows them (write, audit, publish).

The stage counts the rows that break an expectation, while it writes them where nobody sees them. Then the sink votes.
So an epoch that breaks one shows nothing in any sink.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from airflow_epochs import codes
from airflow_epochs.errors import BadArgument

QUARANTINE = "quarantine"
OTHERWISE = ("abort", "warn", QUARANTINE)


@dataclass(frozen=True, kw_only=True)
class ExpectedRows:
    """What ``expect`` makes."""

    condition: str
    max_fraction: float
    otherwise: str
    show: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ExpectedRowCount:
    """What ``expect_row_count`` makes. ``most`` None: any number from ``least`` on."""

    least: int
    most: int | None
    otherwise: str


Expectations = Mapping[str, Sequence[ExpectedRows | ExpectedRowCount]]
"""Sink -> what is expected of its rows."""


def expect(
    condition: str, *, max_fraction: float = 0.0, otherwise: str = "abort", show: Sequence[str] = ()
) -> ExpectedRows:
    """Expect that rows meet a condition.

    Args:
        condition: In Spark's SQL, over the columns that the transform returns for the sink. A row for which it is NULL
            breaks it.
        max_fraction: How large a part of the epoch's rows may break it, from 0 to 1.
        otherwise: What happens if more rows break it. ``"abort"``: the sink votes VOTE_ABORT, and no sink shows the
            epoch. ``"warn"``: the rows are shown, and the stage task's log and result say so. ``"quarantine"``: each
            row that breaks it becomes a dead letter (``dead_letters`` of the pipeline), and the others are shown.
        show: Columns whose values a message shows for some of the rows that break it. Messages stand in logs and in
            the ledger, so name columns that everybody may read.

    Raises:
        BadArgument: An argument is not valid.
    """
    if not isinstance(condition, str) or not condition.strip():
        raise _bad(f"The condition of `expect` is {condition!r}. It must be a condition in SQL.")
    if isinstance(max_fraction, bool) or not isinstance(max_fraction, (int, float)) or not 0 <= max_fraction <= 1:
        raise _bad(f"`max_fraction` of {condition!r} is {max_fraction!r}. It must be a number from 0 to 1.")
    if isinstance(show, str) or not all(isinstance(name, str) for name in show):
        raise _bad(f"`show` of {condition!r} is {show!r}. It must be a list of column names.")
    _require_otherwise(otherwise)
    if otherwise == QUARANTINE and max_fraction:
        raise _bad(
            f"`max_fraction` of {condition!r} is {max_fraction!r}, and `otherwise` is 'quarantine', which takes out "
            "every row that breaks it. Leave `max_fraction` out."
        )
    return ExpectedRows(condition=condition, max_fraction=float(max_fraction), otherwise=otherwise, show=tuple(show))


def expect_row_count(*, min: int = 0, max: int | None = None, otherwise: str = "abort") -> ExpectedRowCount:
    """Expect a number of rows of the epoch for the sink: ``min`` to ``max``, both inclusive.

    An empty epoch (a tick of the watermark) has no rows, so ``min=1`` aborts it.

    Raises:
        BadArgument: An argument is not valid.
    """
    for name, value in {"min": min, "max": 0 if max is None else max}.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _bad(f"`{name}` of `expect_row_count` is {value!r}. It must be a number of rows, 0 or larger.")
    if max is not None and max < min:
        raise _bad(f"`expect_row_count` has min={min} and max={max}. `max` must not be smaller than `min`.")
    _require_otherwise(otherwise)
    if otherwise == QUARANTINE:
        raise _bad("`otherwise` of `expect_row_count` is 'quarantine'. It must be 'abort' or 'warn'.")
    return ExpectedRowCount(least=min, most=max, otherwise=otherwise)


def require_list(sink: str, expected: object) -> None:
    """Raise BadArgument unless ``expected`` is a list of what ``expect`` and ``expect_row_count`` have made."""
    if isinstance(expected, str) or not isinstance(expected, Sequence):
        raise _bad(f"`expectations` of sink {sink!r} is {expected!r}. It must be a list.")
    for each in expected:
        if not isinstance(each, (ExpectedRows, ExpectedRowCount)):
            raise _bad(
                f"`expectations` of sink {sink!r} has {each!r}. Each one must be made by `expect` or "
                "`expect_row_count`."
            )


def _require_otherwise(otherwise: str) -> None:
    if otherwise not in OTHERWISE:
        raise _bad(f"`otherwise` is {otherwise!r}. It must be one of {', '.join(map(repr, OTHERWISE))}.")


def _bad(what: str) -> BadArgument:
    return BadArgument(what, code=codes.PIPELINE_ARGUMENT)
