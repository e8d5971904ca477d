"""Runs that failed, on a real scheduler: every single task cleared, with the trouble still there and without it.

One pipeline, step by step: an aborted epoch, then one in doubt, then what is left. Each test goes on where the one
before ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_epochs.ledger.ledger import Ledger
from airflow_epochs.ledger.store import open_store
from airflow_epochs.protocol import State
from tests.support.running_stack import DEADLINE_S, STEPS, RunningStack
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.jvm, pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]

DAG = "troubled"
ABORTED, IN_DOUBT = "aborted", "in_doubt"


class Troubled:
    """The pipeline ``troubled`` of a running stack."""

    def __init__(self, running: RunningStack) -> None:
        self.running = running
        self.lake = running.stack.lake / DAG
        self.troubles = running.own / "troubles"
        self.ledger = Ledger(open_store(str(running.stack.ledger)), DAG, checked=False)

    @property
    def position(self) -> tuple[int, State]:
        """The newest complete epoch, and the state of the one after it."""
        newest = self.ledger.newest_complete()
        return newest, self.ledger.view(newest + 1).state

    @property
    def versions(self) -> dict[str, int]:
        """Of each table that there is, its version."""
        tables = {name: self.lake / "silver" / name for name in ("orders", "orders_rejected")}
        return {
            name: DeltaTable(str(path)).version()
            for name, path in tables.items()
            if DeltaTable.is_deltatable(str(path))
        }

    @property
    def told(self) -> int:
        """How often the task behind the pipeline ran."""
        notes = self.troubles / "told"
        return len(notes.read_text().splitlines()) if notes.exists() else 0

    @property
    def alerts(self) -> list[str]:
        """What the notifiers of the DAG have told."""
        notes = self.troubles / "alerts"
        return notes.read_text().splitlines() if notes.exists() else []

    def states(self, run_id: str) -> dict[str, str]:
        return self.running.tasks(DAG, run_id)


@pytest.fixture(scope="module")
def troubled(running: RunningStack) -> Iterator[Troubled]:
    yield Troubled(running)


def failed_at(step: str) -> dict[str, str]:
    """States of a run that was aborted because the step failed."""
    order = [each for each in STEPS if each != "abort"]
    after = order[order.index(step) + 1 :]
    return {each: "upstream_failed" if each in after else "success" for each in order} | {
        step: "failed",
        "abort": "failed",
    }


def test_a_stage_that_fails_ends_in_an_aborted_epoch_and_a_red_run(troubled: Troubled) -> None:
    (troubled.troubles / "stage").touch()
    assert troubled.running.trigger(DAG, ABORTED) == "failed"
    assert troubled.states(ABORTED) == failed_at("stage")
    assert (troubled.position, troubled.versions) == ((0, State.ABORTED), {})


@pytest.mark.parametrize("step", [step for step in STEPS if step != "open"])
def test_clearing_any_single_task_of_an_aborted_run_shows_no_row_while_the_trouble_lasts(
    troubled: Troubled, step: str
) -> None:
    assert troubled.running.clear(DAG, ABORTED, step) == "failed"
    assert troubled.versions == {}
    assert troubled.ledger.newest_complete() == 0


def test_clearing_open_of_an_aborted_run_opens_the_next_attempt_and_abort_ends_it(troubled: Troubled) -> None:
    attempt = troubled.ledger.view(1).epoch.attempt
    assert troubled.running.clear(DAG, ABORTED, "open") == "failed"
    assert troubled.ledger.view(1).epoch.attempt == attempt + 1
    assert troubled.position == (0, State.OPEN)
    troubled.running.clear(DAG, ABORTED, "abort")
    assert (troubled.position, troubled.versions) == ((0, State.ABORTED), {})


def test_clearing_the_failed_tasks_after_the_trouble_finishes_an_aborted_run(troubled: Troubled) -> None:
    (troubled.troubles / "stage").unlink()
    assert troubled.running.clear_failed(DAG, ABORTED) == "success"
    assert troubled.states(ABORTED) == {step: "skipped" if step == "abort" else "success" for step in STEPS}
    assert troubled.ledger.newest_complete() == 1
    assert_once(troubled, shown=4_000)


def test_a_run_that_succeeds_tells_of_the_lag_and_none_before_has_told_of_doubt(troubled: Troubled) -> None:
    wait_until(lambda: troubled.alerts, DEADLINE_S)
    [alert] = troubled.alerts
    found = re.match(r"Pipeline troubled: ([\d,]+) records are unread\. The first has waited for ", alert)
    assert found, alert
    produced = len(troubled.running.places)  # by all modules
    assert int(found[1].replace(",", "")) == produced - 4_000


def assert_once(troubled: Troubled, *, shown: int) -> None:
    """So many records of the topic are shown, each in one row."""
    verdict = troubled.running.verdict(troubled.lake)
    assert (verdict.shown, verdict.duplicated, verdict.strange) == (shown, 0, 0), str(verdict)


def test_a_table_that_is_gone_after_the_decision_leaves_the_epoch_in_doubt_and_the_run_red(troubled: Troubled) -> None:
    (troubled.troubles / "commit").touch()
    assert troubled.running.trigger(DAG, IN_DOUBT) == "failed"
    (troubled.troubles / "commit").unlink()
    assert troubled.states(IN_DOUBT) == {
        **dict.fromkeys(STEPS, "success"),
        "commit.rejected": "failed",
        "complete": "upstream_failed",
        "abort": "skipped",
    }
    assert troubled.position == (1, State.IN_DOUBT)


def test_a_run_that_leaves_an_epoch_in_doubt_tells_of_it(troubled: Troubled) -> None:
    wait_until(lambda: "is in doubt: waits for rejected" in "".join(troubled.alerts), DEADLINE_S)


@pytest.mark.parametrize("step", STEPS)
def test_clearing_any_single_task_of_a_run_in_doubt_repeats_nothing_while_the_trouble_lasts(
    troubled: Troubled, step: str
) -> None:
    before = troubled.versions
    assert list(before) == ["orders"]
    assert troubled.running.clear(DAG, IN_DOUBT, step) == "failed"
    assert (troubled.position, troubled.versions) == ((1, State.IN_DOUBT), before)


def test_while_an_epoch_is_in_doubt_the_next_run_opens_nothing(troubled: Troubled) -> None:
    assert troubled.running.trigger(DAG, "next") == "failed"
    assert troubled.states("next")["open"] == "failed"
    assert troubled.position == (1, State.IN_DOUBT)


def test_clearing_the_failed_tasks_after_the_trouble_finishes_a_run_in_doubt(troubled: Troubled) -> None:
    rejected: Path = troubled.lake / "silver" / "orders_rejected"
    (rejected / "_delta_log_away").rename(rejected / "_delta_log")
    assert troubled.running.clear_failed(DAG, IN_DOUBT) == "success"
    assert troubled.ledger.newest_complete() == 2
    assert_once(troubled, shown=8_000)


def test_a_whole_run_cleared_because_the_task_behind_the_pipeline_failed_runs_that_task(troubled: Troubled) -> None:
    (troubled.troubles / "behind").touch()
    assert troubled.running.trigger(DAG, "behind") == "failed"
    assert troubled.states("behind") == {step: "skipped" if step == "abort" else "success" for step in STEPS}
    newest, told = troubled.ledger.newest_complete(), troubled.told
    (troubled.troubles / "behind").unlink()
    assert troubled.running.clear_all(DAG, "behind") == "success"
    assert troubled.states("behind") == {step: "skipped" if step == "abort" else "success" for step in STEPS}
    assert (troubled.ledger.newest_complete(), troubled.told) == (newest, told + 1)


def test_runs_that_follow_take_what_is_left_once(troubled: Troubled) -> None:
    assert troubled.running.clear_failed(DAG, "next") == "success"
    for number in range(9):
        troubled.running.trigger(DAG, f"more_{number}")
        if (verdict := troubled.running.verdict(troubled.lake)).exactly_once:
            return
    raise AssertionError(str(verdict))
