"""Runs without a fault, which a deliberate defect must leave alone. The mutation gate names this file."""

from __future__ import annotations

from tests.support.scenario import BOTH, Scenario, run


def test_runs_that_nothing_disturbs_end_without_an_error() -> None:
    scenario = Scenario(BOTH)
    for number in (1, 2, 3):
        assert scenario.airflow_run(run(number)) is None
        scenario.produce(4)
