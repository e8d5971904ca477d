"""An attempt that has no dead letters says so where a row was refused that could have been one, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_epochs import codes
from airflow_epochs.errors import Code, Refused
from airflow_epochs.expectations import Expectations, expect
from airflow_epochs.testing import memory_coordinator
from tests.support.scenario import Scenario, run

WHY = "This attempt has no dead letters: it was opened before the DAG had the sink 'rejected', which gets them."
QUARANTINED: Expectations = {"orders": [expect("n > 0", otherwise="quarantine")]}


def aborted(reason: str, expectations: Expectations | None = None) -> Refused:
    """The error of an attempt in which the sink votes so, and whose DAG has got dead letters since it was opened."""
    scenario = Scenario()
    report = scenario.coordinator().stage(run(1)).stage if scenario.coordinator().open(run(1)) else None
    scenario.world.refusals["orders"] = reason
    sinks = scenario.with_sinks("orders", "rejected").pipeline.sinks
    today = replace(scenario.pipeline, sinks=sinks, dead_letters="rejected", expectations=expectations or {})
    with pytest.raises(Refused) as stopped:
        memory_coordinator(scenario.world, today).vote(run(1), report)
    return stopped.value


@pytest.mark.parametrize(
    "code",
    [
        *(codes.ROWS_UNFIT, codes.DELTA_ROWS_UNFIT, codes.TOPIC_ROWS_UNFIT),
        *(codes.SQL_ROWS_UNFIT, codes.SQL_ROW_REFUSED, codes.BAD_RECORD),
    ],
)
def test_a_row_that_is_refused_where_there_are_no_dead_letters_is_told_with_the_reason_for_that(code: Code) -> None:
    assert WHY in aborted(Refused("A row has a NUL.", code=code).reason).what


def test_a_row_that_breaks_a_quarantine_where_there_are_no_dead_letters_is_told_with_the_reason_for_that() -> None:
    unmet = Refused("2 rows break it.", code=codes.EXPECTATION_UNMET).reason
    assert WHY in aborted(unmet, QUARANTINED).what
    assert WHY not in aborted(unmet, {"orders": [expect("n > 0")]}).what


@pytest.mark.parametrize(
    "reason",
    [
        Refused("It is another marker.", code=codes.DELTA_MARKER_CHANGED).reason,
        Refused("Files are gone.", code=codes.STAGED_INCOMPLETE).reason,
        Refused("A marker is EPOCHS-BAD-RECORD: x.", code=codes.SQL_MARKER_CHANGED).reason,
        "The table is closed on Sundays.",
    ],
)
def test_a_vote_that_is_not_about_a_row_says_nothing_of_dead_letters(reason: str) -> None:
    assert "dead letters" not in str(aborted(reason, QUARANTINED))
