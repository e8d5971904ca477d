"""What `expect` and `expect_row_count` take, and what a pipeline takes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from airflow_epochs import DeltaSink, expect, expect_row_count
from airflow_epochs.config import require_expectations
from airflow_epochs.contracts import SparkJob
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import BadArgument, Refused
from airflow_epochs.model import JsonDict, StageReport
from airflow_epochs.spark.driver.expectations import _broken_rows
from airflow_epochs.spark.driver.plans import Rules, StageOutcome, StagePlan
from airflow_epochs.spark.driver.wire import as_json, from_json
from tests.support.environment import Environment
from tests.support.faults_disk import DiskSpark
from tests.support.faults_world import DiskWorld, start
from tests.support.remedies import assert_all_rows

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


class SparkWithoutGoodRows(DiskSpark):
    """Every row breaks every expectation."""

    def run(self, job: SparkJob, session: JsonDict | None = None) -> JsonDict:
        expected = from_json(StagePlan, job.args).expectations
        told = from_json(StageOutcome, super().run(job, session))
        unmet = {name: "The rows break it." if name in expected else None for name in told.sinks}
        return as_json(
            replace(told, sinks={name: replace(claim, unmet=unmet[name]) for name, claim in told.sinks.items()})
        )


def expecting(world: DiskWorld, *conditions: str) -> Coordinator:
    coordinator = world.coordinator()
    env = coordinator.task.env
    assert isinstance(env, Environment)
    env.spark = SparkWithoutGoodRows(env.reached)
    expected = {"orders": [expect(condition) for condition in conditions]}
    coordinator.task.pipeline = replace(coordinator.task.pipeline, expectations=expected if conditions else {})
    return coordinator


def staged(world: DiskWorld, *conditions: str) -> StageReport | None:
    """A run of its own gets to the end of ``stage``."""
    task, run = expecting(world, *conditions), world.run_of(2)
    task.open(run)
    return task.stage(run).stage


@pytest.mark.proof
def test_rows_are_judged_by_what_the_dag_expects_when_they_are_staged_and_open_lets_it_judge_an_undecided_epoch_anew(
    tmp_path: Path,
) -> None:
    world = start(DiskWorld(tmp_path))
    staged(world)
    report = staged(world, "payload IS NULL")  # `open` was cleared, since somebody added the expectation
    with pytest.raises(Refused, match=r"Sink orders voted against it: .* The rows break it"):
        expecting(world, "payload IS NULL").vote(world.run_of(2), report)
    report = staged(world)
    expecting(world, "payload IS NULL").vote(world.run_of(2), report)
    assert world.run(2) is None
    assert_all_rows(world, "orders", "audit")
