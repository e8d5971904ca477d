"""What `expect` and `expect_row_count` take, and what a pipeline takes of them."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from airflow_epochs import DeltaSink, expect, expect_row_count
from airflow_epochs.config import require_expectations
from airflow_epochs.errors import BadArgument
from airflow_epochs.spark.driver.expectations import _broken_rows
from airflow_epochs.spark.driver.plans import Rules

SINKS = [DeltaSink("a", "/a")]
WRONG: dict[str, tuple[Any, str]] = {
    "an empty condition": (lambda: expect(" "), "condition of `expect`"),
    "a fraction above 1": (lambda: expect("a", max_fraction=2), "`max_fraction`"),
    "a fraction that is a flag": (lambda: expect("a", max_fraction=True), "`max_fraction`"),
    "columns as one text": (lambda: expect("a", show="id"), "`show`"),
    "an unknown end": (lambda: expect("a", otherwise="ignore"), "`otherwise` is 'ignore'"),
    "less than no rows": (lambda: expect_row_count(min=-1), "`min` of `expect_row_count` is -1"),
    "an empty range": (lambda: expect_row_count(min=3, max=2), "min=3 and max=2"),
    "an unknown sink": (lambda: require_expectations({"b": [expect("a")]}, SINKS), "`expectations` names b"),
    "no list": (lambda: require_expectations({"a": expect("a")}, SINKS), "It must be a list"),  # type: ignore[dict-item]
    "a text": (lambda: require_expectations({"a": ["n > 0"]}, SINKS), "made by `expect`"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("what", WRONG)
def test_an_expectation_that_cannot_be_meant_is_refused_where_the_dag_is_read(what: str) -> None:
    make, said = WRONG[what]
    with pytest.raises(BadArgument, match=said):
        make()


@pytest.mark.parametrize("rows", [10, 100, 1_000])
def test_as_many_rows_as_the_fraction_says_may_break_an_expectation_and_not_one_more(rows: int) -> None:
    """29 of 100 are 0.29, though 0.29 * 100 is less than 29 in floating point."""
    for allowed in range(1, rows):
        rules = Rules(rows=(expect("n > 0", max_fraction=float(f"{allowed / rows:.3f}")),))
        broken = [len(list(_broken_rows(Mock(), rules, {"rows": rows, "broken_0": n}))) for n in (allowed, allowed + 1)]
        assert broken == [0, 1], f"{allowed} of {rows}"


def test_no_rows_break_no_expectation() -> None:
    assert list(_broken_rows(Mock(), Rules(rows=(expect("n > 0"),)), {"rows": 0, "broken_0": 0})) == []
