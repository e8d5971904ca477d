"""Counts the rows that break the expectations of a sink while Spark stages them, and says what that means."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_epochs import codes
from airflow_epochs.errors import Refused
from airflow_epochs.expectations import ExpectedRows
from airflow_epochs.spark.driver import observed
from airflow_epochs.spark.driver.delta import keys
from airflow_epochs.spark.driver.plans import Rules, SinkOutcome
from airflow_epochs.transforms.conditions import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

VALUE_LENGTH_MAX = 60
MESSAGE_LENGTH_MAX = 2_000
"""The longest reason of a sink's vote, in characters: it travels through XCom, and is stored in the ledger."""
_ROWS = "rows"
_TAIL = re.compile(r"\s*SQLSTATE: \w{5}.*")
"""The tail that Spark adds to an error: an SQLSTATE, and a place in a statement that the reader does not see."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The staged rows of one sink, and how many of them break its expectations.

    Attributes:
        claim: What was staged, and which expectations abort the epoch.
        warnings: Expectations that are broken and only warn.
        counts: Condition -> how many rows break it.
    """

    claim: SinkOutcome
    warnings: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


def audited(frame: DataFrame, rules: Rules | None, stage: Callable[[DataFrame], SinkOutcome]) -> Audit:
    """Stage the rows of a sink, and count those that break its expectations.

    The rows are counted as they flow to the staging table. Where Spark has lost the counts on the way, they are counted
    once more.
    """
    from pyspark.sql import Observation

    if rules is None:
        return Audit(claim=stage(frame))
    observation, sums = Observation(f"expectations {uuid.uuid4().hex}"), _sums(rules)
    claim = stage(frame.observe(observation, *sums))
    if claim.problem:
        return Audit(claim=claim)
    found = observed.result(observation) or frame.agg(*sums).collect()[0].asDict()
    broken = [*_broken_rows(frame, rules, found), *_broken_counts(rules, found[_ROWS])]
    fatal = [text for text, otherwise in broken if otherwise == "abort"]
    return Audit(
        claim=replace(claim, unmet=_short(" ".join(fatal), MESSAGE_LENGTH_MAX) or None),
        warnings=tuple(text for text, otherwise in broken if otherwise == "warn"),
        counts={rule.condition: found[_name(number)] for number, rule in enumerate(rules.rows)},
    )


def _sums(rules: Rules) -> list[Column]:
    from pyspark.sql import functions as F

    counts = [F.count(F.when(_breaks(rule), 1)).alias(_name(number)) for number, rule in enumerate(rules.rows)]
    return [F.count(F.lit(1)).alias(_ROWS), *counts]


def _name(number: int) -> str:
    return f"broken_{number}"


def _breaks(rule: ExpectedRows) -> Column:
    from pyspark.sql import functions as F

    return ~F.coalesce(F.expr(rule.condition), F.lit(False))


def _broken_rows(frame: DataFrame, rules: Rules, found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for number, rule in enumerate(rules.rows):
        broken, rows = found[_name(number)], found[_ROWS]
        if rows and broken / rows > rule.max_fraction:
            allowed = f", and {rule.max_fraction:.3%} may" if rule.max_fraction else ""
            text = f"{broken} of {rows} rows break the expectation {rule.condition!r}{allowed}{_shown(frame, rule)}."
            yield text, rule.otherwise


def _shown(frame: DataFrame, rule: ExpectedRows) -> str:
    if not rule.show:
        return ""
    rows = keys.collected(frame.where(_breaks(rule)).select(*map(quoted, rule.show)).limit(keys.SHOWN_MAX))
    return f", for example {keys.shown(rows, lambda value: _short(repr(value), VALUE_LENGTH_MAX))}"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _broken_counts(rules: Rules, rows: int) -> Iterator[tuple[str, str]]:
    for rule in rules.counts:
        if rows < rule.least or (rule.most is not None and rows > rule.most):
            most = "" if rule.most is None else f" and at most {rule.most}"
            yield f"The sink gets {rows} rows, and at least {rule.least}{most} are expected.", rule.otherwise


def require_computable(frames: Mapping[str, DataFrame], expectations: Mapping[str, Rules]) -> None:
    """Raise Refused unless each condition can be computed over the rows of its sink, and each shown column is there."""
    for sink, frame in frames.items():
        for rule in expectations[sink].rows if sink in expectations else ():
            _require_computable(sink, frame, rule)


def _require_computable(sink: str, frame: DataFrame, rule: ExpectedRows) -> None:
    from pyspark.sql import functions as F

    try:
        # as a filter it must be true or false for each row by itself: Spark refuses sums and windows there
        frame.where(F.expr(rule.condition)).select(F.lit(1), *map(quoted, rule.show)).schema  # noqa: B018
    except Exception as error:
        raise Refused(
            f"The expectation {rule.condition!r} cannot be computed over the rows of sink {sink!r}. {_sentence(error)}",
            code=codes.EXPECTATION_INVALID,
            sink=sink,
        ) from error


def _sentence(error: Exception) -> str:
    """The first sentence of a Spark error."""
    return _TAIL.sub("", str(error).strip().splitlines()[0])
