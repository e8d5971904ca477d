"""A process dies at every named phase and before and after every effect; the epoch is still shown exactly once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from airflow_epochs.testing import Crash, Observed
from tests.support.scenario import BOTH, Scenario, crashes, moments, observed_run, run

SINKS = [("orders",), ("orders", "audit")]

Recovery = Callable[[Scenario], object]

RECOVERIES: dict[str, Recovery] = {
    "the same run is cleared": lambda scenario: scenario.airflow_run(run(1)),
    "another run opens": lambda scenario: scenario.airflow_run(run(2)),
}


@pytest.mark.proof
@pytest.mark.parametrize("sinks", SINKS, ids=len)
@pytest.mark.parametrize("recovery", RECOVERIES)
def test_a_crash_at_any_moment_leaves_exactly_one_epoch(sinks: tuple[str, ...], recovery: str) -> None:
    seen = moments(sinks)
    assert len(seen) > 35
    for at in range(len(seen)):
        scenario = Scenario(sinks)
        assert crashes(partial(observed_run, scenario, 1, Observed(at=at)))
        RECOVERIES[recovery](scenario)
        scenario.settle()
        scenario.check_every_row()


@pytest.mark.proof
@pytest.mark.parametrize("sinks", SINKS, ids=len)
@pytest.mark.parametrize("recovery", RECOVERIES)
def test_after_a_crash_at_any_moment_the_tasks_behind_are_told_of_every_complete_epoch(
    sinks: tuple[str, ...], recovery: str
) -> None:
    """Also if the dead run is never cleared; but for one that died in ``complete`` itself, which Airflow repeats."""
    seen = moments(sinks)
    closed = seen.index("after put orders/epochs/00000000000000000001/complete.json")
    for at in range(len(seen)):
        scenario = Scenario(sinks)
        assert crashes(partial(observed_run, scenario, 1, Observed(at=at)))
        RECOVERIES[recovery](scenario)
        if at >= closed:
            scenario.coordinator().complete(run(1))
            scenario.told.append(1)
        scenario.settle()
        assert sorted(set(scenario.told)) == list(range(1, scenario.ledger.newest_complete() + 1))


@dataclass
class Effects(Observed):
    """Sees effects only, once each: between two of them the world does not change."""

    def __call__(self, moment: str) -> None:
        if moment.startswith("after "):
            super().__call__(moment)


@pytest.mark.few(2)
@pytest.mark.proof
@pytest.mark.parametrize("sinks", SINKS, ids=len)
@pytest.mark.parametrize("second", [1, 2], ids=["the same run", "another run"])
def test_a_crash_during_the_recovery_from_a_crash_leaves_exactly_one_epoch(sinks: tuple[str, ...], second: int) -> None:
    effects = Effects()
    observed_run(Scenario(sinks), 1, effects)
    for first in range(len(effects.seen)):
        again, died = 0, True
        while died:
            scenario = Scenario(sinks)
            assert crashes(partial(observed_run, scenario, 1, Effects(at=first)))
            died = crashes(partial(observed_run, scenario, second, Effects(at=again)))
            scenario.settle()
            scenario.check_every_row()
            again += 1
        assert again > 3, "the recovery has effects of its own"


@pytest.mark.proof
@pytest.mark.parametrize("runs", [1, 2, 3])
def test_runs_in_a_row_that_die_before_they_sweep_leave_no_place_behind(runs: int) -> None:
    scenario = Scenario(BOTH)

    def dies_when_complete(moment: str) -> None:
        if moment == "complete.landed":
            raise Crash(moment)

    for number in range(1, runs + 1):
        assert crashes(partial(observed_run, scenario, number, dies_when_complete))
        assert scenario.ledger.newest_complete() == number
        scenario.produce(2)
    scenario.settle()
    scenario.check_every_row()


def test_every_effect_of_the_coordinator_has_a_named_phase_before_it() -> None:
    """Crash tests on real stores stop at phases: no two kinds of effect may share one."""
    seen = moments(("orders",))
    named = [moment for moment in seen if " " not in moment]
    assert named == [
        "open.put",
        "open.landed",
        "stage.start",
        "stage.done",
        "decision.put",
        "decision.landed",
        "commit.orders",
        "committed.orders",
        "complete.put",
        "complete.landed",
    ]
