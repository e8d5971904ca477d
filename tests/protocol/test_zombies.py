"""A process is paused at every moment, somebody else finishes the epoch, the process wakes: it changes nothing."""

from __future__ import annotations

from functools import partial

import pytest

from airflow_epochs.errors import Corrupt, EpochError, Fenced
from airflow_epochs.protocol import State
from airflow_epochs.testing import Crash, Observed
from tests.support.scenario import Scenario, crashes, moments, nested, observed_run, run

SINKS = [("orders",), ("orders", "audit")]

TABLES_AND_RECORDS = tuple[dict[str, object], dict[str, bytes]]


def state_of(scenario: Scenario) -> TABLES_AND_RECORDS:
    """What is decided and shown. A zombie may still note its tries, and fill places that nobody looks at."""
    records = {key: value for key, value in scenario.world.store.values.items() if "/epochs/" in key}
    return dict(scenario.world.tables), {key: value for key, value in records.items() if ".try." not in key}


@pytest.mark.proof
@pytest.mark.few(3)
@pytest.mark.parametrize("sinks", SINKS, ids=len)
@pytest.mark.parametrize("keep_epochs", [1000, 0], ids=["kept", "pruned at once"])
@pytest.mark.parametrize("other", [1, 2], ids=["the same run, cleared", "another run"])
def test_a_zombie_that_wakes_after_its_epoch_was_finished_changes_nothing(
    sinks: tuple[str, ...], keep_epochs: int, other: int
) -> None:
    for at in range(len(moments(sinks))):
        scenario = Scenario(sinks, keep_epochs)
        finished: list[TABLES_AND_RECORDS] = []

        def finish(scenario: Scenario = scenario, finished: list[TABLES_AND_RECORDS] = finished) -> None:
            assert scenario.airflow_run(run(other)) is None
            finished.append(state_of(scenario))

        error = observed_run(scenario, 1, Observed(at=at, then=nested(scenario, finish)))
        assert not isinstance(error, Corrupt), "a late process is no reason to call a human"
        tables, records = state_of(scenario)
        assert tables == finished[0][0]
        if keep_epochs:
            assert records == finished[0][1]
        assert scenario.ledger.newest_complete() == 1
        scenario.produce(2)
        assert scenario.airflow_run(run(3)) is None
        scenario.check_every_row()
        if keep_epochs:
            scenario.check()


@pytest.mark.proof
@pytest.mark.few(2)
@pytest.mark.parametrize("sinks", SINKS, ids=len)
@pytest.mark.parametrize("epochs_later", [1, 2])
def test_a_zombie_that_wakes_epochs_later_changes_nothing(sinks: tuple[str, ...], epochs_later: int) -> None:
    for at in range(len(moments(sinks))):
        scenario = Scenario(sinks)
        finished: list[TABLES_AND_RECORDS] = []

        def finish(scenario: Scenario = scenario, finished: list[TABLES_AND_RECORDS] = finished) -> None:
            for number in range(epochs_later + 1):
                assert scenario.airflow_run(run(2 + number)) is None
                scenario.produce(2)
            finished.append(state_of(scenario))

        error = observed_run(scenario, 1, Observed(at=at, then=nested(scenario, finish)))
        assert not isinstance(error, Corrupt)
        if error is None and scenario.ledger.newest_complete() == epochs_later + 2:
            assert at < moments(sinks).index("open.put"), "it had opened nothing yet and is no zombie"
        else:
            assert state_of(scenario) == finished[0]
        scenario.settle()
        scenario.check_every_row()


def test_what_a_zombie_stages_epochs_later_is_cleared_away_when_its_epoch_is_pruned() -> None:
    scenario = Scenario(keep_epochs=4)

    def four_epochs() -> None:
        for number in range(2, 6):
            assert scenario.airflow_run(run(number)) is None
            scenario.produce(2)

    def asleep(moment: str) -> None:
        if moment.startswith("before stage "):
            nested(scenario, four_epochs)()
        if moment.startswith("after stage "):
            raise Crash(moment)

    assert crashes(lambda: observed_run(scenario, 1, asleep))
    [place] = scenario.world.litter()
    assert "/1-1-" in place
    assert scenario.airflow_run(run(6)) is None
    assert scenario.world.litter() == set()
    scenario.check_every_row()


@pytest.mark.proof
def test_of_two_runs_that_open_at_once_one_gets_the_epoch_and_the_other_is_told_who() -> None:
    fenced = 0
    for at in range(moments(("orders",)).index("open.landed") + 1):
        scenario = Scenario()
        other = scenario.coordinator()
        observer = Observed(at=at, then=nested(scenario, partial(other.open, run(2))))
        scenario.world.observe(observer)
        error = None
        try:
            scenario.coordinator(observer=observer).open(run(1))
        except EpochError as raised:
            error = raised
        scenario.world.observe(lambda moment: None)
        view = scenario.ledger.view(1)
        assert view.state is State.OPEN and view.open
        if error:
            fenced += 1
            assert isinstance(error, Fenced) and "now belongs to run run 2 of DAG dag" in str(error)
            assert view.open.run == run(2)
        scenario.settle()
        scenario.check_every_row()
    assert fenced


@pytest.mark.parametrize("at", range(100), ids=str)
@pytest.mark.parametrize("sinks", [("orders", "audit")], ids=len)
def test_a_run_interrupted_at_any_moment_by_the_first_half_of_another_still_ends_in_one_epoch(
    sinks: tuple[str, ...], at: int
) -> None:
    """The other run stages and votes but does not commit: both then find each other's traces."""
    scenario = Scenario(sinks)

    def half() -> None:
        coordinator = scenario.coordinator()
        try:
            coordinator.open(run(2))
            coordinator.vote(run(2), coordinator.stage(run(2)).stage)
        except EpochError:
            return

    observer = Observed(at=at, then=nested(scenario, half))
    error = observed_run(scenario, 1, observer)
    assert not isinstance(error, Corrupt)
    scenario.settle()
    scenario.check_every_row()
