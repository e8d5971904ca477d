"""What `expect` and `expect_row_count` take, and what a pipeline takes of them."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_epochs import DeltaSink, expect, expect_row_count
from airflow_epochs.config import require_expectations
from airflow_epochs.errors import BadArgument

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
