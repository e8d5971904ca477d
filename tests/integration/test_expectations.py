"""Expectations of rows, over a real broker, Spark and Delta: counted while the rows are staged, and voted on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from airflow_epochs import DeltaSink, expect, expect_row_count
from airflow_epochs.coordinator.coordinator import Coordinator
from airflow_epochs.errors import Refused
from airflow_epochs.expectations import Expectations
from airflow_epochs.model import Run
from airflow_epochs.spark.driver import expectations as driver_expectations
from airflow_epochs.spark.driver.plans import Rules, SinkOutcome
from airflow_epochs.testing import Crash
from tests.support.faults_world import crash
from tests.support.spark_world import APPS
from tests.support.state_lab import Lab

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(300)]


def audited(lab: Lab, expectations: Expectations, function: str = "clicks", **options: Any) -> Coordinator:
    sinks = lab.outputs("clicks")
    if function == "doubled":
        sinks.append(DeltaSink("newest", lab.at("newest"), mode="upsert", keys=["page"]))
    app = APPS / "audited.py"
    return lab.task("audited", function, tuple(sinks), None, app=app, expectations=expectations, **options)


def shown(lab: Lab) -> list[tuple[Any, ...]]:
    return sorted(lab.rows("clicks", "page, n"))


def test_rows_that_break_an_expectation_abort_the_epoch_in_every_sink_until_its_remedy_is_followed(lab: Lab) -> None:
    lab.produce((0, "a", 1, 1), (1, "b", -2, 1), (2, "c", -3, 1))
    expected: Expectations = {"newest": [expect("n >= 0")], "clicks": [expect_row_count(min=1)]}
    with pytest.raises(Refused, match="EPOCHS-EXPECTATION-UNMET") as refused:
        lab.run(audited(lab, expected, "doubled"))
    said = str(refused.value)
    assert "2 of 3 rows break the expectation 'n >= 0', for example page='" in said
    assert "change or remove the expectation" in said
    assert not Path(lab.at("clicks")).joinpath("_delta_log").exists(), "no sink may show the epoch"
    lab.run_all(lambda: audited(lab, {**expected, "newest": [expect("n >= -3")]}, "doubled"))
    assert shown(lab) == [("a", 1), ("b", -2), ("c", -3)]
    assert sorted(lab.rows("newest", "page, n")) == shown(lab)


@pytest.mark.long
def test_some_rows_may_break_an_expectation_and_some_only_warn(lab: Lab) -> None:
    lab.produce((0, "a", 1, 1), (1, "b", -2, 1), (2, "c", 3, 1))
    expected: Expectations = {
        "clicks": [expect("n >= 0", max_fraction=0.34), expect("n > 1", otherwise="warn", show=["page"])]
    }
    run, task = Run("dag", "warned"), audited(lab, expected)
    task.open(run)
    report = task.stage(run).stage
    assert report
    assert report.metrics["broken"] == {"clicks": {"n >= 0": 1, "n > 1": 2}}
    [warning] = [text for text in report.warnings if "expectation" in text]
    assert warning.startswith("Sink clicks: 2 of 3 rows break the expectation 'n > 1', for example page='")
    lab.run_all(lambda: audited(lab, expected))
    assert shown(lab) == [("a", 1), ("b", -2), ("c", 3)]
    lab.produce((0, "d", -1, 2), (1, "e", 5, 2))
    with pytest.raises(Refused, match=r"1 of 2 rows break the expectation 'n >= 0', and 34\.000% may\."):
        lab.run(audited(lab, expected))
    assert len(shown(lab)) == 3


def test_a_row_whose_condition_is_null_breaks_it_and_a_number_of_rows_may_be_out_of_range(lab: Lab) -> None:
    lab.produce((0, "a", 1, 1), (1, "b" * 9_000, 2, 1))
    wrong: Expectations = {"clicks": [expect("nullif(n, 2) > 0", show=["page"]), expect_row_count(min=3, max=9)]}
    with pytest.raises(Refused, match="EPOCHS-EXPECTATION-UNMET") as refused:
        lab.run(audited(lab, wrong))
    assert f"break the expectation 'nullif(n, 2) > 0', for example page='{'b' * 58}…." in str(refused.value)
    assert "The sink gets 2 rows, and at least 3 and at most 9 are expected." in str(refused.value)


def test_a_date_that_only_spark_knows_is_shown_as_an_example(session: Any) -> None:
    rows = session.sql("select date_from_unix_date(2147483647) as day, 1 as n")
    rules = Rules(rows=(expect("day < '9999-12-31'", show=["day", "n"]),))
    found = driver_expectations.audited(rows, rules, lambda frame: SinkOutcome(place=f"{frame.count()} rows"))
    assert (found.claim.unmet or "").endswith("for example day='+5881580-07-11', n=1.")


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("condition", "show", "said"),
    [
        ("m > 0", [], "m"),
        ("n +", [], "PARSE_SYNTAX_ERROR"),
        ("n + 1", [], "BIGINT"),
        ("sum(n) > 0", [], "INVALID_WHERE_CONDITION"),
        ("n > 0", ["nobody"], "nobody"),
    ],
)
def test_a_condition_that_cannot_be_computed_is_refused_before_rows_are_staged(
    lab: Lab, condition: str, show: list[str], said: str
) -> None:
    lab.produce((0, "a", 1, 1))
    with pytest.raises(Refused, match="EPOCHS-EXPECTATION-INVALID") as refused:
        lab.run(audited(lab, {"clicks": [expect(condition, show=show)]}))
    assert said in str(refused.value)
    assert not re.search(r"SQLSTATE|pos \d|;\.?$", refused.value.what), "a place in a statement that nobody sees"
    lab.run_all(lambda: audited(lab, {"clicks": [expect("n > 0")]}))
    assert shown(lab) == [("a", 1)]


@pytest.mark.parametrize("phase", ["stage.done", "decision.landed"])
def test_an_epoch_with_expectations_that_is_killed_shows_its_rows_once(lab: Lab, phase: str) -> None:
    lab.produce((0, "a", 1, 1), (1, "b", 2, 1))
    expected: Expectations = {"clicks": [expect("n > 0"), expect_row_count(min=2)]}
    with pytest.raises(Crash):
        lab.run(audited(lab, expected, then={phase: crash}))
    lab.run_all(lambda: audited(lab, expected))
    assert shown(lab) == [("a", 1), ("b", 2)]


def test_promised_rows_are_staged_again_whatever_is_expected_by_then(lab: Lab) -> None:
    lab.produce((0, "a", 1, 1))
    run, task = Run("dag", "promised"), audited(lab, {"clicks": [expect("n > 0")]})
    task.open(run)
    task.vote(run, task.stage(run).stage)
    (place,) = (found.places["clicks"] for found in task.task.ledger.tries(1))
    for file in Path(place).rglob("*.parquet"):
        file.unlink()
    stricter = audited(lab, {"clicks": [expect("n > 7")]})
    stricter.commit(run, "clicks")
    stricter.complete(run)
    assert len(stricter.task.ledger.restaged(1, "clicks")) == 1
    assert shown(lab) == [("a", 1)]
